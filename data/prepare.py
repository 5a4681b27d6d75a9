"""What training does to a dataset before the first step: actions into [-1, 1], rewards scaled, observations normalised.

Each function returns a new `Dataset`; none changes the one it is given. Agents compose them in `prepare`.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch

from surefoot.core.actors.histories import history_of, windows
from surefoot.core.base.actions import to_agent
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.spec import VECTOR, in_words
from surefoot.core.engine.agent import Agent
from surefoot.core.nn.normalizer import moments
from surefoot.data.corrupt import moved
from surefoot.data.dataset import BEST_RETURN, Array, Dataset
from surefoot.data.derived import Derived, computed

ACTION_MARGIN = 1e-5
"""Distance that actions are kept from the bounds -1 and 1 (the official IQL's and RIQL's clip)."""
NORMALIZATIONS = ("none", "observations", "stacked", "range", "quantile")
"""What `normalize_observations` knows."""
REWARDS = ("none", "return_range", "minus_one")
"""What `scale_rewards` knows."""
QUANTILES = (0.01, 0.99)
"""Shares of the observations below what becomes -1 and below what becomes 1, as LeRobot's and openpi's quantiles."""
PART = 65_536
"""Rows of whole episodes whose rewards are discounted at once; more where an episode has more."""


def scale_actions(dataset: Dataset, low: Array, high: Array) -> Dataset:
    """Map actions from [low, high] to [-1, 1] and clip them just inside.

    Where a corruption has moved actions, none are clipped: where they went is what the study is about. One of other
    columns leaves actions as they were recorded, and they are clipped as those of clean data.
    """
    actions = dataset.actions
    return dataset.replace(
        actions=computed(
            dataset.derived,
            ["scaled actions", moved(dataset, "actions"), *_exactly(low, high)],
            [actions],
            actions.shape,
            np.float32,
            lambda rows: scaled_actions(dataset, actions[rows], low, high),
        )
    )


def _exactly(*settings: Array) -> list[str]:
    """Arrays of settings, to the bit."""
    return [one.dtype.str + one.tobytes().hex() for one in settings]


def scaled_actions(dataset: Dataset, actions: Array, low: Array, high: Array) -> Array:
    """(n, A) float32 of some of a dataset's actions, as `scale_actions`."""
    scaled = to_agent(actions, low, high)
    if not moved(dataset, "actions"):
        scaled = np.clip(scaled, -1 + ACTION_MARGIN, 1 - ACTION_MARGIN)
    return np.ascontiguousarray(scaled, dtype=np.float32)


def scale_rewards(dataset: Dataset, agent: Agent, how: str) -> Dataset:
    """Choose `agent.reward_scale` and `agent.reward_shift`, and apply r * scale + shift.

    Args:
        dataset: gives the range of returns.
        agent: which keeps the map, so that data met later goes through the same one.
        how: "none"; "return_range": scale 1000 / (highest - lowest episode return); "minus_one": shift -1.

    Source: ikostrikov/implicit_q_learning normalises MuJoCo by the return
    range and shifts AntMaze by one.

    Raises:
        DataError: all episodes have one return, so that there is no range.
        ConfigError: another word.
    """
    if how not in REWARDS:
        raise ConfigError(f"rewards={how!r} is not one of {', '.join(REWARDS)}")
    if how == "return_range" and not agent.rewards_fixed:
        returns = dataset.episode_returns
        span = returns.max() - returns.min()
        if span <= 0:
            raise DataError(
                f"{dataset.name}: all {len(returns)} episodes return {returns[0]:g}, so rewards can't be scaled by "
                "the range of returns; choose algo.rewards=none"
            )
        agent.reward_scale.fill_(1000.0 / span)
    if how == "minus_one" and not agent.rewards_fixed:
        agent.reward_shift.fill_(-1.0)
    scale, shift, rewards = float(agent.reward_scale), float(agent.reward_shift), dataset.rewards
    return dataset.replace(
        rewards=computed(
            dataset.derived,
            ["scaled rewards", scale.hex(), shift.hex()],
            [rewards],
            rewards.shape,
            np.float32,
            lambda some: (rewards[some] * scale + shift).astype(np.float32),
        )
    )


def prepare_without_data(agent: Agent) -> None:
    """What `algo.rewards` and `algo.normalization` ask for, of an agent that no dataset is given.

    Raises:
        ConfigError: one of them needs data.
    """
    asked = {name: getattr(agent.config, name, "none") for name in ("rewards", "normalization")}
    if asked["rewards"] == "minus_one" and not agent.rewards_fixed:
        agent.reward_shift.fill_(-1.0)
    for name, fixed in (("rewards", agent.rewards_fixed), ("normalization", agent.normalizer.fixed)):
        if asked[name] not in {"none", "minus_one"} and not fixed:
            raise ConfigError(
                f"{agent.name}.{name}={asked[name]} is found from data, and there are none: give dataset=, start from "
                f"a run with init=, or leave algo.{name}=none"
            )


def normalize_observations(dataset: Dataset, agent: Agent, how: str) -> Dataset:
    """Fit `agent.normalizer` and apply it to observations and next observations; images are left as they are.

    Args:
        dataset: gives the statistics.
        agent: whose normaliser is set, so that its policy applies the same map.
        how: "none"; "observations": statistics of the observations (CORL, TD3+BC); "stacked": of observations
            and next observations together (RIQL). Both with 1e-3 added to the standard deviation. "range": the least
            and the greatest of the observations become -1 and 1; "quantile": their 1st and 99th percentile do, so that
            outliers, which go beyond, don't squeeze the rest. A number that never changes becomes 0.

    Raises:
        ConfigError: another word.
    """
    if agent.normalizer.fixed:
        return _normalised(dataset, agent)
    if how == "none":
        return dataset
    if how not in NORMALIZATIONS:
        raise ConfigError(f"normalization={how!r} is not one of {', '.join(NORMALIZATIONS)}")
    rows = _vectors(dataset, agent, "observations")
    if how in ("range", "quantile"):
        middle, half = _ends_to_one(rows, how)
        agent.normalizer.take(torch.from_numpy(middle), torch.from_numpy(half), epsilon=0)
        return _normalised(dataset, agent)
    stacked = [_vectors(dataset, agent, "next_observations")] if how == "stacked" else []
    agent.normalizer.take(*_moments(dataset.derived, [rows, *stacked]))
    return _normalised(dataset, agent)


def _moments(derived: Derived | None, rows: list[Array]) -> tuple[torch.Tensor, torch.Tensor]:
    """(V,) float64 mean and standard deviation of all rows, which the files of a dataset on disk keep."""

    def both(some: slice) -> Array:
        return np.stack([one.numpy() for one in moments(*map(_as_tensor, rows))])[some]

    found = computed(derived, ["moments"], rows, (2, rows[0].shape[1]), np.float64, both)
    return torch.from_numpy(found[0].copy()), torch.from_numpy(found[1].copy())


def _as_tensor(array: Array) -> torch.Tensor:
    """A tensor that is read alone: torch warns of arrays that can't be written to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def _ends_to_one(rows: Array, how: str) -> tuple[Array, Array]:
    """(V,) float64 what becomes 0, and how far from it 1 is, of "range" or "quantile".

    Of a number whose quantiles are equal, as of a switch that is seldom on, the ends are its least and greatest value;
    where these are equal too, 1 is one unit away.
    """
    low, high = rows.min(0).astype(np.float64), rows.max(0).astype(np.float64)
    if how == "quantile":
        columns = [np.quantile(rows[:, i].astype(np.float64), QUANTILES) for i in range(rows.shape[1])]
        least, most = np.stack(columns, 1) if columns else np.empty((2, 0))
        apart = most > least
        low, high = np.where(apart, least, low), np.where(apart, most, high)
    half = (high - low) / 2
    return (low + high) / 2, np.where(half > 0, half, 1.0)


def _normalised(dataset: Dataset, agent: Agent) -> Dataset:
    mean, scale = agent.normalizer.mean.cpu().numpy(), agent.normalizer.scale.cpu().numpy()
    found = {
        name: _normalised_rows(dataset.derived, _vectors(dataset, agent, name), mean, scale)
        for name in ("observations", "next_observations")
    }
    if agent.spec.one_vector:
        return dataset.replace(**found)
    extras = dict(dataset.extras)
    for name, joined in found.items():
        keys = agent.spec.vector_keys
        ends = np.cumsum([agent.spec.observations[key].shape[0] for key in keys])
        for key, part in zip(keys, np.split(joined, ends[:-1], 1), strict=True) if keys else ():
            extras[f"{name}/{key}"] = np.ascontiguousarray(part)
    return dataset.replace(extras=extras)


def _normalised_rows(derived: Derived | None, rows: Array, mean: Array, scale: Array) -> Array:
    """(N, V) float32."""
    what = ["normalised", *_exactly(mean, scale)]
    return computed(
        derived, what, [rows], rows.shape, np.float32, lambda some: ((rows[some] - mean) / scale).astype(np.float32)
    )


def _vectors(dataset: Dataset, agent: Agent, name: str) -> Array:
    """(N, V) all float vectors of `observations` or `next_observations`, side by side in the agent's order, which the
    dataset need not have; images are not normalised."""
    own: Array = getattr(dataset, name)
    keys = [key for key in agent.spec.vector_keys if key != VECTOR]
    return np.concatenate([own, *(dataset.extras[f"{name}/{key}"] for key in keys)], 1) if keys else own


def prepare(agent: Agent, dataset: Dataset, *, normalization: str = "none", rewards: str = "none") -> Dataset:
    """Actions, rewards and observations of `dataset` as `agent` trains on them; with a history, windows of them.

    Raises:
        DataError: the dataset's sizes are not those that the agent was built for.
    """
    have, want = (
        (dataset.arrays, dataset.action_dim),
        (dict(agent.environment_spec.observations), agent.environment_spec.action_dim),
    )
    if have != want:
        raise DataError(
            f"{dataset.name}: observations are {in_words(have[0])} and actions have {have[1]} dimensions, but this "
            f"{agent.name} was built for {in_words(want[0])} and {want[1]}"
        )
    if agent.spec.discrete != (getattr(dataset, "choices", None) is not None):
        kinds = ("discrete", "continuous") if agent.spec.discrete else ("continuous", "discrete")
        raise DataError(f"{dataset.name}: this {agent.name} was built for {kinds[0]} actions, and these are {kinds[1]}")
    low, high = agent.action_low.cpu().numpy(), agent.action_high.cpu().numpy()
    if not agent.spec.discrete:  # choices are one-hot rows everywhere
        dataset = scale_actions(dataset, low, high)
    dataset = scale_rewards(dataset, agent, rewards)
    dataset, length = normalize_observations(dataset, agent, normalization), history_of(agent.config)
    if length == 1:
        return dataset
    wide = windows(dataset.observations, dataset.next_observations, dataset.episode_ids, length)
    return dataset.replace(observations=wide[0], next_observations=wide[1])


def learnable_episodes(dataset: Dataset, rows: Array | None = None) -> Array:
    """(E',) ids of the episodes with a row to learn from, which one of a single step, cut off, need not have.

    Args:
        dataset: of E episodes.
        rows: (N,) bool, which are learned from; None: all valid ones, as cloning does.
    """
    return np.unique(dataset.episode_ids[dataset.valid if rows is None else rows])


def best_episodes(dataset: Dataset, fraction: float, discount: float = 0.99) -> Dataset:
    """The `fraction` of `learnable_episodes` with the highest discounted return, at least one.

    Source: %BC as in CORL's any_percent_bc, but split at the true episode ends.
    """
    if fraction < 1 and not dataset.has_rewards:
        raise ConfigError(f"{dataset.name} has no rewards, by which the best of its episodes could be found")
    best = _best(dataset, fraction, discount)
    return dataset if fraction >= 1 or not len(best) else dataset.select_episodes(np.sort(best))


def _best(dataset: Dataset, fraction: float, discount: float) -> Array:
    """Ids of the `fraction` of `learnable_episodes` with the highest return, at least one, best first."""
    able = learnable_episodes(dataset)
    returns = discounted_returns(dataset, discount)[able]
    return able[np.argsort(-returns, kind="stable")[: max(1, int(len(returns) * fraction))]]


def short_notes(dataset: Dataset, fraction: float, discount: float = 1.0) -> list[str]:
    """A sentence where negative rewards make those episodes the best that ended soon, in a fall perhaps.

    Args:
        dataset: to learn from.
        fraction: of its episodes that are taken for the best; 0: the best one, 1: all, which says nothing.
        discount: of the returns.
    """
    if fraction >= 1 or not dataset.has_rewards or float(dataset.rewards.mean()) >= 0:
        return []
    best = _best(dataset, fraction, discount)
    if not len(best) or not 2 * np.median(dataset.episode_lengths[best]) < np.median(dataset.episode_lengths):
        return []
    those = f"the best {len(best)} by return have" if len(best) > 1 else "the one with the highest return has"
    return [
        f"{dataset.name}: episodes have {np.median(dataset.episode_lengths):.0f} steps (median), and {those} "
        f"{np.median(dataset.episode_lengths[best]):.0f}: rewards are negative, so those that end soon return most. If "
        "they end by failing, give each step a constant for going on: reward=module:function"
    ]


def discounted_returns(dataset: Dataset, discount: float = 0.99) -> Array:
    """(E,) float64: what each episode returned, discounted from its first step; some episodes at a time."""
    starts = dataset.episode_starts
    found = np.empty(len(starts) - 1, np.float64)
    first = 0
    while first < len(found):
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + PART, side="right")) - 1)
        mine, lengths = starts[first:last] - starts[first], np.diff(starts[first : last + 1])
        within = np.arange(starts[last] - starts[first]) - np.repeat(mine, lengths)
        rewards = dataset.rewards[starts[first] : starts[last]].astype(np.float64)
        found[first:last] = np.add.reduceat(rewards * discount**within, mine)
        first = last
    return found


def returns_to_go(
    dataset: Dataset,
    discount: float,
    failure_reward: float | None = None,
    dtype: type[np.float32] | type[np.float64] = np.float32,
) -> Array:
    """(N,) the discounted rewards from each step to the end of its episode, as the data has it.

    Args:
        dataset: with rewards as they are trained on.
        discount: in [0, 1]; below 1 with `failure_reward`.
        failure_reward: reward of a step without success in a sparse task. An episode that has no other would have
            continued to fail, so each of its steps gets failure_reward / (1 - discount); None: nothing special.
        dtype: of the result; sums are made in float64.

    Raises:
        ConfigError: a discount of 1 with `failure_reward`: failing forever has no finite return.

    Source: Nakamoto et al., "Cal-QL", appendix, for the failures.
    """
    if failure_reward is not None and discount >= 1:
        raise ConfigError(f"discount={discount} gives failing forever an infinite return; set failure_reward=null")
    found = dataset.rewards.astype(np.float64)
    lengths, last = dataset.episode_lengths, dataset.episode_starts[1:] - 1
    for steps in range(1, int(lengths.max())):  # backwards from the ends, all episodes at once
        rows = last[lengths > steps] - steps
        found[rows] += discount * (1 - dataset.terminations[rows]) * found[rows + 1]
    if failure_reward is not None:
        failed = np.logical_and.reduceat(dataset.rewards == np.float32(failure_reward), dataset.episode_starts[:-1])
        found[np.repeat(failed, lengths)] = failure_reward / (1 - discount)
    return found.astype(dtype)


def best_return(dataset: Dataset) -> float:
    """The highest undiscounted return of an episode: of its rows, or what the data say where they leave steps out."""
    stated = dataset.attributes.get(BEST_RETURN)
    if stated is None:
        return float(dataset.episode_returns.max())
    try:
        return float(str(stated))  # attributes are texts in some formats
    except ValueError:
        raise DataError(f"{dataset.name}: its attribute {BEST_RETURN!r} is {stated!r}, and must be a number") from None
