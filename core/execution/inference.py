"""Where an executor's chunks come from: a policy that plans, and workers that let it plan while the robot moves."""

from __future__ import annotations

import dataclasses
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.memory import DRAWS
from surefoot.core.actors.memory_actors import HistoryActor
from surefoot.core.base.errors import ConfigError, ExecutionError
from surefoot.core.base.spec import mapped
from surefoot.core.policy.chunk_playing import chunk_of, with_head
from surefoot.core.policy.policy import Policy

Array = np.ndarray[Any, Any]
KEPT = 100_000
"""Durations that are remembered, the last ones."""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What one inference is to plan."""

    tick: int
    """Of the observation."""
    seen: Any
    """What the planner made of the observation, or of the last few."""
    draw: int
    """Number of the noise, the same in no two requests."""
    coming: Array
    """(n, A) what is planned for this tick and the next ones, in the environment's units."""
    certain: int
    """How many of those are carried out before the new chunk takes over, where it comes in time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What it planned."""

    tick: int
    """Of the observation, as in the request."""
    actions: Any
    """(C, A) in the environment's units: for the observation's tick and those after it."""
    seconds: float
    """That it took."""


class Planner(Protocol):
    """Whatever plans chunks of C actions of A numbers in the environment's units."""

    chunk: int
    low: Array
    """(A,) bounds, which no action leaves."""
    high: Array

    def reset(self, seed: int | None) -> None:
        """A new episode begins; its noise is of this seed, or of the last one."""
        ...

    def see(self, observation: Any) -> Any:
        """Called with each tick's observation, in the control loop's thread: what `plan` is to read of it."""
        ...

    def plan(self, request: Request) -> Any:
        """(C, A) actions, in the worker's thread."""
        ...


class PolicyPlanner:
    """Any policy as a planner: of chunks, within a history of observations or without; another one plans one action.

    Raises:
        ConfigError: a policy whose memory must take in each observation in turn (a recurrent one, a transformer, held
            noise), which can't be done while a chunk is under way, or one with discrete actions.
    """

    def __init__(self, policy: Policy) -> None:
        head = chunk_of(policy)
        self.policy, self.chunk = policy, 1 if head is None else head.chunk
        """`policy` is the one that was given."""
        self.execute = 1 if head is None else head.execute
        """Actions that it plays of each chunk by itself."""
        if policy.discrete:
            raise ConfigError("an executor plays vectors of actions; this policy chooses among numbers")
        self.low, self.high = policy.action_low.numpy().copy(), policy.action_high.numpy().copy()
        self._plans = policy
        if head is not None:
            bounds = (policy.action_low.repeat(head.chunk), policy.action_high.repeat(head.chunk))
            self._plans = with_head(policy, head.inner, *bounds)
        actor = self._plans.actor
        self._history = actor.length if isinstance(actor, HistoryActor) and not actor.inner.has_memory else 0
        if self._plans.has_memory and not self._history:
            names = sorted(set(self._plans.begin(1)) - {DRAWS})
            raise ConfigError(
                f"this policy remembers {names}, which must take in each observation in turn: an executor plans with "
                "policies of chunks, or of a history around chunks"
            )
        self._seed = 0
        self.reset(0)

    def reset(self, seed: int | None) -> None:
        """As of any planner."""
        self._seed = self._seed if seed is None else seed
        self._past: deque[Tensor] = deque(maxlen=max(0, self._history - 1))
        if self._history:
            self._past.extend(self._plans.begin(1)["past"][0].unbind())

    def see(self, observation: Any) -> Any:
        """The observation, checked as `select_action` does; with those before it where the policy reads some."""
        checked = self.policy.checked(observation)
        if not self._history:
            return checked, {}
        memory = {"past": torch.stack(list(self._past)).unsqueeze(0)}
        with torch.no_grad():
            self._past.append(self._plans.read(mapped(lambda part: torch.from_numpy(part).unsqueeze(0), checked))[0])
        return checked, memory

    def plan(self, request: Request) -> Array:
        """As of any planner; noise comes from (seed, "policy", number of the draw), as a policy's own does."""
        checked, memory = request.seen
        if self._plans.always_samples:
            memory = {**memory, DRAWS: torch.tensor([[self._seed, request.draw]])}
        if memory:
            self._plans.restore(memory)
        numbers: Array = self._plans.select_action(checked)
        return numbers.reshape(self.chunk, -1)


class Worker(Protocol):
    """Lets a planner plan, one request at a time."""

    def submit(self, request: Request) -> None:
        """Begin; there is nothing under way."""
        ...

    def finished(self, tick: int) -> Answer | None:
        """The answer, once, if it is there at control tick `tick`; raises ExecutionError where inference failed."""
        ...

    def wait(self) -> Answer:
        """The answer, however long it takes."""
        ...

    def forget(self) -> None:
        """Whatever is under way is not wanted any more."""
        ...

    def close(self) -> None:
        """End; nothing may be called after that, except this."""
        ...


def answered(planner: Planner, request: Request) -> Answer:
    """Plan now.

    Raises:
        ExecutionError: the planner raised, or its chunk has another shape or a number that is not finite.
    """
    began = time.perf_counter()
    try:
        actions = np.asarray(planner.plan(request))
    except Exception as error:
        raise ExecutionError(
            f"inference for the observation of tick {request.tick} raised {type(error).__name__}: {error}"
        ) from error
    seconds = time.perf_counter() - began
    wanted = (planner.chunk, len(planner.low))
    if actions.shape != wanted:
        raise ExecutionError(
            f"the chunk for the observation of tick {request.tick} has shape {actions.shape}, where {wanted} is due"
        )
    if not np.isfinite(actions).all():
        step, number = np.argwhere(~np.isfinite(actions))[0]
        raise ExecutionError(
            f"the chunk for the observation of tick {request.tick} is not finite: action {step}, dimension {number} is "
            f"{actions[step, number]}; check the sensors, or the policy's weights"
        )
    return Answer(request.tick, actions, seconds)


class SimulatedWorker:
    """Inference in control time: it plans at once, and the answer is there when its latency has passed.

    Args:
        planner: that plans.
        rate: control ticks a second.
        latency: measured seconds of an inference -> the seconds that it takes in control time.
    """

    def __init__(self, planner: Planner, rate: float, latency: Callable[[float], float]) -> None:
        self.planner, self.rate, self.latency = planner, rate, latency
        self.measured = deque[float](maxlen=KEPT)
        """s that inferences took on this machine."""
        self._answer: Answer | None = None
        self._due = 0

    def submit(self, request: Request) -> None:
        """As of any worker."""
        answer = answered(self.planner, request)
        self.measured.append(answer.seconds)
        seconds = self.latency(answer.seconds)
        if not 0 <= seconds < math.inf:
            raise ConfigError(f"the latency of an inference is {seconds} s; it must be 0 or more")
        self._answer, self._due = dataclasses.replace(answer, seconds=seconds), request.tick + ticks(seconds, self.rate)

    def finished(self, tick: int) -> Answer | None:
        """As of any worker."""
        if self._answer is None or tick < self._due:
            return None
        answer, self._answer = self._answer, None
        return answer

    def wait(self) -> Answer:
        """As of any worker."""
        assert self._answer is not None
        answer, self._answer = self._answer, None
        return answer

    def forget(self) -> None:
        """As of any worker."""
        self._answer = None

    def close(self) -> None:
        """As of any worker."""
        self._answer = None


class ThreadWorker:
    """Inference in a thread of its own, which is ended by `close`."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self._todo: queue.SimpleQueue[tuple[int, Request] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, Answer | Exception]] = queue.SimpleQueue()
        self._number = 0  # of the request that is wanted
        self._thread = threading.Thread(target=self._work, name="surefoot inference", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (job := self._todo.get()) is not None:
            number, request = job
            if number != self._number:
                continue  # forgotten before it began
            try:
                self._done.put((number, answered(self.planner, request)))
            except Exception as error:
                self._done.put((number, error))
            except BaseException as error:  # such as SystemExit: who waits for an answer must not wait for ever
                kind = type(error).__name__
                reported = f"inference for the observation of tick {request.tick} raised {kind}: {error}"
                self._done.put((number, ExecutionError(reported)))

    def submit(self, request: Request) -> None:
        """As of any worker."""
        self._number += 1
        self._todo.put((self._number, request))

    def finished(self, tick: int) -> Answer | None:
        """As of any worker; the tick does not matter, as the clock is the wall's."""
        while not self._done.empty():
            found = self._wanted(*self._done.get())
            if found is not None:
                return found
        return None

    def wait(self) -> Answer:
        """As of any worker."""
        while True:
            found = self._wanted(*self._done.get())
            if found is not None:
                return found

    def _wanted(self, number: int, found: Answer | Exception) -> Answer | None:
        if number != self._number:
            return None
        if isinstance(found, Exception):
            raise found
        return found

    def forget(self) -> None:
        """As of any worker; what is under way continues, and its answer is thrown away."""
        self._number += 1

    def close(self) -> None:
        """End the thread when what is under way is done; it keeps no process alive."""
        self._number += 1
        self._todo.put(None)
        self._thread.join(timeout=5.0)


def ticks(seconds: float, rate: float) -> int:
    """Control ticks after which something that took so long is there."""
    return max(0, math.ceil(seconds * rate - 1e-9))
