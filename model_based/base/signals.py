"""The alarm's signals, as metrics of losses and rules: what values and imagined rows say of a model's exploitation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surefoot.core.engine.agent import Metrics
from surefoot.world_models.imagine import Rollouts
from surefoot.world_models.reach import edge_share

MET = ("lowest_reward", "highest_reward")
"""Metrics of `met_signals`: of all rewards met so far and 0."""


def met_limits(lowest: Tensor, highest: Tensor, discount: float) -> Tensor:
    """(5,) what rewards met so far allow values to be, of an agent that is still acting.

    Lowest and highest value, the best, and the lowest and highest reward. The best episode is still to come, so that
    what stands for it is the highest value.
    """
    horizon = 1 / max(1 - discount, 1e-9)
    low, high = lowest.clamp(max=0) * horizon, highest.clamp(min=0) * horizon
    return torch.stack([low, high, high, lowest, highest])


def over_best(found: Tensor, best: Tensor) -> Tensor:
    """() a return over the data's best, r / b; 1 + (r - b) / abs(b) where that is below 0, no number where it is 0."""
    return torch.where(best != 0, 1 + (found - best) / best.abs(), torch.nan)


def value_signals(q: Tensor, limits: Tensor, discount: float, temperature: Tensor, action_dim: int) -> Metrics:
    """What is reported of (N, B) soft values.

    Args:
        q: of the batch's rows.
        limits: lowest and highest value without entropy, and the data's best (`alarm.Limits`, or `met_limits`).
        discount: in [0, 1].
        temperature: () weight of the entropy in the values; 0 where they have none.
        action_dim: A; the entropy of an action in [-1, 1]^A is at most A log 2, which values may have at each step.

    Returns:
        The values, and what they are to the limits: no number where every reward was 0, which have no size.
    """
    low, high, best = limits[:3]
    high = high + temperature.detach() * (action_dim * math.log(2) / max(1 - discount, 1e-9))
    mean = q.mean()
    return {
        "q": q,
        "q_max": q.amax(),
        "value_excess": torch.where(high > low, (mean - high) / (high - low).clamp(min=1e-6), torch.nan),
        "value_over_best": torch.where(limits[1] > low, (mean - low) / (best - low).clamp(min=1e-6), torch.nan),
    }


def met_signals(q: Tensor, rewards: Tensor, met: tuple[Tensor, Tensor], discount: float) -> Metrics:
    """What is reported of values without entropy of an agent that keeps the limits of the rewards that it has met
    itself.

    Args:
        q: (N, B) values.
        rewards: of the batch.
        met: lowest and highest of the rewards before and 0, which are to follow the metrics `MET`.
        discount: in [0, 1].
    """
    low, high = torch.minimum(met[0], rewards.min()), torch.maximum(met[1], rewards.max())
    signals = value_signals(q, met_limits(low, high, discount), discount, torch.zeros_like(low), 1)
    return {**signals, **dict(zip(MET, (low, high), strict=True))}


def reward_excess(reward: Tensor, lowest: Tensor, highest: Tensor) -> Tensor:
    """() how far a mean reward is above the highest, in units of their range, or of a tenth of their size if more.

    Constant rewards have no range.
    """
    scale = torch.maximum(highest - lowest, 0.1 * torch.maximum(lowest.abs(), highest.abs()))
    return (reward - highest) / scale.clamp(min=1e-6)


def imagined_signals(found: Rollouts, rewards: Tensor, real_ratio: float) -> Metrics:
    """What is reported of imagined rows.

    Args:
        found: as they are learned from.
        rewards: lowest and highest that the task gives.
        real_ratio: share of a batch's rows that are not imagined.
    """
    lowest, highest = rewards
    valid = found.valid.to(found.states.dtype)
    goes_on = found.valid & (found.terminations == 0)  # an end that a method makes has a reward of its own
    reward = torch.where(goes_on, found.rewards, 0).sum() / goes_on.sum().clamp(min=1)
    return {
        "imagined_reward": reward,
        "imagined_steps": valid.sum(0).mean(),
        "reward_excess": reward_excess(reward, lowest, highest),
        "edge_share": (1 - real_ratio) * edge_share(found),
    }
