"""The loop over time of a block of lanes, as native/levels/rollout.cpp, for numba to compile for a CPU or a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from surefoot.cuda_ext import numba_maths
from surefoot.cuda_ext.numba_maths import ACTION, POLICY, PROCESS, RESET, Array, episode_key, jit, normal, uniform

BY_POLICY, GIVEN, RANDOM = range(3)  # native/rollout.h's Source
DIVERGED_MARGIN = np.float32(-1e6)
_ZERO, _ONE = np.float32(0), np.float32(1)
FLOATS = ("returns", "costs", "margins", "finished_returns", "finished_costs")
"""Rows of the (5, N) array of sums."""
COUNTS = ("lengths", "terminated", "truncated", "diverged", "finished", "finished_lengths")
"""Rows of the (7, N) array of counts."""
RUNNING = len(COUNTS)
"""Its last row: 1 while an environment's episode continues."""
NUMBERS = ("envs", "horizon", "limit", "many", "shared", "noisy", "source", "sampling")
"""Of a rollout, int64."""
REWARD, MARGIN, ENDED, FINITE, RAN = range(5)
"""Rows of a block's outcomes."""


def scratch_sizes(sizes: tuple[int, ...], width: int, lanes: int) -> tuple[int, ...]:
    """Of the float32 arrays that a block needs: states, actions, observations, parameters, draws, outcomes, x, y."""
    states, actions, observations, parameters, uniforms, normals = sizes
    draws = max(uniforms, normals, actions, 1)
    return tuple(lanes * max(1, n) for n in (states, actions, observations, parameters, draws, RAN + 1, width, width))


class Common(NamedTuple):
    """Functions of blocks with so many lanes that do not depend on the system, so that several systems share them."""

    enter: Callable[..., None]
    """Rows of the environments to lanes; those past the last environment repeat it."""
    leave: Callable[..., None]
    """Lanes to rows."""
    draw: Callable[..., None]
    """Standard normal numbers."""
    act: Callable[..., None]
    """Actions, by the source of the rollout."""
    settle: Callable[..., None]
    """A step of the lanes that run into their sums."""
    record: Callable[..., None]
    """Write the lanes that run where rows are wanted."""


@functools.cache
def common(lanes: int) -> Common:
    """Compiled at their first calls."""

    @jit
    def enter(first, numbers, parameters, P, states, S, s, p):  # type: ignore[no-untyped-def]
        for lane in range(lanes):
            env = min(first + lane, numbers[0] - 1)
            row = 0 if numbers[4] else env
            for k in range(S):
                s[k * lanes + lane] = states[env * S + k]
            for k in range(P):
                p[k * lanes + lane] = parameters[row * P + k]

    @jit
    def leave(first: int, envs: int, width: int, values: Array, rows: Array) -> None:
        for lane in range(min(lanes, envs - first)):
            for k in range(width):
                rows[(first + lane) * width + k] = values[k * lanes + lane]

    @jit
    def draw(stream: int, count: int, seeds: Array, episodes: Array, elapsed: Array, z: Array) -> None:
        for lane in range(len(seeds)):
            key = episode_key(seeds[lane], episodes[lane], stream)
            for k in range(count):
                z[k * lanes + lane] = normal(key, elapsed[lane], k)

    @jit
    def settle(going: Array, outcomes: Array, returns: Array, costs: Array, lowest: Array, elapsed: Array) -> None:
        margins = outcomes[MARGIN * lanes :]
        for lane in range(len(going)):
            ran, margin = going[lane] != 0, margins[lane]
            returns[lane] += outcomes[lane] if ran else _ZERO
            costs[lane] += _ONE if ran & (margin < 0) else _ZERO
            lowest[lane] = margin if ran & (margin < lowest[lane]) else lowest[lane]
            elapsed[lane] += going[lane]

    @jit
    def record(going: Array, row: int, values: Array, width: int, rows: Array) -> None:
        if len(rows) > 0:
            for lane in range(len(going)):
                if going[lane] != 0:
                    for k in range(width):
                        rows[(row + lane) * width + k] = values[k * lanes + lane]

    return Common(enter, leave, draw, _actor(lanes, draw), settle, record)


def _actor(lanes: int, draw: Callable[..., None]) -> Callable[..., None]:
    policy = numba_maths.policy_for(lanes)

    @jit
    def act(numbers, header, weights, low, high, given, seeds, episodes, elapsed, o, a, z, x, y):  # type: ignore[no-untyped-def]
        """`given` begins with the actions of the first lane."""
        width = len(low)
        if numbers[6] == BY_POLICY:
            if numbers[7]:
                draw(POLICY, width, seeds, episodes, elapsed, z)
            policy(header, weights, o, a, z, x, y)
        elif numbers[6] == GIVEN:
            for k in range(width):
                for lane in range(len(seeds)):
                    a[k * lanes + lane] = min(max(given[lane * width + k], low[k]), high[k])
        else:
            for k in range(width):
                least, size, here = low[k], high[k] - low[k], a[k * lanes : (k + 1) * lanes]
                for lane in range(len(seeds)):
                    key = episode_key(seeds[lane], episodes[lane], ACTION)
                    here[lane] = least + size * np.float32(uniform(key, elapsed[lane], k))

    return act


def _phases(system: Any, lanes: int) -> tuple[Callable[..., None], ...]:
    """begin (an episode of one lane), observe and step (all lanes) of a system."""
    system_begin, system_observe, system_step = system.begin, system.observe, system.step
    uniforms = system.sizes[4]

    @jit
    def begin(lane: int, seed: int, episode: int, s: Array, p: Array, z: Array) -> None:
        key = episode_key(seed, episode, RESET)
        for k in range(uniforms):
            z[k * lanes + lane] = uniform(key, 0, k)
        system_begin(s, lane, p, lane, z, lane, lanes)

    @jit
    def observe(o: Array, s: Array, p: Array) -> None:
        for lane in range(lanes):
            system_observe(o, lane, s, lane, p, lane, lanes)

    @jit
    def step(going: Array, s: Array, a: Array, p: Array, z: Array, outcomes: Array) -> None:
        """Lanes that do not run keep their states."""
        running = outcomes[RAN * lanes :]
        for lane in range(len(going)):
            running[lane] = going[lane]
        for lane in range(lanes):
            ran = outcomes[RAN * lanes + lane] > 0
            reward, margin, ended, finite = system_step(s, lane, a, lane, p, lane, z, lane, lanes, ran)
            outcomes[lane] = reward if finite else 0.0
            outcomes[MARGIN * lanes + lane] = margin if finite else DIVERGED_MARGIN
            outcomes[ENDED * lanes + lane] = 1.0 if ended & finite else 0.0
            outcomes[FINITE * lanes + lane] = 1.0 if finite else 0.0

    return begin, observe, step


def _booker(lanes: int, begin: Callable[..., None]) -> Callable[..., None]:
    """Books the episodes that a step ended, and begins others."""

    @jit
    def book(  # type: ignore[no-untyped-def]
        first, t, numbers, floats, counts, seeds, episodes, elapsed, s, p, z, outcomes, costs, terminated, truncated,
        diverged,
    ):  # fmt: skip
        envs, limit, many = numbers[0], numbers[2], numbers[3]
        for lane in range(len(seeds)):
            env, row = first + lane, t * envs + first + lane
            if counts[RUNNING, env] == 0:
                continue
            ended, broken = outcomes[ENDED * lanes + lane] > 0, outcomes[FINITE * lanes + lane] == 0
            late = broken or (elapsed[lane] >= limit and not ended)
            if len(costs) > 0:
                costs[row] = outcomes[MARGIN * lanes + lane] < 0
            if len(terminated) > 0:
                terminated[row] = ended
            if len(truncated) > 0:
                truncated[row] = late
            if len(diverged) > 0:
                diverged[row] = broken
            if not ended and not late:
                continue
            counts[1, env] += ended
            counts[2, env] += late
            counts[3, env] += broken
            counts[4, env] += 1
            counts[5, env] = t + 1
            floats[3, env], floats[4, env] = floats[0, env], floats[1, env]
            episodes[lane] += 1
            elapsed[lane] = 0
            if many:
                begin(lane, seeds[lane], episodes[lane], s, p, z)
            else:
                counts[0, env] = t + 1
                counts[RUNNING, env] = 0

    return book


def loops(system: Any, lanes: int) -> tuple[Callable[..., None], Callable[..., None]]:
    """(roll, reset) of the environments first .. first + lanes - 1; `system`: `numba_backend.Functions`.

    The lanes past the last environment repeat it, and are not booked.
    """
    enter, leave, draw, act, settle, record = common(lanes)
    begin, observe, step = _phases(system, lanes)
    book = _booker(lanes, begin)
    S, A, SEEN, P, _, Z = system.sizes

    @jit
    def roll(  # type: ignore[no-untyped-def]
        first, numbers, scratch, header, weights, low, high, seeds, parameters, given, states, episodes, elapsed,
        floats, counts, last_observations, floats_recorded, flags_recorded,
    ):  # fmt: skip
        s, a, o, p, z, outcomes, x, y = scratch
        observations, actions, rewards, next_observations, costs, margins = floats_recorded
        envs, last = numbers[0], min(first + lanes, numbers[0])
        seeds, episodes, elapsed = seeds[first:last], episodes[first:last], elapsed[first:last]
        going = counts[RUNNING, first:last]
        returns, totals, lowest = floats[0, first:last], floats[1, first:last], floats[2, first:last]
        enter(first, numbers, parameters, P, states, S, s, p)
        for t in range(numbers[1]):
            running = 0
            for lane in range(len(going)):
                running += going[lane]
            if running == 0:
                break
            if numbers[6] == BY_POLICY or len(observations) > 0:
                observe(o, s, p)
            row = t * envs + first
            act(numbers, header, weights, low, high, given[row * A :], seeds, episodes, elapsed, o, a, z, x, y)
            record(going, row, o, SEEN, observations)
            record(going, row, a, A, actions)
            if numbers[5]:
                draw(PROCESS, Z, seeds, episodes, elapsed, z)
            else:
                for k in range(max(1, Z) * lanes):
                    z[k] = 0
            step(going, s, a, p, z, outcomes)
            settle(going, outcomes, returns, totals, lowest, elapsed)
            if len(next_observations) > 0:
                observe(o, s, p)
                record(going, row, o, SEEN, next_observations)
            record(going, row, outcomes, 1, rewards)
            record(going, row, outcomes[MARGIN * lanes :], 1, margins)
            book(first, t, numbers, floats, counts, seeds, episodes, elapsed, s, p, z, outcomes, costs, *flags_recorded)
        leave(first, envs, S, s, states)
        if len(last_observations) > 0:
            observe(o, s, p)
            leave(first, envs, SEEN, o, last_observations)

    @jit
    def reset(first, numbers, scratch, mask, seeds, parameters, states, episodes, last_observations):  # type: ignore[no-untyped-def]
        s, o, p, z = scratch[0], scratch[2], scratch[3], scratch[4]
        enter(first, numbers, parameters, P, states, S, s, p)
        for lane in range(min(lanes, numbers[0] - first)):
            if mask[first + lane]:
                begin(lane, seeds[first + lane], episodes[first + lane], s, p, z)
        leave(first, numbers[0], S, s, states)
        if len(last_observations) > 0:
            observe(o, s, p)
            leave(first, numbers[0], SEEN, o, last_observations)

    return roll, reset
