"""Returns as distributions: targets and losses of categorical and quantile values, elementwise over a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.core.losses.value_learning import huber_loss


def shifted_categorical(probabilities: Tensor, atoms: Tensor, rewards: Tensor, reach: Tensor) -> Tensor:
    r"""Probabilities on the atoms of the return :math:`r + c z`, where z has `probabilities` on the same atoms.

    .. math:: m_i = \textstyle\sum_j p_j\, [1 - |\,[r + c z_j]_{z_1}^{z_N} - z_i| / \Delta z]_0^1

    Computed as hat functions, which needs no index: the same under `vmap` and in a CUDA graph.

    Args:
        probabilities: (B, N) of the return that follows.
        atoms: (N,) z, rising and evenly spaced.
        rewards: (B,) r, in the units of the atoms.
        reach: (B,) c, the discount, 0 where the task ended.

    Returns:
        (B, N) without gradient, of sum 1 where that of `probabilities` is.

    Source: Bellemare, Dabney and Munos, "A Distributional Perspective on Reinforcement Learning" (2017), eq. (7).
    """
    moved = (rewards.unsqueeze(-1) + reach.unsqueeze(-1) * atoms).clamp(atoms[0], atoms[-1])
    width = (atoms[-1] - atoms[0]) / (atoms.shape[0] - 1)
    share = (1 - (moved.unsqueeze(-2) - atoms.unsqueeze(-1)).abs() / width).clamp(0, 1)
    return (share * probabilities.unsqueeze(-2)).sum(-1).detach()


def quantile_loss(quantiles: Tensor, targets: Tensor, transition: float = 1.0) -> Tensor:
    r"""Quantile Huber loss between predicted quantiles and samples of the target.

    .. math:: L = \textstyle\sum_i \frac{1}{M} \sum_j |\tau_i - 1(u_{ij} < 0)|\, h(u_{ij}) / \kappa,
        \quad u_{ij} = y_j - \theta_i, \quad \tau_i = (i + \tfrac12) / N

    with Huber's h, quadratic where :math:`|u| < \kappa`.

    Args:
        quantiles: (B, N) theta.
        targets: (B, M) y, which get no gradient.
        transition: kappa > 0, in the units of the returns.

    Returns:
        (B,) losses.

    Source: Dabney, Rowland, Bellemare and Munos, "Distributional Reinforcement Learning with Quantile Regression"
    (2018), eq. (10).
    """
    count = quantiles.shape[-1]
    levels = (torch.arange(count, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / count
    difference = targets.detach().unsqueeze(-2) - quantiles.unsqueeze(-1)
    weight = torch.where(difference < 0, 1 - levels.unsqueeze(-1), levels.unsqueeze(-1))
    return (weight * huber_loss(difference, transition)).mean(-1).sum(-1)
