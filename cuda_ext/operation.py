"""The rollout as an operator: from numbers and tensors to tensors, by compiled code or by its torch twin.

`rollout` is the door for people; here nothing is checked but what only the numbers show.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot import cuda_ext
from surefoot.cuda_ext import gpu
from surefoot.cuda_ext.policy import NativePolicy, all_finite
from surefoot.cuda_ext.resident import on_device
from surefoot.cuda_ext.rollout_arrays import FLAGS, GIVEN, POLICY, RANDOM, SUMS
from surefoot.cuda_ext.system import System
from surefoot.cuda_ext.twin import Task, TwinLoop

RECORDS = (
    "observations",
    "actions",
    "rewards",
    "next_observations",
    "terminated",
    "truncated",
    "diverged",
    "costs",
    "margins",
)
"""What a rollout can record of every step."""
NUMPY = {torch.float32: np.float32, torch.int32: np.int32, torch.uint8: np.uint8}
NO_LIMIT = 2**31 - 1
SMALL_WORK = 50_000  # environment steps below which a second thread is not worth starting


def default_backend(device: torch.device, system: System) -> str:
    """native where there is compiled code for the system (on a GPU: where it can be compiled), else twin."""
    if system.batch(device) is not None:
        return "native"
    if gpu.is_gpu(device):
        return "native" if gpu.usable() else "twin"
    return "native" if device.type == "cpu" and cuda_ext.native() is not None else "twin"


def batch_maker(device: torch.device, system: System) -> Callable[..., Any]:
    """What makes rollouts in compiled code; called as native/rollout.cpp's `Batch` is, behind the name."""
    own = system.batch(device)
    if own is not None:
        return own
    if gpu.is_gpu(device):
        return functools.partial(gpu.Batch, system.own_header() or system.name)
    module = cuda_ext.native()
    if module is None:
        raise ValueError(f"there is no native module: {cuda_ext.why_not_native()}")
    return functools.partial(module.Batch, system.native_name())


def operate(
    handle: int,
    backend: str,
    seeds: Tensor,
    parameters: Tensor,
    states: Tensor | None,
    episodes: Tensor | None,
    elapsed: Tensor | None,
    given: Tensor | None,
    policy: Tensor | None,
    header: list[int],
    steps: list[int],
    many: bool,
    record: list[int],
    threads: int,
    widths: list[int],
    policies: int = 1,
    noisy: bool | None = None,
) -> list[Tensor]:
    """`rollout` from numbers and tensors to tensors, so that it can be an operator which `torch.compile` keeps whole.

    Args are those of `rollout` in tensors; `policy` has the values of `policies` policies one after another, each of an
    equal share of the rows. `noisy` says whether normal draws matter; None: what `is_noisy` finds.

    Returns SUMS, states, episodes, elapsed, then the records (flags as uint8).
    """
    on_gpu = gpu.is_gpu(seeds.device)
    if policy is not None and not on_gpu:
        require_finite(policy)
    system = System.by_handle(handle)
    one_launch = policies == 1 or (on_gpu and system.batch(seeds.device) is None)
    if backend == "native" and one_launch:
        return _native(
            system,
            seeds,
            parameters,
            states,
            episodes,
            elapsed,
            given,
            policy,
            header,
            steps,
            many,
            record,
            threads,
            policies,
            noisy,
        )
    if backend not in ("native", "twin"):
        raise ValueError(f"backend is {backend!r}, must be 'native' or 'twin'")
    run = functools.partial(_native, threads=threads) if backend == "native" else _twin
    share, found = len(seeds) // policies, []
    for number in range(policies):
        rows = slice(number * share, (number + 1) * share)
        found.append(
            run(
                system,
                seeds[rows],
                parameters[rows] if parameters.dim() == 2 else parameters,
                None if states is None else states[rows],
                None if episodes is None else episodes[rows],
                None if elapsed is None else elapsed[rows],
                None if given is None else given[:, rows],
                None if policy is None else policy.view(policies, -1)[number],
                header,
                steps,
                many,
                record,
            )
        )
    if policies == 1:
        return found[0]
    first_record = len(found[0]) - len(record)  # records begin with time, all before with the rows
    return [torch.cat([*parts], int(number >= first_record)) for number, parts in enumerate(zip(*found, strict=True))]


def require_finite(policy: Tensor) -> None:
    """Raise ValueError where a policy of the host has weights that are no finite numbers.

    One on a GPU isn't looked at before it has acted, which would wait for the GPU: its returns are NaN.
    """
    if not all_finite(policy):
        raise ValueError("the policy has weights that are no finite numbers (NaN or infinite)")


operator = torch.library.custom_op("surefoot::rollout", operate, mutates_args=())
"""`operate`, opaque to torch."""


@operator.register_fake
def _(
    handle: int,
    backend: str,
    seeds: Tensor,
    parameters: Tensor,
    states: Tensor | None,
    episodes: Tensor | None,
    elapsed: Tensor | None,
    given: Tensor | None,
    policy: Tensor | None,
    header: list[int],
    steps: list[int],
    many: bool,
    record: list[int],
    threads: int,
    widths: list[int],
    policies: int = 1,
    noisy: bool | None = None,
) -> list[Tensor]:
    count = seeds.shape[0]
    sums = [seeds.new_empty(count, dtype=dtype) for dtype in SUMS.values()]
    carry = [seeds.new_empty((count, widths[0]), dtype=torch.float32)]
    carry += [seeds.new_empty(count, dtype=torch.int32) for _ in range(2)]
    return (
        sums
        + carry
        + [seeds.new_empty(shape, dtype=dtype) for shape, dtype in _shapes(record, steps[0], count, widths)]
    )


def _shapes(
    record: Sequence[int], steps: int, count: int, widths: Sequence[int]
) -> list[tuple[list[int], torch.dtype]]:
    """Of the records; `widths` begins with those of states, actions and observations."""
    trailing = {"observations": [widths[2]], "next_observations": [widths[2]], "actions": [widths[1]]}
    names = [RECORDS[index] for index in record]
    return [
        ([steps, count, *trailing.get(name, [])], torch.uint8 if name in FLAGS else torch.float32) for name in names
    ]


@functools.lru_cache(maxsize=64)
def default_physics(system: System) -> Tensor:
    """(P,) float32 parameters of a system on the processor, made once: to be read only."""
    return system.default_parameters(torch.float32)


@functools.lru_cache(maxsize=64)
def _is_noisy_by_default(system: System) -> bool:
    return is_noisy(system, default_physics(system).clone())


def is_noisy(system: System, parameters: Tensor) -> bool:
    """Whether normal draws matter: some parameter that scales them is not 0, or none does.

    Parameters on a GPU are not looked at, since that would wait for it: draws that they scale by 0 change nothing.
    """
    if system.normals == 0:
        return False
    if gpu.is_gpu(parameters.device):
        return True
    if parameters is default_physics(system):
        return _is_noisy_by_default(system)
    columns = [k for k, parameter in enumerate(system.parameters) if parameter.name.endswith("_noise")]
    if columns and parameters.dim() == 1 and parameters.device.type == "cpu":  # ten times as fast as the next line
        values = parameters.tolist()
        return any(values[k] != 0 for k in columns)
    return not columns or bool((parameters[..., columns] != 0).any())


def usable_threads(asked: int, work: int) -> int:
    """Threads for `work` environment steps: those asked for, or torch's number where `asked` is 0."""
    if asked > 0:
        return asked
    return 1 if work < SMALL_WORK else min(torch.get_num_threads(), os.cpu_count() or 1)


def sizes_of(system: System) -> list[int]:
    """Widths in the order of native/system.h's `Sizes`."""
    arrays = (system.states, system.actions, system.observations, system.parameters)
    return [*(len(names) for names in arrays), system.uniforms, system.normals]


def constants_of(system: System) -> dict[str, Tensor]:
    """Arrays of a native `Batch` that the system alone determines."""
    bounds = {"low": system.action_low, "high": system.action_high}
    found = {name: torch.tensor(values, dtype=torch.float32) for name, values in bounds.items()}
    matrices = system.matrices()
    return found if matrices is None else {**found, "matrices": matrices.float().contiguous()}


_constants: weakref.WeakKeyDictionary[System, dict[torch.device, dict[str, Tensor]]] = weakref.WeakKeyDictionary()


def constants_on(system: System, device: torch.device) -> dict[str, Tensor]:
    """`constants_of` in the memory of a device, copied there once: to be read only."""
    held = _constants.setdefault(system, {})
    found = held.get(device)
    if found is None:
        found = {name: on_device(value, device) for name, value in constants_of(system).items()}
        if all(type(value) is Tensor for value in found.values()):  # what is traced must not outlive the trace
            held[device] = found
    return found


@functools.lru_cache(maxsize=64)
def _row(values: tuple[float, ...]) -> np.ndarray[Any, Any]:
    """float32, kept: to be read only."""
    row = np.array(values, dtype=np.float32)
    row.setflags(write=False)
    return row


class _Arrays:
    """What a native `Batch` works on: numpy on the processor, where torch takes five times as long for small things."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.views: dict[str, Any] = {}
        """Name -> array, or tensor on a GPU."""

    def constants(self, system: System) -> None:
        """Let it read `constants_of` the system."""
        if self.device.type == "cpu" and system.matrices() is None:
            self.views.update(low=_row(tuple(system.action_low)), high=_row(tuple(system.action_high)))
        else:
            for name, values in constants_on(system, self.device).items():
                self.give(name, values)

    def give(self, name: str, values: Tensor) -> Tensor:
        """Let it work on these, without a copy."""
        self.views[name] = values.numpy() if self.device.type == "cpu" else values
        return values

    def room(self, name: str, shape: Sequence[int], dtype: torch.dtype, zeros: bool = False) -> Tensor:
        """Let it work on new ones, zeros or anything."""
        if self.device.type != "cpu":
            return self.give(name, (torch.zeros if zeros else torch.empty)(*shape, dtype=dtype, device=self.device))
        self.views[name] = array = (np.zeros if zeros else np.empty)(shape, NUMPY[dtype])
        return torch.from_numpy(array)

    def carry(self, name: str, shape: Sequence[int], dtype: torch.dtype, started: Tensor | None) -> Tensor:
        """Let it continue from a copy of these, or from zeros."""
        return self.room(name, shape, dtype, True) if started is None else self.give(name, started.to(dtype, copy=True))


def _native(
    system: System,
    seeds: Tensor,
    parameters: Tensor,
    states: Tensor | None,
    episodes: Tensor | None,
    elapsed: Tensor | None,
    given: Tensor | None,
    policy: Tensor | None,
    header: list[int],
    steps: list[int],
    many: bool,
    record: list[int],
    threads: int = 0,
    policies: int = 1,
    noisy: bool | None = None,
) -> list[Tensor]:
    device = seeds.device
    make_batch = batch_maker(device, system)
    count, sizes = len(seeds), sizes_of(system)
    arrays = _Arrays(device)
    arrays.constants(system)
    arrays.give("seeds", seeds)
    arrays.give("parameters", parameters)
    if given is not None:
        arrays.give("given", given[: steps[0]])
    if policy is not None:
        arrays.give("policy", policy)
    found = [arrays.room(name, (count,), dtype) for name, dtype in SUMS.items()]
    found.append(arrays.carry("states", (count, sizes[0]), torch.float32, states))
    found.append(arrays.carry("episodes", (count,), torch.int32, episodes))
    found.append(arrays.carry("elapsed", (count,), torch.int32, elapsed))
    for index, (shape, dtype) in zip(record, _shapes(record, steps[0], count, sizes)):
        found.append(arrays.room("record_" + RECORDS[index], shape, dtype, zeros=not many))  # 0 after an only episode
    source = POLICY if policy is not None else GIVEN if given is not None else RANDOM
    noisy = is_noisy(system, parameters) if noisy is None else noisy
    several = {} if policies == 1 else {"policies": policies}
    batch = make_batch(sizes, count, *steps, many, noisy, source, header, arrays.views, **several)
    batch.run(usable_threads(threads, count * steps[0]), states is None)
    if policy is not None and gpu.is_gpu(device):
        mark_bad_policies(found[0], policy.view(policies, -1))
    return found


def mark_bad_policies(returns: Tensor, policies: Tensor) -> None:
    """Make the (N,) returns NaN of those of (M, values) policies that have weights which are no finite numbers.

    Of N / M rows each. Nothing waits: the host has not read the weights.
    """
    returns.view(len(policies), -1).add_((policies - policies).sum(1, keepdim=True))  # 0, or not a number


def _twin(
    system: System,
    seeds: Tensor,
    parameters: Tensor,
    states: Tensor | None,
    episodes: Tensor | None,
    elapsed: Tensor | None,
    given: Tensor | None,
    policy: Tensor | None,
    header: list[int],
    steps: list[int],
    many: bool,
    record: list[int],
) -> list[Tensor]:
    count = len(seeds)
    none = torch.zeros_like(seeds)
    table = parameters if parameters.dim() == 2 else parameters.expand(count, -1)
    network = None if policy is None else NativePolicy.unpacked(policy, header)
    horizon, limit = steps
    task = Task(system, seeds, table, horizon, limit, many, is_noisy(system, parameters), network, given)
    loop = TwinLoop(task, none, none if episodes is None else episodes, none if elapsed is None else elapsed)
    loop.states = loop.initial(seeds, loop.episodes) if states is None else states.clone()
    names = [RECORDS[index] for index in record]
    found = loop.run(tuple(names))
    carry = [loop.states, loop.episodes.to(torch.int32), loop.elapsed.to(torch.int32)]
    records = [found["record_" + name] for name in names]
    return [
        *(found[name] for name in SUMS),
        *carry,
        *(value.to(torch.uint8) if value.dtype == torch.bool else value for value in records),
    ]
