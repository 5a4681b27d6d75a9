"""Whole plans in native code: candidates drawn, rolled out and fitted to, for many states of a system in one call."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surefoot import cuda_ext
from surefoot.cuda_ext.gpu import is_gpu
from surefoot.cuda_ext.operation import constants_of, sizes_of
from surefoot.cuda_ext.plan_settings import PlanSettings
from surefoot.cuda_ext.system import System


def plans_natively() -> bool:
    """Whether the native module is there and has plans (one that was built before them has not)."""
    return hasattr(cuda_ext.native(), "plan")


def plan_rows(
    system: System,
    parameters: Tensor,
    settings: PlanSettings,
    draws: Tensor,
    states: Tensor,
    plan: Tensor,
    keep: Tensor | None = None,
    colouring: Tensor | None = None,
    threads: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Plans of B states.

    Args:
        system: a native one.
        parameters: (F, P) of its dynamics, a row for each future of all candidates.
        settings: of the plan.
        draws: (B, 2) int64 seeds in [0, 2^32) and counts.
        states: (B, S).
        plan: (B, H, A) where the plans begin, in [-1, 1].
        keep: (B, kept, H, A) elites to begin with.
        colouring: (H, H) lower triangle that white noise is multiplied by.
        threads: of the processor; rows are shared among them.

    Returns:
        (B, H, A) last means, (B, H, A) best candidates seen (of elites), (B, kept, H, A) last elites; float32.

    On a GPU where the states are there (`gpu_plan`).
    """
    rows, horizon, width = plan.shape
    mean = plan.detach().to(torch.float32).clone(memory_format=torch.contiguous_format)
    elites = plan.new_zeros(rows, 0, horizon, width) if keep is None else keep
    elites = elites.detach().to(torch.float32).clone(memory_format=torch.contiguous_format)
    best = torch.empty_like(mean)
    if is_gpu(states.device):
        from surefoot.cuda_ext.gpu_plan import plan_on_gpu

        plan_on_gpu(system, parameters, settings, draws, states, mean, best, elites, colouring)
        return mean, best, elites
    module = cuda_ext.native()
    assert module is not None
    constants = constants_of(system)
    given = (
        constants.get("matrices", torch.zeros(1)),
        constants["low"],
        constants["high"],
        parameters.detach().to(torch.float32).contiguous(),
        torch.zeros(0) if colouring is None else colouring.to(torch.float32).contiguous(),
        draws.to(torch.int64).contiguous(),
        states.detach().to(torch.float32).contiguous(),
    )
    averages = settings.temperature is not None
    module.plan(
        system.native_name(),
        sizes_of(system),
        horizon,
        list(settings.populations),
        settings.elites,
        settings.kept,
        averages,
        [
            settings.sigma,
            settings.temperature if settings.temperature is not None else 1.0,
            settings.momentum,
            settings.discount,
            math.nan if settings.cost_limit is None else settings.cost_limit,
        ],
        *(values.numpy() for values in given),
        *(values.numpy() for values in (mean, best, elites)),
        threads,
        settings.tail or len(parameters),
        settings.truncated,
        settings.noisy,
    )
    return mean, best, elites
