"""What a worker tells of its progress: after every stretch of steps, and now and then within a long one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from surefoot.experiment.plan import Plan

EVERY = 2.0
"""Seconds within a stretch after which its progress is told."""


class Teller:
    """Sends `progress` events of some seeds."""

    def __init__(self, plan: Plan, seeds: Sequence[int], send: Callable[[dict[str, Any]], None]) -> None:
        self.plan, self.seeds, self._send = plan, seeds, send
        self._warm_up = int(plan.config.get("initial_steps") or 0)  # much quicker than what follows
        self._began, self._from, self._told = time.perf_counter(), 0, time.perf_counter()

    def begin(self, step: int) -> None:
        """A stretch begins at this step."""
        self._began = self._told = time.perf_counter()
        self._from = step

    def within(self, step: int) -> None:
        """Tell how far the stretch is, if it was not told for a while."""
        now = time.perf_counter()
        if now - self._told < EVERY:
            return
        self._told = now
        for seed in self.seeds:
            self._progress(seed, step, (step - self._from) / (now - self._began), {})

    def end(self, step: int, seed: int, seconds: float, values: Mapping[str, float]) -> None:
        """The stretch is over for this seed, and this is what was measured."""
        self._progress(seed, step, (step - self._from) / max(seconds, 1e-9), values)

    def _progress(self, seed: int, step: int, rate: float, values: Mapping[str, float]) -> None:
        self._send(
            {
                "kind": "progress",
                "seed": seed,
                "step": min(step, self.plan.steps),
                "steps": self.plan.steps,
                "rate": rate,
                "warming_up": self._from < self._warm_up,
                **{name: values.get(name) for name in ("episode_return", "episode_cost")},
            }
        )
