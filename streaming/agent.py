"""`StreamingAgent`: what a control loop calls. Observations and rewards in, actions out, in the environment's units.

In a loop::

    action = agent.begin(observation)
    while True:
        ...                                                     # carry out the action, read the sensors
        action = agent.step(observation, reward, terminated, truncated)

One agent holds K streams. With K = 1 an observation is (O,) and a reward a number; with more, (K, O) and (K,).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.greedy_actor import GreedyActor
from surefoot.core.actors.heads import CategoricalActor, MLPActor, SoftplusGaussianActor
from surefoot.core.base.actions import middle_and_half
from surefoot.core.base.errors import ConfigError, DivergenceError
from surefoot.core.engine.agent import Agent, DatasetLike, Spec, require
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.streaming import kernel, loop, phases, saving, statistics
from surefoot.streaming.behaviour import Behaviour
from surefoot.streaming.buffers import add_buffers, add_inputs, checked_seeds
from surefoot.streaming.config import StreamConfig, hidden_of
from surefoot.streaming.latency import Latency
from surefoot.streaming.network import Layers
from surefoot.streaming.noise import ExplorationNoise
from surefoot.streaming.samples import Samples
from surefoot.streaming.traces import Traces

DTYPES = (torch.float32, torch.float64)


class StreamingAgent(Agent):
    """Learns from each sample as it comes: `begin`, `step`, or `act` and `learn`; `miss`; `save`, `load`, `policy`.

    A sample with a NaN, an infinity or a number beyond 1e18, like one that `miss` reports, is a gap: the last action is
    repeated, the two transitions that it belongs to are not learned, and traces and the reward's discounted sum decay
    by the time that passes, so that later errors credit earlier steps as they should; Q's are cut. `report` counts all.
    """

    policy_network: ClassVar[str] = "actor"
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

    begin, step, learn, miss = loop.begin, loop.step, loop.learn, loop.miss
    draw_noise, redraw_noise, draw_first_noise = phases.draw_noise, phases.redraw_noise, phases.draw_first_noise
    keep_noise = phases.keep_noise
    act = loop.act  # type: ignore[assignment]  # a step of the loop, not a function of a batch

    def __init__(
        self,
        problem: Spec | DatasetLike,
        config: Any = None,
        *,
        seeds: Sequence[int] = (0,),
        dtype: torch.dtype = torch.float32,
        native: bool | None = None,
        budget_us: float | None = None,
        **options: Any,
    ) -> None:
        """Make K agents, one for each seed.

        Args:
            problem: sizes, action bounds, and whether actions are choices.
            config: the algorithm's config dataclass, or None for its defaults.
            seeds: one stream each: its first weights and its exploration noise.
            dtype: of weights and traces, float32 or float64; statistics are always float64.
            native: True: the native kernel; False: plain torch; None: the kernel where there is one.
            budget_us: microseconds that a step may take; `report` counts those that took longer.
            options: fields of the config to change; preset="official" starts from the official code's settings.

        Raises:
            ConfigError: an option that does not exist or is out of range, or a kernel that is not there.
        """
        super().__init__(problem, config, **options)
        require(dtype in DTYPES, self.name, "dtype", dtype, "torch.float32 or torch.float64")
        self.seeds, self.dtype = checked_seeds(self.name, seeds), dtype
        self.hidden = hidden_of(self.config, self.spec)
        self.networks = self.make_networks()
        self.stream_buffers: list[str] = []
        self.add_buffers()
        self.traces = None if self.learns_by is None else self.learns_by(self)
        add_inputs(self)
        self.acted_count, self.noise_row = self.acted.numpy(), self.in_noise.numpy()
        draws = 2 if self.act_before else 1
        self.noise = ExplorationNoise(self.seeds, draws, self.noise_width(), self.spec.discrete)
        self.native = kernel.wanted(self, native)
        self.kernel = kernel.make(self) if self.native else None
        require(budget_us is None or budget_us > 0, self.name, "budget_us", budget_us, "> 0, or None")
        self.samples = Samples(self)
        self._chosen, self._next_chosen = self.chosen.numpy(), self.next_chosen.numpy()
        self._td = self.out_td.numpy()
        self.budget_us = budget_us
        self.overruns = 0
        """Steps that took longer than the budget."""
        self.latency = {"step": Latency(), "act": Latency(), "learn": Latency()}
        """How long the calls of each of these took; `print` shows a histogram."""
        self.planned_steps: int = getattr(self.config, "planned_steps", 0)
        self.due = False  # `act` was called, and `learn` not yet
        self.act_ns = 0
        low, high = (np.asarray(bounds, np.float64) for bounds in (self.spec.action_low, self.spec.action_high))
        own = self._chosen.dtype
        self._low, self._high = low.astype(own), high.astype(own)
        self._middle, self._half = (value.astype(own) for value in middle_and_half(low, high))
        self.later = np.ones(len(self.seeds), bool)

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

    def add_buffer(self, name: str, value: Tensor) -> None:
        """Register state that is saved with the streams: first dimension K."""
        self.register_buffer(name, value)
        self.stream_buffers.append(name)

    def add_buffers(self) -> None:
        """Register all that is kept of the streams; agents add their own."""
        add_buffers(self)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Refuse `.to(...)`, `.double()` and the like: the native kernel holds the buffers' addresses."""
        raise ConfigError(f"{self.name} learns on the CPU in the dtype it was made with; make another with dtype=...")

    def plan(self, steps: int) -> None:
        """Say how many steps are to come in all: what the epsilon schedule of q and sarsa is a fraction of."""
        require(steps >= 1, self.name, "planned_steps", steps, ">= 1")
        self.planned_steps = int(steps)

    # -- the loop (begin, step, act, learn and miss are those of `loop`) --------------------------------------------

    def answer(self, acting: bool = False) -> Any:
        """The actions to carry out, in the environment's units; `acting`: before they were shifted to `chosen`."""
        chosen = self._chosen
        if acting:
            later = self.later if self.spec.discrete else self.later[:, None]
            chosen = np.where(later, self._next_chosen, chosen)
        if self.spec.discrete:
            return chosen[0] if self.samples.single else chosen.copy()
        # Within the bounds after the rounding of the sum, too.
        actions = np.minimum(np.maximum(self._middle + self._half * self.squashed(chosen), self._low), self._high)
        if not math.isfinite(np.vdot(actions, actions)) and not np.isfinite(actions).all():
            self._stop(~np.isfinite(actions).all(-1), "the action")
        return actions[0] if self.samples.single else actions

    def squashed(self, chosen: np.ndarray) -> np.ndarray:
        """(K, A) actions for samples as they were drawn; those beyond [-1, 1] are cut to the bounds afterwards."""
        return chosen

    # -- where it ends ----------------------------------------------------------------------------------------------

    def check_learned(self) -> None:
        """No action may come from weights that a TD error was not finite for."""
        if len(self._td) == 1:
            if math.isfinite(self._td[0]):
                return
        elif np.isfinite(self._td).all():
            return
        self._stop(~np.isfinite(self._td), "the TD error")

    def _stop(self, rows: np.ndarray, what: str) -> None:
        stream = int(np.flatnonzero(rows)[0])
        raise DivergenceError(
            f"{self.name}: {what} of stream {stream} (seed {self.seeds[stream]}) is not finite after "
            f"{int(self.learned[stream])} learned samples, so its weights are of no use; open the last saved file, and "
            "take smaller steps (a larger kappa or optimizer=obgd) if it happens again"
        )

    def count_time(self, what: str, nanoseconds: int, before: int = 0) -> None:
        """Of a call that took so many nanoseconds, after others `before` in the same step."""
        self.latency[what].add(nanoseconds)
        if self.budget_us is not None and nanoseconds + before > 1000 * self.budget_us:
            self.overruns += 1

    # -- what is known of it ----------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Counters by name: lists have a number for each stream; latencies are in microseconds."""
        self.learn()
        return {
            "algorithm": self.name,
            "native": self.native,
            "acted": int(self.acted),
            "learned": self.learned.tolist(),
            "skipped": self.skipped.tolist(),
            "missed": self.missed.tolist(),
            "budget_us": self.budget_us,
            "overruns": self.overruns,
            "latency": {name: latency.summary() for name, latency in self.latency.items() if latency.count},
        }

    def observation_scale(self, stream: int) -> tuple[Tensor, Tensor]:
        """(O,) mean and scale, float64, by which a stream's observations are normalised now."""
        mean = self.observation_mean[stream]
        if not self.config.normalise_observations:
            return torch.zeros_like(mean), torch.ones_like(mean)
        return mean, statistics.deviation(self.observation_count, self.observation_squares)[stream]

    def copies(self) -> dict[str, str]:
        """None: nothing follows another network."""
        return {}

    def policy(self, stream: int = 0) -> Policy:
        """A copy of a stream's policy that stands on its own: mean actions or likeliest choices, statistics fixed."""
        self.learn()
        normalizer = Normalizer(self.spec.observation_dim)
        mean, scale = self.observation_scale(stream)
        normalizer.load_state_dict({"mean": mean, "scale": scale})
        return Policy.of(self._actor(stream), normalizer, self.action_low, self.action_high)

    def _actor(self, stream: int) -> MLPActor:
        choosing = GreedyActor if self.policy_network == "critic" else CategoricalActor
        kind = choosing if self.spec.discrete else SoftplusGaussianActor
        norm, sizes = self.networks[self.policy_network].layer_norm, (self.spec.observation_dim, self.spec.action_dim)
        return self.fill(kind(*sizes, self.hidden, activation="leaky_relu", layer_norm=norm), stream)

    @torch.no_grad()
    def fill(self, actor: MLPActor, stream: int) -> MLPActor:
        """The actor, with the weights of a stream's policy network."""
        flat = getattr(self, f"{self.policy_network}_weights")[stream : stream + 1]
        for layer, (weight, bias) in enumerate(self.networks[self.policy_network].layers(flat)):
            actor.mlp.weights[layer].copy_(weight[0])
            actor.mlp.biases[layer].copy_(bias[0])
        return actor

    # -- keeping it -------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything that the streams need to go on bit for bit; a learning step that is due is taken first.

        Raises:
            SurefootError: the disk is full or the folder can't be written.
            DivergenceError: the weights are not finite any more; a file that is there is left as it is.
        """
        self.learn()
        self.check_learned()
        for name in self.networks:
            finite = getattr(self, f"{name}_weights").isfinite().all(-1).numpy()
            if not finite.all():
                self._stop(~finite, f"a weight of the {name}")
        saving.save(self, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from what `save` wrote of an agent with the same algorithm, problem, config, seeds and dtype.

        Raises:
            CheckpointError: the file is missing, damaged, or of another agent.
        """
        self.due = False
        saving.load(self, path)

    @classmethod
    def open(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """A new agent from what `save` wrote, in the dtype it was saved in; `options` may be native and budget_us.

        Raises:
            CheckpointError: the file is missing, damaged, or of another algorithm.
            ConfigError: another option; or it ran natively, and there is no native kernel here: native=False goes on
                in plain torch.
        """
        return saving.open_as(cls, path, **options)

    def state(self, position: int) -> dict[str, Tensor]:
        """Of one stream, all that is needed to go on: what `restore` takes."""
        self.learn()
        buffers = {name: getattr(self, name) for name in self.stream_buffers}
        return {f"agent/{n}": (b[position : position + 1] if b.dim() else b).clone() for n, b in buffers.items()}

    def restore(self, position: int, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        self.due = False
        self._td[position] = 0.0  # one of before, finite or not, says nothing of these weights
        for name in self.stream_buffers:
            buffer = getattr(self, name)
            (buffer[position : position + 1] if buffer.dim() else buffer).copy_(state[f"agent/{name}"])

    def fresh(self, seed: int) -> Self:
        """A new agent of one stream with the same problem and config."""
        new = type(self)(self.spec, self.config, seeds=(seed,), dtype=self.dtype, native=self.native)
        new.planned_steps = self.planned_steps
        return new

    def __deepcopy__(self, memo: Any) -> Self:
        options: dict[str, Any] = {"seeds": self.seeds, "dtype": self.dtype, "native": self.native}
        new = type(self)(self.spec, self.config, budget_us=self.budget_us, **options)
        for position in range(len(self.seeds)):
            new.restore(position, self.state(position))
        new.planned_steps = self.planned_steps
        return new

    # -- one call -----------------------------------------------------------------------------------------------

    def run(self, wanted: int) -> None:
        """Take the phases that are wanted, in their order, for the streams where `in_active` is 1."""
        if self.kernel is not None:
            self.kernel.run(wanted)
        else:
            phases.in_torch(self, wanted)

    def put(self, name: str, value: Tensor, rows: Tensor) -> None:
        """Write `value` into the buffer `name` in place, where (K,) `rows` is True."""
        buffer = getattr(self, name)
        mask = rows.view(-1, *(1,) * (buffer.dim() - 1))
        buffer.copy_(torch.where(mask, value.to(buffer.dtype), buffer))

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
