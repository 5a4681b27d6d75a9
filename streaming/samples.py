"""`Samples`: what a control loop hands over, taken in: shapes checked, lost samples distinguished, episodes cut."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.core.base.precision import FirstSteps
from surefoot.cuda_ext.stream import ACT, ACT_BEFORE, LEARN, OBSERVE, RESET, SHIFT
from surefoot.streaming import statistics
from surefoot.streaming.streams import Streams

LARGEST = 1e18
"""Numbers of a sample beyond this are no measurements, and their squares are near the end of float32."""
SETTLED = 100
"""Samples after which a stream's statistics can tell which observation is too far out."""


class Samples:
    """Numpy views of an agent's inputs that a call's arguments are written to, once they are what they must be.

    Held by a streaming agent; a view takes a microsecond less for each access than a tensor.
    """

    def __init__(self, agent: Streams) -> None:
        """Look at the buffers of an agent, which holds this as its `samples`."""
        self.agent = agent
        self.single = len(agent.seeds) == 1  # whether the caller gives one stream without its dimension
        self._warned = False
        self.first_steps: FirstSteps | None = None if agent.dtype == torch.float64 else FirstSteps(agent.name)
        """What looks at the first samples before they become float32; None: nothing does, or not any more."""
        self.observations, self._first = agent.in_observations.numpy(), agent.in_first.numpy()
        self._all, self._rewards, self.flags = (
            one.numpy() for one in (agent.in_samples, agent.in_rewards, agent.in_flags)
        )
        self._terminated, self._truncated, self._begins, self._active = self.flags
        self.running, self.ready = agent.running.numpy(), agent.ready.numpy()

    def receive(self, observation: Any, reward: Any, terminated: Any, truncated: Any, first: Any) -> Any:
        """Take a call's arguments in: None in the usual case, or (K,) which samples are finite."""
        self.write(self.observations, observation, "observation")
        self._fill(self._rewards, reward, "reward")
        if self.first_steps is not None:
            self._look(self.first_steps, observation, reward)
        self._fill(self._terminated, terminated, "terminated")
        self._fill(self._truncated, truncated, "truncated")
        self._begins[...] = 0
        self.check_running()
        if first is not None:
            single = self.single
            self.write(self._first, first, "first")
            self.single = single
        total = np.vdot(self._all, self._all)  # no number is too large where this is not; vdot never warns
        ended = terminated or truncated if len(self.running) == 1 else self.flags[:2].any()
        if total < LARGEST**2 and not ended and self.agent.config.observation_limit is None:
            return None
        usable = self.usable(self.observations) & (np.abs(self._rewards) <= LARGEST)
        return None if usable.all() and not ended else usable

    def _look(self, first_steps: FirstSteps, observation: Any, reward: Any) -> None:
        """Keep a sample as it came, and warn once there are enough of them."""
        streams = len(self.agent.seeds)
        given = np.asarray(observation, np.float64).reshape(streams, -1)
        first_steps.take(given, np.broadcast_to(np.asarray(reward, np.float64).reshape(-1), (streams,)))
        for text in first_steps.notes():
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        if first_steps.over:
            self.first_steps = None

    def usable(self, observations: np.ndarray) -> np.ndarray:
        """(K,) whether all numbers of (K, O) observations are finite and none is too far out."""
        usable: np.ndarray = (np.abs(observations) <= LARGEST).all(-1)
        limit = self.agent.config.observation_limit
        if limit is None:
            return usable
        agent = self.agent
        count, mean, squares = agent.observation_count, agent.observation_mean.numpy(), agent.observation_squares
        scale = statistics.deviation(count, squares).numpy()
        with np.errstate(over="ignore", invalid="ignore"):  # of rows that are not usable as it is
            near = np.abs(observations - mean) <= limit * scale
        # A number that has never changed yet says nothing of how far it may go.
        return usable & ((near | (squares.numpy() == 0)).all(-1) | (count.numpy() < SETTLED))

    def write(self, target: np.ndarray, value: Any, name: str) -> None:
        """Copy an argument that has the shape of a view."""
        try:
            value = np.asarray(value, np.float64)
        except (ValueError, TypeError, RuntimeError) as error:
            raise EnvironmentMismatchError(f"{name} is no array of numbers: {error}") from error
        if value.shape == target.shape:
            target[...] = value
            self.single = False
        elif len(target) == 1 and value.shape == target.shape[1:]:
            target[0] = value
            self.single = True
        else:
            shape = target.shape[1:] if len(target) == 1 else target.shape
            raise EnvironmentMismatchError(
                f"{name} has shape {value.shape}; this {self.agent.name} agent takes {shape}"
            )

    def _fill(self, target: np.ndarray, value: Any, name: str) -> None:
        try:
            if len(target) > 1 and np.shape(value) != target.shape:
                raise EnvironmentMismatchError(
                    f"{name} has shape {np.shape(value)}; this agent has {len(target)} streams and takes {target.shape}"
                )
            target[...] = value
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise EnvironmentMismatchError(f"{name} is {value!r}; one number is needed ({error})") from error

    def check_running(self) -> None:
        """Refuse a step where no episode is going on."""
        if not self.running.all():
            stream = int(np.flatnonzero(~self.running)[0])
            where = "" if len(self.agent.seeds) == 1 else f"in stream {stream} "
            raise EnvironmentMismatchError(
                f"no episode is going on {where}(none has started, or the last one ended): call begin(observation), "
                "or give step(..., first=...) the next episode's first observation"
            )

    def ended(self) -> np.ndarray:
        """(K,) whether episodes end with the samples as they are."""
        return (self._terminated | self._truncated).astype(bool)

    def step_apart(self, usable: np.ndarray, now: np.ndarray, has_first: bool) -> None:
        """A step in which episodes end or samples are lost; whole steps for the streams of `now` only."""
        ended = self.ended()
        begins = ended & self.usable(self._first) if has_first else np.zeros_like(ended)
        self.count_skipped(~usable)
        self.lose(~usable)
        self.cut(ended & ~(usable & self.ready))  # no learning step will clear their traces
        again = begins if self.agent.act_before else begins & ~usable
        self._begins[...] = begins & ~again
        phases = (
            OBSERVE | ACT_BEFORE | LEARN | SHIFT if self.agent.act_before else OBSERVE | LEARN | RESET | ACT | SHIFT
        )
        self.run_for(usable & now, phases)
        if again.any():
            if self.agent.act_before:
                self.agent.redraw_noise()
            self._begins[...] = again
            self.run_for(again, RESET | ACT | SHIFT)
            self._begins[...] = 0
        if has_first:
            self.count_skipped(ended & ~begins)
        else:
            self.running[ended] = False

    def run_for(self, rows: np.ndarray, phases: int) -> None:
        """Take the phases in the streams where (K,) `rows` is True."""
        if rows.all():
            self.agent.run(phases)
        elif rows.any():
            self._active[...] = rows
            self.agent.run(phases)
            self._active[...] = 1

    def lose(self, rows: np.ndarray) -> None:
        """Let traces and reward sums decay over the transitions that can't be learned: two, then one for each more."""
        if not rows.any():
            return
        self.agent.fade(torch.from_numpy(np.where(rows, 1.0 + self.ready, 0.0)))
        self.ready[rows] = False

    def cut(self, rows: np.ndarray) -> None:
        """End an episode without a learning step."""
        if rows.any():
            self.agent.forget(torch.from_numpy(rows))
            self.ready[rows] = False

    def count_skipped(self, rows: np.ndarray) -> None:
        """Count samples that were lost, and say so the first time."""
        if not rows.any():
            return
        self.agent.skipped += torch.from_numpy(rows)
        if not self._warned:
            self._warned = True
            name, single = self.agent.name, len(self.agent.seeds) == 1
            where = "" if single else f" of stream {int(np.flatnonzero(rows)[0])}"
            warnings.warn(
                f"{name}: a sample{where} holds NaN, infinity, or a number beyond 1e18 or observation_limit; "
                "it is skipped and the last action repeated, as further ones will be without a warning: see report()",
                RuntimeWarning,
                stacklevel=4,
            )
