"""Choosing by imagined episodes: each policy is followed in a model that is learned from the data.

The method is fixed. An ensemble of Gaussian networks (`world_models.ensemble`) learns the data's changes of state and
rewards. Each member alone is followed by each policy for whole episodes, from first states of the data that all members
and policies share; states and rewards stay in the range of the data's, and episodes end where the environment's do. The
returns of recorded actions, taken again in the model, are known, and where they are missed by more than twice the
members' spread all intervals are widened by that factor. Policies whose whole interval lies above the best return in
the data are set aside; the others are ranked by their mean less the members' standard deviation.

That estimates by a model order policies better than fitted Q does is what Zhang et al. report, "Autoregressive dynamics
models for offline policy evaluation and optimization" (2021). What all members get wrong alike no spread shows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.actions import to_agent
from surefoot.core.base.random import generator
from surefoot.core.base.spec import Spec
from surefoot.core.engine.agent import require
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.data.dataset import Array, Dataset
from surefoot.data.store import store_from_dataset
from surefoot.runs.algorithms import ALGORITHMS
from surefoot.studies.select import Candidate, Estimate, Selection, bounds_of, check, interval, widening
from surefoot.world_models.dynamics import StepNoise
from surefoot.world_models.known.terminations import termination_of

if TYPE_CHECKING:
    from surefoot.core.policy.policy import Policy
    from surefoot.world_models.ensemble.ensemble import GaussianEnsemble

Act = Callable[[int, Tensor], Tensor]
"""Step and (B, O) observations -> (B, A) actions in the environment's units."""


@dataclasses.dataclass(frozen=True)
class ModelJudgeConfig:
    """Settings of judging by a model; sizes that suit a core and tens of thousands of transitions."""

    discount: float = 1.0  # 1: the returns of whole episodes
    members: int = 5
    hidden: tuple[int, ...] = (128, 128)
    updates: int = 3_000  # of the model; fewer where a holdout stops improving
    starts: int = 64  # episodes of the data whose first states are started from

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        require(0 <= self.discount <= 1, "the model judge", "discount", self.discount, "in [0, 1]")
        require(self.members >= 2, "the model judge", "members", self.members, ">= 2: their spread is the interval")
        for name in ("updates", "starts"):
            require(getattr(self, name) >= 1, "the model judge", name, getattr(self, name), ">= 1")


class ModelJudge:
    """Follows policies in an ensemble learned from one dataset.

    Args:
        dataset: transitions of one observation vector.
        low, high: (A,) bounds of actions.
        seed: of the model and of the first states.
        config: of the method.
    """

    def __init__(
        self, dataset: Dataset, low: Array, high: Array, seed: int = 0, config: ModelJudgeConfig | None = None
    ) -> None:
        self.config = c = config or ModelJudgeConfig()
        self.dataset, self.low, self.high = dataset, low, high
        self.model = _learned(dataset, low, high, seed, c)
        order = generator(seed, "episodes").permutation(len(dataset.episode_lengths))
        self.episodes = np.sort(order[: c.starts])
        self.horizon = int(dataset.episode_lengths.max())
        ends = (dataset.observations.min(0), dataset.observations.max(0))
        self.range = torch.from_numpy(np.stack(ends)).float()  # (2, O)
        self.rewards = float(dataset.rewards.min()), float(dataset.rewards.max())

    @torch.no_grad()
    def returns(self, act: Act, mask: Array | None = None) -> Array:
        """(M, n) each member's returns from the first states.

        Args:
            act: what is done, of rows that are members times starts, the starts of the first member first.
            mask: (n, H) steps that count; None: all, until the episode ends.
        """
        c, members, count = self.config, self.config.members, len(self.episodes)
        starts = self.dataset.observations[self.dataset.episode_starts[:-1][self.episodes]]
        states = torch.from_numpy(np.tile(starts, (members, 1))).float()
        member = torch.arange(members).repeat_interleave(count)
        alive, total, weight = torch.ones(len(states)), torch.zeros(len(states)), 1.0
        counted = None if mask is None else torch.from_numpy(np.tile(mask, (members, 1))).float()
        for step in range(self.horizon if mask is None else mask.shape[1]):
            done = np.asarray(to_agent(act(step, states).numpy(), self.low, self.high), np.float32)
            outcome = self.model.step(states, torch.from_numpy(np.clip(done, -1, 1)), StepNoise(member=member))
            now = alive if counted is None else counted[:, step]
            total += weight * now * outcome.rewards.clamp(*self.rewards)
            weight *= c.discount
            states = outcome.states.clamp(*self.range)
            alive = alive * (~outcome.ended).float()
            if counted is None and not bool(alive.any()):
                break
        return np.asarray(total.view(members, count).numpy(), np.float64)

    def of(self, policy: Policy) -> Array:
        """(M, n) as `returns`, of a policy's actions without noise."""
        memory = policy.begin(self.config.members * len(self.episodes))

        def act(step: int, states: Tensor) -> Tensor:
            nonlocal memory
            actions, memory = policy.act(states, memory)
            return actions

        return self.returns(act)

    def recorded(self) -> tuple[Array, Array]:
        """(M, n) returns of the recorded actions taken again in the model, and (n,) what they were in truth."""
        d, c = self.dataset, self.config
        lengths = d.episode_lengths[self.episodes]
        mask = np.arange(int(lengths.max())) < lengths[:, None]
        rows = d.episode_starts[:-1][self.episodes][:, None] + np.where(mask, np.arange(mask.shape[1]), 0)
        actions = torch.from_numpy(np.tile(d.actions[rows], (c.members, 1, 1)))
        truth = (np.where(mask, d.rewards[rows], 0.0) * c.discount ** np.arange(mask.shape[1])).sum(1)
        return self.returns(lambda step, _: actions[:, step], mask), truth


def _learned(dataset: Dataset, low: Array, high: Array, seed: int, c: ModelJudgeConfig) -> GaussianEnsemble:
    """The ensemble of `algo=dynamics`, as large as the config says."""
    kind = ALGORITHMS["dynamics"]
    options = {"model_members": c.members, "model_elites": c.members, "model_hidden": c.hidden, "model_decays": ()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        agent = kind(Spec.of(dataset, low, high), kind.configure(**options, model_normalize_targets=True))
    ready = agent.prepare(dataset)
    sources = agent.sources(Stores(ready, store_from_dataset(ready, agent.required_columns)))
    learner = Learner([agent], [seed], sources, planned_steps=c.updates, kernels=True)
    learner.run(c.updates)
    model: Any = learner.extract(0).model
    return model


def notes(dataset: Dataset) -> list[str]:
    """What the estimates leave out."""
    found = []
    if bool(dataset.terminations.any()) and termination_of(dataset.env_id) is None:
        found.append(
            f"episodes of {dataset.name} end by termination, and where is not known of the environment "
            f"{dataset.env_id or '(none named)'}: policies that end their episodes early are judged as if they went on"
        )
    cut = dataset.episode_lengths[dataset.truncations[dataset.episode_starts[1:] - 1]]
    if len(cut) and cut.min() < cut.max():
        found.append(
            f"episodes of {dataset.name} were cut off after {cut.min()} to {cut.max()} steps, and policies are "
            f"followed for {dataset.episode_lengths.max()}: compare their returns with each other, and not with the "
            "data's own"
        )
    return found


def select_by_model(
    chosen: Sequence[Candidate],
    dataset: Dataset,
    config: ModelJudgeConfig | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    truth: bool = False,
) -> Selection:
    """Judge and rank the candidates in a model; arguments and errors are those of `studies.select.select`."""
    check(chosen, dataset, truth)
    judge = ModelJudge(dataset, *bounds_of(chosen), seed, config)
    given, reported = judge.recorded()
    gap = reported.mean() - given.mean(1)
    factor = widening(gap)
    best = _best(dataset, judge.config.discount)
    estimates = []
    for number, one in enumerate(chosen):
        members = judge.of(one.policy).mean(1)
        _, low_end, high_end = interval(members, factor)
        known = float(one.returns.mean()) if truth and one.returns is not None else None
        estimates.append(
            Estimate(one.label, one.group, members, low_end, high_end, None, None, None, None, low_end > best, known)
        )
        if progress is not None:
            progress(number + 1, len(chosen))
    estimates.sort(key=lambda one: (one.implausible, float(one.members.std(ddof=1)) - one.mean))
    return Selection(
        estimates, float(reported.mean()), float(given.mean()), factor, best, judge.config.discount, len(gap), "model"
    )


def _best(dataset: Dataset, discount: float) -> float:
    from surefoot.data.prepare import discounted_returns

    return float((dataset.episode_returns if discount == 1 else discounted_returns(dataset, discount)).max())
