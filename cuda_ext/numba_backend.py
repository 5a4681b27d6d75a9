"""Rollouts of a system written as plain python functions: the loop of native/levels/rollout.cpp, compiled by numba.

`Batch` and `CudaBatch` take the arguments of the native module's `Batch`, with compiled functions for the name. The
loop is one python function, compiled for a block of lanes on the CPU and for one lane a thread on a GPU.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from surefoot.cuda_ext.numba_loop import BY_POLICY, COUNTS, FLOATS, GIVEN, RUNNING, loops, scratch_sizes
from surefoot.cuda_ext.numba_maths import Array, jit
from surefoot.cuda_ext.policy import BEFORE_SQUASH, NativePolicy

LANES = 64
"""Environments of a block on the CPU; a thread of a GPU has one."""
THREADS = 128
"""Of a block on a GPU."""
FLOAT_RECORDS = ("observations", "actions", "rewards", "next_observations", "costs", "margins")
FLAG_RECORDS = ("terminated", "truncated", "diverged")


@dataclasses.dataclass(frozen=True, eq=False)
class Functions:
    """A system compiled by numba. Arguments are flat arrays, each with the place of an environment's first number in
    it; the others follow `n` apart.

    begin(states, s, parameters, p, uniforms, u, n); observe(observations, o, states, s, parameters, p, n);
    step(states, s, actions, a, parameters, p, normals, z, n, running) -> (reward, margin, terminated, finite): leaves
    the state as it was where the new one is not finite, or the environment not running.
    """

    begin: Callable[..., Any]
    observe: Callable[..., Any]
    step: Callable[..., Any]
    sizes: tuple[int, int, int, int, int, int]
    """States, actions, observations, parameters, uniforms, normals."""

    @functools.cached_property
    def on_cpu(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The rollout and the reset of a block, compiled at their first call."""
        return loops(self, LANES)

    @functools.cached_property
    def rows(self) -> tuple[Callable[..., Any], ...]:
        """reset(states, parameters, uniforms), observe(observations, states, parameters) and step(states, outcomes,
        actions, parameters, normals) of (N, width) arrays; outcomes are reward, margin, terminated.
        """
        return _rows(self)

    def on_gpu(self, width: int) -> tuple[Any, Any]:
        """The kernels of the rollout, for a policy whose widest layer is `width`, and of the reset."""
        from surefoot.cuda_ext.numba_kernels import kernels

        if width not in self._kernels:
            self._kernels[width] = kernels(self, width)
        return self._kernels[width]

    _kernels: dict[int, Any] = dataclasses.field(default_factory=dict)


def _rows(system: Functions) -> tuple[Callable[..., Any], ...]:
    begin, observe, step = system.begin, system.observe, system.step

    @jit
    def reset_rows(states: Array, parameters: Array, uniforms: Array) -> None:
        for n in range(len(states)):
            begin(states[n], 0, parameters[n], 0, uniforms[n], 0, 1)

    @jit
    def observe_rows(observations: Array, states: Array, parameters: Array) -> None:
        for n in range(len(states)):
            observe(observations[n], 0, states[n], 0, parameters[n], 0, 1)

    @jit
    def step_rows(states: Array, outcomes: Array, actions: Array, parameters: Array, normals: Array) -> None:
        for n in range(len(states)):
            outcome = step(states[n], 0, actions[n], 0, parameters[n], 0, normals[n], 0, 1, True)
            outcomes[n, 0], outcomes[n, 1], outcomes[n, 2] = outcome[0], outcome[1], outcome[2]
            if not outcome[3]:
                states[n] = np.nan

    return reset_rows, observe_rows, step_rows


def mapped_rows(function: Callable[..., Any]) -> Callable[..., None]:
    """Of a compiled function with the arguments of `Functions.observe`: the same on (N, width) arrays."""

    @jit
    def rows(found: Array, values: Array, parameters: Array) -> None:
        for n in range(len(values)):
            function(found[n], 0, values[n], 0, parameters[n], 0, 1)

    return rows  # type: ignore[no-any-return]


def flat_weights(packed: Tensor, header: Sequence[int]) -> Tensor:
    """Values of `NativePolicy.packed` with every layer's matrix as (outputs, inputs) behind its biases."""
    actions = header[-1] // 2 if header[4] == BEFORE_SQUASH else header[-1]
    policy = NativePolicy.unpacked(packed, header)
    parts = [packed[: 2 * header[5] + 2 * actions + max(2, actions)]]
    for k, (weight, bias) in enumerate(zip(policy.weights, policy.biases, strict=True)):
        parts += [bias, weight.reshape(-1)]
        if k < len(policy.gains):
            parts += [policy.gains[k], policy.shifts[k]]
    return torch.cat(parts).contiguous()


def _tensor(array: Any) -> Tensor:
    """An array as a tensor on the same memory; of one that is to be read only, a copy."""
    frozen = isinstance(array, np.ndarray) and not array.flags.writeable
    return torch.as_tensor(array.copy() if frozen else array)


class Batch:
    """Environments, the arrays they work on, and how far to roll them out, on the CPU.

    `sizes`: states, actions, observations, parameters, uniforms, normals. `arrays`: name -> contiguous array or tensor,
    as for the native module; those absent from it are not wanted. They are worked on in place.

    Raises:
        ValueError: an array is missing or has another size; a policy that does not fit.
    """

    def __init__(
        self,
        functions: Functions,
        sizes: Sequence[int],
        envs: int,
        horizon: int,
        limit: int,
        many: bool,
        noisy: bool,
        source: int,
        header: Sequence[int],
        arrays: Mapping[str, Any],
    ) -> None:
        if min(envs, horizon, limit) < 1:
            raise ValueError("envs, horizon and limit must be 1 or more")
        self._functions, self._envs, self._header = functions, envs, list(header)
        self._arrays = {name: _tensor(array) for name, array in arrays.items()}
        self._device = torch.as_tensor(arrays["states"]).device
        states, actions, observations, parameters = sizes[:4]
        shared = self._arrays["parameters"].numel() == parameters and envs != 1
        counts = {"low": actions, "high": actions, "seeds": envs, "episodes": envs, "elapsed": envs}
        counts |= {"states": envs * states, "parameters": parameters if shared else envs * parameters}
        counts |= dict.fromkeys((*FLOATS, *COUNTS), envs)
        counts |= {"given": horizon * envs * actions} if source == GIVEN else {}
        for name, count in counts.items():
            if name not in self._arrays or self._arrays[name].numel() != count:
                raise ValueError(f"the array {name} is missing, or does not have {count} values")
        widths = header[5:] if source == BY_POLICY else [0]
        if source == BY_POLICY and (header[0], widths[0]) != (len(widths) - 1, observations):
            raise ValueError("the policy's widths do not fit the system")
        self._width, self._horizon = max(widths), horizon
        sampling = int(source == BY_POLICY and header[4] != 0)
        numbers = [envs, horizon, limit, int(many), int(shared), int(noisy), source, sampling]
        self._numbers = self._new(numbers, torch.int64)
        self._plan = self._new(list(header) or [0], torch.int64)

    _room: tuple[Any, ...] | None = None
    """Scratch of the calling thread, kept between calls."""

    def run(self, threads: int = 1, fresh: bool = False) -> None:
        """Roll out once, from the states onwards or, `fresh`, from such as episodes begin in."""
        if fresh:
            self.reset()
        floats, counts = self._sums
        floats.zero_()
        floats[2] = 3.4e38
        counts.zero_()
        counts[0], counts[RUNNING] = self._horizon, 1
        arrays = self._rolled
        if "policy" in self._arrays:  # it may have learned since
            arrays[2] = self._view(flat_weights(self._arrays["policy"], self._header))
        self._roll(arrays, threads)
        self._hand_out()

    @functools.cached_property
    def _sums(self) -> tuple[Tensor, Tensor]:
        """Of a call: (FLOATS, N) float32 and (COUNTS + 1, N) int32."""
        floats = self._new([0.0], torch.float32).repeat(len(FLOATS), self._envs)
        return floats, self._new([0], torch.int32).repeat(len(COUNTS) + 1, self._envs)

    @functools.cached_property
    def _rolled(self) -> list[Any]:
        """Arguments of the compiled loop, bound once: a step of few environments takes no longer than making them."""
        weights = self._new([0.0], torch.float32)
        inputs = map(self._flat, ("low", "high", "seeds", "parameters", "given", "states", "episodes", "elapsed"))
        arrays = [self._numbers, self._plan, weights, *inputs, *self._sums, self._flat("last_observations")]
        records = tuple(self._view(self._flat(f"record_{name}")) for name in FLOAT_RECORDS)
        flags = tuple(self._view(self._flat(f"record_{name}", torch.uint8)) for name in FLAG_RECORDS)
        return [*map(self._view, arrays), records, flags]

    def _hand_out(self) -> None:
        """Sums of the call to the arrays that were given."""
        for to, row in self._handed:
            np.copyto(to, row)

    @functools.cached_property
    def _handed(self) -> list[tuple[Any, Any]]:
        """Array and row of each sum."""
        pairs = zip((FLOATS, COUNTS), self._sums, strict=True)
        return [
            (self._view(self._arrays[name].view(-1)), self._view(row))
            for names, table in pairs
            for name, row in zip(names, table, strict=False)
        ]

    def reset(self, mask: Any = None, threads: int = 1) -> None:
        """Begin the episodes that `mask` (envs,) uint8 chooses, all by default."""
        chosen = self._new([1], torch.uint8).repeat(self._envs) if mask is None else torch.as_tensor(mask)
        names = ("seeds", "parameters", "states", "episodes", "last_observations")
        self._reset([self._view(array) for array in (self._numbers, chosen, *map(self._flat, names))])

    def _new(self, values: Sequence[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)

    def _flat(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        """The array as one row; an empty one of that type where it is not wanted."""
        return self._arrays[name].view(-1) if name in self._arrays else self._new([], dtype)

    def _view(self, array: Tensor) -> Any:
        return array.numpy()

    def _roll(self, arrays: list[Any], threads: int) -> None:
        roll = self._functions.on_cpu[0]
        if threads == 1 or self._envs <= LANES:
            if self._room is None:
                self._room = self._scratch()
            for first in range(0, self._envs, LANES):
                roll(first, arrays[0], self._room, *arrays[1:])
            return
        blocks = range(0, self._envs, LANES)
        chunk = max(1, len(blocks) // (8 * threads))  # blocks that a thread takes at once; a slow one takes fewer

        def work(begin: int) -> None:
            scratch = self._scratch()
            for first in blocks[begin : begin + chunk]:
                roll(first, arrays[0], scratch, *arrays[1:])

        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(0, len(blocks), chunk)))

    def _reset(self, arrays: list[Any]) -> None:
        reset, scratch = self._functions.on_cpu[1], self._scratch()
        for first in range(0, self._envs, LANES):
            reset(first, arrays[0], scratch, *arrays[1:])

    def _scratch(self) -> tuple[Any, ...]:
        sizes = scratch_sizes(self._functions.sizes, self._width, LANES)
        return tuple(np.zeros(size, np.float32) for size in sizes)


class CudaBatch(Batch):
    """`Batch` with tensors in a GPU's memory, one thread an environment, on torch's current stream."""

    def _view(self, array: Tensor) -> Any:
        from numba import cuda

        if array.is_cuda:
            return cuda.as_cuda_array(array)
        if numba.config.ENABLE_CUDASIM:  # type: ignore[attr-defined]  # numba's simulator of a GPU in python, for tests
            return array.numpy()
        raise ValueError(f"an array is on {array.device}, must be on a GPU")

    def _hand_out(self) -> None:
        for names, table in zip((FLOATS, COUNTS), self._sums, strict=True):
            for name, row in zip(names, table, strict=False):
                self._arrays[name].copy_(row)

    def _launch(self, kernel: Any, arrays: list[Any]) -> None:
        from numba import cuda

        blocks = (self._envs + THREADS - 1) // THREADS
        on_gpu = torch.cuda.is_available()
        stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream) if on_gpu else 0
        kernel[blocks, THREADS, stream](*arrays)

    def _roll(self, arrays: list[Any], threads: int) -> None:
        self._launch(self._functions.on_gpu(self._width)[0], arrays)

    def _reset(self, arrays: list[Any]) -> None:
        self._launch(self._functions.on_gpu(self._width)[1], arrays)
