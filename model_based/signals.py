"""The alarm's signals, as metrics of losses and rules: what values and imagined rows say of a model's exploitation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surefoot.core.agent import Metrics
from surefoot.world_models.imagine import Rollouts
from surefoot.world_models.reach import edge_share


def value_signals(q: Tensor, limits: Tensor, discount: float, temperature: Tensor, action_dim: int) -> Metrics:
    """What is told of (N, B) soft values.

    Args:
        q: of the batch's rows.
        limits: lowest and highest value without entropy, and the data's best (`alarm.Limits`), huge where unknown.
        discount: in [0, 1].
        temperature: () weight of the entropy in the values; 0 where they have none.
        action_dim: A; the entropy of an action in [-1, 1]^A is at most A log 2, which values may have at each step.
    """
    low, high, best = limits[:3]
    high = high + temperature.detach() * (action_dim * math.log(2) / max(1 - discount, 1e-9))
    mean = q.mean()
    return {
        "q": q,
        "q_max": q.amax(),
        "value_excess": (mean - high) / (high - low).clamp(min=1e-6),
        "value_over_best": (mean - low) / (best - low).clamp(min=1e-6),
    }


def reward_excess(reward: Tensor, lowest: Tensor, highest: Tensor) -> Tensor:
    """() how far a mean reward is above the highest, in units of their range, or of a tenth of their size if more.

    Constant rewards have no range.
    """
    scale = torch.maximum(highest - lowest, 0.1 * torch.maximum(lowest.abs(), highest.abs()))
    return (reward - highest) / scale.clamp(min=1e-6)


def imagined_signals(found: Rollouts, rewards: Tensor, real_ratio: float) -> Metrics:
    """What is told of imagined rows.

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
