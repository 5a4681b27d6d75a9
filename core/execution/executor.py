"""`Executor`: an action for every control tick, at a fixed rate, while a policy that plans chunks takes its time.

At tick r an observation is handed to the worker, and the chunk that comes back has an action for each of the ticks
r, r + 1, ... It takes over at its deadline, tick r + d, where it has come by then: the actions before that are stale,
and skipped, and what is played until then was planned before, so that what a robot does never depends on how early a
chunk came. A chunk that comes later is late, and takes over as soon as it is there. docs/execution.md has a diagram.

Sources: Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware" (ensembles); Chi et al.,
"Diffusion Policy" (receding horizon, compensation of latency); Black et al., "Real-Time Execution of Action Chunking
Flow Policies" (inference while the robot moves).
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from surefoot.core.base.errors import ConfigError, ExecutionError, nearest
from surefoot.core.execution.inference import (
    KEPT,
    Answer,
    Planner,
    Request,
    SimulatedWorker,
    ThreadWorker,
    Worker,
    ticks,
)
from surefoot.core.execution.timeline import AveragingTimeline, Counts, FadingTimeline, Timeline

Array = np.ndarray[Any, Any]
MODES = ("synchronous", "asynchronous", "blend", "ensemble")
LATE = ("continue", "hold", "decelerate")
FIRST = ("wait", "safe")


@dataclasses.dataclass(frozen=True)
class Execution:
    """Settings of an executor."""

    rate: float = 50.0  # control ticks a second
    mode: str = "asynchronous"
    """"synchronous": the robot waits for each chunk, and plays it from its first action. The others plan while it
    moves: "asynchronous" lets a new chunk replace the older one, "blend" fades into it, "ensemble" averages all."""
    execute: int | None = None
    """Ticks between two observations that are planned on, where inference is that fast; None: as many as the policy
    plays of a chunk by itself, and so few that a chunk lasts until the next one's deadline; 1 of an ensemble."""
    deadline: float = 0.0  # s after its observation at which a chunk takes over
    late: str = "continue"
    """What is played when a chunk is late: "continue" continues the older one, and where that ends decelerates if a
    safe action is given and holds if not; "hold" gives the last action again; "decelerate" moves to the safe action. A
    synchronous executor, whose robot waits, holds where this says "continue"."""
    safe_action: tuple[float, ...] | None = None  # in the environment's units
    stop_time: float = 0.2  # s in which "decelerate" reaches the safe action, in equal steps
    fade_ticks: int = 4  # of "blend"
    fade: str = "linear"  # of "blend": linear or cosine
    decay: float = 0.01  # of "ensemble": the weight of an action's i-th prediction, oldest first, is exp(-decay i)
    max_rate: float | tuple[float, ...] | None = None
    """Bound on the change of actions, in their units a second, of all or of each dimension; None: there is none."""
    first: str = "wait"
    """An episode's first chunk: "wait" rests until it is there, whatever it takes; "safe" gives the safe action."""

    def __post_init__(self) -> None:
        """Refuse what does not fit together."""
        for name, value, known in (
            ("mode", self.mode, MODES),
            ("late", self.late, LATE),
            ("first", self.first, FIRST),
        ):
            if value not in known:
                raise ConfigError(f"{name} is {value!r}; {nearest(value, known)}")
        if not 0 < self.rate < math.inf:
            raise ConfigError(f"rate is {self.rate}; control needs ticks a second, above 0")
        if not 0 <= self.deadline < math.inf:
            raise ConfigError(f"deadline is {self.deadline}; it is 0 s or more after the observation")
        if not 0 < self.stop_time < math.inf:
            raise ConfigError(f"stop_time is {self.stop_time}; it is above 0 s")
        if self.execute is not None and self.execute < 1:
            raise ConfigError(f"execute is {self.execute}; at least 1 action of a chunk is played")
        if self.safe_action is None and (self.late == "decelerate" or self.first == "safe"):
            option = "late is 'decelerate'" if self.late == "decelerate" else "first is 'safe'"
            raise ConfigError(f"{option}, and no safe_action is given; give one number for each dimension")

    @property
    def delay(self) -> int:
        """d: ticks from an observation to its chunk's deadline."""
        return ticks(self.deadline, self.rate)


class Executor:
    """`reset()`, then `select_action(observation)` at each control tick; `close()` at the end.

    Without a worker it plans in a thread of its own. Use it in one thread, and the planner nowhere else. `source` is
    (tick of the observation, position) of the newest planned action that the last tick's is made of, None where it was
    held; `counts` and `latencies` (seconds) continue over episodes.

    Args:
        planner: plans chunks (`core.execution.inference.PolicyPlanner(policy)`).
        settings: how they are played.
        worker: where inference runs; None: in a thread.

    Raises:
        ConfigError: settings that don't fit the planner's chunks or action bounds.
    """

    def __init__(self, planner: Planner, settings: Execution, worker: Worker | None = None) -> None:
        self.planner, self.settings, self.delay = planner, settings, settings.delay
        self.low, self.high = (np.asarray(bound, np.float64) for bound in (planner.low, planner.high))
        chunk, size = planner.chunk, len(self.low)
        self.execute = self._executed(chunk, getattr(planner, "execute", chunk))
        self._safe = self._in_bounds("safe_action", settings.safe_action)
        self._step = self._largest_step(size)
        self._stops = max(1, round(settings.stop_time * settings.rate))
        self._aligned = settings.mode != "synchronous"
        self._late_plays = self._aligned and settings.late == "continue"
        self._decelerates = settings.late == "decelerate" or (self._late_plays and self._safe is not None)
        self.counts, self.latencies = Counts(), deque[float](maxlen=KEPT)
        made: dict[str, Callable[[], Timeline]] = {
            "blend": lambda: FadingTimeline(chunk, size, self.counts, settings.fade_ticks, settings.fade),
            "ensemble": lambda: AveragingTimeline(chunk, size, self.counts, settings.decay),
        }
        self._plan = made.get(settings.mode, lambda: Timeline(chunk, size, self.counts))()
        self._worker: Worker | None = ThreadWorker(planner) if worker is None else worker
        self._waiting: Answer | None = None  # a chunk that has come before its deadline
        self._draws = self.tick = 0
        """`tick` is of the next action, counted from the episode's first."""
        self.reset()

    def _executed(self, chunk: int, usual: int) -> int:
        given, mode = self.settings.execute, self.settings.mode
        if mode != "synchronous" and self.delay >= chunk:
            raise ConfigError(
                f"the deadline is {self.delay} ticks after the observation, and a chunk has {chunk} actions: all of "
                "them would be stale; plan longer chunks, or execute synchronously"
            )
        if given is not None:
            if given > chunk:
                raise ConfigError(f"execute is {given}; a chunk has {chunk} actions")
            return given
        if mode == "ensemble":
            return 1
        return usual if mode == "synchronous" else min(usual, max(1, chunk - self.delay - self._faded))

    @property
    def _faded(self) -> int:
        return self.settings.fade_ticks if self.settings.mode == "blend" else 0

    @property
    def gap(self) -> int:
        """Ticks of each chunk for which nothing is planned even where all chunks come in time; 0 is as it should be."""
        if not self._aligned:
            return self.delay
        return max(0, max(self.execute, self.delay) + self.delay - self.planner.chunk)

    def _in_bounds(self, name: str, values: Sequence[float] | None) -> Array | None:
        if values is None:
            return None
        found = np.asarray(values, np.float64)
        with np.errstate(over="ignore"):  # compared as float32, as which policies hold their bounds
            value, low, high = (one.astype(np.float32) for one in (found, self.low, self.high))
        if value.shape != low.shape or not ((value >= low) & (value <= high)).all():
            raise ConfigError(
                f"{name} is {found.tolist()}; it must have {len(self.low)} numbers within the action bounds "
                f"{self.low.tolist()} to {self.high.tolist()}"
            )
        inside: Array = np.minimum(np.maximum(found, self.low), self.high)
        return inside

    def _largest_step(self, size: int) -> Array | None:
        if self.settings.max_rate is None:
            return None
        found = np.asarray(self.settings.max_rate, np.float64)
        if found.ndim > 1 or (found.ndim and len(found) != size) or not (found > 0).all():
            raise ConfigError(f"max_rate is {self.settings.max_rate}; it is one number above 0, or {size} of them")
        step: Array = np.broadcast_to(found / self.settings.rate, (size,)).copy()
        return step

    # -- control -------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = 0, last: Sequence[float] | None = None) -> None:
        """Begin an episode.

        Args:
            seed: of the noise, where the policy draws its own; None: it continues from that of the last episode.
            last: (A,) the action in force, which the rate bound counts the first change from; None: there is none.

        Raises:
            ConfigError: `last` is not within the bounds.
        """
        self._last = self._in_bounds("last", last)
        self._draws = 0 if seed is not None else self._draws + self.tick
        self.planner.reset(seed)
        if self._worker is not None:
            self._worker.forget()
        if self._waiting is not None:
            self.counts.dropped += self.planner.chunk
        self._plan.drop()
        self.tick = 0
        self._waiting = None
        self._asked: int | None = None  # tick of the observation that is planned on
        self._last_asked = 0
        self._late = self._any = False  # the chunk that is asked for; a chunk has come in this episode
        self._stop: tuple[Array, int] | None = None  # what it decelerates from, and ticks since
        self._origin = self._shift = 0  # of the newest chunk: tick of its observation, ticks to its first action
        self.source: tuple[int, int] | None = None

    def select_action(self, observation: Any) -> Array:
        """(A,) float32 action of this tick, in the environment's units, for the observation at its beginning.

        Raises:
            ExecutionError: inference raised, or gave a chunk of another shape or with a number that is not finite; the
                message names the tick of its observation. The executor can continue after a `reset`.
            EnvironmentMismatchError: an observation that the policy can't read.
            ConfigError: the executor is closed.
        """
        if self._worker is None:
            raise ConfigError("this executor is closed; make another one")
        worker, tick = self._worker, self.tick
        seen = self.planner.see(observation)
        try:
            if self._asked is not None:
                self._receive(worker.finished(tick))
            if self._waiting is not None:
                self._take_when_due(tick)
            if self._asked is None and self._waiting is None and self._wants(tick):
                self._ask(worker, seen, tick)
        except ExecutionError:
            self._asked = None
            raise
        if self._asked is not None and not self._late and tick >= self._asked + self.delay:
            self._late = True
            self.counts.late += 1
        return self._given(tick)

    def _wants(self, tick: int) -> bool:
        return not self._any or tick >= self._last_asked + self.execute or self._plan.at(tick) is None

    def _ask(self, worker: Worker, seen: Any, tick: int) -> None:
        coming = self._plan.rest(tick) if self._plan.ahead and self._aligned else self._plan.actions[:0]
        worker.submit(Request(tick, seen, self._draws + tick, coming, min(self.delay, len(coming))))
        self.counts.asked += 1
        self._asked = self._last_asked = tick
        self._late = False
        if not self._any and self.settings.first == "wait":
            self._receive(worker.wait())
            self._take(tick)
            return
        self._receive(worker.finished(tick))
        if self._waiting is not None:
            self._take_when_due(tick)

    def _receive(self, answer: Answer | None) -> None:
        if answer is None:
            return
        self.latencies.append(answer.seconds)
        self.counts.received += 1
        within = np.minimum(np.maximum(answer.actions, self.low), self.high)
        self._waiting, self._asked = dataclasses.replace(answer, actions=within), None

    def _take_when_due(self, tick: int) -> None:
        assert self._waiting is not None
        if tick >= self._waiting.tick + self.delay or not self._aligned or not self._any:
            self._take(tick)

    def _take(self, tick: int) -> None:
        assert self._waiting is not None
        asked = self._waiting.tick
        begins = asked if self._aligned else tick
        self._plan.take(self._waiting.actions, begins, tick, self._last)
        self._origin, self._shift = asked, begins - asked
        if not self._aligned:
            self._last_asked = tick  # the robot has waited: its next observation is due when so many are played
        self._waiting, self._any = None, True

    def _given(self, tick: int) -> Array:
        """The action of this tick within the rate bound; what it is made of keeps to the others."""
        planned, counts = self._plan.at(tick), self.counts
        waits = self._asked is not None and (self._late or not self._aligned)
        if planned is not None and (not waits or self._late_plays):
            counts.mixed += self._plan.mixed(tick)
            self._plan.pass_by(tick, True)
            self._stop = None
            self.source = (self._origin, tick - self._origin - self._shift)
            wanted = planned
        else:
            self._plan.pass_by(tick, False)
            counts.held += 1
            self.source = None
            wanted = self._held()
        action = wanted
        if self._last is not None:
            change = wanted - self._last
            size = np.abs(change)
            if self._step is not None and (size > self._step).any():
                counts.limited += 1
                change = np.minimum(np.maximum(change, -self._step), self._step)
                action, size = self._last + change, np.abs(change)
            jump = float(size.max())
            if jump > counts.largest_jump:
                counts.largest_jump = jump
        counts.ticks += 1
        self._last, self.tick = action, tick + 1
        found: Array = action.astype(np.float32)
        return found

    def _held(self) -> Array:
        """What is given where nothing planned is to be played."""
        if self._last is None:
            assert self._safe is not None  # only `first` "safe" has no action before
            return self._safe
        if not self._decelerates or self._safe is None:
            return self._last
        started, count = self._stop or (self._last, 0)
        self._stop = (started, count + 1)
        return started + (self._safe - started) * min(1.0, (count + 1) / self._stops)

    # -- the end -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the worker; may be called more than once."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __enter__(self) -> Self:
        """The executor."""
        return self

    def __exit__(self, *unused: object) -> None:
        """Close it."""
        self.close()


def simulated(planner: Planner, settings: Execution, latency: Callable[[float], float]) -> Executor:
    """An executor in control time: an inference takes what `latency` says of its measured seconds."""
    return Executor(planner, settings, SimulatedWorker(planner, settings.rate, latency))
