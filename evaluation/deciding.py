"""Does one algorithm score higher than another? A test over seeds that may be looked at while they are trained.

A group-sequential permutation test: after every n new seeds of both algorithms the labels are shuffled, within each
stage, and the observed difference of sums is held against the shuffled ones. Shuffles that crossed a boundary are
spent, so that after stage k at most a share level * k / K of all of them has crossed, whenever one stops. It is exact
for exchangeable scores, whatever their distribution. Permutation tests: Fisher, "The design of experiments" (1935);
spending of the error over looks: Lan and DeMets, "Discrete sequential boundaries for clinical trials" (1983);
for reinforcement learning: Mathieu et al., "AdaStop" (2023).

`benchmarks/deciding.py` measures errors and power.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any, Literal

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.schema import Number, Record, check
from surefoot.evaluation.anytime import t_e_process, t_sequence
from surefoot.evaluation.one_look import ROUNDING, SLACK, choose, finite_scores, seeds_needed
from surefoot.evaluation.statistics import Array, Interval

Answer = Literal["larger", "smaller", "open", "not separated"]
"""Of the first algorithm beside the second; open: not yet, and there are stages left."""
UNEQUAL_SPREAD = 2.0
"""Ratio of standard deviations above which equal means can be called different too often (6.8 % at a ratio of 3)."""
_MOST_PATHS = 10**6


@dataclasses.dataclass(frozen=True)
class LookPlan:
    """When a comparison is looked at, and how much error it may make: fixed before the first look.

    Raises:
        ConfigError: a number out of range.
    """

    per_stage: int = 5
    """Seeds of each algorithm in a stage."""
    stages: int = 5
    """At most."""
    level: float = 0.05
    """Probability of calling any of the pairs different where none is."""
    pairs: int = 1
    """Comparisons that share the level."""
    paths: int = 4000
    """Shuffles, the observed labels among them; see `shuffles`."""
    seed: int = 0
    """Of the shuffles."""

    def __post_init__(self) -> None:
        """Check everything."""
        for name, least, most in (
            ("per_stage", 2, 1000),
            ("stages", 1, 1000),
            ("pairs", 1, 10_000),
            ("paths", 100, _MOST_PATHS),
            ("seed", 0, 2**63),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise ConfigError(f"{name} is {value}; it must be a whole number from {least} to {most:,}")
        if not 0 < self.level < 1:
            raise ConfigError(f"level is {self.level}; it must be between 0 and 1, as in 0.05")
        if not _decides(self._shares(self.stages)):
            staged = f" in {self.stages} stages" if self.stages > 1 else ""
            seeds = f"{self.seeds} seeds{staged}" + (f" and {self.pairs} pairs" if self.pairs > 1 else "")
            enough = next(k for k in itertools.count(self.stages) if _decides(self._shares(k)))
            raise ConfigError(
                f"with {seeds} nothing can be decided at a level of {self.level:g}: plan at least "
                f"{seeds_needed(self.pair_level)} seeds of each algorithm in one stage, or "
                f"{self.per_stage * enough} in stages of {self.per_stage}"
            )

    def _shares(self, stages: int) -> float:
        """How many of all shuffles of so many stages a pair's level allows to cross."""
        return min(choose(self.per_stage) ** stages, 10**300) * self.pair_level

    @property
    def pair_level(self) -> float:
        """The level of each pair."""
        return self.level / self.pairs

    @property
    def seeds(self) -> int:
        """Of each algorithm, at most."""
        return self.per_stage * self.stages

    @property
    def shuffles(self) -> int:
        """How many are made: `paths`, or more where a pair's level lets none of those cross; all where these are fewer.

        Raises:
            ConfigError: a million are too few.
        """
        least = math.ceil(1 / self.pair_level - SLACK)
        found = min(choose(self.per_stage) ** self.stages, max(self.paths, least))
        if found > _MOST_PATHS:
            raise ConfigError(
                f"a level of {self.pair_level:g} for each pair takes {least:,} shuffles, more than {_MOST_PATHS:,}: "
                "raise level, or compare fewer pairs"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any, where: object) -> LookPlan:
        """The plan that `to_json` gave; raises ConfigError with the name of the file that it stands in."""
        check(value, LOOK_PLAN, where, ConfigError)
        try:
            return cls(**value)
        except ConfigError as error:
            raise error.inside(where, ConfigError) from error

    def sentence(self) -> str:
        """The plan in words."""
        share = f"{100 * self.level:g} %"
        shared = f" ({self.pairs} pairs share it: {100 * self.pair_level:.2g} % each)" if self.pairs > 1 else ""
        return (
            f"after every {self.per_stage} seeds of each algorithm, at most {self.stages} times, the labels are "
            f"shuffled {self.shuffles:,} times. Without a difference at most {share} of such comparisons ever say "
            f"larger or smaller, however early they stop{shared}"
        )


LOOK_PLAN = Record(
    {
        **{name: Number(0, whole=True) for name in ("per_stage", "stages", "pairs", "paths", "seed")},
        "level": Number(0, 1),
    }
)


@dataclasses.dataclass(frozen=True)
class Look:
    """What the scores of the first stages say."""

    stage: int
    """From 1 on."""
    seeds: int
    """Of each algorithm so far."""
    interval: Interval
    """Mean score of the first minus that of the second, with the differences that none of the looks so far rejects: it
    may be read at every look. After an early stop the estimate is too far from 0 on average."""
    statistic: float
    """|mean difference| summed over stages, or the evidence of a t e-process."""
    boundary: float
    """What the statistic has to exceed."""
    answer: Answer
    spread: float
    """Ratio of the larger standard deviation to the smaller."""

    def sentence(self, first: str, second: str, what: str = "score") -> str:
        """The look in words; `what` is compared."""
        shown = f"{self.interval.estimate:.4g}"
        if math.isfinite(self.interval.low):
            shown += f" [{self.interval.low:.4g}, {self.interval.high:.4g}]"
        words = {
            "larger": f"{first} has a larger {what} than {second}",
            "smaller": f"{first} has a smaller {what} than {second}",
            "open": f"{first} and {second} are not distinguished yet",
            "not separated": f"{first} and {second} are not separated: too few seeds for this difference, which is not "
            "to say that they are equal",
        }[self.answer]
        warn = ""
        if self.spread > UNEQUAL_SPREAD:
            warn = (
                f". One varies {self.spread:.1f} times as much as the other: the error can be somewhat above its level"
            )
        return f"{words}; difference {shown} over {self.seeds} seeds each (stage {self.stage}){warn}"

    def to_json(self) -> dict[str, Any]:
        """The look as JSON values."""
        finite = {key: value if math.isfinite(value) else None for key, value in (("statistic", self.statistic),
                  ("boundary", self.boundary), ("spread", self.spread))}  # fmt: skip
        return {"stage": self.stage, "seeds": self.seeds, "difference": self.interval.to_json(), **finite,
                "answer": self.answer}  # fmt: skip


def looks(first: Array, second: Array, plan: LookPlan) -> list[Look]:
    """All looks that the scores allow, up to the one that decides.

    Args:
        first: (at least k n,) scores of independently trained seeds in the order in which they were planned; whole
            stages are used, and what is beyond them is left.
        second: likewise.
        plan: of the comparison.

    Returns:
        Looks 1 to k, the last of them decided, or `not separated` where it is the last of the plan, or `open`. Empty
        where a stage is not yet complete.

    Raises:
        ConfigError: a score that is not finite.
    """
    x, y = finite_scores(first), finite_scores(second)
    complete = min(len(x) // plan.per_stage, len(y) // plan.per_stage, plan.stages)
    if complete == 0:
        return []
    x, y = x - x[0], y - x[0]
    statistic, boundary, crossed = test_statistics(x[None, : complete * plan.per_stage],
                                                   y[None, : complete * plan.per_stage], plan)  # fmt: skip
    found: list[Look] = []
    for k in range(complete):
        n = (k + 1) * plan.per_stage
        interval = _repeated_interval(x[:n], y[:n], plan)
        answer: Answer = "open" if k + 1 < plan.stages else "not separated"
        if crossed[0, k]:
            answer = "larger" if interval.estimate > 0 else "smaller"
        spreads = sorted((float(x[:n].std(ddof=1)), float(y[:n].std(ddof=1))))
        ratio = spreads[1] / spreads[0] if spreads[0] > 0 else (math.inf if spreads[1] > 0 else 1.0)
        found.append(Look(k + 1, n, interval, float(statistic[0, k]), float(boundary[0, k]), answer, ratio))
        if crossed[0, k]:
            break
    return found


def anytime_looks(first: Array, second: Array, most: int, level: float = 0.05) -> list[Look]:
    """Looks after each pair of seeds by the t e-process, up to the one that decides.

    The k-th seeds of both are paired. Evidence of at least 1 / level decides, at whatever look, and one may also stop
    without an answer, or continue beyond `most`. For differences near normal; it takes more seeds than `looks`.

    Args:
        first: scores of independently trained seeds in the order in which they were planned.
        second: likewise.
        most: seeds of each after which an open comparison is `not separated`.
        level: of this pair.
    """
    x, y = finite_scores(first), finite_scores(second)
    n = min(len(x), len(y), most)
    evidence = t_e_process(x[:n] - y[:n]) if n else np.zeros(0)
    found: list[Look] = []
    for k in range(1, n + 1):
        interval = t_sequence(x[:k] - y[:k], level)
        answer: Answer = "open" if k < most else "not separated"
        if evidence[k - 1] >= 1 / level:
            answer = "larger" if interval.estimate > 0 else "smaller"
        found.append(Look(k, k, interval, float(evidence[k - 1]), 1 / level, answer, 1.0))
        if answer in ("larger", "smaller"):
            break
    return found


def test_statistics(first: Array, second: Array, plan: LookPlan) -> tuple[Array, Array, Array]:
    """(observed statistic, boundary, whether it is crossed), (T, k) each, of T comparisons at once.

    Only the first crossing of a row counts. `first` and `second` are (T, k n) scores of k whole stages.
    """
    first, second = first - first[:, :1], second - first[:, :1]
    trials, n = len(first), plan.per_stage
    stages = first.shape[1] // n
    shuffles = labelings(plan)
    paths = len(shuffles[0])
    total = np.zeros((trials, paths))
    alive = np.ones((trials, paths), dtype=bool)
    spent, rounding = np.zeros(trials, dtype=np.int64), np.zeros(trials)
    statistic, boundary, crossed = (np.zeros((trials, stages)) for _ in range(3))
    for k in range(stages):
        part = slice(k * n, (k + 1) * n)
        total += (scores := np.concatenate([first[:, part], second[:, part]], axis=1)) @ shuffles[k].T
        rounding = np.maximum(rounding, ROUNDING * np.abs(scores).max(axis=1))
        values = np.where(alive, np.abs(total), -1.0)  # those that crossed before are out
        allowed = math.floor(paths * plan.pair_level * (k + 1) / plan.stages + 1e-9) - spent
        most = int(allowed.max())
        largest = np.sort(np.partition(values, paths - 1 - most, axis=1)[:, paths - 1 - most :], axis=1)
        bound = np.take_along_axis(largest, (most - allowed)[:, None], axis=1)[:, 0]
        cross = alive & (values > (bound * (1 + SLACK) + rounding)[:, None])
        statistic[:, k], boundary[:, k], crossed[:, k] = np.abs(total[:, 0]), bound, cross[:, 0]
        spent += cross.sum(axis=1)
        alive &= ~cross
    return statistic, boundary, crossed.astype(bool)


test_statistics.__test__ = False  # type: ignore[attr-defined]  # it is no test of pytest's


@functools.lru_cache(maxsize=16)
def labelings(plan: LookPlan) -> tuple[Array, ...]:
    """For each stage (paths, 2 n) weights +1/n or -1/n of its scores; path 0 has the observed labels."""
    n = plan.per_stage
    observed = np.concatenate([np.full(n, 1 / n), np.full(n, -1 / n)])
    paths = plan.shuffles
    if choose(n) ** plan.stages == paths:
        every = all_labelings(n)
        chosen_rows = np.array(list(itertools.product(range(len(every)), repeat=plan.stages)))
        return tuple(every[chosen_rows[:, k]] for k in range(plan.stages))
    generator = np.random.default_rng(plan.seed)
    shuffled = []
    for _ in range(plan.stages):
        rows = generator.permuted(np.tile(observed, (paths, 1)), axis=1)
        rows[0] = observed
        shuffled.append(rows)
    return tuple(shuffled)


def all_labelings(n: int) -> Array:
    """(C(2 n, n), 2 n) weights +1/n or -1/n: every way of labelling 2 n scores, the observed one first."""
    every = np.full((choose(n), 2 * n), -1 / n)
    for row, chosen in enumerate(itertools.combinations(range(2 * n), n)):
        every[row, list(chosen)] = 1 / n
    return every


def _repeated_interval(x: Array, y: Array, plan: LookPlan) -> Interval:
    """The shifts of `x` that no look so far rejects, from the lowest to the highest of them."""
    estimate = float(x.mean() - y.mean())
    method = f"shuffled labels at {plan.pair_level:g}, {len(x)} seeds each; holds at all looks of the plan"
    scale = max(float(np.concatenate([x - x.mean(), y - y.mean()]).std()), abs(estimate) * 1e-9)
    if scale == 0.0:
        return Interval(estimate, estimate, estimate, method)
    steps = scale * np.concatenate([np.linspace(0, 4, 61)[1:], np.geomspace(4.2, 1e3, 20)])
    shifts = estimate + np.concatenate([-steps[::-1], [0.0], steps])

    def kept(values: Array) -> Array:
        shape = (len(values), 1)
        crossed = test_statistics(x[None] - values[:, None], np.broadcast_to(y, (len(values), len(y))), plan)[2]
        return np.asarray(~crossed.any(axis=1)).reshape(shape)[:, 0]

    inside = np.flatnonzero(kept(shifts))
    if len(inside) == 0 or inside[0] == 0 or inside[-1] == len(shifts) - 1:
        return Interval(estimate, math.nan, math.nan, method)
    good = np.array([shifts[inside[0]], shifts[inside[-1]]])
    bad = np.array([shifts[inside[0] - 1], shifts[inside[-1] + 1]])
    for _ in range(30):
        middle = (good + bad) / 2
        stays = kept(middle)
        good, bad = np.where(stays, middle, good), np.where(stays, bad, middle)
    return Interval(estimate, float(bad[0]), float(bad[1]), method)


def _decides(shares: float) -> bool:
    """Whether the largest difference can cross where so many of all shuffles may: its mirror image ties with it."""
    return math.floor(shares + SLACK) >= 2
