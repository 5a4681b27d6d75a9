"""Advantages without a critic, and along token sequences with one. None has a gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.losses.masked import group_moments, keep, masked_variance, normalise
from surefoot.core.losses.returns import gae, shifted_values

BASELINES = ("none", "mean", "meanstd", "loo", "batchstd")


def group_numbers(rows: Tensor, groups: Tensor | int) -> Tensor:
    """The group of each row, numbered from 0: (M,) int64.

    Args:
        rows: (M,), for its length and device.
        groups: (M,) integers, or k where each k rows in a row are a group.

    Raises:
        ConfigError: rows that k does not divide.
    """
    if isinstance(groups, int):
        if len(rows) % groups:
            raise ConfigError(f"{len(rows)} returns can't be split into groups of {groups}: give a multiple of it")
        return torch.arange(len(rows), device=rows.device) // groups
    return torch.unique(groups, return_inverse=True)[1]


@torch.no_grad()
def group_baseline(
    returns: Tensor, groups: Tensor | int, mode: str = "mean", mask: Tensor | None = None, eps: float = 1e-4
) -> Tensor:
    """Advantages of samples against others of the same group (the same prompt or start), without gradient.

    Args:
        returns: (M,); a NaN is a sample that could not be scored: it gets 0 and counts for nothing.
        groups: (M,) integers, or k where each k rows in a row are a group.
        mode: "none" R; "mean" R - mean (Dr.GRPO); "meanstd" (R - mean) / (std + eps) with the unbiased std (GRPO);
            "loo" R - mean of the others (RLOO); "batchstd" (R - mean) / (std of all returns + eps) (Lite PPO).
        mask: (M,).
        eps: in units of the returns.

    Returns:
        (M,); 0 where masked, and except for "none" 0 in groups of one and of equal returns.

    Raises:
        ConfigError: an unknown mode, or rows that k does not divide.

    Source: Shao et al., "DeepSeekMath" (GRPO); Liu et al. (Dr.GRPO); Kool et al. and Ahmadian et al. (RLOO);
    Liu et al., "Tricks or Traps?" (Lite PPO).
    """
    if mode not in BASELINES:
        raise ConfigError(f"unknown group baseline {mode!r}: {nearest(mode, BASELINES)}")
    scored = ~returns.isnan() if mask is None else (mask != 0) & ~returns.isnan()
    kept = scored.to(returns.dtype)
    if mode == "none":
        return keep(returns, kept)
    mean, variance, count = group_moments(returns, group_numbers(returns, groups), kept)
    advantages = returns - mean
    if mode == "meanstd":
        advantages = advantages / (variance.sqrt() + eps)
    elif mode == "batchstd":
        advantages = advantages / (masked_variance(keep(returns, kept), kept).sqrt() + eps)
    elif mode == "loo":
        advantages = advantages * count / (count - 1).clamp(min=1)
    return keep(advantages, kept)


@torch.no_grad()
def pairwise_baseline(better: Tensor, references: Tensor, groups: Tensor | int, largest: float = 0.6) -> Tensor:
    """+1 for answers judged better than one random answer of their group, -1 for others, 0 for that one.

    Groups that are too one-sided, |sum of advantages| / size > `largest`, get 0.

    Args:
        better: (M,) bool, judged better than the reference in both orders.
        references: (M,) bool, True for one row of each group.
        groups: (M,) integers, or k.
        largest: in [0, 1].

    Returns:
        (M,).

    Source: Jia et al., "Writing-Zero" (BRPO), from summaries of the paper.
    """
    found = torch.where(better, 1.0, -1.0).masked_fill(references, 0.0)
    mean, _, _ = group_moments(found, group_numbers(found, groups))
    return torch.where(mean.abs() > largest, torch.zeros_like(found), found)


@torch.no_grad()
def best_of_group(returns: Tensor, groups: Tensor | int) -> Tensor:
    """1 for the first best row of each group and 0 for the others, as weights of a likelihood: (M,).

    Groups whose returns are all NaN get 0.

    Source: Dong et al., "RAFT: Reward rAnked FineTuning", the local ranking.
    """
    group = group_numbers(returns, groups)
    scored = returns.nan_to_num(nan=-torch.inf)
    best = torch.full_like(scored, -torch.inf).scatter_reduce_(0, group, scored, "amax")[group]
    rows = torch.arange(len(returns), device=returns.device)
    candidates = torch.where((scored == best) & ~returns.isnan(), rows, len(returns))
    first = torch.full_like(rows, len(returns)).scatter_reduce_(0, group, candidates, "amin")[group]
    return (rows == first).to(returns.dtype)


@torch.no_grad()
def top_share(returns: Tensor, share: float) -> Tensor:
    """1 for the best `share` of all rows, ties by order, and 0 for the others: (M,). RAFT's global ranking."""
    scored = returns.nan_to_num(nan=-torch.inf)
    count = max(1, round(share * len(returns)))
    best = torch.sort(scored, descending=True, stable=True).indices[:count]
    return keep(torch.zeros_like(returns).index_fill(0, best, 1.0), ~returns.isnan())


@torch.no_grad()
def within_deviations(advantages: Tensor, mask: Tensor | None = None, largest: float = 3.0) -> Tensor:
    """Whitened advantages, 0 where they are more than `largest` standard deviations from their mean.

    Args:
        advantages: (...).
        mask: broadcastable.
        largest: in standard deviations.

    Source: Zhang et al., "R1-Reward" (StableReinforce), the advantage filter.
    """
    white = normalise(advantages, mask)
    return torch.where(white.abs() <= largest, white, torch.zeros_like(white))


@torch.no_grad()
def token_returns(rewards: Tensor, mask: Tensor | None = None, discount: float = 1.0) -> Tensor:
    """Sums of the rewards to come along the last dimension; masked units (a tool's answer) neither discount nor cut.

    Args:
        rewards: (..., U).
        mask: broadcastable; rewards under it count for nothing.
        discount: for each kept unit.

    Returns:
        (..., U), 0 where masked.
    """
    ends = torch.zeros_like(rewards).movedim(-1, 0)
    kept = None if mask is None else mask.expand_as(rewards).movedim(-1, 0)
    found, _ = gae(rewards.movedim(-1, 0), ends, ends, ends, ends, discount, 1.0, kept)
    return found.movedim(0, -1)


@torch.no_grad()
def token_gae(
    rewards: Tensor, values: Tensor, mask: Tensor | None = None, discount: float = 1.0, trace: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Generalised advantages and returns along the last dimension of complete sequences; masked units are passed over.

    Args:
        rewards: (..., U).
        values: (..., U).
        mask: broadcastable, 0 at units that are no action of the policy.
        discount: for each kept unit.
        trace: lambda.

    Returns:
        (..., U) each, 0 where masked. `core.losses.returns.gae` has the ends and cuts of environments.
    """
    kept = None if mask is None else mask.expand_as(rewards).movedim(-1, 0)
    v = values.movedim(-1, 0)
    none = torch.zeros_like(v)
    following = shifted_values(v, torch.zeros_like(v[0]), kept)
    advantages, returns = gae(rewards.movedim(-1, 0), v, following, none, none, discount, trace, kept)
    return advantages.movedim(0, -1), returns.movedim(0, -1)


@torch.no_grad()
def step_rewards_to_go(
    step_rewards: Tensor, steps: Tensor, groups: Tensor | int, mask: Tensor | None = None, eps: float = 1e-4
) -> Tensor:
    """Advantages of process rewards: step rewards normalised over all steps of a group, then summed from each unit on.

    Args:
        step_rewards: (M, U), read where `steps` is 1.
        steps: (M, U), 1 at the last unit of each reasoning step.
        groups: (M,) integers, or k.
        mask: (M, U).
        eps: in units of the rewards.

    Returns:
        (M, U), 0 where masked.

    Source: Shao et al., "DeepSeekMath", section 4.1.3 (process supervision).
    """
    group = group_numbers(step_rewards[:, 0], groups).unsqueeze(-1).expand_as(step_rewards)
    mean, variance, _ = group_moments(step_rewards.flatten(), group.flatten(), steps.flatten())
    scaled = (step_rewards.flatten() - mean) / (variance.sqrt() + eps)
    return token_returns(keep(scaled.view_as(step_rewards), steps), mask)
