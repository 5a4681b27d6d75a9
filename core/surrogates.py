"""Surrogates: terms to be minimised, one for each unit or sequence."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surefoot.core.masked import keep
from surefoot.core.ratios import LARGEST_LOG_RATIO, ratio


def reinforce_surrogate(
    log_prob: Tensor, advantages: Tensor, weights: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """-w A log pi: REINFORCE, A2C, and with `weights` their off-policy form.

    Args:
        log_prob: (...) with gradient.
        advantages: broadcastable.
        weights: broadcastable, e.g. `behaviour_weight`.
        mask: broadcastable.

    Returns:
        Terms, 0 where masked.

    Source: Williams, "Simple Statistical Gradient-Following Algorithms" (1992).
    """
    factor = advantages.detach() if weights is None else advantages.detach() * weights.detach()
    return -keep(factor, mask) * keep(log_prob, mask)


def clip_surrogate(
    log_ratios: Tensor,
    advantages: Tensor,
    low: float | Tensor | None = 0.2,
    high: float | Tensor | None = None,
    dual: float | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """-min(rho A, clip(rho, 1 - low, 1 + high) A), and where rho was outside.

    Args:
        log_ratios: (...), from `log_ratio`.
        advantages: broadcastable.
        low: epsilon below 1, or a tensor of them (`stage_clip`); None does not clip: -rho A.
        high: epsilon above 1; None for `low`. DAPO's "clip higher" is high > low.
        dual: c > 1; the objective is not below c A where A < 0. None for no such bound.
        mask: broadcastable.

    Returns:
        Terms, 0 where masked; and a bool tensor, True where rho is outside the clip range and not masked.

    Source: Schulman et al., "Proximal Policy Optimization", eq. (7); Ye et al. (2020), eq. (5), for the dual clip.
    """
    advantages = keep(advantages.detach(), mask)
    rho = ratio(keep(log_ratios, mask))
    objective = rho * advantages
    clipped = torch.zeros_like(rho, dtype=torch.bool)
    if low is not None:
        lowest, highest = 1 - low, 1 + (low if high is None else high)
        objective = torch.minimum(objective, _clip(rho, lowest, highest) * advantages)
        clipped = (rho < lowest) | (rho > highest)
    if dual is not None:
        objective = torch.where(advantages < 0, torch.maximum(objective, dual * advantages), objective)
    return -keep(objective, mask), clipped


def _clip(rho: Tensor, lowest: float | Tensor, highest: float | Tensor) -> Tensor:
    """`clamp`, which takes two numbers or two tensors and no mixture."""
    return torch.minimum(torch.maximum(rho, _as_tensor(rho, lowest)), _as_tensor(rho, highest))


def _as_tensor(like: Tensor, value: float | Tensor) -> Tensor:
    """A number as a () tensor, filled on the device: `new_tensor` copies it there, which a CUDA graph can't hold."""
    return value if isinstance(value, Tensor) else like.new_full((), value)


def cispo_surrogate(
    log_ratios: Tensor, log_prob: Tensor, advantages: Tensor, largest: float, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """-sg(min(rho, largest)) A log pi, and where rho was above: no unit's gradient is lost, only its weight bounded.

    Args:
        log_ratios: (...).
        log_prob: (...) with gradient.
        advantages: broadcastable.
        largest: the largest weight (1 + epsilon high).
        mask: broadcastable.

    Source: MiniMax, "MiniMax-M1" (CISPO), eq. (4).
    """
    rho = ratio(keep(log_ratios, mask)).detach()
    return reinforce_surrogate(log_prob, advantages, rho.clamp(max=largest), mask), rho > largest


def spo_surrogate(
    log_ratios: Tensor, advantages: Tensor, epsilon: float, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """-(rho A - |A| (rho - 1)^2 / (2 epsilon)), and where rho was beyond 1 +- epsilon: a pull back, and no clip.

    Args:
        log_ratios: (...), from `log_ratio`.
        advantages: broadcastable.
        epsilon: where the objective is at its best for an advantage above 0: rho = 1 + epsilon.
        mask: broadcastable.

    Source: Xie et al., "Simple Policy Optimization" (2024).
    """
    advantages = keep(advantages.detach(), mask)
    rho = ratio(keep(log_ratios, mask))
    objective = rho * advantages - advantages.abs() * (rho - 1).square() / (2 * epsilon)
    return -keep(objective, mask), (rho - 1).abs() > epsilon


def sapo_surrogate(
    log_ratios: Tensor, advantages: Tensor, positive: float = 1.0, negative: float = 1.05, mask: Tensor | None = None
) -> Tensor:
    """-f(rho) A with the gate f(rho) = 4 / tau sigmoid(tau (rho - 1)), whose slope is 1 at rho = 1.

    Args:
        log_ratios: (...), from `log_ratio`.
        advantages: broadcastable.
        positive: tau where A > 0.
        negative: tau elsewhere; a larger one lets ratios fade sooner.
        mask: broadcastable.

    Returns:
        Terms, 0 where masked.

    Source: Gao et al., "Soft Adaptive Policy Optimization".
    """
    advantages = keep(advantages.detach(), mask)
    rho = ratio(keep(log_ratios, mask))
    temperature = torch.where(advantages > 0, _as_tensor(rho, positive), _as_tensor(rho, negative))
    return -keep(torch.sigmoid(temperature * (rho - 1)) * (4 / temperature) * advantages, mask)


def vespo_weight(log_ratios: Tensor, power: Tensor, rate: Tensor) -> Tensor:
    """phi(W) = W^k exp(lambda (1 - W)), 1 at W = 1 and largest at W = k / lambda, without gradient.

    Args:
        log_ratios: (..., 1) log W, over the whole sequence ("chain").
        power: k, broadcastable.
        rate: lambda, broadcastable.
    """
    logs = log_ratios.detach().clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    return (power * logs + rate * (1 - logs.exp())).exp()


def vespo_surrogate(
    log_ratios: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    positive: tuple[float, float] = (2.0, 3.0),
    negative: tuple[float, float] = (3.0, 2.0),
    mask: Tensor | None = None,
) -> Tensor:
    """-sg(phi(W)) A log pi for each unit, W the ratio of whole sequences to the policy that acted.

    W holds the correction for the policy that acted: multiply by no other weight.

    Args:
        log_ratios: (..., 1), `log_ratio` at level "chain" to the policy that acted.
        log_prob: (..., U) with gradient.
        advantages: (..., 1) or (..., U).
        positive: (k, lambda) where A >= 0.
        negative: (k, lambda) where A < 0.
        mask: broadcastable.

    Returns:
        (..., U), 0 where masked.

    Source: Shen et al., "VESPO", with the constants of its released code.
    """
    up = advantages.detach() >= 0
    power = torch.where(up, _as_tensor(log_prob, positive[0]), _as_tensor(log_prob, negative[0]))
    rate = torch.where(up, _as_tensor(log_prob, positive[1]), _as_tensor(log_prob, negative[1]))
    return reinforce_surrogate(log_prob, advantages, vespo_weight(log_ratios, power, rate), mask)


def stage_weights(stages: int, discount: float, device: torch.device | None = None) -> Tensor:
    """discount^(K - 1 - k) for denoising step k: (K,) float32, the last step, nearest the action, weighing 1 (DPPO)."""
    return discount ** torch.arange(stages - 1, -1, -1, dtype=torch.float32, device=device)


def stage_clip(stages: int, low: float, high: float, rate: float, device: torch.device | None = None) -> Tensor:
    """Clip range of each denoising step, growing exponentially from `low` at the first to `high` at the last.

    Returns:
        (K,) float32: low + (high - low) (e^(rate k / (K - 1)) - 1) / (e^rate - 1); `low` for a single step.

    Source: Ren et al., "Diffusion Policy Policy Optimization", appendix.
    """
    progress = torch.arange(stages, dtype=torch.float32, device=device) / max(stages - 1, 1)
    share = progress if rate == 0 else torch.expm1(rate * progress) / math.expm1(rate)
    return low + (high - low) * share
