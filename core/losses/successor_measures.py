r"""Losses of forward-backward representations: where a policy goes, as products of two maps.

:math:`M_i[j, k] = F_i(s_j, a_j, z_j) \cdot B(s'_k)` is how often, discounted and relative to the data's density, row
k's next state is visited from row j's state on. Of n rows, the diagonal pairs a row with its own next state.

Source: Touati and Ollivier, "Learning One Representation to Optimize All Rewards" (NeurIPS 2021); Touati, Rapin and
Ollivier, "Does Zero-Shot Reinforcement Learning Exist?" (ICLR 2023); Jeen, Bewley and Cullen, "Zero-Shot Reinforcement
Learning from Low Quality Data" (NeurIPS 2024).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def off_diagonal_mean(values: Tensor) -> Tensor:
    """(...,) mean of (..., n, n) over pairs of different rows, n >= 2."""
    rows = values.shape[-1]
    own = values.diagonal(dim1=-2, dim2=-1).sum(-1)
    return (values.sum((-2, -1)) - own) / (rows * (rows - 1))


def measure_loss(measures: Tensor, targets: Tensor) -> Tensor:
    r"""() :math:`\sum_i \frac12 E_{j \ne k} (M_i[j, k] - \hat M[j, k])^2 - E_j M_i[j, j]`.

    Args:
        measures: (E, n, n), with gradient.
        targets: (n, n) at the next states, already discounted.
    """
    errors = off_diagonal_mean((measures - targets).square())
    return (errors / 2 - measures.diagonal(dim1=-2, dim2=-1).mean(-1)).sum()


def orthonormality_loss(embedded: Tensor) -> Tensor:
    r"""() :math:`E_{j \ne k} (B_j \cdot B_k)^2 - 2 E_j |B_j|^2` of (n, D), least where :math:`E B B^T` is 1."""
    products = embedded @ embedded.transpose(-1, -2)
    return off_diagonal_mean(products.square()) - 2 * embedded.square().sum(-1).mean()


def value_penalty(sampled: Tensor, own: Tensor, tasks: Tensor, copies: int = 0) -> Tensor:
    r"""() :math:`\sum_i E_j [\log \sum_k e^{F_i(s_j, a_k, z_j) \cdot z_j} - F_i(s_j, a_j, z_j) \cdot z_j]`.

    Args:
        sampled: (E, K, n, D) F of considered actions.
        own: (E, n, D) F of the data's actions.
        tasks: (n, D).
        copies: how often the data's actions are among those considered, beside the K.
    """
    values, data = (sampled * tasks).sum(-1), (own * tasks).sum(-1)
    return (_soft_maximum(values, data, copies) - data).mean(-1).sum()


def measure_penalty(sampled: Tensor, own: Tensor, embedded: Tensor, copies: int = 0) -> Tensor:
    r"""() :math:`\sum_i E_{j, l} [\log \sum_k e^{F_i(s_j, a_k, z_j) \cdot B(s'_l)} - M_i[j, l]]`.

    Args:
        sampled: (E, K, n, D) F of considered actions.
        own: (E, n, D) F of the data's actions.
        embedded: (n, D) B of next states.
        copies: how often the data's actions are among those considered, beside the K.
    """
    across = embedded.transpose(-1, -2)
    values, data = sampled @ across, own @ across
    return (_soft_maximum(values, data, copies) - data).mean((-2, -1)).sum()


def _soft_maximum(values: Tensor, data: Tensor, copies: int) -> Tensor:
    """Logarithm of the sum of exponentials over dimension 1, `copies` of the data's values among them."""
    if copies:
        values = torch.cat([values, data.unsqueeze(1) + math.log(copies)], 1)
    return values.logsumexp(1)


def reward_direction(embedded: Tensor, rewards: Tensor) -> Tensor:
    """(D,) mean of (n,) rewards times the (n, D) embeddings of where they are paid: a task, up to its length."""
    return (rewards.unsqueeze(-1) * embedded).mean(-2)
