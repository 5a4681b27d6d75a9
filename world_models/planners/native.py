"""Plans in native systems: one native call, or one kernel on a GPU, equal to the planner's own within rounding."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from surefoot.core.actors.memory import DRAWS, Memory
from surefoot.cuda_ext.gpu import is_gpu, usable
from surefoot.cuda_ext.plan import PlanSettings, plan_rows, plans_natively
from surefoot.world_models.draws import colouring
from surefoot.world_models.dynamics import Dynamics
from surefoot.world_models.futures import Objective, noisy_futures
from surefoot.world_models.known.exact import NativeDynamics
from surefoot.world_models.planners.base import PLAN
from surefoot.world_models.risk import CVaR, Mean, WorstCase

SMALL_WORK = 50_000
"""Steps of candidates below which a second thread is not worth its start."""


def native_plan(
    dynamics: Dynamics,
    states: Tensor,
    memory: Memory,
    objective: Objective,
    noise: Tensor | None,
    settings: PlanSettings,
    color: float = 0.0,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Last mean, best candidate and last elites; None where this can't be planned natively.

    It can in float32 in a native system, for any futures that keep their member, with the mean, CVaR or worst case of
    them, with or without a cost limit, and without given noise.
    """
    if not isinstance(dynamics, NativeDynamics) or dynamics.backend != "native" or noise is not None:
        return None
    tail, worlds = tail_of(objective), worlds_of(dynamics, objective)
    if tail is None or worlds is None or states.dtype != torch.float32:
        return None
    if not (usable() if is_gpu(states.device) else plans_natively()):
        return None
    plan = memory[PLAN]
    work = objective.futures * len(plan) * plan.shape[1] * sum(settings.populations)
    return plan_rows(
        dynamics.system,
        worlds,
        dataclasses.replace(settings, tail=tail, noisy=noisy_futures(dynamics, objective)),
        memory[DRAWS],
        states,
        plan,
        keep,
        colouring(plan.shape[1], color),
        1 if work < SMALL_WORK else dynamics.threads or torch.get_num_threads(),
    )


def worlds_of(dynamics: NativeDynamics, objective: Objective) -> Tensor | None:
    """(F, P) the constants of each future, as `future_member` chooses them; None where they change."""
    futures, members = objective.futures, dynamics.members
    if futures == 1 or members == 1 or objective.spread not in ("both", "epistemic"):
        return dynamics.nominal().expand(futures, -1)
    if objective.propagation == "ts1":
        return None
    return dynamics.parameters[torch.arange(futures) % members]


def tail_of(objective: Objective) -> int | None:
    """How many of the worst futures the risk is the mean of; None where it is another."""
    risk, futures = objective.risk, objective.futures
    if isinstance(risk, Mean):
        return futures
    if isinstance(risk, WorstCase):
        return 1
    return risk.worst(futures) if isinstance(risk, CVaR) else None
