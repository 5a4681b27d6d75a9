"""Ratios of probabilities at the level of units, messages, chains and sequences; weights for foreign samplers."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.losses.masked import keep, masked_count, masked_mean, masked_sum

LARGEST_LOG_RATIO = 20.0
"""Log-ratios are cut here before they are exponentiated."""
LEVELS = ("unit", "chain", "sequence")


def log_ratio(log_prob: Tensor, proximal_log_prob: Tensor, mask: Tensor | None = None, level: str = "unit") -> Tensor:
    """Log of the ratio of probabilities of units, of whole chains or, per unit on average, of sequences.

    Args:
        log_prob: (..., U) of the policy that is trained, with gradient.
        proximal_log_prob: (..., U) of the policy that the step must stay near, from the same function and dtype.
        mask: broadcastable.
        level: "unit" (PPO, GRPO), "chain" the sum over U (ReinFlow, RLOO), "sequence" the mean over U (GSPO).

    Returns:
        (..., U), 0 where masked; (..., 1) for "chain" and "sequence", whose mask is `core.losses.masked.sequence_mask`.

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


def sequence_log_ratio_of_units(log_prob: Tensor, proximal_log_prob: Tensor, mask: Tensor | None = None) -> Tensor:
    """Log-ratio of the whole sequence in value, each unit's own in gradient: for advantages that differ by unit.

    log s_t = sg(mean over units of the log-ratio) + log pi_t - sg(log pi_t).

    Args:
        log_prob: (..., U) with gradient.
        proximal_log_prob: (..., U).
        mask: broadcastable.

    Returns:
        (..., U), 0 where masked.

    Source: Zheng et al., "Group Sequence Policy Optimization", eq. (14) (GSPO-token).
    """
    whole = log_ratio(log_prob, proximal_log_prob, mask, "sequence").detach()
    return keep(whole + log_prob - log_prob.detach(), mask)


def message_log_ratio(
    log_prob: Tensor, proximal_log_prob: Tensor, messages: Tensor, count: int, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One log-ratio for each message (turn, agent's action) of a sequence: the sum over its units.

    Args:
        log_prob: (B, U) with gradient.
        proximal_log_prob: (B, U).
        messages: (B, U) integers in [0, count): which message a unit belongs to.
        count: M, the most messages of a sequence.
        mask: (B, U).

    Returns:
        (B, M) log-ratios, and their mask: 1 where a message has any unit that is kept.

    Source: Liao et al., "MARFT", action-level optimisation.
    """
    difference = log_ratio(log_prob, proximal_log_prob, mask)
    ones = torch.ones_like(difference)
    there = ones if mask is None else keep(ones, mask)
    empty = difference.new_zeros(len(difference), count)
    units = empty.scatter_add(1, messages, there)
    return empty.scatter_add(1, messages, difference), (units > 0).to(difference.dtype)


def behaviour_accepts(
    proximal_log_prob: Tensor,
    behaviour_log_prob: Tensor,
    mask: Tensor | None = None,
    *,
    low: float = 0.999,
    high: float = 1.001,
) -> Tensor:
    """Whether the geometric mean of a sequence's ratios proximal / behaviour lies within bounds: (..., 1) of 0 and 1.

    A test, never a weight: it decides on whole sequences whose units `behaviour_weight` weighs. Multiply terms
    by it and divide by the number of units before the rejection.

    Source: the sequence mask of OpenRLHF and the rollout correction of verl.
    """
    mean = ratio(log_ratio(proximal_log_prob, behaviour_log_prob, mask, "sequence")).detach()
    return ((mean >= low) & (mean <= high)).to(mean.dtype)


def weight_metrics(
    proximal_log_prob: Tensor, behaviour_log_prob: Tensor, mask: Tensor | None = None, high: float = 2.0
) -> dict[str, Tensor]:
    """How far the policy that acted is from the proximal one.

    Args:
        proximal_log_prob: (..., U).
        behaviour_log_prob: (..., U).
        mask: broadcastable.
        high: where weights are cut.

    Returns:
        "gap_mean", "gap_max" of |difference of log-probabilities|; "effective_share", (sum w)^2 / (n sum w^2) of the
        unit weights; "cut_fraction", the share of weights above `high`; "behaviour_kl", KL(behaviour || proximal)
        by k3.
    """
    logs = log_ratio(proximal_log_prob.detach(), behaviour_log_prob, mask)
    weights = ratio(logs)
    count = masked_count(weights, mask)
    squares = masked_sum(weights.square(), mask)
    return {
        "gap_mean": masked_mean(logs.abs(), mask),
        "gap_max": logs.abs().amax(),
        "effective_share": masked_sum(weights, mask).square() / (count * squares).clamp(min=1e-30),
        "cut_fraction": masked_mean((weights > high).to(weights.dtype), mask),
        "behaviour_kl": masked_mean(weights - 1 - logs, mask),
    }


def limited_log_ratio(log_prob: Tensor, behaviour: Tensor, limit: float | None) -> tuple[Tensor, Tensor]:
    """(B,) log-ratios of normalised log-densities, cut to +- `limit`, and 1 where that has left no gradient.

    Args:
        log_prob: (B,) with gradient.
        behaviour: (B,) of the policy that acted.
        limit: None for no cut.
    """
    if limit is None:
        return log_ratio(log_prob, behaviour), torch.zeros_like(behaviour)
    cut = (log_prob.detach().abs() > limit).to(behaviour.dtype)
    return log_ratio(log_prob.clamp(-limit, limit), behaviour.clamp(-limit, limit)), cut
