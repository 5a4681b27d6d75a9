"""`Samples`: what a control loop hands over, taken in: shapes checked, lost samples told apart, episodes cut."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from surefoot.core.agent import DatasetLike, Spec
from surefoot.core.errors import EnvironmentMismatchError
from surefoot.streaming import statistics
from surefoot.streaming.kernel import ACT, ACT_BEFORE, LEARN, OBSERVE, RESET, SHIFT
from surefoot.streaming.streams import Streams

LARGEST = 1e18
"""Numbers of a sample beyond this are no measurements, and their squares are near the end of float32."""
SETTLED = 100
"""Samples after which a stream's statistics can tell which observation is too far out."""


class Samples(Streams):
    """Streams whose inputs are numpy views that a call's arguments are written to, once they are what they must be."""

    def __init__(self, problem: Spec | DatasetLike, config: Any = None, **options: Any) -> None:
        """Make the streams, and views of their buffers: a microsecond less for each access than through torch."""
        super().__init__(problem, config, **options)
        self.single = len(self.seeds) == 1  # whether the caller gives one stream without its dimension
        self._warned = False
        self._observations, self._first = self.in_observations.numpy(), self.in_first.numpy()
        self._samples, self._td = self.in_samples.numpy(), self.out_td.numpy()
        self._rewards, self._flags = self.in_rewards.numpy(), self.in_flags.numpy()
        self._terminated, self._truncated, self._begins, self._active = self._flags
        self._running, self._ready = self.running.numpy(), self.ready.numpy()
        self._chosen, self._next_chosen = self.chosen.numpy(), self.next_chosen.numpy()

    def _receive(self, observation: Any, reward: Any, terminated: Any, truncated: Any, first: Any) -> Any:
        """Take a call's arguments in: None in the usual case, or (K,) which samples are finite."""
        self._write(self._observations, observation, "observation")
        self._fill(self._rewards, reward, "reward")
        self._fill(self._terminated, terminated, "terminated")
        self._fill(self._truncated, truncated, "truncated")
        self._begins[...] = 0
        self._check_running()
        if first is not None:
            single = self.single
            self._write(self._first, first, "first")
            self._note_single(single)
        total = np.vdot(self._samples, self._samples)  # no number is too large where this is not; vdot never warns
        ended = terminated or truncated if len(self._running) == 1 else self._flags[:2].any()
        if total < LARGEST**2 and not ended and self.config.observation_limit is None:
            return None
        usable = self._usable(self._observations) & (np.abs(self._rewards) <= LARGEST)
        return None if usable.all() and not ended else usable

    def _usable(self, observations: np.ndarray) -> np.ndarray:
        """(K,) whether all numbers of (K, O) observations are finite and none is too far out."""
        usable: np.ndarray = (np.abs(observations) <= LARGEST).all(-1)
        limit = self.config.observation_limit
        if limit is None:
            return usable
        count, mean, squares = self.observation_count, self.observation_mean.numpy(), self.observation_squares
        scale = statistics.deviation(count, squares).numpy()
        with np.errstate(over="ignore", invalid="ignore"):  # of rows that are not usable as it is
            near = np.abs(observations - mean) <= limit * scale
        # A number that has never changed yet says nothing of how far it may go.
        return usable & ((near | (squares.numpy() == 0)).all(-1) | (count.numpy() < SETTLED))

    def _write(self, target: np.ndarray, value: Any, name: str) -> None:
        try:
            value = np.asarray(value, np.float64)
        except (ValueError, TypeError, RuntimeError) as error:
            raise EnvironmentMismatchError(f"{name} is no array of numbers: {error}") from error
        if value.shape == target.shape:
            target[...] = value
            self._note_single(False)
        elif len(target) == 1 and value.shape == target.shape[1:]:
            target[0] = value
            self._note_single(True)
        else:
            shape = target.shape[1:] if len(target) == 1 else target.shape
            raise EnvironmentMismatchError(f"{name} has shape {value.shape}; this {self.name} agent takes {shape}")

    def _note_single(self, single: bool) -> None:
        if self.single is not single:  # setting an attribute of a module costs two microseconds
            self.single = single

    def _fill(self, target: np.ndarray, value: Any, name: str) -> None:
        try:
            if len(target) > 1 and np.shape(value) != target.shape:
                raise EnvironmentMismatchError(
                    f"{name} has shape {np.shape(value)}; this agent has {len(target)} streams and takes {target.shape}"
                )
            target[...] = value
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise EnvironmentMismatchError(f"{name} is {value!r}; one number is needed ({error})") from error

    def _check_running(self) -> None:
        if not self._running.all():
            stream = int(np.flatnonzero(~self._running)[0])
            where = "" if len(self.seeds) == 1 else f"in stream {stream} "
            raise EnvironmentMismatchError(
                f"no episode is going on {where}(none has begun, or the last one ended): call begin(observation), "
                "or give step(..., first=...) the next episode's first observation"
            )

    def _ended(self) -> np.ndarray:
        return (self._terminated | self._truncated).astype(bool)

    def _step_apart(self, usable: np.ndarray, now: np.ndarray, has_first: bool) -> None:
        """A step in which episodes end or samples are lost; whole steps for the streams of `now` only."""
        ended = self._ended()
        begins = ended & self._usable(self._first) if has_first else np.zeros_like(ended)
        self._count_skipped(~usable)
        self._lose(~usable)
        self._cut(ended & ~(usable & self._ready))  # no learning step will clear their traces
        again = begins if self.act_before else begins & ~usable
        self._begins[...] = begins & ~again
        phases = OBSERVE | ACT_BEFORE | LEARN | SHIFT if self.act_before else OBSERVE | LEARN | RESET | ACT | SHIFT
        self._run_for(usable & now, phases)
        if again.any():
            if self.act_before:
                self.redraw_noise()
            self._begins[...] = again
            self._run_for(again, RESET | ACT | SHIFT)
            self._begins[...] = 0
        if has_first:
            self._count_skipped(ended & ~begins)
        else:
            self._running[ended] = False

    def _run_for(self, rows: np.ndarray, phases: int) -> None:
        if rows.all():
            self.run(phases)
        elif rows.any():
            self._active[...] = rows
            self.run(phases)
            self._active[...] = 1

    def _lose(self, rows: np.ndarray) -> None:
        """Let traces and reward sums decay over the transitions that can't be learned: two, then one for each more."""
        if not rows.any():
            return
        self.fade(torch.from_numpy(np.where(rows, 1.0 + self._ready, 0.0)))
        self._ready[rows] = False

    def _cut(self, rows: np.ndarray) -> None:
        """End an episode without a learning step."""
        if rows.any():
            self.forget(torch.from_numpy(rows))
            self._ready[rows] = False

    def _count_skipped(self, rows: np.ndarray) -> None:
        if not rows.any():
            return
        self.skipped += torch.from_numpy(rows)
        if not self._warned:
            self._warned = True
            where = "" if len(self.seeds) == 1 else f" of stream {int(np.flatnonzero(rows)[0])}"
            warnings.warn(
                f"{self.name}: a sample{where} holds NaN, infinity, or a number beyond 1e18 or observation_limit; it "
                "is skipped and the last action repeated, as further ones will be without a warning: see report()",
                RuntimeWarning,
                stacklevel=4,
            )
