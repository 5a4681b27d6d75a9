"""The alarm: model-based runs watch whether their model is being exploited, and say so when it is.

Algorithms give the signals as metrics, by the names in `SIGNALS`; who has no such number is not watched for it.
Sources: "The Edge-of-Reach Problem in Offline Model-Based RL" (Sims, Lu, Foerster and Teh, NeurIPS 2024) for values
at states that are never trained; "Free from Bellman Completeness" (Zhou et al., ICLR 2024) for acceptance and returns.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.options import Options, option


@dataclasses.dataclass(frozen=True)
class AlarmConfig(Options):
    """At which signals the alarm rings; null: never at this one."""

    alarm_value_excess: float | None = option(
        0.1,
        "alarm above this excess of the mean value over what rewards allow, in the range that they allow; null: never",
    )
    alarm_value_growth: float | None = option(
        0.2,
        "alarm above this growth of log10 of the mean value in 1,000 steps, once above the data's best; null: never",
    )
    alarm_edge_share: float | None = option(
        0.1, "alarm above this share of bootstrap targets at states that are never trained; null: never"
    )
    alarm_reward_excess: float | None = option(
        0.05, "alarm above this excess of the mean imagined reward over the data's highest, in their range; null: never"
    )
    alarm_return_over_best: float | None = option(
        3.0, "alarm above this multiple of the data's best return, of the return in the model; null: never"
    )
    alarm_acceptance: float | None = option(
        1e-3, "alarm below this share of imagined episodes that the filter keeps; null: never"
    )
    alarm_calibration_drift: float | None = option(
        1.0, "alarm above this excess of fresh rows' negative log-likelihood over the holdout's, in nats; null: never"
    )
    alarm_patience: int = option(
        3, "measurements in a row that a signal must exceed its bound before the alarm rings", range=">= 1"
    )


@dataclasses.dataclass(frozen=True)
class Signal:
    """A number that is watched."""

    metric: str
    """Name among the metrics of training."""
    option: str
    """Of the config, whose value is the threshold."""
    above: bool
    """Whether the alarm rings above the threshold; else below."""
    meaning: str
    """What has happened then, in words."""
    once: bool = False
    """Whether a whole phase is measured, so that there is one number to hear and patience would wait for ever."""


SIGNALS = (
    Signal("value_excess", "alarm_value_excess", True, "values are above what rewards allow"),
    Signal("value_growth", "alarm_value_growth", True, "values grow as an exponential does, above the data's best"),
    Signal("edge_share", "alarm_edge_share", True, "targets bootstrap from states that are never trained"),
    Signal("reward_excess", "alarm_reward_excess", True, "the model promises rewards that the data never saw"),
    Signal(
        "model_return_over_best",
        "alarm_return_over_best",
        True,
        "returns in the model are far above the best",
        once=True,
    ),
    Signal("acceptance", "alarm_acceptance", False, "next to no imagined episode passes the filter"),
    Signal("calibration_drift", "alarm_calibration_drift", True, "the model fits fresh rows worse than its holdout"),
)

GROWTH = {"q", "value_over_best"}
"""Metrics that the growth of values is measured by."""
WINDOW = 10
"""Numbers over which the growth of values is measured."""
Line = tuple[int, Mapping[str, float]]
"""A training step, and the metrics that were logged there."""


@dataclasses.dataclass(frozen=True)
class Ring:
    """That a signal has crossed its threshold."""

    step: int
    signal: str
    value: float
    threshold: float
    meaning: str

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return (
            f"ALARM at step {self.step:,}: {self.meaning} ({self.signal} is {self.value:.3g}, threshold "
            f"{self.threshold:g})"
        )


def value_growth(lines: Sequence[Line]) -> float | None:
    """Slope of log10 of the mean value `q` per 1,000 training steps, over the last `WINDOW` lines.

    None where there are fewer, or where some value is not above the data's best (`value_over_best` at most 1): values
    that rise from 0 to what the data have seen are no sign of anything.
    """
    last = [(step, line) for step, line in lines[-WINDOW:] if line.keys() >= GROWTH]
    if len(last) < WINDOW or any(line["value_over_best"] <= 1 or line["q"] <= 0 for _, line in last):
        return None
    steps = np.array([step for step, _ in last], dtype=np.float64) / 1000
    if np.ptp(steps) == 0:
        return None
    return float(np.polyfit(steps, np.log10([line["q"] for _, line in last]), 1)[0])


def crossed(signal: Signal, value: float | None, threshold: float | None) -> bool:
    """Whether a value is beyond its threshold; NaN, and what is not there, never is."""
    if value is None or threshold is None or math.isnan(value):
        return False
    return value > threshold if signal.above else value < threshold


class Alarm:
    """Hears the metrics of one seed, line by line, and rings once for each signal."""

    def __init__(self, config: Any = None) -> None:
        """Take thresholds from an algorithm's config; those that it does not have are `AlarmConfig`'s."""
        usual = AlarmConfig()
        fields = [field.name for field in dataclasses.fields(AlarmConfig)]
        self.config = AlarmConfig(**{name: getattr(config, name, getattr(usual, name)) for name in fields})
        self.rings: list[Ring] = []
        """In the order in which they rang."""
        self._watched: set[str] = set()
        self._lines: list[Line] = []
        self._beyond: dict[str, int] = {}
        self._heard: dict[str, float] = {}

    @property
    def watched(self) -> list[str]:
        """The signals that were heard and have a threshold, by their metrics; the alarm is silent about all others."""
        return [signal.metric for signal in SIGNALS if signal.metric in self._watched]

    def observe_outcome(self, step: int, values: Mapping[str, float]) -> list[Ring]:
        """Take the metrics that were logged at a training step.

        Returns:
            Those signals that ring now and never did before.
        """
        self._lines = [*self._lines[-WINDOW:], (step, values)]
        found = {**values, "value_growth": value_growth(self._lines)}
        fresh = []
        for signal in SIGNALS:
            threshold = getattr(self.config, signal.option)
            value = found.get(signal.metric)
            known = values.keys() >= GROWTH if signal.metric == "value_growth" else value is not None
            if known and threshold is not None:
                self._watched.add(signal.metric)
            again = signal.above and value is not None and value == self._heard.get(signal.metric)
            if value is not None:
                self._heard[signal.metric] = value
            if again:  # a rule's number, which is logged until the rule is taken again
                continue
            if not crossed(signal, value, threshold):
                self._beyond[signal.metric] = 0
                continue
            assert value is not None
            self._beyond[signal.metric] = self._beyond.get(signal.metric, 0) + 1
            rang = any(ring.signal == signal.metric for ring in self.rings)
            patience = 1 if signal.once else self.config.alarm_patience
            if self._beyond[signal.metric] >= patience and not rang:
                fresh.append(Ring(step, signal.metric, value, threshold, signal.meaning))
        self.rings += fresh
        return fresh


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the rewards of a dataset allow values to be, at a discount."""

    low: float
    """Lowest reward, at most 0, over 1 - discount."""
    high: float
    """Highest reward, at least 0, over 1 - discount."""
    best: float
    """Highest discounted return of an episode, that of one cut off continued at its own rate."""

    @classmethod
    def of(
        cls,
        rewards: np.ndarray,
        starts: np.ndarray,
        terminated: np.ndarray,
        discount: float,
        bounds: tuple[float, float],
    ) -> Limits:
        """Of (N,) rewards within `bounds`, in episodes from (E + 1,) `starts`, of which (E,) end by termination.

        An episode of n steps that was cut off returns sum gamma^t r_t / (1 - gamma^n): as if it began anew for ever.
        """
        lengths = np.diff(starts)
        within = np.arange(len(rewards)) - np.repeat(starts[:-1], lengths)
        returns = np.add.reduceat(rewards.astype(np.float64) * discount**within, starts[:-1])
        returns = np.where(terminated, returns, returns / np.maximum(1 - discount**lengths, 1e-9))
        horizon = 1 / max(1 - discount, 1e-9)
        low, high = min(bounds[0], 0.0) * horizon, max(bounds[1], 0.0) * horizon
        return cls(low, high, float(returns.max()))
