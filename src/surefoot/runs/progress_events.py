"""Events of a run, and who listens to them: notes for the user, evaluations, progress after every stretch of steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from surefoot.envs.reward_terms import STEM
from surefoot.evaluation import Episodes
from surefoot.runs.plan import Plan
from surefoot.runs.trust import function_of

Event = dict[str, Any]
Listener = Callable[[Event], bool | None]
"""Called with each event of a run; where it returns False, training of the event's seed ends at its next step."""
EVERY = 2.0
"""Seconds within a stretch after which its progress is reported."""


def say(notify: Listener, *texts: str) -> None:
    """Tell a listener sentences for the user."""
    for text in texts:
        notify({"kind": "note", "text": text})


class Listeners:
    """Several listeners as one, which returns False where one of them does."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = list(listeners)
        self.stopped_by: str | None = None
        """The name of the first that returned False."""

    def __call__(self, event: Event) -> bool | None:
        """Hand the event to all."""
        going: bool | None = None
        for listener in self.listeners:
            if listener(event) is False:
                going, self.stopped_by = False, self.stopped_by or listener_name(listener)
        return going


def listener_name(listener: Listener) -> str:
    """Who a listener is, for the summary of a run that it stopped: module:function."""
    if isinstance(listener, Listeners):
        return listener.stopped_by or "a listener"
    named = listener if hasattr(listener, "__qualname__") else type(listener)
    return f"{named.__module__}:{named.__qualname__}"


def listener_of(name: str) -> Listener:
    """The listener that `module:function` names; of a class, an object of it. Who asks has made sure of trust.

    Raises:
        ConfigError: it can't be imported, or is no function.
    """
    found = function_of(name, "listener")
    return found() if isinstance(found, type) else found


def silent(event: Event) -> None:
    """Listen to nothing."""


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics without those that are NaN or infinite, which JSON does not have."""
    return {name: value for name, value in values.items() if not isinstance(value, float) or math.isfinite(value)}


def finite_or_none(value: float | None) -> float | None:
    """A number as JSON has it: None where it is NaN or infinite."""
    return value if value is not None and math.isfinite(value) else None


def of_episodes(episodes: Episodes) -> dict[str, Any]:
    """What `metrics.jsonl` has of an evaluation while training continues: means, and what each episode gave."""
    values: dict[str, Any] = {
        "return_mean": float(episodes.returns.mean()),
        "length_mean": float(episodes.lengths.mean()),
        "returns": episodes.returns.tolist(),
    }
    if episodes.costs is not None:
        values |= {"cost_mean": float(episodes.costs.mean()), "costs": episodes.costs.tolist()}
    if episodes.successes is not None:
        values |= {"success_mean": float(episodes.successes.mean()), "successes": episodes.successes.tolist()}
    return values | finite({f"{STEM}{name}": float(term.mean()) for name, term in episodes.reward_terms.items()})


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
        """Tell how far the stretch is, if it was not given for a while."""
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
