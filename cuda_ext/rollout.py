"""`rollout`: many environments, many steps, one call; native where it was built, else its torch twin."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.cuda_ext import gpu
from surefoot.cuda_ext.operation import (
    RECORDS,
    default_backend,
    default_physics,
    is_noisy,
    operate,
    operator,
    require_finite,
)
from surefoot.cuda_ext.policy import NativePolicy
from surefoot.cuda_ext.resident import on_device
from surefoot.cuda_ext.rollout_arrays import FLAGS, SUMS
from surefoot.cuda_ext.system import System
from surefoot.cuda_ext.twin import environment_seeds

Numbers = Tensor | np.ndarray[Any, Any] | Sequence[Any] | float


@dataclasses.dataclass(frozen=True)
class Carry:
    """Where N environments stand between two rollouts."""

    states: Tensor
    """(N, S) float32."""
    episodes: Tensor
    """(N,) int32 number of the present episode."""
    elapsed: Tensor
    """(N,) int32 steps made in it."""

    def map(self, function: Callable[..., Tensor], *others: Carry) -> Carry:
        """`function` of each of the three tensors, and of the same tensor of the others."""
        names = [field.name for field in dataclasses.fields(self)]
        return Carry(*(function(*(getattr(carry, name) for carry in (self, *others))) for name in names))


@dataclasses.dataclass(frozen=True)
class Rollout:
    """Results of one call, tensors on its device; all (N,) by default."""

    returns: Tensor
    """Sums of rewards."""
    costs: Tensor
    """Numbers of steps with a negative margin."""
    margins: Tensor
    """Smallest margins."""
    lengths: Tensor
    """int32 steps made."""
    terminated: Tensor
    """Episodes that the system ended: bool for one episode, int32 counts for many. Likewise the next two."""
    truncated: Tensor
    """Episodes that ended by the time limit or by divergence."""
    diverged: Tensor
    """Episodes that ended because the state was no number or too large: the step was undone, earned nothing, cost 1."""
    finished: Tensor
    """int32 episodes that ended; the next three are sums over them."""
    finished_lengths: Tensor
    finished_returns: Tensor
    finished_costs: Tensor
    carry: Carry
    """To continue from, with `rollout(..., episodes="many", carry=...)` and the same seeds. Of rollouts of one episode
    its states are the last ones, and there is nothing to continue from: the horizon has ended the episodes."""
    records: dict[str, Tensor]
    """Name -> (T, N, ...) float32 or bool. In rollouts of one episode, rows t >= lengths are 0."""


def rollout(
    system: System,
    *,
    policy: NativePolicy | Sequence[NativePolicy] | None = None,
    actions: Numbers | None = None,
    random: bool = False,
    num_envs: int | None = None,
    seeds: int | Numbers = 0,
    states: Numbers | None = None,
    carry: Carry | None = None,
    horizon: int | None = None,
    parameters: Numbers | None = None,
    episodes: str = "one",
    max_steps: int | None = None,
    record: Sequence[str] = (),
    record_limit: float | None = None,
    threads: int | None = None,
    device: torch.device | str = "cpu",
    backend: str | None = None,
) -> Rollout:
    """Roll N environments out under a policy, given actions, or random ones.

    The result depends on seeds, parameters and actions only: not on threads, nor on how environments are batched.

    On a GPU a call waits for nothing and copies nothing there that an earlier call has copied; its results are there
    when they are read. A policy that is on the GPU is not checked before, and one with weights that are not finite
    gives returns of NaN.

    Args:
        system: what to simulate.
        policy: evaluated inside the loop; of several that have the same shape, each acts in N / M rows that follow
            each other, on a GPU in the same launch.
        actions: (T, N, A) instead, in the system's units; clipped to its bounds.
        random: uniform actions instead.
        num_envs: N; else it is the length of `seeds`, `states`, `carry`, `parameters` or `actions`.
        seeds: (N,) one a environment, or a base seed that N different ones are made of.
        states: (N, S) to begin the first episodes in; drawn from the seeds by default.
        carry: where another rollout of many episodes with these seeds stopped, instead of `states`; of many too.
        horizon: most steps T; by default those of `actions`, else `max_steps`. A single episode is truncated there.
        parameters: (P,) or (N, P) of the dynamics; the system's own by default.
        episodes: "one": each environment stops at its first end. "many": it begins another one at once, T steps in all.
        max_steps: of an episode; the system's own by default.
        record: names in `RECORDS`.
        record_limit: most bytes that the records may take; half of the free memory by default.
        threads: of the processor; by default torch's number, and one for little work.
        device: where the result lies and the work is done.
        backend: "native" or "twin"; by default native where it was built.

    Raises:
        ValueError: arguments that do not fit each other or the system.
    """
    if (policy is not None) + (actions is not None) + bool(random) != 1:
        raise ValueError("give exactly one of policy, actions and random=True")
    if episodes not in ("one", "many"):
        raise ValueError(f"episodes is {episodes!r}, must be 'one' or 'many'")
    if carry is not None and episodes == "one":
        raise ValueError("carry continues rollouts of episodes='many'; one episode begins in states")
    device = torch.device(device)
    on_gpu = gpu.is_gpu(device)
    if on_gpu:
        gpu.require_device()
    policies = [] if policy is None else [policy] if isinstance(policy, NativePolicy) else list(policy)
    given = None if actions is None else _tensor(actions, device)
    if given is not None and given.dim() != 3:
        raise ValueError(f"actions have shape {tuple(given.shape)}, must have (T, N, {len(system.actions)})")
    limit = max_steps if max_steps is not None else system.max_steps
    steps = horizon if horizon is not None else given.shape[0] if given is not None else limit
    start = None if states is None else _tensor(states, device)
    if parameters is None:
        compiling = torch.compiler.is_compiling()  # compilers warn of caches
        physics = system.default_parameters(torch.float32) if compiling else default_physics(system)
    else:
        physics = torch.as_tensor(parameters, dtype=torch.float32, device=None if on_gpu else device)
    # the host's numbers are looked at before they go to a GPU
    noisy = is_noisy(system, physics) if on_gpu and not torch.compiler.is_compiling() else None
    physics = on_device(physics, device).contiguous()
    count = _count(num_envs, seeds, start, carry, physics, given)
    _check_widths(system, count, steps, limit, start, physics, given)
    chosen = check_record(system, record, count, steps, record_limit)
    packed = None if policy is None else _packed(policies, system, count, device)
    if carry is not None and (states is not None or carry.states.shape != (count, len(system.states))):
        raise ValueError(f"carry must be of {count} environments of this system, and given without states")
    # The operator is for compilers to see: going through torch's dispatcher takes as long as ten steps of thousands.
    run = operator if torch.compiler.is_compiling() else operate
    values = run(
        system.handle,
        backend or default_backend(device, system),
        seed_tensor(seeds, count, device),
        physics,
        carry.states if carry is not None else start,
        carry.episodes if carry is not None else None,
        carry.elapsed if carry is not None else None,
        given,
        packed,
        policies[0].header if policies else [],
        [steps, min(limit, steps) if episodes == "one" else limit],
        episodes == "many",
        [RECORDS.index(name) for name in chosen],
        threads if threads is not None else 0,
        [len(system.states), len(system.actions), len(system.observations)],
        max(1, len(policies)),
        noisy,
    )
    named = dict(zip([*SUMS, "states", "episodes", "elapsed", *("record_" + name for name in chosen)], values))
    if episodes == "one":
        named.update({name: named[name] > 0 for name in FLAGS})
    return Rollout(
        **{name: named[name] for name in SUMS},
        carry=Carry(named["states"], named["episodes"], named["elapsed"]),
        records={
            name: named["record_" + name].view(torch.bool) if name in FLAGS else named["record_" + name]
            for name in chosen
        },
    )


def seed_tensor(seeds: int | Numbers, count: int, device: torch.device) -> Tensor:
    """(N,) int64 seeds in [0, 2^32) from a base seed or from one for each environment."""
    if isinstance(seeds, (int, np.integer)):
        return environment_seeds(int(seeds), count, device)
    table = torch.as_tensor(seeds)
    if table.dtype.is_floating_point or table.shape != (count,):
        raise ValueError(f"seeds must be {count} whole numbers, or a single one; they have shape {tuple(table.shape)}")
    return on_device((table.to(torch.int64) & 0xFFFFFFFF).contiguous(), device)


def _packed(policies: Sequence[NativePolicy], system: System, count: int, device: torch.device) -> Tensor:
    """Values of all policies, one after another, where they are read.

    Raises:
        ValueError: they don't fit the system, each other or the number of environments, or one of the host's has
            weights that are not finite.
    """
    if not policies or count % len(policies):
        raise ValueError(f"{count} environments can't be shared evenly among {len(policies)} policies")
    for policy in policies:
        policy.check(len(system.observations), len(system.actions))
        if policy.header != policies[0].header:
            raise ValueError("policies of one rollout must have the same layers, activation, layer norm and sampling")
    values = policies[0].packed() if len(policies) == 1 else torch.cat([policy.packed() for policy in policies])
    if gpu.is_gpu(device) and values.device.type == "cpu":
        require_finite(values)
    return on_device(values, device)


def check_record(
    system: System, record: Sequence[str], count: int, horizon: int, limit: float | None
) -> tuple[str, ...]:
    """The names in `record` in the order of RECORDS; ValueError for others, and where they need too much memory."""
    if not record:
        return ()
    unknown = [name for name in record if name not in RECORDS]
    if unknown:
        raise ValueError(f"can't record {unknown[0]!r}; can record {', '.join(RECORDS)}")
    chosen = tuple(name for name in RECORDS if name in record)
    widths = {"actions": len(system.actions)}
    widths.update(dict.fromkeys(("observations", "next_observations"), len(system.observations)))
    row = sum(1 if name in FLAGS else 4 * widths.get(name, 1) for name in chosen)
    needed = row * count * horizon
    allowed = limit if limit is not None else free_memory() / 2 if needed > 2**28 else needed
    if needed > allowed:
        raise ValueError(
            f"recording {', '.join(chosen)} for {horizon} steps of {count} environments needs {needed / 1e9:.3g} GB, "
            f"more than the limit of {allowed / 1e9:.3g} GB; record less, or fewer steps or environments at a time"
        )
    return chosen


def free_memory() -> float:
    """Bytes of memory that are free, or that the system would free; infinite where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return float("inf")


def _tensor(values: Numbers, device: torch.device) -> Tensor:
    return on_device(torch.as_tensor(values, dtype=torch.float32), device).contiguous()


def _count(
    num_envs: int | None,
    seeds: int | Numbers,
    states: Tensor | None,
    carry: Carry | None,
    parameters: Tensor,
    actions: Tensor | None,
) -> int:
    found = {
        "num_envs": num_envs,
        "seeds": None if isinstance(seeds, (int, np.integer)) else len(seeds),  # type: ignore[arg-type]
        "states": None if states is None else states.shape[0],
        "carry": None if carry is None else carry.states.shape[0],
        "parameters": parameters.shape[0] if parameters.dim() == 2 else None,
        "actions": None if actions is None else actions.shape[1],
    }
    counts = {name: count for name, count in found.items() if count is not None}
    if not counts:
        raise ValueError("give num_envs, or seeds, states, parameters or actions with one row per environment")
    if len(set(counts.values())) > 1:
        described = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ValueError(f"the numbers of environments differ: {described}")
    count = next(iter(counts.values()))
    if count < 1:
        raise ValueError("there must be at least one environment")
    return count


def _check_widths(
    system: System,
    count: int,
    steps: int,
    limit: int,
    states: Tensor | None,
    parameters: Tensor,
    actions: Tensor | None,
) -> None:
    if steps < 1 or limit < 1:
        raise ValueError(f"horizon is {steps} and max_steps {limit}; both must be 1 or more")
    if states is not None and states.shape != (count, len(system.states)):
        raise ValueError(f"states have shape {tuple(states.shape)}, must have ({count}, {len(system.states)})")
    if parameters.dim() not in (1, 2) or parameters.shape[-1] != len(system.parameters):
        names = ", ".join(parameter.name for parameter in system.parameters)
        raise ValueError(f"parameters have shape {tuple(parameters.shape)}; {system.name} has {names}")
    if actions is not None and (actions.shape[0] < steps or actions.shape[2] != len(system.actions)):
        raise ValueError(
            f"actions have shape {tuple(actions.shape)}, must have ({steps}, {count}, {len(system.actions)})"
        )
