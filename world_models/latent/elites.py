"""Plans by importance: the elites among samples, their weights, and the distribution that is refitted to them.

Source: Williams, Aldrich and Theodorou, "Model Predictive Path Integral Control using Covariance Variable Importance
Sampling"; with elites as in Hansen, Wang and Su, "Temporal Difference Learning for Model Predictive Control".
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

WORST = -1e30
"""Return of a plan whose own is not a number: worse than any, and finite, so that plans that are all so weigh alike."""


class Refit(NamedTuple):
    """What the elites among sampled plans say."""

    mean: Tensor
    """(..., H, A) weighted mean of their actions."""
    std: Tensor
    """(..., H, A) weighted standard deviation, within the range."""
    elites: Tensor
    """(..., E, H, A) their actions, the best first."""
    weights: Tensor
    """(..., E) of sum 1."""


def refit(returns: Tensor, actions: Tensor, elites: int, temperature: float, std_range: tuple[float, float]) -> Refit:
    r"""Weighted mean and deviation of the elites, with weights :math:`w_i \propto \exp(\tau (G_i - \max_j G_j))`.

    Args:
        returns: (..., N); NaN counts as worse than any number.
        actions: (..., N, H, A).
        elites: E, how many of the best count.
        temperature: tau >= 0, by the unit of the returns: the larger, the more the best one counts.
        std_range: least and greatest deviation.
    """
    best, places = returns.nan_to_num(nan=WORST, neginf=WORST).topk(elites, -1)
    index = places[..., None, None].expand(*places.shape, *actions.shape[-2:])
    chosen = actions.gather(-3, index)
    weights = torch.softmax(temperature * (best - best[..., :1]), -1)
    shares = weights[..., None, None]
    mean = (shares * chosen).sum(-3)
    variance = (shares * (chosen - mean.unsqueeze(-3)).square()).sum(-3)
    return Refit(mean, variance.sqrt().clamp(*std_range), chosen, weights)


def gumbel(normal: Tensor) -> Tensor:
    """Standard Gumbel numbers of standard normal ones, elementwise, through both distribution functions."""
    uniform = torch.special.ndtr(normal).clamp(1e-7, 1 - 1e-7)
    return -(-uniform.log()).log()


def drawn_elite(found: Refit, normal: Tensor) -> Tensor:
    """(..., H, A) one of the elites, with its weight for its probability.

    Args:
        found: of `refit`.
        normal: (..., E) standard normal; the largest of log weight plus Gumbel noise is drawn.
    """
    place = (found.weights.log() + gumbel(normal)).argmax(-1)
    index = place[..., None, None, None].expand(*place.shape, 1, *found.elites.shape[-2:])
    return found.elites.gather(-3, index).squeeze(-3)


def shifted(plan: Tensor) -> Tensor:
    """(..., H, A) a plan one step later, its last action 0: where the next search begins."""
    return torch.cat([plan[..., 1:, :], torch.zeros_like(plan[..., :1, :])], -2)
