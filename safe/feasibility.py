"""FISOR's equations as pure functions: what Q_h is regressed on, and the weights of the policy's regression."""

from __future__ import annotations

import torch
from torch import Tensor


def feasible_target(signals: Tensor, terminations: Tensor, following: Tensor, discount: float) -> Tensor:
    """(B,) what Q_h is regressed on: (1 - g) h + g max(h, V_h(s')), h itself where the step was terminal; no gradient.

    Args:
        signals: (B,) h of the step, > 0 where it violates.
        terminations: (B,) 1 where the step ended the task.
        following: (B,) V_h of the next state.
        discount: g in [0, 1].

    Source: Fisac et al., "Bridging Hamilton-Jacobi Safety Analysis and Reinforcement Learning", in FISOR's sign.
    """
    backed_up = (1 - discount) * signals + discount * torch.maximum(signals, following)
    return (backed_up + terminations * (signals - backed_up)).detach()


def feasibility_weights(
    feasible_value: Tensor,
    feasible_q: Tensor,
    reward_advantage: Tensor,
    reward_temperature: float = 3.0,
    cost_temperature: float = 5.0,
    reward_limit: float = 100.0,
    cost_limits: tuple[float, float] = (0.0, 150.0),
) -> Tensor:
    """(B,) weights of the data's actions in the policy's loss.

    In feasible states exp(reward_temperature A_r) up to `reward_limit` for actions that stay feasible, and 0 for the
    others; in infeasible ones exp(cost_temperature (V_h - Q_h)) within `cost_limits`. Values of 0 count as feasible.

    Args:
        feasible_value: (B,) V_h.
        feasible_q: (B,) largest Q_h.
        reward_advantage: (B,) A_r.
        reward_temperature: >= 0.
        cost_temperature: >= 0.
        reward_limit: largest weight in feasible states.
        cost_limits: least and largest weight in infeasible ones.

    Source: Zheng et al., the weights of the policy's regression; the limits are those of the authors' code.
    """
    by_reward = (reward_temperature * reward_advantage).exp().clamp(max=reward_limit)
    by_safety = (cost_temperature * (feasible_value - feasible_q)).exp().clamp(*cost_limits)
    staying = torch.where(feasible_q <= 0, by_reward, 0.0)
    return torch.where(feasible_value <= 0, staying, by_safety)
