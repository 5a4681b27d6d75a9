"""How far the policies of a run are from a jump: its critics' gaps, and what retraining on perturbed rewards gives."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from surefoot.core.actors.histories import history_of
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.random import generator
from surefoot.core.base.spec import in_words
from surefoot.core.engine.agent import Agent
from surefoot.core.nn.networks import Critic
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Array, Dataset
from surefoot.evaluation.cliff import (
    ActionGaps,
    check_noise,
    gaps_of_actions,
    gaps_of_choices,
    radius,
    smooth_noise,
    soft_bound,
)
from surefoot.evaluation.results import last_evaluation
from surefoot.evaluation.rollout import Episodes
from surefoot.evaluation.statistics import Interval, hierarchical_interval
from surefoot.runs.inputs import dataset_of
from surefoot.runs.progress_events import Listener, silent
from surefoot.runs.run import IN_MEMORY, Run, load_agent
from surefoot.runs.start import resume, train

STATES = 2000
"""Of the dataset that are looked at."""
QUANTILES = (0.01, 0.1, 0.5, 0.9)
"""Of the gaps, that are shown."""


@dataclasses.dataclass(frozen=True)
class Looked:
    """The same states for all of a run's policies, and their actions there."""

    rows: Array
    """(B,) rows of the dataset, in order."""
    episodes: Array
    """(B,) which episode each is of, 0, 1, ..."""
    observations: Array
    """(B, O) in the environment's units."""


@dataclasses.dataclass(frozen=True)
class RunCliff:
    """What the critics of a run say of B states, seed by seed."""

    run: str
    algorithm: str
    discount: float
    noise: float
    states: int
    episodes: int
    gaps: Mapping[int, Array]
    """Seed -> (B,) gaps in the unit of the dataset's rewards."""
    lost: Mapping[int, Array] | None
    """Seed -> (B,) value lost within `distance`; None of choices."""
    distance: float | None
    samples: int | None
    share: Interval
    """Share of states whose best action `noise` may change, over seeds and episodes."""
    between_seeds: float | None
    """Mean distance of two seeds' policies, as `policy_distance`; None of one seed."""
    temperature: Mapping[int, float] | None
    """Seed -> entropy weight in the unit of rewards, of algorithms that have one."""

    def quantiles(self, seed: int) -> dict[float, float]:
        """Share of states -> gap that it is not above."""
        return {q: float(np.quantile(self.gaps[seed], q)) for q in QUANTILES}

    def radii(self, seed: int) -> Array:
        """(B,) estimated radii; 0 where critics disagree on the best action."""
        return np.maximum(radius(self.gaps[seed], self.discount), 0.0)

    def soft_limit(self) -> float | None:
        """Most that a policy with the largest seed's entropy weight moves; None of algorithms without one."""
        if self.temperature is None:
            return None
        return soft_bound(self.noise, min(self.temperature.values()), self.discount)

    def to_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        seeds = {
            str(seed): {
                "gap_quantiles": {str(q): gap for q, gap in self.quantiles(seed).items()},
                "median_radius": float(np.median(self.radii(seed))),
                "share_within_noise": float((self.radii(seed) <= self.noise).mean()),
                "critics_disagree": float((self.gaps[seed] < 0).mean()),
                "median_lost": None if self.lost is None else float(np.median(self.lost[seed])),
                "temperature": None if self.temperature is None else self.temperature[seed],
            }
            for seed in self.gaps
        }
        return {
            "run": self.run,
            "algorithm": self.algorithm,
            "discount": self.discount,
            "noise": self.noise,
            "states": self.states,
            "episodes": self.episodes,
            "distance": self.distance,
            "samples": self.samples,
            "share_within_noise": self.share.to_json(),
            "distance_between_seeds": self.between_seeds,
            "soft_limit": self.soft_limit(),
            "seeds": seeds,
        }


@dataclasses.dataclass(frozen=True)
class Retrained:
    """The same training on N perturbed rewards."""

    folders: tuple[str, ...]
    noise: float
    distance: Interval
    """Of the policies to the run's own of the same seed, as `policy_distance`; over seeds and draws."""
    returns: tuple[float | None, ...]
    """Mean return of the run itself, then of each draw, by the environment's own rewards; None without a simulator."""
    spread: Interval | None
    """Return of the draws less that of the run, over draws and seeds."""

    def to_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return {
            "runs": list(self.folders),
            "noise": self.noise,
            "policy_distance": self.distance.to_json(),
            "returns": list(self.returns),
            "return_difference": None if self.spread is None else self.spread.to_json(),
        }


def data_of(run: Run, dataset: Dataset | None) -> Dataset:
    """The dataset whose states are looked at: the one given, with the rewards that the run learned from, or its own.

    Raises:
        ConfigError: none is given, and the run has none that can be read again.
        DataError: its observations or actions are of other sizes than the run's.
    """
    if dataset is None and run.plan.dataset in (None, IN_MEMORY):
        raise ConfigError(f"{run.folder}: has no data file of its own: name the states with --dataset FILE")
    found = dataset_of(run.plan, dataset, silent) if dataset is None or not _acts(run) else dataset
    spec = run.spec
    if not spec.one_vector:
        raise ConfigError(f"{run.folder}: observations are {spec.described()}; gaps are of runs whose are one vector")
    if found.observation_dim != spec.observation_dim:
        raise DataError(
            f"{found.name}: has observations {in_words(found.arrays)}, and {run.folder} was trained on "
            f"{spec.observation_dim} numbers: name data of the same task"
        )
    return found


def look(dataset: Dataset, states: int, seed: int) -> Looked:
    """Up to so many rows, drawn without replacement.

    Raises:
        ConfigError: fewer than 1.
        DataError: no row may be learned from.
    """
    if states < 1:
        raise ConfigError(f"states is {states}; look at 1 or more", field="states", code="range")
    known = np.flatnonzero(dataset.valid)
    if len(known) == 0:
        raise DataError(f"{dataset.name}: has no row that may be learned from")
    order = generator(seed, "cliff states").permutation(len(known))[:states]
    rows = np.sort(known[np.asarray(order)])
    episodes = np.unique(dataset.episode_ids[rows], return_inverse=True)[1]
    return Looked(rows, episodes, np.asarray(dataset.observations[rows], np.float32))


def critics_of(agent: Agent, folder: object) -> Any:
    """An agent's critics of observations and actions, or of all choices.

    Raises:
        ConfigError: it has none that read a single observation.
    """
    critic: Any = getattr(agent, "critic", None)
    why = None
    if critic is None:
        why = "learns no critic"
    elif agent.encoder is not None or history_of(agent.config) > 1:
        why = "has critics of images or histories"
    elif not agent.spec.discrete:
        wanted = agent.features + agent.decision_dim
        if not isinstance(critic, Critic) or critic.mlp.weights[0].shape[-1] != wanted:
            why = "has critics of something else than one observation and action"
    if why is None and not 0 <= float(getattr(agent.config, "discount", -1)) < 1:
        why = "has no discount below 1"
    if why is not None:
        raise ConfigError(
            f"{folder}: {agent.name} {why}; gaps are read off those of iql, td3bc, cql, sac, td3, dqn ..."
        )
    return critic


def cliff(
    run: Run,
    dataset: Dataset | None = None,
    *,
    noise: float,
    states: int = STATES,
    distance: float = 0.1,
    samples: int = 64,
    seed: int = 0,
    trust: bool = False,
) -> RunCliff:
    """The gaps of a run's critics in states of a dataset.

    They are what the critics believe, not a certificate: of actions that the data don't have they know little.

    Args:
        run: complete or not, with checkpoints.
        dataset: of the states; None: the run's own.
        noise: change of the reward that is asked about, in the dataset's unit.
        states: how many are looked at, at most.
        distance: of continuous actions, how far another action is at least, in half ranges, in (0, 0.5].
        samples: of continuous actions, drawn in each state.
        seed: of the states and samples.
        trust: import code that the run names.

    Raises:
        ConfigError: no critics, no data, a number out of range.
        DataError: data of another task.
        CheckpointError: no checkpoint, or a damaged one.
    """
    check_noise(noise, 0)
    data = data_of(run, dataset)
    seen = look(data, states, seed)
    found: dict[int, ActionGaps] = {}
    temperatures: dict[int, float] = {}
    discount = math.nan
    for one in run.plan.seeds:
        agent = load_agent(run, one, trust)
        critic = critics_of(agent, run.folder)
        discount = float(agent.config.discount)  # type: ignore[attr-defined]
        scale = abs(float(agent.reward_scale))
        with torch.no_grad():
            read = agent.normalizer(torch.from_numpy(seen.observations))
            if agent.spec.discrete:
                values = critic(read)
                made = gaps_of_choices(values if values.dim() == 3 else values[None])
            else:
                draws = torch.Generator().manual_seed(seed)
                made = gaps_of_actions(critic, read, agent.act(read), draws, distance, samples)
            temperature = getattr(agent, "temperature", None)
            if isinstance(temperature, torch.nn.Module):
                temperatures[one] = float(temperature()) / scale
        found[one] = ActionGaps(made.gap / scale, None if made.lost is None else made.lost / scale)
    shares = [
        _by_episode((np.maximum(radius(gaps.gap, discount), 0) <= noise).astype(float), seen.episodes)
        for gaps in found.values()
    ]
    choices = run.spec.discrete
    policies = list(run.policies().values()) if run.complete else []
    return RunCliff(
        run=str(run.folder),
        algorithm=run.plan.algorithm,
        discount=discount,
        noise=noise,
        states=len(seen.rows),
        episodes=int(seen.episodes[-1]) + 1,
        gaps={one: gaps.gap for one, gaps in found.items()},
        lost=None if choices else {one: np.asarray(gaps.lost) for one, gaps in found.items()},
        distance=None if choices else distance,
        samples=None if choices else samples,
        share=hierarchical_interval(shares, bounds=(0.0, 1.0)),
        between_seeds=_between(policies, seen),
        temperature=temperatures or None,
    )


def policy_distance(first: Policy, second: Policy, observations: Array) -> Array:
    """(B,) how differently two policies act: 1 for another choice, else the greatest difference in half ranges."""
    one, other = (_actions(policy, observations) for policy in (first, second))
    if first.discrete:
        return np.asarray(one.reshape(len(one), -1) != other.reshape(len(other), -1)).any(-1).astype(float)
    half = (np.asarray(first.action_high, np.float64) - np.asarray(first.action_low, np.float64)) / 2
    return np.asarray((np.abs(one - other) / np.where(half > 0, half, 1.0)).max(-1))


def retrain(
    run: Run,
    dataset: Dataset | None,
    *,
    noise: float,
    times: int,
    out: pathlib.Path,
    states: int = STATES,
    seed: int = 0,
    listener: Listener | None = None,
    trust: bool = False,
) -> Retrained:
    """Train the run again, seed for seed, on its data with perturbed rewards (`evaluation.cliff.smooth_noise`).

    All else is as it was, so that what differs is the reward's doing. Runs that are there already are used, one that
    was interrupted is continued.

    Args:
        run: complete, of an algorithm that learns from data.
        dataset: that it learned from, where it was in memory; None: read again.
        noise: most that each reward moves, above 0, in the data's unit.
        times: perturbed rewards.
        out: folder of the runs, `draw-1`, `draw-2`, ...
        states: at which policies are compared, at most.
        seed: of the states and rewards.
        listener: of the trainings.
        trust: import code that the run names.

    Raises:
        ConfigError: the algorithm gathers experience by itself, or a number out of range; a folder of something else.
        SurefootError: as `train`.
    """
    check_noise(noise, times)
    if times < 1:
        raise ConfigError(f"{times} retrainings; give 1 or more", field="retrain", code="range")
    if _acts(run) or run.plan.dataset is None:
        raise ConfigError(
            f"{run.folder}: {run.plan.algorithm} learns online, where rewards are the environment's: retraining is of "
            "algorithms that learn from a dataset; leave --retrain out"
        )
    own = run.policies()
    data = data_of(run, dataset)
    seen = look(data, states, seed)
    plan = dataclasses.replace(run.plan, dataset=IN_MEMORY, reward=None)
    again = []
    for number in range(1, times + 1):
        folder = out / f"draw-{number}"
        if (folder / "config.json").is_file():
            there = Run.open(folder)
            if (there.plan.algorithm, there.plan.config, there.plan.seeds, there.plan.steps) != (
                run.plan.algorithm, run.plan.config, run.plan.seeds, run.plan.steps,
            ):  # fmt: skip
                raise ConfigError(f"{folder}: holds another run; name another folder with -o FOLDER")
            again.append(resume(folder, listener=listener, trust=trust))
            continue
        moved = smooth_noise(data.observations, data.actions, noise, seed + number)
        perturbed = data.replace(rewards=(data.rewards + moved).astype(np.float32))
        again.append(train(plan, folder, dataset=perturbed, listener=listener, trust=trust))
    distances = [
        np.array([policy_distance(own[one], other.policy(one), seen.observations).mean() for other in again])
        for one in run.plan.seeds
    ]
    scores = {one: [_returns(other, one) for other in (run, *again)] for one in run.plan.seeds}
    known = all(score is not None for found in scores.values() for score in found)
    table = np.array([scores[one] for one in run.plan.seeds], float) if known else None
    return Retrained(
        tuple(str(other.folder) for other in again),
        noise,
        hierarchical_interval(distances, bounds=(0.0, math.inf)),
        (None,) * (times + 1) if table is None else tuple(table.mean(0).tolist()),
        None if table is None else hierarchical_interval(list(table[:, 1:] - table[:, :1])),
    )


def _acts(run: Run) -> bool:
    from surefoot.runs.plan import agent_class

    return agent_class(run.plan.algorithm).requires.online


def _returns(run: Run, seed: int) -> float | None:
    given = last_evaluation(run.folder, seed)
    return None if given is None else float(Episodes.from_json(given).returns.mean())


def _actions(policy: Policy, observations: Array) -> Array:
    with torch.no_grad():
        acted = policy.act(torch.from_numpy(observations), policy.begin(len(observations)))[0]
    return np.asarray(acted.cpu().numpy(), np.float64)


def _between(policies: Sequence[Policy], seen: Looked) -> float | None:
    if len(policies) < 2:
        return None
    pairs = [(i, j) for i in range(len(policies)) for j in range(i)]
    return float(np.mean([policy_distance(policies[i], policies[j], seen.observations).mean() for i, j in pairs]))


def _by_episode(values: Array, episodes: Array) -> Array:
    """(E,) means over the states of each episode."""
    return np.asarray(np.bincount(episodes, values) / np.bincount(episodes))
