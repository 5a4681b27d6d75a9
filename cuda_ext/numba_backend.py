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

from surefoot.cuda_ext import numba_maths
from surefoot.cuda_ext.numba_maths import ACTION, POLICY, PROCESS, RESET, Array, episode_key, jit, uniform
from surefoot.cuda_ext.policy import BEFORE_SQUASH, NativePolicy

LANES = 64
"""Environments of a block on the CPU."""
THREADS = 128
"""Of a block on a GPU."""
BY_POLICY, GIVEN, RANDOM = range(3)  # native/rollout.h's Source
DIVERGED_MARGIN = np.float32(-1e6)
FLOATS = ("returns", "costs", "margins", "finished_returns", "finished_costs")
COUNTS = ("lengths", "terminated", "truncated", "diverged", "finished", "finished_lengths")
RUNNING = len(COUNTS)  # a row behind the counts: 1 while the environment's episode goes on
RECORDED = {
    "last_observations": torch.float32,
    "record_observations": torch.float32,
    "record_actions": torch.float32,
    "record_rewards": torch.float32,
    "record_next_observations": torch.float32,
    "record_costs": torch.float32,
    "record_margins": torch.float32,
    "record_terminated": torch.uint8,
    "record_truncated": torch.uint8,
    "record_diverged": torch.uint8,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Functions:
    """A system compiled by numba; states, actions, ... are flat arrays and the places of an environment in them.

    begin(states, at, parameters, p, uniforms); observe(observations, o, stride, states, at, parameters, p);
    step(states, at, actions, a, stride, parameters, p, normals) -> (reward, margin, terminated, finite): leaves the
    state as it was where the new one is not finite. Draws are tuples: draw_uniforms(key), draw_normals(noisy, key,
    step), or out of an array from a place on: read_uniforms(array, at), read_normals(array, at).
    """

    begin: Callable[..., Any]
    observe: Callable[..., Any]
    step: Callable[..., Any]
    draw_uniforms: Callable[..., Any]
    draw_normals: Callable[..., Any]
    read_uniforms: Callable[..., Any]
    read_normals: Callable[..., Any]
    sizes: tuple[int, int, int, int]
    """States, actions, observations, parameters."""

    @functools.cached_property
    def on_cpu(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The rollout and the reset of a block, compiled at their first call."""
        return _loops(self, numba_maths.policy_on_cpu)

    @functools.cached_property
    def rows(self) -> tuple[Callable[..., Any], ...]:
        """reset(states, parameters, uniforms), observe(observations, states, parameters) and step(states, outcomes,
        actions, parameters, normals) of (N, width) arrays; outcomes are reward, margin, terminated.
        """
        return _rows(self)

    @functools.cached_property
    def on_gpu(self) -> tuple[Any, Any]:
        """The kernels of the rollout and of the reset."""
        from numba import cuda

        roll, reset = _loops(self, numba_maths.policy_on_gpu)

        def roll_kernel(memory: Array, numbers: Array, *arrays: Array) -> None:
            env = cuda.grid(1)
            if env < numbers[0]:
                roll(env, env + 1, memory, env, numbers[0], numbers, *arrays)

        def reset_kernel(numbers: Array, *arrays: Array) -> None:
            env = cuda.grid(1)
            if env < numbers[0]:
                reset(env, env + 1, numbers, *arrays)

        return cuda.jit(roll_kernel), cuda.jit(reset_kernel)


def _loops(system: Functions, policy: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(roll, reset) of the environments first to last - 1; see `Batch` for the arrays."""
    begin, observe, step = system.begin, system.observe, system.step
    draw_uniforms, draw_normals = system.draw_uniforms, system.draw_normals
    S, A, O, P = system.sizes  # noqa: E741

    @jit
    def act(t, env, lane, stride, numbers, header, weights, low, high, given, seed, episode, elapsed):  # type: ignore[no-untyped-def]
        """Choose the actions of a lane: they lie before its observations."""
        if numbers[6] == BY_POLICY:
            policy(header, weights, lane, stride, A, numbers[7], episode_key(seed, episode, POLICY), elapsed)
        elif numbers[6] == GIVEN:
            for k in range(A):
                lane[k * stride] = min(max(given[(t * numbers[0] + env) * A + k], low[k]), high[k])
        else:
            key = episode_key(seed, episode, ACTION)
            for k in range(A):
                lane[k * stride] = low[k] + (high[k] - low[k]) * np.float32(uniform(key, elapsed, k))

    @jit
    def book(t, env, limit, many, elapsed, ends, finite, states, parameters, p, seeds, episodes, floats, counts):  # type: ignore[no-untyped-def]
        """Book the end of an episode, if it is one, and begin the next; whether it ended, and by the time limit."""
        ended, late = ends, elapsed[env] >= limit
        truncated = not ended and (late or not finite)
        if not ended and not truncated:
            return False
        counts[1, env] += ended
        counts[2, env] += truncated
        counts[3, env] += not finite
        counts[4, env] += 1
        counts[5, env] = t + 1
        floats[3, env], floats[4, env] = floats[0, env], floats[1, env]
        episodes[env] += 1
        elapsed[env] = 0
        if many:
            begin(states, env * S, parameters, p, draw_uniforms(episode_key(seeds[env], episodes[env], RESET)))
        else:
            counts[0, env] = t + 1
            counts[RUNNING, env] = 0
        return truncated

    @jit
    def roll(  # type: ignore[no-untyped-def]
        first, last, memory, base, stride, numbers, header, weights, low, high, seeds, parameters, given, states,
        episodes, elapsed, floats, counts, last_observations, record_observations, record_actions, record_rewards,
        record_next_observations, record_costs, record_margins, record_terminated, record_truncated, record_diverged,
    ):  # fmt: skip
        envs, horizon, limit, many, shared, noisy = (
            numbers[0],
            numbers[1],
            numbers[2],
            numbers[3],
            numbers[4],
            numbers[5],
        )
        width = A + O + 2 * numbers[7]
        sees = numbers[6] == BY_POLICY or len(record_observations) > 0
        for t in range(horizon):
            running = False
            for env in range(first, last):
                if counts[RUNNING, env] == 0:
                    continue
                running = True
                lane = memory[base + (env - first) * width :]
                if sees:
                    observe(lane, A * stride, stride, states, env * S, parameters, 0 if shared else env * P)
                act(
                    t,
                    env,
                    lane,
                    stride,
                    numbers,
                    header,
                    weights,
                    low,
                    high,
                    given,
                    seeds[env],
                    episodes[env],
                    elapsed[env],
                )
            if not running:
                break
            for env in range(first, last):
                if counts[RUNNING, env] == 0:
                    continue
                lane = memory[base + (env - first) * width :]
                row, p = t * envs + env, 0 if shared else env * P
                if len(record_observations) > 0:
                    for k in range(O):
                        record_observations[row * O + k] = lane[(A + k) * stride]
                if len(record_actions) > 0:
                    for k in range(A):
                        record_actions[row * A + k] = lane[k * stride]
                key = episode_key(seeds[env], episodes[env], PROCESS)
                normals = draw_normals(noisy != 0, key, elapsed[env])
                reward, margin, ends, finite = step(states, env * S, lane, 0, stride, parameters, p, normals)
                elapsed[env] += 1
                reward = np.float32(reward) if finite else np.float32(0)
                margin = np.float32(margin) if finite else DIVERGED_MARGIN
                ends = ends and finite
                floats[0, env] += reward
                floats[1, env] += margin < 0
                floats[2, env] = min(floats[2, env], margin)
                if len(record_next_observations) > 0:
                    observe(record_next_observations, row * O, 1, states, env * S, parameters, p)
                truncated = book(
                    t,
                    env,
                    limit,
                    many != 0,
                    elapsed,
                    ends,
                    finite,
                    states,
                    parameters,
                    p,
                    seeds,
                    episodes,
                    floats,
                    counts,
                )
                if len(record_rewards) > 0:
                    record_rewards[row] = reward
                if len(record_costs) > 0:
                    record_costs[row] = margin < 0
                if len(record_margins) > 0:
                    record_margins[row] = margin
                if len(record_terminated) > 0:
                    record_terminated[row] = ends
                if len(record_truncated) > 0:
                    record_truncated[row] = truncated
                if len(record_diverged) > 0:
                    record_diverged[row] = not finite
        if len(last_observations) > 0:
            for env in range(first, last):
                observe(last_observations, env * O, 1, states, env * S, parameters, 0 if shared else env * P)

    @jit
    def reset(first, last, numbers, mask, seeds, parameters, states, episodes, last_observations):  # type: ignore[no-untyped-def]
        for env in range(first, last):
            p = 0 if numbers[4] else env * P
            if mask[env]:
                begin(states, env * S, parameters, p, draw_uniforms(episode_key(seeds[env], episodes[env], RESET)))
            if len(last_observations) > 0:
                observe(last_observations, env * O, 1, states, env * S, parameters, p)

    return roll, reset


def _rows(system: Functions) -> tuple[Callable[..., Any], ...]:
    begin, observe, step = system.begin, system.observe, system.step
    read_uniforms, read_normals = system.read_uniforms, system.read_normals

    @jit
    def reset_rows(states: Array, parameters: Array, uniforms: Array) -> None:
        for n in range(len(states)):
            begin(states[n], 0, parameters[n], 0, read_uniforms(uniforms[n], 0))

    @jit
    def observe_rows(observations: Array, states: Array, parameters: Array) -> None:
        for n in range(len(states)):
            observe(observations[n], 0, 1, states[n], 0, parameters[n], 0)

    @jit
    def step_rows(states: Array, outcomes: Array, actions: Array, parameters: Array, normals: Array) -> None:
        for n in range(len(states)):
            normal = read_normals(normals[n], 0)
            reward, margin, ended, finite = step(states[n], 0, actions[n], 0, 1, parameters[n], 0, normal)
            outcomes[n, 0], outcomes[n, 1], outcomes[n, 2] = reward, margin, ended
            if not finite:
                states[n] = np.nan

    return reset_rows, observe_rows, step_rows


def flat_weights(packed: Tensor, header: Sequence[int]) -> Tensor:
    """Values of `NativePolicy.packed` with every layer's matrix as (inputs, outputs) behind its biases."""
    actions = header[-1] // 2 if header[4] == BEFORE_SQUASH else header[-1]
    policy = NativePolicy.unpacked(packed, header)
    parts = [packed[: 2 * header[5] + 2 * actions + max(2, actions)]]
    for k, (weight, bias) in enumerate(zip(policy.weights, policy.biases, strict=True)):
        parts += [bias, weight.t().reshape(-1)]
        if k < len(policy.gains):
            parts += [policy.gains[k], policy.shifts[k]]
    return torch.cat(parts).contiguous()


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
        self._arrays = {name: torch.as_tensor(array) for name, array in arrays.items()}
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
        self._width = actions + observations + 2 * max(widths)
        numbers = [envs, horizon, limit, int(many), int(shared), int(noisy), source, max(widths)]
        self._numbers = self._new(numbers, torch.int64)
        self._plan = self._new(list(header) or [0], torch.int64)
        self._horizon = horizon

    def run(self, threads: int = 1) -> None:
        """Roll out once, from the states onwards."""
        floats = self._new([0.0], torch.float32).repeat(len(FLOATS), self._envs)
        floats[2] = 3.4e38
        counts = self._new([0], torch.int32).repeat(len(COUNTS) + 1, self._envs)
        counts[0], counts[RUNNING] = self._horizon, 1
        weights = self._new([0.0], torch.float32)
        if "policy" in self._arrays:
            weights = flat_weights(self._arrays["policy"], self._header)
        inputs = [self._flat(name) for name in ("low", "high", "seeds", "parameters")]
        kept = [self._flat(name) for name in ("given", "states", "episodes", "elapsed")]
        records = [self._flat(name) for name in RECORDED]
        arrays = [self._numbers, self._plan, weights, *inputs, *kept, floats, counts, *records]
        self._roll([self._view(array) for array in arrays], threads)
        for names, table in ((FLOATS, floats), (COUNTS, counts)):
            for name, row in zip(names, table, strict=False):
                self._arrays[name].copy_(row)

    def reset(self, mask: Any = None, threads: int = 1) -> None:
        """Begin the episodes that `mask` (envs,) uint8 chooses, all by default."""
        chosen = self._new([1], torch.uint8).repeat(self._envs) if mask is None else torch.as_tensor(mask)
        names = ("seeds", "parameters", "states", "episodes", "last_observations")
        self._reset([self._view(array) for array in (self._numbers, chosen, *map(self._flat, names))])

    def _new(self, values: Sequence[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)

    def _flat(self, name: str) -> Tensor:
        """The array as one row; an empty one where it is not wanted."""
        if name in self._arrays:
            return self._arrays[name].view(-1)
        return self._new([], RECORDED.get(name, torch.float32))

    def _view(self, array: Tensor) -> Any:
        return array.numpy()

    def _roll(self, arrays: list[Any], threads: int) -> None:
        roll = self._functions.on_cpu[0]
        blocks = range(0, self._envs, LANES)
        threads = max(1, min(threads, len(blocks)))
        step = max(1, len(blocks) // (8 * threads))  # chunks of blocks: a slow thread takes fewer
        chunks = [(a, min(a + step * LANES, self._envs)) for a in range(0, self._envs, step * LANES)]

        def work(chunk: tuple[int, int]) -> None:
            memory = np.empty(LANES * self._width, np.float32)
            for first in range(*chunk, LANES):
                roll(first, min(first + LANES, chunk[1]), memory, 0, 1, *arrays)

        if threads == 1:
            work((0, self._envs))
            return
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, chunks))

    def _reset(self, arrays: list[Any]) -> None:
        self._functions.on_cpu[1](0, self._envs, *arrays)


class CudaBatch(Batch):
    """`Batch` with tensors in a GPU's memory, one thread an environment, on torch's current stream."""

    def _view(self, array: Tensor) -> Any:
        from numba import cuda

        if array.is_cuda:
            return cuda.as_cuda_array(array)
        if numba.config.ENABLE_CUDASIM:  # numba's simulator of a GPU in python, for tests
            return array.numpy()
        raise ValueError(f"an array is on {array.device}, must be on a GPU")

    def _launch(self, kernel: Any, arrays: list[Any]) -> None:
        from numba import cuda

        blocks = (self._envs + THREADS - 1) // THREADS
        on_gpu = torch.cuda.is_available()
        stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream) if on_gpu else 0
        kernel[blocks, THREADS, stream](*arrays)

    def _roll(self, arrays: list[Any], threads: int) -> None:
        memory = torch.empty(self._envs * self._width, device=self._device)
        self._launch(self._functions.on_gpu[0], [self._view(memory), *arrays])

    def _reset(self, arrays: list[Any]) -> None:
        self._launch(self._functions.on_gpu[1], arrays)
