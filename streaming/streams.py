"""What K streams of one agent are made of, and one pass through the phases of a step, in plain torch or natively.

Each stream has weights, traces and statistics of its own: row k of every buffer. The buffers are the whole state:
who copies them can go on from there bit for bit. The native kernel works on the same buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from surefoot.core.agent import Agent, DatasetLike, Spec, require
from surefoot.core.errors import ConfigError
from surefoot.core.random import generator
from surefoot.streaming import kernel, obgd, statistics
from surefoot.streaming.config import StreamConfig, hidden_of
from surefoot.streaming.network import Network

OBSERVE, ACT_BEFORE, LEARN, RESET, ACT, SHIFT = (1 << bit for bit in range(6))
"""Phases of a step, taken in this order."""
NOISE_BLOCK = 128
"""Rows of exploration noise drawn at once; part of what a seed means, so it is a constant."""
DTYPES = (torch.float32, torch.float64)


class Streams(Agent):
    """K independent streams: buffers, noise, normalisers, the optimiser. A subclass says how to act and to learn."""

    config: StreamConfig
    acts = True
    data = "refused"
    reads = ()
    kind: ClassVar[str] = ""
    """Of the native kernel; empty where it has none."""
    act_before: ClassVar[bool] = False
    """Whether the next action is drawn before learning, since the TD error contains it."""

    critic_weights: Tensor
    critic_traces: Tensor
    observation_count: Tensor
    observation_mean: Tensor
    observation_squares: Tensor
    reward_trace: Tensor
    reward_count: Tensor
    reward_mean: Tensor
    reward_squares: Tensor
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
    count: Tensor

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
        """Make the networks of each stream.

        Args:
            problem: sizes, action bounds, and whether actions are choices.
            config: the algorithm's config dataclass, or None for its defaults.
            seeds: one stream each: its first weights and its exploration noise.
            dtype: of weights and traces, float32 or float64; statistics are always float64.
            native: True: the native kernel; False: plain torch; None: the kernel where there is one.
            options: fields of the config to change; preset="official" starts from the official code's settings.

        Raises:
            ConfigError: an option that does not exist or is out of range, or a kernel that is not there.
        """
        super().__init__(problem, config, **options)
        require(len(seeds) > 0, self.name, "seeds", list(seeds), "at least one number")
        require(dtype in DTYPES, self.name, "dtype", dtype, "torch.float32 or torch.float64")
        self.seeds, self.dtype = tuple(int(seed) for seed in seeds), dtype
        self.hidden = hidden_of(self.config, self.spec)
        self.networks = self.make_networks()
        self.stream_buffers: list[str] = []
        self._register()
        self._register_inputs()
        self._acted, self._in_noise, self._in_epsilon = (
            tensor.numpy() for tensor in (self.acted, self.in_noise, self.in_epsilon)
        )
        self._row, self._noise_block = 0, -1
        self._noise = np.zeros(0)
        self.native = self._wants_kernel(native)
        self.kernel = kernel.make(self) if self.native else None

    def build(self) -> None:
        """Nothing: the buffers are made once the seeds are known."""

    def make_networks(self) -> dict[str, Network]:
        """Name -> shape; a buffer of weights and one of traces for each."""
        return {"critic": self.network(1)}

    def network(self, outputs: int, inputs: int | None = None) -> Network:
        """The config's network with so many outputs, of observations unless said otherwise."""
        return Network(inputs or self.spec.observation_dim, outputs, self.hidden, self.config.layer_norm)

    def noise_width(self) -> int:
        """N: random numbers for one action of one stream."""
        return 0

    def choose(self) -> tuple[Tensor, Tensor]:
        """Actions at `following` by the present weights, and whether they were not greedy: (K, A) or (K,), (K,)."""
        raise TypeError(f"{type(self).__name__} must define choose")

    def improve(self, rows: Tensor) -> None:
        """Learn the transition from `states` by `chosen` to `following` in the streams where (K,) `rows` is True."""
        raise TypeError(f"{type(self).__name__} must define improve")

    # -- buffers ------------------------------------------------------------------------------------------------

    def add_buffer(self, name: str, value: Tensor) -> None:
        """Register state that is saved with the streams: first dimension K."""
        self.register_buffer(name, value)
        self.stream_buffers.append(name)

    def _register(self) -> None:
        c, k, size = self.config, len(self.seeds), self.spec.observation_dim
        for name, network in self.networks.items():
            first = [network.initial(generator(s, f"{name}_weights"), c.sparsity, c.min_nonzero) for s in self.seeds]
            self.add_buffer(f"{name}_weights", torch.from_numpy(np.stack(first)).to(self.dtype))
            self.add_buffer(f"{name}_traces", torch.zeros(k, network.size, dtype=self.dtype))
            if c.optimizer == "adaptive":
                self.add_buffer(f"{name}_second", torch.zeros(k, network.size, dtype=self.dtype))
        self.add_buffer("count", torch.zeros(k, dtype=torch.int64))
        for name in ("observation_mean", "observation_squares"):
            self.add_buffer(name, torch.zeros(k, size, dtype=torch.float64))
        for name in ("observation_count", "reward_trace", "reward_count", "reward_mean", "reward_squares"):
            self.add_buffer(name, torch.zeros(k, dtype=torch.float64))
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
        self.in_observations = torch.zeros(k, size, dtype=torch.float64)
        self.in_first = torch.zeros(k, size, dtype=torch.float64)
        self.in_rewards = torch.zeros(k, dtype=torch.float64)
        self.in_flags = torch.zeros(4, k, dtype=torch.uint8)
        self.in_terminated, self.in_truncated, self.in_ended_with_first, self.in_active = self.in_flags
        self.in_active.fill_(1)
        self.in_noise = torch.zeros(k, self.noise_width(), dtype=self.dtype)
        self.in_epsilon = torch.zeros((), dtype=torch.float64)
        self.out_actions = self._no_actions()
        self.out_td = torch.zeros(k, dtype=torch.float64)

    def _wants_kernel(self, native: bool | None) -> bool:
        missing = kernel.why_not() if self.kind else f"{self.name} has no native kernel"
        if native and missing:
            raise ConfigError(f"{self.name}: native=True was asked for, but {missing}; leave it out to use plain torch")
        return not missing if native is None else native

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Refuse `.to(...)`, `.double()` and the like: the native kernel holds the buffers' addresses."""
        raise ConfigError(f"{self.name} learns on the CPU in the dtype it was made with; make another with dtype=...")

    # -- noise --------------------------------------------------------------------------------------------------

    def epsilon(self, step: int) -> float:
        """Share of random choices in the `step`-th action, the first being 1."""
        return 0.0

    def draw_noise(self) -> None:
        """Fill `in_noise` and `in_epsilon` for the next action."""
        step = int(self._acted)
        self._acted += 1
        block, self._row = divmod(step, NOISE_BLOCK)
        if block != self._noise_block:
            shape = (NOISE_BLOCK, 2 if self.act_before else 1, self.noise_width())
            sources = [generator(seed, "exploration", block) for seed in self.seeds]
            draws = [
                source.random(shape, dtype=np.float32)
                if self.spec.discrete
                else source.standard_normal(shape, dtype=np.float32)
                for source in sources
            ]
            self._noise, self._noise_block = np.stack(draws, 2), block
        self._in_noise[...] = self._noise[self._row, 0]
        self._in_epsilon[...] = self.epsilon(step + 1)

    def redraw_noise(self) -> None:
        """Fill `in_noise` with second numbers for the same step: of agents that may act twice in one."""
        self._in_noise[...] = self._noise[self._row, -1]

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

    def reward(self, rows: Tensor) -> Tensor:
        """(K,) reward divided by the standard deviation of its discounted sum, which it enters first."""
        c = self.config
        if not c.scale_rewards:
            return self.in_rewards.to(self.dtype)
        total, kept = statistics.discounted_sum(
            self.reward_trace, self.in_rewards, self.done, c.discount, c.clear_before_add
        )
        count, mean, squares = statistics.welford(self.reward_count, self.reward_mean, self.reward_squares, total)
        self.put("reward_trace", kept, rows)
        self.put("reward_count", count, rows)
        self.put("reward_mean", mean, rows)
        self.put("reward_squares", squares, rows)
        return (self.in_rewards / statistics.deviation(count, squares)).to(self.dtype)

    def ascend(
        self, name: str, gradient: Tensor, delta: Tensor, kappa: float, rows: Tensor, kept: Tensor | None = None
    ) -> None:
        """z <- gamma lambda z + g; w <- w + a delta z: a step of network `name`.

        Args:
            name: of the network.
            gradient: (K, P) g.
            delta: (K,) TD errors.
            kappa: of ObGD's bound.
            rows: (K,) streams that learn.
            kept: (K,) 0 where the old trace is cut first, else 1.
        """
        c = self.config
        decay: float | Tensor = c.discount * c.decay
        if kept is not None:
            decay = decay * kept.unsqueeze(-1)
        weights, traces = getattr(self, f"{name}_weights"), getattr(self, f"{name}_traces")
        traces = obgd.accumulate(traces, gradient, decay)
        if c.optimizer == "obgd":
            weights, _ = obgd.obgd_step(weights, traces, delta, kappa=kappa, step_size=c.step_size)
        elif c.optimizer == "adaptive":
            second, settings = getattr(self, f"{name}_second"), {"beta2": c.beta2, "epsilon": c.epsilon_adaptive}
            weights, second, _ = obgd.adaptive_obgd_step(
                weights, traces, second, self.count + 1, delta, kappa=kappa, step_size=c.step_size, **settings
            )
            self.put(f"{name}_second", second, rows)
        else:
            weights = obgd.sgd_step(weights, traces, delta, learning_rate=c.learning_rate)
        self.put(f"{name}_weights", weights, rows)
        self.put(f"{name}_traces", traces, rows)

    def finish(self, delta: Tensor, rows: Tensor, cut: Tensor | None = None) -> None:
        """After the updates: traces to 0 where the episode ended or (K,) `cut`, and the counters."""
        ended = rows & (self.done if cut is None else self.done | cut)
        self.clear_traces(ended)
        self.learned += rows
        if self.config.optimizer == "adaptive":
            self.count += rows
        self.out_td.copy_(torch.where(rows, delta.double(), self.out_td))

    def clear_traces(self, rows: Tensor) -> None:
        """Forget what earlier steps are to be credited for, in the streams where (K,) `rows` is True."""
        if rows.any():
            for name in self.networks:
                getattr(self, f"{name}_traces")[rows] = 0
