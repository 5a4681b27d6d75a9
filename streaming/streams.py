"""`Streams`: the state of K learners of one sample at a time, and a call's phases, in plain torch or natively.

Row k of each buffer is of stream k, and together they are the whole state of an agent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import Options, option
from surefoot.core.base.random import generator
from surefoot.core.engine.agent import Agent, DatasetLike, Spec, algorithm_of, require
from surefoot.core.engine.traits import Requires
from surefoot.cuda_ext import stream, why_not_native
from surefoot.cuda_ext.stream import (
    ACT,
    ACT_BEFORE,
    LEARN,
    MOST_HIDDEN,
    OBSERVE,
    RESET,
    SHIFT,
    StreamKernel,
    StreamSettings,
    parameter_rows,
)
from surefoot.streaming import statistics
from surefoot.streaming.exploration import ExplorationNoise
from surefoot.streaming.network import Layers

DTYPES = (torch.float32, torch.float64)


@dataclasses.dataclass(frozen=True)
class StreamsConfig(Options):
    """Settings that every agent has which learns from one transition."""

    hidden: tuple[int, ...] | None = option(
        None, "widths of the hidden layers; null: (32, 32) where actions are choices, else (128, 128)", range=">= 1"
    )
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    normalize_observations: bool = option(True, "normalize observations")
    official_time_limit: bool = option(
        False, "treat truncation as an end, without bootstrapping, as the official code does"
    )
    observation_limit: float | None = option(
        None,
        "after 100 samples, skip one further from the mean than this, in deviations; null: none is skipped",
        range="> 0",
    )

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name, limit = algorithm_of(self), self.observation_limit
        known = limit is None or self.normalize_observations
        require(known, name, "observation_limit", limit, "None where observations are not normalised")


def hidden_of(config: StreamsConfig, problem: Spec) -> tuple[int, ...]:
    """Widths of the hidden layers for a problem: the config's, or the paper's for this kind of actions."""
    if config.hidden is not None:
        return tuple(int(width) for width in config.hidden)
    return (32, 32) if problem.discrete else (128, 128)


def checked_seeds(name: str, seeds: Any) -> tuple[int, ...]:
    """The seeds of an algorithm's streams."""
    needed = "different whole numbers from 0, as in seeds=[0, 1, 2], one for each stream"
    given: list[Any] = list(seeds) if isinstance(seeds, Sequence | np.ndarray) and len(seeds) > 0 else [None]
    whole = all(isinstance(seed, int | np.integer) and 0 <= seed < 2**64 for seed in given)
    require(whole and len(set(given)) == len(given), name, "seeds", seeds, needed)
    return tuple(int(seed) for seed in given)


def why_not(hidden: int = 0) -> str:
    """Why there is no native kernel for so many hidden layers, as a clause; empty where there is one."""
    if hidden > MOST_HIDDEN:
        return f"the native kernel takes up to {MOST_HIDDEN} hidden layers, not {hidden}"
    if stream.native_stream():
        return ""
    return f"the native kernel is not there: {why_not_native() or 'the native module was built before it'}"


class Streams(Agent):
    """Holds K streams and takes the phases of a call; what learns gives it networks, actions and `improve`."""

    config: StreamsConfig
    requires = Requires(online=True, data="refused")
    required_columns = ()
    kind: ClassVar[str] = ""
    """Of the native kernel; empty where it has none."""
    act_before: ClassVar[bool] = False
    """Whether the next action is drawn before learning, since the TD error contains it."""

    networks: Mapping[str, Any]
    critic_weights: Tensor
    observation_count: Tensor
    observation_mean: Tensor
    observation_squares: Tensor
    states: Tensor
    chosen: Tensor
    explored: Tensor
    ready: Tensor
    following: Tensor
    next_chosen: Tensor
    next_explored: Tensor
    learned: Tensor
    acted: Tensor
    skipped: Tensor
    missed: Tensor
    running: Tensor
    in_samples: Tensor
    in_observations: Tensor
    in_rewards: Tensor
    in_first: Tensor
    in_flags: Tensor
    in_terminated: Tensor
    in_truncated: Tensor
    in_ended_with_first: Tensor
    in_active: Tensor
    in_noise: Tensor
    in_epsilon: Tensor
    out_actions: Tensor
    out_td: Tensor

    def __init__(
        self,
        problem: Spec | DatasetLike,
        config: Any,
        seeds: Sequence[int],
        dtype: torch.dtype,
        native: bool | None,
        **options: Any,
    ) -> None:
        """Make K streams; arguments as of `StreamingAgent`."""
        super().__init__(problem, config, **options)
        require(dtype in DTYPES, self.name, "dtype", dtype, "torch.float32 or torch.float64")
        self.seeds, self.dtype = checked_seeds(self.name, seeds), dtype
        self.hidden = hidden_of(self.config, self.spec)
        self.networks = self.make_networks()
        self.stream_buffers: list[str] = []
        self.add_buffers()
        self._add_inputs()
        self.acted_count, self.noise_row = self.acted.numpy(), self.in_noise.numpy()
        draws = 2 if self.act_before else 1
        self.noise = ExplorationNoise(self.seeds, draws, self.explore_dim, self.spec.discrete)
        self.native = self._is_native(native)
        self.kernel = self._make_kernel() if self.native else None
        self.planned_steps: int = getattr(self.config, "planned_steps", 0)
        self.overruns = 0
        """Steps that took longer than the budget."""

    # -- what an algorithm defines --------------------------------------------------------------------------------

    def build(self) -> None:
        """Nothing: the buffers are made once the seeds are known."""

    def make_networks(self) -> Mapping[str, Layers]:
        """Name -> shape: of each there is a buffer of weights."""
        raise TypeError(f"{type(self).__name__} must define make_networks")

    @property
    def explore_dim(self) -> int:
        """N: random numbers for one action of one stream."""
        return 0

    def set_epsilon(self) -> None:
        """Set the share of random choices for the next action."""

    def choose(self) -> tuple[Tensor, Tensor]:
        """Actions at `following` by the present weights, and whether they were not greedy: (K, A) or (K,), (K,)."""
        raise TypeError(f"{type(self).__name__} must define choose")

    def improve(self, rows: Tensor) -> None:
        """Learn the transition from `states` by `chosen` to `following` in the streams where (K,) `rows` is True."""
        raise TypeError(f"{type(self).__name__} must define improve")

    def forget(self, rows: Tensor) -> None:
        """Drop what is kept of an episode beside the running transition, in the streams where (K,) `rows` is True."""

    def fade(self, lost: Tensor) -> None:
        """Let the same grow old by (K,) float64 numbers of transitions that can't be learned."""

    def native_settings(self) -> StreamSettings:
        """Config and problem as the kernel takes them, of agents that have a `kind`."""
        raise TypeError(f"{type(self).__name__} must define native_settings")

    # -- buffers ----------------------------------------------------------------------------------------------------

    def add_buffer(self, name: str, value: Tensor) -> None:
        """Register state that is saved with the streams: first dimension K."""
        self.register_buffer(name, value)
        self.stream_buffers.append(name)

    def add_buffers(self) -> None:
        """Weights, statistics of observations, the transition that continues, counters: all that is kept of each
        stream.

        Agents add their own.
        """
        k, size = len(self.seeds), self.spec.observation_dim
        for name, network in self.networks.items():
            first = [network.initial(generator(seed, f"{name}_weights")) for seed in self.seeds]
            weights = parameter_rows(k, network.size, self.dtype)
            self.add_buffer(f"{name}_weights", weights.copy_(torch.from_numpy(np.stack(first))))
        self.add_buffer("observation_count", torch.zeros(k, dtype=torch.float64))
        for name in ("observation_mean", "observation_squares"):
            self.add_buffer(name, torch.zeros(k, size, dtype=torch.float64))
        for name in ("states", "following"):
            self.add_buffer(name, torch.zeros(k, size, dtype=self.dtype))
        for name in ("chosen", "next_chosen"):
            self.add_buffer(name, self._no_actions())
        for name in ("explored", "next_explored", "ready", "running"):
            self.add_buffer(name, torch.zeros(k, dtype=torch.bool))
        for name in ("learned", "skipped", "missed"):
            self.add_buffer(name, torch.zeros(k, dtype=torch.int64))
        self.add_buffer("acted", torch.zeros((), dtype=torch.int64))  # the one that all streams share

    def _no_actions(self) -> Tensor:
        """(K,) choices or (K, A) actions, all 0."""
        k = len(self.seeds)
        if self.spec.discrete:
            return torch.zeros(k, dtype=torch.int64)
        return torch.zeros(k, self.spec.action_dim, dtype=self.dtype)

    def _add_inputs(self) -> None:
        """Plain tensors that a call reads and answers by; nothing of them need be kept."""
        k, size = len(self.seeds), self.spec.observation_dim
        self.in_samples = torch.zeros(k * size + k, dtype=torch.float64)  # together, for a check of all at once
        self.in_observations, self.in_rewards = self.in_samples[: k * size].view(k, size), self.in_samples[k * size :]
        self.in_first = torch.zeros(k, size, dtype=torch.float64)
        self.in_flags = torch.zeros(4, k, dtype=torch.uint8)
        self.in_terminated, self.in_truncated, self.in_ended_with_first, self.in_active = self.in_flags
        self.in_active.fill_(1)
        self.in_noise = torch.zeros(k, self.explore_dim, dtype=self.dtype)
        self.in_epsilon = torch.zeros((), dtype=torch.float64)
        self.out_actions = self._no_actions()
        self.out_td = torch.zeros(k, dtype=torch.float64)

    def _is_native(self, native: bool | None) -> bool:
        """Whether the streams learn in the kernel: where it is asked for, or by default and there is one.

        Raises:
            ConfigError: it was asked for and is not there.
        """
        missing = why_not(len(self.hidden)) if self.kind else f"{self.name} has no native kernel"
        if native and missing:
            raise ConfigError(f"{self.name}: native=True was asked for, but {missing}; leave it out to use plain torch")
        return not missing if native is None else native

    def _make_kernel(self) -> StreamKernel:
        """The kernel that works on the agent's own buffers."""
        settings = self.native_settings()
        names = stream.layout(settings, len(self.seeds), str(self.dtype).removeprefix("torch."))
        return StreamKernel(settings, {name: getattr(self, name) for name in names})

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Refuse `.to(...)`, `.double()` and the like: the native kernel holds the buffers' addresses."""
        raise ConfigError(f"{self.name} learns on the CPU in the dtype it was made with; make another with dtype=...")

    def put(self, name: str, value: Tensor, rows: Tensor) -> None:
        """Write `value` into the buffer `name` in place, where (K,) `rows` is True."""
        buffer = getattr(self, name)
        mask = rows.view(-1, *(1,) * (buffer.dim() - 1))
        buffer.copy_(torch.where(mask, value.to(buffer.dtype), buffer))

    # -- random numbers -------------------------------------------------------------------------------------------

    def draw_noise(self) -> None:
        """Fill `in_noise` for the next action, with the row that `acted` counts."""
        self.noise_row[...] = self.noise.at(int(self.acted_count))
        self.acted_count[...] += 1
        self.set_epsilon()

    def redraw_noise(self) -> None:
        """Fill `in_noise` with second numbers for the same step: of agents that may act twice in one."""
        self.noise_row[...] = self.noise.at(int(self.acted_count) - 1, 1)

    def keep_noise(self) -> None:
        """Fill `in_noise` with the first numbers for the same step again, after `redraw_noise`."""
        self.noise_row[...] = self.noise.at(int(self.acted_count) - 1)

    def draw_first_noise(self, rows: np.ndarray) -> None:
        """Fill `in_noise` for first actions of the streams where (K,) `rows` is True; no step is counted by it."""
        for row in np.flatnonzero(rows):
            self.noise_row[row] = self.noise.at_beginning(int(self.acted_count), int(row))
        self.set_epsilon()

    # -- one call -----------------------------------------------------------------------------------------------

    def run(self, wanted: int) -> None:
        """Take the phases that are wanted, in their order, for the streams where `in_active` is 1."""
        if self.kernel is not None:
            self.kernel.run(wanted)
        else:
            self._run_in_torch(wanted)

    def _run_in_torch(self, phases: int) -> None:
        active = self.in_active.bool()
        if phases & OBSERVE:
            self._observe(self.in_observations, active)
        if phases & ACT_BEFORE:
            self._choose_next(active)
        if phases & LEARN:
            rows = active & self.ready
            if rows.any():
                self.improve(rows)
        if phases & RESET:
            self._observe(self.in_first, active & self.in_ended_with_first.bool())
        if phases & ACT:
            self._choose_next(active)
        if phases & SHIFT:
            self.put("states", self.following, active)
            self.put("chosen", self.next_chosen, active)
            self.put("explored", self.next_explored, active)
            self.put("ready", ~self.done | self.in_ended_with_first.bool(), active)

    def _observe(self, observations: Tensor, rows: Tensor) -> None:
        """`following` := the observation, normalised with statistics that know it already."""
        if self.config.normalize_observations:
            count, mean, squares = statistics.welford(
                self.observation_count, self.observation_mean, self.observation_squares, observations
            )
            self.put("observation_count", count, rows)
            self.put("observation_mean", mean, rows)
            self.put("observation_squares", squares, rows)
            observations = (observations - mean) / statistics.deviation(count, squares)
        self.put("following", observations, rows)

    def _choose_next(self, rows: Tensor) -> None:
        """`next_chosen` := actions at `following`; agents that only predict choose none."""
        if self.kind == "td":
            return
        chosen, explored = self.choose()
        self.put("next_chosen", chosen, rows)
        self.put("next_explored", explored, rows)

    # -- what `improve` is written with ---------------------------------------------------------------------------

    @property
    def done(self) -> Tensor:
        """(K,) bool: whether the episode ended with this transition, in whatever way."""
        return (self.in_terminated | self.in_truncated).bool()

    def bootstrap(self) -> Tensor:
        """(K,) 0 where nothing follows, else 1."""
        ended = self.done if self.config.official_time_limit else self.in_terminated.bool()
        return (~ended).to(self.dtype)

    def count_learned(self, delta: Tensor, rows: Tensor) -> None:
        """After a learning step: the counter and the TD error."""
        self.learned += rows
        self.out_td.copy_(torch.where(rows, delta.double(), self.out_td))

    def observation_scale(self, stream: int) -> tuple[Tensor, Tensor]:
        """(O,) mean and scale, float64, by which a stream's observations are normalised now."""
        mean = self.observation_mean[stream]
        if not self.config.normalize_observations:
            return torch.zeros_like(mean), torch.ones_like(mean)
        return mean, statistics.deviation(self.observation_count, self.observation_squares)[stream]
