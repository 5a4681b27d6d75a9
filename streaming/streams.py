"""What K streams of one agent are made of, and one pass through the phases of a step, in plain torch or natively.

Each stream has weights, traces and statistics of its own: row k of every buffer. The buffers are the whole state:
who copies them can go on from there bit for bit. The native kernel works on the same buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from surefoot.core.agent import Agent, DatasetLike, Spec, require
from surefoot.core.errors import ConfigError
from surefoot.core.random import generator
from surefoot.streaming import kernel, statistics
from surefoot.streaming.behaviour import Behaviour
from surefoot.streaming.config import StreamConfig, hidden_of
from surefoot.streaming.kernel import ACT, ACT_BEFORE, LEARN, OBSERVE, RESET, SHIFT
from surefoot.streaming.network import Layers
from surefoot.streaming.noise import ExplorationNoise
from surefoot.streaming.traces import Traces

DTYPES = (torch.float32, torch.float64)


class Streams(Agent):
    """K independent streams: buffers, noise, normalised observations. Subclasses act and learn."""

    config: StreamConfig
    acts = True
    data = "refused"
    reads = ()
    kind: ClassVar[str] = ""
    """Of the native kernel; empty where it has none."""
    act_before: ClassVar[bool] = False
    """Whether the next action is drawn before learning, since the TD error contains it."""

    behaviour: ClassVar[Behaviour] = Behaviour()
    """How actions are drawn, where the agent does not say it itself."""
    learns_by: ClassVar[type[Traces] | None] = None
    """What holds and steps the traces of the agent's networks, as its `traces`; None: it has none."""

    networks: Mapping[str, Any]
    traces: Any
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

    def __init__(
        self,
        problem: Spec | DatasetLike,
        config: Any = None,
        *,
        seeds: Sequence[int] = (0,),
        dtype: torch.dtype = torch.float32,
        native: bool | None = None,
        **options: Any,
    ) -> None:
        """Make the networks of each stream; arguments and errors as those of `StreamingAgent`."""
        super().__init__(problem, config, **options)
        require(dtype in DTYPES, self.name, "dtype", dtype, "torch.float32 or torch.float64")
        self.seeds, self.dtype = self._checked(seeds), dtype
        self.hidden = hidden_of(self.config, self.spec)
        self.networks = self.make_networks()
        self.stream_buffers: list[str] = []
        self._register()
        self.traces = None if self.learns_by is None else self.learns_by(self)
        self._register_inputs()
        self._acted, self._in_noise = self.acted.numpy(), self.in_noise.numpy()
        draws = 2 if self.act_before else 1
        self._noise = ExplorationNoise(self.seeds, draws, self.noise_width(), self.spec.discrete)
        self.native = self._wants_kernel(native)
        self.kernel = kernel.make(self) if self.native else None

    def _checked(self, seeds: Any) -> tuple[int, ...]:
        needed = "different whole numbers from 0, as in seeds=[0, 1, 2], one for each stream"
        given: list[Any] = list(seeds) if isinstance(seeds, Sequence | np.ndarray) and len(seeds) > 0 else [None]
        whole = all(isinstance(seed, int | np.integer) and 0 <= seed < 2**64 for seed in given)
        require(whole and len(set(given)) == len(given), self.name, "seeds", seeds, needed)
        return tuple(int(seed) for seed in given)

    def build(self) -> None:
        """Nothing: the buffers are made once the seeds are known."""

    def make_networks(self) -> Mapping[str, Layers]:
        """Name -> shape: of each there is a buffer of weights."""
        return self.behaviour.networks(self)

    def noise_width(self) -> int:
        """N: random numbers for one action of one stream."""
        return self.behaviour.noise_width(self)

    def choose(self) -> tuple[Tensor, Tensor]:
        """Actions at `following` by the present weights, and whether they were not greedy: (K, A) or (K,), (K,)."""
        return self.behaviour.choose(self)

    def improve(self, rows: Tensor) -> None:
        """Learn the transition from `states` by `chosen` to `following` in the streams where (K,) `rows` is True."""
        raise TypeError(f"{type(self).__name__} must define improve")

    # -- buffers ------------------------------------------------------------------------------------------------

    def add_buffer(self, name: str, value: Tensor) -> None:
        """Register state that is saved with the streams: first dimension K."""
        self.register_buffer(name, value)
        self.stream_buffers.append(name)

    def _register(self) -> None:
        k, size = len(self.seeds), self.spec.observation_dim
        for name, network in self.networks.items():
            first = [network.initial(generator(seed, f"{name}_weights")) for seed in self.seeds]
            weights = kernel.parameter_rows(k, network.size, self.dtype)
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
        k = len(self.seeds)
        if self.spec.discrete:
            return torch.zeros(k, dtype=torch.int64)
        return torch.zeros(k, self.spec.action_dim, dtype=self.dtype)

    def _register_inputs(self) -> None:
        """Plain tensors that a call reads and answers by; nothing of them need be kept."""
        k, size = len(self.seeds), self.spec.observation_dim
        self.in_samples = torch.zeros(k * size + k, dtype=torch.float64)  # together, for a check of all at once
        self.in_observations, self.in_rewards = self.in_samples[: k * size].view(k, size), self.in_samples[k * size :]
        self.in_first = torch.zeros(k, size, dtype=torch.float64)
        self.in_flags = torch.zeros(4, k, dtype=torch.uint8)
        self.in_terminated, self.in_truncated, self.in_ended_with_first, self.in_active = self.in_flags
        self.in_active.fill_(1)
        self.in_noise = torch.zeros(k, self.noise_width(), dtype=self.dtype)
        self.in_epsilon = torch.zeros((), dtype=torch.float64)
        self.out_actions = self._no_actions()
        self.out_td = torch.zeros(k, dtype=torch.float64)

    def _wants_kernel(self, native: bool | None) -> bool:
        missing = kernel.why_not(len(self.hidden)) if self.kind else f"{self.name} has no native kernel"
        if native and missing:
            raise ConfigError(f"{self.name}: native=True was asked for, but {missing}; leave it out to use plain torch")
        return not missing if native is None else native

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Refuse `.to(...)`, `.double()` and the like: the native kernel holds the buffers' addresses."""
        raise ConfigError(f"{self.name} learns on the CPU in the dtype it was made with; make another with dtype=...")

    # -- noise --------------------------------------------------------------------------------------------------

    def draw_noise(self) -> None:
        """Fill `in_noise` for the next action, with the row that `acted` counts."""
        self._in_noise[...] = self._noise.at(int(self._acted))
        self._acted[...] += 1
        self.behaviour.set_epsilon(self)

    def redraw_noise(self) -> None:
        """Fill `in_noise` with second numbers for the same step: of agents that may act twice in one."""
        self._in_noise[...] = self._noise.at(int(self._acted) - 1, 1)

    def draw_first_noise(self, rows: np.ndarray) -> None:
        """Fill `in_noise` for first actions of the streams where (K,) `rows` is True; no step is counted by it."""
        for stream in np.flatnonzero(rows):
            self._in_noise[stream] = self._noise.at_beginning(int(self._acted), int(stream))
        self.behaviour.set_epsilon(self)

    # -- one call -----------------------------------------------------------------------------------------------

    def run(self, phases: int) -> None:
        """Take the phases, in their order, for the streams where `in_active` is 1."""
        if self.kernel is not None:
            self.kernel.run(phases)
        else:
            self._run_in_torch(phases)

    def _run_in_torch(self, phases: int) -> None:
        active = self.in_active.bool()
        if phases & OBSERVE:
            self._observe(self.in_observations, active)
        if phases & ACT_BEFORE:
            self._choose(active)
        if phases & LEARN:
            rows = active & self.ready
            if rows.any():
                self.improve(rows)
        if phases & RESET:
            self._observe(self.in_first, active & self.in_ended_with_first.bool())
        if phases & ACT:
            self._choose(active)
        if phases & SHIFT:
            done = (self.in_terminated | self.in_truncated).bool()
            self.put("states", self.following, active)
            self.put("chosen", self.next_chosen, active)
            self.put("explored", self.next_explored, active)
            self.put("ready", ~done | self.in_ended_with_first.bool(), active)

    def put(self, name: str, value: Tensor, rows: Tensor) -> None:
        """Write `value` into the buffer `name` in place, where (K,) `rows` is True."""
        buffer = getattr(self, name)
        mask = rows.view(-1, *(1,) * (buffer.dim() - 1))
        buffer.copy_(torch.where(mask, value.to(buffer.dtype), buffer))

    def _observe(self, observations: Tensor, rows: Tensor) -> None:
        """`following` := the observation, normalised with statistics that know it already."""
        if self.config.normalise_observations:
            count, mean, squares = statistics.welford(
                self.observation_count, self.observation_mean, self.observation_squares, observations
            )
            self.put("observation_count", count, rows)
            self.put("observation_mean", mean, rows)
            self.put("observation_squares", squares, rows)
            observations = (observations - mean) / statistics.deviation(count, squares)
        self.put("following", observations, rows)

    def _choose(self, rows: Tensor) -> None:
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

    def forget(self, rows: Tensor) -> None:
        """Drop what is kept of an episode beside the running transition, in the streams where (K,) `rows` is True."""
        if self.traces is not None:
            self.traces.forget(rows)

    def fade(self, lost: Tensor) -> None:
        """Let the same grow old by (K,) float64 numbers of transitions that can't be learned."""
        if self.traces is not None:
            self.traces.fade(lost)
