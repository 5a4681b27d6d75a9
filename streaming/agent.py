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
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.greedy_actor import GreedyActor
from surefoot.core.actors.heads import CategoricalActor, MLPActor, SoftplusGaussianActor
from surefoot.core.base.actions import middle_and_half
from surefoot.core.base.errors import DivergenceError, EnvironmentMismatchError
from surefoot.core.engine.agent import DatasetLike, Spec, require
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.cuda_ext.stream import ACT, ACT_BEFORE, LEARN, OBSERVE, SHIFT
from surefoot.streaming import saving
from surefoot.streaming.latency import Latency
from surefoot.streaming.samples import Samples
from surefoot.streaming.streams import Streams


class StreamingAgent(Streams):
    """Learns from each sample as it comes: `begin`, `step`, or `act` and `learn`; `miss`; `save`, `load`, `policy`.

    A sample with a NaN, an infinity or a number beyond 1e18, like one that `miss` reports, is a gap: the last action is
    repeated, the two transitions that it belongs to are not learned, and traces and the reward's discounted sum decay
    by the time that passes, so that later errors credit earlier steps as they should; Q's are cut. `report` counts all.
    """

    policy_network: ClassVar[str] = "actor"

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
        super().__init__(problem, config, seeds, dtype, native, **options)
        require(budget_us is None or budget_us > 0, self.name, "budget_us", budget_us, "> 0, or None")
        self.samples = Samples(self)
        self._chosen, self._next_chosen = self.chosen.numpy(), self.next_chosen.numpy()
        self._td = self.out_td.numpy()
        self.budget_us = budget_us
        self.latency = {"step": Latency(), "act": Latency(), "learn": Latency()}
        """How long the calls of each of these took; `print` shows a histogram."""
        self.due = False  # `act` was called, and `learn` not yet
        self.act_ns = 0
        low, high = (np.asarray(bounds, np.float64) for bounds in (self.spec.action_low, self.spec.action_high))
        own = self._chosen.dtype
        self._low, self._high = low.astype(own), high.astype(own)
        self._middle, self._half = (value.astype(own) for value in middle_and_half(low, high))
        self.later = np.ones(len(self.seeds), bool)

    def plan(self, steps: int) -> None:
        """Say how many steps are to come in all: what the epsilon schedule of q and sarsa is a fraction of."""
        require(steps >= 1, self.name, "planned_steps", steps, ">= 1")
        self.planned_steps = int(steps)

    # -- the loop ---------------------------------------------------------------------------------------------------

    def begin(self, observation: Any, *, streams: Any = None) -> Any:
        """The first action of an episode.

        An episode that was going on is given up: its traces are cleared, as at a truncation. The action takes the place
        of one that `step` gave at the end, so that no step of schedules is counted, but for the very first.

        Args:
            observation: (O,) of one stream, (K, O) of K.
            streams: (K,) bool, which streams begin; the others continue, and their rows are not read. None: all.

        Raises:
            EnvironmentMismatchError: another shape.
        """
        self.learn()
        samples = self.samples
        rows = np.ones(len(self.seeds), bool) if streams is None else np.asarray(streams)
        if rows.shape != samples.ready.shape or rows.dtype != bool:
            raise EnvironmentMismatchError(
                f"streams has shape {rows.shape} and dtype {rows.dtype}; one bool is needed for each of this agent's "
                f"{len(self.seeds)} streams"
            )
        samples.write(samples.observations, observation, "observation")
        samples.cut(rows & samples.running)
        samples.ready[rows], samples.running[rows] = False, True
        usable = samples.usable(samples.observations)
        samples.count_skipped(rows & ~usable)
        samples.flags[:3] = 0
        if rows.all() and not self.acted_count:
            self.draw_noise()
        else:
            self.draw_first_noise(rows)
        samples.run_for(rows & usable, OBSERVE | ACT | SHIFT)
        return self.answer()

    def step(self, observation: Any, reward: Any, terminated: Any, truncated: Any, *, first: Any = None) -> Any:
        """Learn what the last action led to, and give the next one.

        Args:
            observation: (O,) or (K, O) that the last action led to; an episode's last one where it ended.
            reward: a number, or (K,).
            terminated: bool, or (K,): the task ended; nothing follows.
            truncated: bool, or (K,): the episode was stopped; what would follow still counts.
            first: like `observation`: where an episode ended, the next one's first observation, for environments
                that reset themselves. Without it call `begin` after an end; the action returned then is for nothing.

        Returns:
            (A,) or (K, A) in the environment's units, within its bounds; the number of a choice or (K,) of them.

        Raises:
            EnvironmentMismatchError: another shape, or no episode is going on.
            DivergenceError: what was learned is not finite; there is no action then.
        """
        start = time.perf_counter_ns()
        self.learn()
        usable = self.samples.receive(observation, reward, terminated, truncated, first)
        self.draw_noise()
        if usable is None:
            self.run(OBSERVE | ACT_BEFORE | LEARN | SHIFT if self.act_before else OBSERVE | LEARN | ACT | SHIFT)
        else:
            self.samples.step_apart(usable, np.ones_like(usable), first is not None)
        self.check_learned()
        action = self.answer()
        self.count_time("step", time.perf_counter_ns() - start)
        return action

    def act(  # type: ignore[override]  # a step of the loop, not a function of a batch
        self, observation: Any, reward: Any, terminated: Any, truncated: Any, *, first: Any = None
    ) -> Any:
        """The next action before anything is learned: send it, then call `learn`. Arguments as `step`.

        The action is by weights that don't know this transition yet. Where an episode ended there is no action to
        wait for, and the step is taken as by `step`.
        """
        start = time.perf_counter_ns()
        self.learn()
        usable = self.samples.receive(observation, reward, terminated, truncated, first)
        self.draw_noise()
        if usable is None:
            self.later[:] = True
            self.run(OBSERVE | ACT_BEFORE)
        else:
            ended = self.samples.ended()
            self.samples.step_apart(usable, ended, first is not None)
            self.check_learned()
            self.later[:] = usable & ~ended
            self.keep_noise()  # streams that began an episode may have drawn for all
            self.samples.run_for(self.later, OBSERVE | ACT_BEFORE)
        self.due = True
        action = self.answer(acting=True)
        self.act_ns = time.perf_counter_ns() - start
        self.latency["act"].add(self.act_ns)
        return action

    def learn(self) -> None:
        """Learn the transition whose end `act` was given; without one that is due, do nothing.

        Raises:
            DivergenceError: what was learned is not finite.
        """
        if not self.due:
            return
        start = time.perf_counter_ns()
        self.samples.run_for(self.later, LEARN | SHIFT)
        self.due = False
        self.count_time("learn", time.perf_counter_ns() - start, self.act_ns)
        self.check_learned()

    def miss(self) -> Any:
        """Say that a sample did not come, in any stream; gives the last actions again.

        To miss a sample of some streams only, give them rows of NaN in `step`.
        """
        self.learn()
        self.samples.check_running()
        self.samples.lose(np.ones(len(self.seeds), bool))
        self.missed += 1
        return self.answer()

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
        """Write everything that the streams need to continue bit for bit; a learning step that is due is taken first.

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
        """Continue from what `save` wrote of an agent with the same algorithm, problem, config, seeds and dtype.

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
            ConfigError: another option; or it ran natively, and there is no native kernel here: native=False continues
                in plain torch.
        """
        return saving.open_as(cls, path, **options)

    def state(self, position: int) -> dict[str, Tensor]:
        """Of one stream, all that is needed to continue: what `restore` takes."""
        self.learn()
        buffers = {name: getattr(self, name) for name in self.stream_buffers}
        return {f"agent/{n}": (b[position : position + 1] if b.dim() else b).clone() for n, b in buffers.items()}

    def restore(self, position: int, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` gave."""
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
