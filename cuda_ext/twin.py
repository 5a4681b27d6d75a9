"""The rollout loop in plain torch: the same random numbers and rules as native/levels/rollout.cpp, any device.

It is the reference that the native loop is tested against, and what runs where there is no compiler.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor

from surefoot import cuda_ext
from surefoot.cuda_ext.policy import NativePolicy
from surefoot.cuda_ext.system import System

RESET, PROCESS, POLICY, ACTION = 1, 2, 3, 4  # streams, as in native/random.h
DRAWS_PER_STEP = 64
LARGEST_STATE, DIVERGED_MARGIN = 1e6, -1e6
_32 = 0xFFFFFFFF


def mix(x: Tensor) -> Tensor:
    """The hash of native/random.h on int64 tensors that hold 32-bit values."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _32
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _32
    return x ^ (x >> 16)


def episode_key(seeds: Tensor, episodes: Tensor, stream: int) -> Tensor:
    """(N,) part of a draw that an episode keeps."""
    key = mix(seeds ^ ((stream * 0x9E3779B9) & _32))
    return mix((key + episodes * 0x85EBCA6B) & _32)


def uniform(key: Tensor, step: Tensor | int, count: int, dtype: torch.dtype) -> Tensor:
    """(N, count) draws in [0, 1): indices 0 to count - 1 of one step."""
    index = torch.arange(count, device=key.device)
    position = torch.as_tensor(step, device=key.device).reshape(-1, 1) * DRAWS_PER_STEP + index
    position = position * 0x9E3779B9  # wraps around; its last 32 bits count
    return (mix((key[:, None] + position) & _32) >> 8).to(dtype) * 2.0**-24


def normal(key: Tensor, step: Tensor | int, count: int, dtype: torch.dtype) -> Tensor:
    """(N, count) standard normal draws, in pairs by Box and Muller's transform."""
    pairs = (count + 1) // 2
    u = uniform(key, step, 2 * pairs, dtype).view(-1, pairs, 2)
    radius = torch.sqrt(-2 * torch.log(1 - u[..., 0]))
    turn = 2 * math.pi * u[..., 1]
    return torch.stack([radius * torch.cos(turn), radius * torch.sin(turn)], -1).view(-1, 2 * pairs)[:, :count]


def environment_seeds(base: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """(count,) different int64 seeds in [0, 2^32) for environments 0, 1, ... of the base seed `base`."""
    start, rest = base & _32, base >> 32
    while rest not in (0, -1):
        start, rest = int(mix(torch.tensor(start))) ^ (rest & _32), rest >> 32
    native = cuda_ext.native()
    if native is not None and torch.device(device).type == "cpu" and not torch.compiler.is_compiling():
        seeds = np.empty(count, np.int64)
        native.fill_seeds(_mix_of_integer(start), seeds)  # the same, in a tenth of the time
        return torch.from_numpy(seeds)
    first = _mix_of_integer(start)  # on the host: an argument of the next kernel
    return mix((torch.arange(count, device=device) + first) & _32)


def _mix_of_integer(x: int) -> int:
    """`mix` on one number, which tensors of one element take ten times as long for."""
    x ^= x >> 16
    x = x * 0x7FEB352D & _32
    x ^= x >> 15
    x = x * 0x846CA68B & _32
    return x ^ (x >> 16)


@dataclasses.dataclass
class Task:
    """What a rollout does; tensors on one device, parameters (N, P) in the dtype of the computation."""

    system: System
    seeds: Tensor
    """(N,) int64."""
    parameters: Tensor
    horizon: int
    limit: int
    """Steps after which an episode is truncated."""
    many: bool
    noisy: bool
    policy: NativePolicy | None = None
    given: Tensor | None = None
    """(T, N, A) actions; without policy and actions they are random."""


class TwinLoop:
    """N environments in plain torch: `state`, `episodes` and `elapsed` are kept between calls of `run`."""

    def __init__(self, task: Task, states: Tensor, episodes: Tensor, elapsed: Tensor) -> None:
        self.task = task
        self.states, self.episodes, self.elapsed = states, episodes.long(), elapsed.long()
        self.low = torch.tensor(task.system.action_low, dtype=torch.float64).to(task.parameters)
        self.high = torch.tensor(task.system.action_high, dtype=torch.float64).to(task.parameters)

    def initial(self, seeds: Tensor, episodes: Tensor) -> Tensor:
        """(N, S) states that the episodes begin in."""
        system, parameters = self.task.system, self.task.parameters
        draws = uniform(episode_key(seeds, episodes.long(), RESET), 0, system.uniforms, parameters.dtype)
        return system.reset(draws, parameters)

    def observe(self) -> Tensor:
        """(N, O) observations of the present states."""
        return self.task.system.observe(self.states, self.task.parameters)

    def _noise(self, stream: int, count: int) -> Tensor:
        key = episode_key(self.task.seeds, self.episodes, stream)
        return normal(key, self.elapsed, count, self.task.parameters.dtype)

    def _actions(self, t: int, observations: Tensor) -> Tensor:
        task, width = self.task, len(self.task.system.actions)
        if task.policy is not None:
            return task.policy.actions(observations, self._noise(POLICY, width) if task.policy.sampling else None)
        if task.given is not None:
            return torch.minimum(torch.maximum(task.given[t].to(self.low.dtype), self.low), self.high)
        key = episode_key(task.seeds, self.episodes, ACTION)
        return self.low + (self.high - self.low) * uniform(key, self.elapsed, width, self.low.dtype)

    def _advance(self, t: int, running: Tensor, look_ahead: bool) -> Moment:
        """One step of the lanes that are running; the states are then those of the next step."""
        task, system = self.task, self.task.system
        observations = self.observe()
        actions = self._actions(t, observations)
        width = max(1, system.normals)
        normals = self._noise(PROCESS, width) if task.noisy else observations.new_zeros(len(running), width)
        step = system.step(self.states, actions, task.parameters, normals)
        size = step.state.abs().sum(1) + 1e-20 * (step.reward.abs() + step.margin.abs())
        finite = size <= LARGEST_STATE
        kept = running & finite
        self.states = torch.where(kept[:, None], step.state, self.states)
        self.elapsed = self.elapsed + running
        late = self.elapsed >= task.limit
        margins = torch.where(finite, step.margin, DIVERGED_MARGIN)
        moment = Moment(
            observations=observations,
            actions=actions,
            rewards=torch.where(kept, step.reward, 0),
            margins=margins,
            costs=(running & (margins < 0)).to(margins.dtype),
            terminated=kept & step.terminated,
            truncated=running & (~finite | (late & ~step.terminated)),
            diverged=running & ~finite,
            next_observations=self.observe() if look_ahead else observations,
        )
        ended = moment.terminated | moment.truncated
        self.episodes = self.episodes + ended
        self.elapsed = torch.where(ended, 0, self.elapsed)
        if task.many:
            self.states = torch.where(ended[:, None], self.initial(task.seeds, self.episodes), self.states)
        return moment

    def run(self, record: tuple[str, ...] = ()) -> dict[str, Tensor]:
        """Roll out once; names of the result are those of `rollout.SUMS`, and `record_` before those of `record`."""
        task = self.task
        totals = _Totals(self.states[:, 0], task.horizon)
        running = torch.ones_like(task.seeds, dtype=torch.bool)
        rows: dict[str, list[Tensor]] = {name: [] for name in record}
        for t in range(task.horizon):
            if not bool(running.any()):
                break
            moment = self._advance(t, running, "next_observations" in record)
            for name in record:
                value = getattr(moment, name)
                shown = running.view(-1, *[1] * (value.dim() - 1))
                rows[name].append(torch.where(shown, value, torch.zeros_like(value)))
            totals.add(t, moment, running)
            if not task.many:
                running = running & ~(moment.terminated | moment.truncated)
        stacked = {}
        for name, values in rows.items():
            rest = [torch.zeros_like(values[0])] * (task.horizon - len(values))
            stacked["record_" + name] = torch.stack(values + rest)
        return {**totals.result(task.many), **stacked}


@dataclasses.dataclass
class Moment:
    """What a step of N environments shows, before the next episodes begin; names as in `rollout.RECORDS`."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    margins: Tensor
    costs: Tensor
    terminated: Tensor
    truncated: Tensor
    diverged: Tensor
    next_observations: Tensor


class _Totals:
    """Sums per environment, and those of its episodes that ended."""

    def __init__(self, like: Tensor, horizon: int) -> None:
        zero, none = torch.zeros_like(like), torch.zeros_like(like, dtype=torch.int32)
        self.sums = {name: zero.clone() for name in ("returns", "costs", "finished_returns", "finished_costs")}
        names = ("terminated", "truncated", "diverged", "finished", "finished_lengths")
        self.counts = {name: none.clone() for name in names}
        self.margins = torch.full_like(like, 3.4e38)
        self.horizon = horizon
        self.lengths = torch.full_like(none, horizon)
        self.started = none.clone()
        self.before = {"returns": zero.clone(), "costs": zero.clone()}

    def add(self, t: int, moment: Moment, running: Tensor) -> None:
        """Take in step t."""
        ended = moment.terminated | moment.truncated
        self.sums["returns"] += moment.rewards
        self.sums["costs"] += moment.costs
        self.margins = torch.where(running, torch.minimum(self.margins, moment.margins), self.margins)
        for name in ("terminated", "truncated", "diverged"):
            self.counts[name] += getattr(moment, name)
        self.counts["finished"] += ended
        self.counts["finished_lengths"] += torch.where(ended, t + 1 - self.started, 0)
        for name, before in self.before.items():
            self.sums["finished_" + name] += torch.where(ended, self.sums[name] - before, 0)
            self.before[name] = torch.where(ended, self.sums[name], before)
        self.started = torch.where(ended, t + 1, self.started)
        self.lengths = torch.where(ended, t + 1, self.lengths)

    def result(self, many: bool) -> dict[str, Tensor]:
        """By the names of `rollout.SUMS`."""
        lengths = torch.full_like(self.lengths, self.horizon) if many else self.lengths
        return {**self.sums, **self.counts, "margins": self.margins, "lengths": lengths}
