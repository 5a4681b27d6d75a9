"""ObGD: steps that can't overshoot, from eligibility traces. Pure functions of K networks at once.

Source: Elsayed, Vasan and Mahmood, "Streaming Deep Reinforcement Learning Finally Works", algorithm 3 and appendix B.
"""

from __future__ import annotations

import torch
from torch import Tensor


def accumulate(traces: Tensor, gradient: Tensor, decay: float | Tensor) -> Tensor:
    """z <- decay z + g: accumulating traces (K, P); `decay` is gamma lambda, or (K, 1) with 0 where traces are cut."""
    return decay * traces + gradient


def bounded_step(direction: Tensor, delta: Tensor, kappa: float, step_size: float = 1.0) -> Tensor:
    r"""(K,) ObGD's step for (K, P) directions and (K,) TD errors.

    .. math:: a = \alpha / \max(M, 1), \quad M = \alpha \kappa \max(|\delta|, 1) \|z\|_1

    The norm is over all parameters of a network, so that a step moves them by 1 / kappa at most in sum.
    """
    bound = step_size * kappa * delta.abs().clamp(min=1) * direction.abs().sum(-1)
    return step_size / bound.clamp(min=1)


def obgd_step(
    weights: Tensor, traces: Tensor, delta: Tensor, *, kappa: float, step_size: float = 1.0
) -> tuple[Tensor, Tensor]:
    """w + a delta z, and the step a: (K, P) weights and traces, (K,) TD errors -> (K, P), (K,)."""
    step = bounded_step(traces, delta, kappa, step_size)
    return weights + (step * delta).unsqueeze(-1) * traces, step


def adaptive_obgd_step(
    weights: Tensor,
    traces: Tensor,
    second: Tensor,
    count: Tensor,
    delta: Tensor,
    *,
    kappa: float,
    step_size: float = 1.0,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Adaptive ObGD: the trace divided by the root of the second moment of :math:`\delta z`.

    .. math::
        v &\leftarrow \beta_2 v + (1 - \beta_2) (\delta z)^2 \\
        u &= z / \sqrt{v / (1 - \beta_2^n) + \epsilon}, \quad w \leftarrow w + a \delta u

    Args:
        weights: (K, P).
        traces: (K, P) z, this step's gradient included.
        second: (K, P) v.
        count: (K,) n of this step, the first being 1.
        delta: (K,) TD errors.
        kappa: of the bound on u.
        step_size: alpha.
        beta2: decay of v.
        epsilon: inside the root.

    Returns:
        New weights, new second moments, and the step a (K,).
    """
    error = delta.unsqueeze(-1)
    second = beta2 * second + (1 - beta2) * (error * traces).square()
    correction = (1 - beta2 ** count.to(torch.float64)).to(weights.dtype).unsqueeze(-1)
    direction = traces / (second / correction + epsilon).sqrt()
    step = bounded_step(direction, delta, kappa, step_size)
    return weights + step.unsqueeze(-1) * error * direction, second, step


def sgd_step(weights: Tensor, traces: Tensor, delta: Tensor, *, learning_rate: float) -> Tensor:
    """w + learning_rate delta z, without a bound: what ObGD replaces."""
    return weights + (learning_rate * delta).unsqueeze(-1) * traces
