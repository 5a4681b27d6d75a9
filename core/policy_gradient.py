"""The policy-gradient core: ratios, surrogates, divergences and advantages for control, flow policies and text.

A unit is what has one log-probability in a ratio: an environment step, a denoising step, a token. Every function
takes tensors and a mask, and gives terms per unit; `core.masked.reduce` makes a loss of them. Three policies may
differ: the one that is trained (`log_prob`), the one that the ratio is taken to (`proximal_log_prob`) and the one
that acted (`behaviour_log_prob`). PPO's last two are the same.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surefoot.core.errors import ConfigError, nearest
from surefoot.core.masked import group_moments, keep, masked_mean, masked_sum

LARGEST_LOG_RATIO = 20.0
"""Log-ratios are cut here before they are exponentiated."""
LEVELS = ("unit", "chain", "sequence")
BASELINES = ("none", "mean", "meanstd", "loo")


# -- ratios ------------------------------------------------------------------------------------------------


def log_ratio(log_prob: Tensor, proximal_log_prob: Tensor, mask: Tensor | None = None, level: str = "unit") -> Tensor:
    """Log of the ratio of probabilities of units, of whole chains or, per unit on average, of sequences.

    Args:
        log_prob: (..., U) of the policy that is trained, with gradient.
        proximal_log_prob: (..., U) of the policy that the step must stay near, from the same function and dtype.
        mask: broadcastable.
        level: "unit" (PPO, GRPO), "chain" the sum over U (ReinFlow, RLOO), "sequence" the mean over U (GSPO).

    Returns:
        (..., U), 0 where masked; (..., 1) for "chain" and "sequence", whose mask is `core.masked.sequence_mask`.

    Raises:
        ConfigError: an unknown level.
    """
    if level not in LEVELS:
        raise ConfigError(f"unknown level {level!r} of a ratio: {nearest(level, LEVELS)}")
    difference = keep(log_prob - proximal_log_prob.detach(), mask)
    if level == "unit":
        return difference
    return (masked_sum if level == "chain" else masked_mean)(difference, mask, -1, keepdim=True)


def ratio(log_ratios: Tensor) -> Tensor:
    """exp of log-ratios cut to +-20: never infinite."""
    return log_ratios.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()


def behaviour_weight(
    proximal_log_prob: Tensor,
    behaviour_log_prob: Tensor,
    mask: Tensor | None = None,
    level: str = "unit",
    *,
    low: float = 0.0,
    high: float = 2.0,
    reject: bool = False,
) -> Tensor:
    """Weights proximal / behaviour for samples of another policy than the proximal one, without gradient.

    Args:
        proximal_log_prob: (..., U).
        behaviour_log_prob: (..., U) of the policy that acted.
        mask: broadcastable.
        level: as in `log_ratio`.
        low: smallest weight that is kept, with `reject`.
        high: largest weight.
        reject: give 0 to weights outside [low, high] (masked importance sampling) instead of cutting those above
            `high` (truncated). Divide the loss by the number of units before the rejection.

    Returns:
        (..., U), or (..., 1); 0 where masked at the level of units.

    Source: Espeholt et al., "IMPALA", for the truncation; Hilton et al., "Batch size-invariance for policy
    optimization", for the decoupled form.
    """
    weights = ratio(log_ratio(proximal_log_prob, behaviour_log_prob, mask, level)).detach()
    if reject:
        weights = torch.where((weights >= low) & (weights <= high), weights, 0.0)
    else:
        weights = weights.clamp(max=high)
    return keep(weights, mask) if level == "unit" else weights


# -- surrogates: terms to be minimised ---------------------------------------------------------------------


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
    low = lowest if isinstance(lowest, Tensor) else rho.new_tensor(lowest)
    high = highest if isinstance(highest, Tensor) else rho.new_tensor(highest)
    return torch.minimum(torch.maximum(rho, low), high)


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


def ratio_metrics(log_ratios: Tensor, clipped: Tensor | None = None, mask: Tensor | None = None) -> dict[str, Tensor]:
    """What a log shows of an update: KL(proximal || trained) by k1 and k3, the largest ratio, the clip fraction.

    Args:
        log_ratios: (...), samples being of the proximal policy.
        clipped: as from `clip_surrogate`.
        mask: broadcastable.

    Returns:
        "kl_k1", "kl_k3", "ratio_max" and, with `clipped`, "clip_fraction"; scalars without gradient.
    """
    logs = keep(log_ratios.detach(), mask)
    rho = ratio(logs)
    metrics = {
        "kl_k1": masked_mean(-logs, mask),
        "kl_k3": masked_mean(rho - 1 - logs, mask),
        "ratio_max": keep(rho, mask).amax(),
    }
    if clipped is not None:
        metrics["clip_fraction"] = masked_mean(clipped.to(rho.dtype), mask)
    return metrics


# -- estimates of KL(pi || reference) from samples of pi ---------------------------------------------------


def kl_k1(log_prob: Tensor, reference_log_prob: Tensor, mask: Tensor | None = None) -> Tensor:
    """log pi - log ref: unbiased, may be negative; for rewards only, its gradient as a loss is 0 on average."""
    return keep(log_prob - reference_log_prob, mask)


def kl_k2(log_prob: Tensor, reference_log_prob: Tensor, mask: Tensor | None = None) -> Tensor:
    """(log pi - log ref)^2 / 2: biased, but its gradient as a loss is that of KL(pi || ref)."""
    return 0.5 * keep(log_prob - reference_log_prob, mask).square()


def kl_k3(log_prob: Tensor, reference_log_prob: Tensor, mask: Tensor | None = None) -> Tensor:
    """ref/pi - 1 - log(ref/pi): unbiased and never negative; as a loss, the gradient of KL(ref || pi).

    Source: Schulman, "Approximating KL Divergence" (2020), for k1, k2 and k3.
    """
    difference = keep(reference_log_prob - log_prob, mask)
    return difference.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).expm1() - difference


# -- advantages --------------------------------------------------------------------------------------------


@torch.no_grad()
def group_baseline(
    returns: Tensor, groups: Tensor | int, mode: str = "mean", mask: Tensor | None = None, eps: float = 1e-4
) -> Tensor:
    """Advantages of samples against others of the same group (the same prompt or start), without gradient.

    Args:
        returns: (M,); a NaN is a sample that could not be scored: it gets 0 and counts for nothing.
        groups: (M,) integers, or k where each k rows in a row are a group.
        mode: "none" R; "mean" R - mean (Dr.GRPO); "meanstd" (R - mean) / (std + eps) with the unbiased std (GRPO);
            "loo" R - mean of the others (RLOO).
        mask: (M,).
        eps: in units of the returns.

    Returns:
        (M,); 0 where masked, and except for "none" 0 in groups of one and of equal returns.

    Raises:
        ConfigError: an unknown mode, or rows that k does not divide.

    Source: Shao et al., "DeepSeekMath" (GRPO); Liu et al. (Dr.GRPO); Kool et al. and Ahmadian et al. (RLOO).
    """
    if mode not in BASELINES:
        raise ConfigError(f"unknown group baseline {mode!r}: {nearest(mode, BASELINES)}")
    scored = ~returns.isnan() if mask is None else (mask != 0) & ~returns.isnan()
    kept = scored.to(returns.dtype)
    if mode == "none":
        return keep(returns, kept)
    if isinstance(groups, int):
        if len(returns) % groups:
            raise ConfigError(f"{len(returns)} returns can't be split into groups of {groups}: give a multiple of it")
        groups = torch.arange(len(returns), device=returns.device) // groups
    mean, variance, count = group_moments(returns, groups, kept)
    advantages = returns - mean
    if mode == "meanstd":
        advantages = advantages / (variance.sqrt() + eps)
    elif mode == "loo":
        advantages = advantages * count / (count - 1).clamp(min=1)
    return keep(advantages, kept)


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


# -- step sizes --------------------------------------------------------------------------------------------


def adaptive_lr(
    kl: Tensor, learning_rate: Tensor, target: float, factor: float = 1.5, lowest: float = 1e-5, highest: float = 1e-2
) -> Tensor:
    """The next learning rate: divided by `factor` where KL > 2 target, multiplied where 0 < KL < target / 2.

    A KL of 0 is that of a policy not yet stepped (the first minibatch), and says nothing.

    Args:
        kl: scalar or one per seed, in nats.
        learning_rate: likewise.
        target: in nats.
        factor: above 1.
        lowest: bound.
        highest: bound.

    Source: Schulman et al., "Proximal Policy Optimization", section 4, with the constants of Rudin et al. (rsl_rl).
    """
    down = (learning_rate / factor).clamp(min=lowest)
    up = (learning_rate * factor).clamp(max=highest)
    slow = (kl > 0) & (kl < target / 2)
    return torch.where(kl > 2 * target, down, torch.where(slow, up, learning_rate))


def kl_stop(kl: Tensor, target: float | None) -> Tensor:
    """Bool, like `kl`: whether a policy has gone further than `target` nats, and this batch's updates should end."""
    return torch.zeros_like(kl, dtype=torch.bool) if target is None else kl > target
