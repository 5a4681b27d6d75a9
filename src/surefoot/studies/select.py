"""Choosing among trained policies from data alone, and saying so where the data can't tell.

The method is fixed. Each policy is judged by least-squares fitted-Q evaluation (`offline.evaluation.least_squares_q`),
whose members share features and resamples over all policies. The data's own behaviour is judged in the same way; its
true value is known, so the difference is taken off every estimate, and where it is larger than the members' spread
allows, all intervals are widened by that factor. Policies whose whole interval lies above the best return in the data
are set aside: nothing in the data supports them. So are those whose whole interval lies below the least that the data's
rewards allow: there the critics fail, and say nothing. The others are ranked by the lower end of their intervals.
Doubly robust and self-normalised per-decision importance-sampling estimates stand beside, with the number of episodes
that they rest on.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from surefoot.core.base.actions import to_agent
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.files import read_json
from surefoot.core.base.spec import in_words
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Array, Dataset
from surefoot.evaluation.selection import rank_correlation, regret_at
from surefoot.offline.evaluation.least_squares_q import (
    LEAST_EPISODES,
    LeastSquaresJudge,
    LeastSquaresQConfig,
    own_returns,
)
from surefoot.offline.evaluation.single_actions import single_actions
from surefoot.runs.run import Run
from surefoot.runs.summary import RESULT
from surefoot.studies.select_behaviour import Behaviour

LEAST_EFFECTIVE = 5.0
"""Episodes that importance sampling must rest on to be worth reading."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A policy to choose."""

    label: str
    group: str  # the algorithm and its options: seeds of one run share it
    policy: Policy
    returns: Array | None = None  # (E,) of its final evaluation in a simulator, where there was one


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What the data say of one policy: discounted returns from the data's first states."""

    label: str
    group: str
    members: Array  # (M,) fitted-Q, calibrated
    low: float
    high: float
    doubly_robust: float | None  # None, as the next three: judged by a model
    importance: float | None  # self-normalised, per decision
    effective_episodes: float | None
    distance: float | None  # root mean square of policy minus recorded action, half ranges being 1
    implausible: bool  # the whole interval lies above the best return in the data
    truth: float | None
    impossible: bool = False  # it lies below the least that the data's rewards allow: the critics fail on this policy

    @property
    def mean(self) -> float:
        """The estimate."""
        return float(self.members.mean())

    @property
    def believable(self) -> bool:
        """Whether its interval holds a value that the data allow."""
        return not (self.implausible or self.impossible)

    def to_json(self) -> dict[str, Any]:
        """As JSON values, without the members."""
        value = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "members"}
        return {"label": self.label, "mean": self.mean, **value}


@dataclasses.dataclass(frozen=True)
class Selection:
    """All estimates, best first, and what can be reported."""

    estimates: list[Estimate]
    data_value: float  # mean discounted return of the data, bootstrapped where episodes were cut off
    data_estimate: float  # what the critics say of the same
    factor: float  # by which intervals were widened
    best_in_data: float
    discount: float
    members: int
    method: str = "critics"  # or model

    @property
    def best(self) -> Estimate:
        """The first of the ranking."""
        return self.estimates[0]

    def difference(self, first: Estimate, second: Estimate) -> tuple[float, float, float]:
        """Mean and interval of first minus second, member by member."""
        return interval(first.members - second.members, self.factor)

    @property
    def set_aside(self) -> list[Estimate]:
        """Those that nothing in the data supports, whatever their estimates."""
        return [one for one in self.estimates if one.implausible]

    @property
    def tied(self) -> list[Estimate]:
        """Those that can't be distinguished from the best; one that the critics fail on may be as good as any."""
        rest = [one for one in self.estimates[1:] if not one.implausible]
        return [one for one in rest if one.impossible or self.difference(self.best, one)[1] <= 0]

    def sentence(self) -> str:
        """The answer in words."""
        failed = sum(one.impossible for one in self.estimates)
        if not self.best.believable:
            below = f" or, of {failed}, below the least that its rewards allow" if failed else ""
            return (
                f"cannot tell: every policy's estimate lies above the best return in the data{below}, so none is "
                "supported; evaluate a few episodes of each (--episodes), or take the behaviour's clone"
            )
        if len(self.estimates) == 1:
            return f"{self.best.label} is the only policy: the table says what the data hold of it, and no more"
        aside = f"; set aside, since they lie above the best return in the data: {few(self.set_aside)}"
        aside = aside if self.set_aside else ""
        if len(self.set_aside) == len(self.estimates) - 1:
            return f"{self.best.label} is the only one that the data support{aside}"
        if not self.tied:
            of = "those that the data support" if aside else "these"
            return f"{self.best.label} is the best of {of} by its estimate, and its interval excludes the others{aside}"
        ahead = "is ranked first" if self.method == "model" else "has the highest lower bound"
        ahead += " of those that the data support" if aside else ""
        fails = f"; the critics fail on {failed} of these: below what the data's rewards allow" if failed else ""
        return (
            f"cannot tell: {self.best.label} {ahead}, but {len(self.tied)} of {len(self.estimates) - 1} others are not "
            f"separated from it ({few(self.tied)}){fails}{aside}"
        )

    def against_truth(self) -> dict[str, float] | None:
        """Spearman's rho and regret of ranking and estimates, where the truth of all is known."""
        if any(one.truth is None for one in self.estimates) or len(self.estimates) < 2:
            return None
        truth = np.array([one.truth for one in self.estimates], float)
        order = -np.arange(len(truth), dtype=float)  # the ranking itself: best first
        found = {"rank_correlation": rank_correlation(truth, order)}
        found |= {f"regret_at_{k}": regret_at(k, truth, order) for k in (1, 3) if k <= len(truth)}
        for name in ("doubly_robust", "importance"):
            if any(getattr(one, name) is None for one in self.estimates):
                continue
            values = np.array([getattr(one, name) for one in self.estimates])
            found[f"rank_correlation_{name}"] = rank_correlation(truth, values)
            found[f"regret_at_1_{name}"] = regret_at(1, truth, values)
        return {key: value for key, value in found.items() if np.isfinite(value)}


def few(some: Sequence[Estimate]) -> str:
    """The names of up to five."""
    return ", ".join(one.label for one in some[:5]) + (", ..." if len(some) > 5 else "")


def interval(members: Array, factor: float, confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean and t interval whose width is `factor` times the spread of members that are bootstrap resamples."""
    from scipy.special import stdtrit

    half = float(stdtrit(len(members) - 1, 0.5 + confidence / 2)) * float(members.std(ddof=1)) * factor
    mean = float(members.mean())
    return mean, mean - half, mean + half


def widening(gap: Array) -> float:
    """By what intervals are widened: how far (M,) errors of the members on the data are from 0, in two spreads."""
    spread = float(gap.std(ddof=1))
    return max(1.0, abs(float(gap.mean())) / (2 * spread)) if spread > 0 else 1.0


def bounds_of(chosen: Sequence[Candidate]) -> tuple[Array, Array]:
    """(A,) least and greatest actions of candidates, which are of one problem."""
    policy = chosen[0].policy
    return policy.action_low.numpy().astype(np.float64), policy.action_high.numpy().astype(np.float64)


def candidates(paths: Sequence[str]) -> list[Candidate]:
    """The policies of run folders, each seed one, and of policy files.

    Raises:
        CheckpointError: not a finished run and not a policy.
        ConfigError: a path twice; a policy that remembers, reads images or gives numbers of choices; bounds that
            differ.
    """
    found: list[Candidate] = []
    known: set[pathlib.Path] = set()
    for text in paths:
        path = pathlib.Path(text)
        if path.resolve() in known:
            raise ConfigError(f"{text}: is named twice; each run or policy is judged once")
        known.add(path.resolve())
        if path.is_dir():
            run = Run.open(path)
            for seed, policy in run.policies().items():
                label = str(path) if len(run.plan.seeds) == 1 else f"{path} seed {seed}"
                found.append(Candidate(label, str(path), policy, _evaluated(run, seed)))
        else:
            found.append(Candidate(str(path), str(path), Policy.load(path)))
    for one in found:
        policy, first = one.policy, found[0].policy
        if not judgeable(policy):
            raise ConfigError(
                f"{one.label}: fitted Q judges policies that give a vector of actions for one observation alone; leave "
                "out those that remember or read images, and evaluate them in their environment"
            )
        same = torch.equal(policy.action_low, first.action_low) and torch.equal(policy.action_high, first.action_high)
        if not same or policy.observation_dim != first.observation_dim:
            raise ConfigError(
                f"{found[0].label} and {one.label} are of different problems: their sizes or bounds differ (without a "
                "simulator, bounds are -1 and 1, or where the data go beyond these the data's: train on one file)"
            )
    return found


def judgeable(policy: Policy) -> bool:
    """Whether it gives a vector of actions for one observation vector alone, as fitted Q needs."""
    return not policy.has_memory and policy.encoder is None and not policy.discrete


def _evaluated(run: Run, seed: int) -> Array | None:
    evaluation = read_json(run.seed_folder(seed) / "result.json", RESULT).get("evaluation")
    return None if evaluation is None else np.asarray(evaluation["returns"], float)


def select(
    chosen: Sequence[Candidate],
    dataset: Dataset,
    config: LeastSquaresQConfig | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    truth: bool = False,
) -> Selection:
    """Judge and rank the candidates.

    Args:
        chosen: of one problem.
        dataset: of that problem, best not the one that they were trained on.
        config: of the critics, and the discount of the value that is estimated.
        seed: of features and resamples.
        progress: called with (judged, all).
        truth: compare with the candidates' own evaluations.

    Raises:
        ConfigError: nothing to choose from, too few episodes, other sizes, or no truth where it is asked for.
        DataError: observations that are not one vector.
    """
    check(chosen, dataset, truth)
    judge = LeastSquaresJudge(dataset, *bounds_of(chosen), seed, config)
    discount = judge.config.discount
    own = own_returns(judge, dataset)
    gap = own.reported - own.stated
    factor = widening(gap)
    behaviour = Behaviour(judge)
    allowed = least_value(dataset, discount), own.best  # of all data, judged on or not
    estimates = []
    for number, one in enumerate(chosen):
        estimates.append(_estimate(one, judge, behaviour, gap, factor, allowed, truth))
        if progress is not None:
            progress(number + 1, len(chosen))
    estimates.sort(key=lambda one: (not one.believable, -one.low))
    return Selection(
        estimates, float(own.reported.mean()), float(own.stated.mean()), factor, own.best, discount, len(gap)
    )


def check(chosen: Sequence[Candidate], dataset: Dataset, truth: bool) -> None:
    """Refuse what can't be judged; arguments and errors are those of `select`."""
    if not chosen:
        raise ConfigError("there is no policy to choose: give run folders or policy files")
    first = chosen[0].policy
    if dataset.observation_dim and (dataset.observation_dim, dataset.action_dim) != (
        first.observation_dim,
        first.action_dim,
    ):
        raise ConfigError(
            f"{dataset.name} has {dataset.observation_dim} observations and {dataset.action_dim} actions, and "
            f"{chosen[0].label} {first.observation_dim} and {first.action_dim}: give data of the same task"
        )
    check_data(dataset)
    missing = [one.label for one in chosen if one.returns is None]
    if truth and missing:
        raise ConfigError(
            f"{missing[0]}: was not evaluated in a simulator, so its truth is not known; train with env=ID, or leave "
            "--truth out"
        )


def check_data(dataset: Dataset) -> None:
    """Refuse data that no policy can be judged on.

    Raises:
        ConfigError: too few episodes, or no rewards.
        DataError: observations that are not one vector, or actions that are choices.
    """
    if len(dataset.episode_lengths) < LEAST_EPISODES:
        raise ConfigError(
            f"{dataset.name}: {len(dataset.episode_lengths)} episodes are too few to judge policies on; give at least "
            f"{LEAST_EPISODES}"
        )
    if not dataset.has_rewards:
        raise ConfigError(f"{dataset.name}: has no rewards to judge policies by; give data that have them")
    if dataset.observation_dim == 0:
        raise DataError(
            f"{dataset.name}: fitted Q learns from one vector, and observations are {in_words(dataset.arrays)}: "
            "evaluate the policies in their environment"
        )


def least_value(data: Dataset, discount: float) -> float:
    """The least discounted return of rewards not below the data's least; 0 where that is positive: episodes may end."""
    return min(0.0, float(data.rewards.min())) / (1 - discount)


def _estimate(
    one: Candidate,
    judge: LeastSquaresJudge,
    behaviour: Behaviour,
    gap: Array,
    factor: float,
    allowed: tuple[float, float],
    truth: bool,
) -> Estimate:
    data = judge.dataset
    here, after = actions_of(one.policy, data.observations), actions_of(one.policy, data.next_observations)
    critics = judge.fit(after)
    members = critics.value(here[data.episode_starts[:-1]]) + gap
    _, low, high = interval(members, factor)
    robust, importance, effective = behaviour.estimates(critics, here, after)
    scaled = [to_agent(part, judge.low, judge.high) for part in (here, data.actions)]
    return Estimate(
        one.label,
        one.group,
        members,
        low,
        high,
        robust,
        importance,
        effective,
        float(np.sqrt(np.mean((scaled[0] - scaled[1]) ** 2))),
        low > allowed[1],
        float(one.returns.mean()) if truth and one.returns is not None else None,
        high < allowed[0],
    )


def actions_of(policy: Policy, observations: Array) -> Array:
    """(N, A) what a policy does at (N, d) observations, each as at the first step of an episode."""
    return single_actions(policy, observations).astype(np.float64)
