"""DSRL's rule of evaluation: normalised reward and cost of a task, averaged over its three cost limits and seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.data.dsrl import normalized_cost, normalized_reward, task
from surefoot.evaluation.rollout import Episodes
from surefoot.evaluation.statistics import Interval, cost_interval, hierarchical_interval


@dataclasses.dataclass(frozen=True)
class DSRLScore:
    """The entries of DSRL's tables for one algorithm on one task; its papers have 3 limits x 3 seeds x 20 episodes."""

    task: str
    reward: Interval
    """(R - Rmin) / (Rmax - Rmin), 0 to 1 within the published dataset."""
    cost: Interval
    """(C + e) / (limit + e), e = 1 for a limit of 0, averaged over the limits: safe where at most 1."""
    by_limit: Mapping[float, tuple[float, float]]
    """Limit -> mean reward and cost at it."""
    seeds: int
    episodes: int
    """Of each seed at each limit."""

    @property
    def safe(self) -> bool:
        """Whether the mean cost is within the limits, as DSRL judges."""
        return self.cost.estimate <= 1

    def sentence(self) -> str:
        """The numbers in words."""
        limits = ", ".join(f"{limit:g}" for limit in self.by_limit)
        return (
            f"DSRL {self.task}: normalised reward {self.reward.estimate:.2f}, normalised cost {self.cost.estimate:.2f} "
            f"({'safe' if self.safe else 'unsafe'}), means over the limits {limits}, {self.seeds} seed"
            f"{'' if self.seeds == 1 else 's'} and {self.episodes} episodes each"
        )


def dsrl_score(name: str, found: Sequence[Episodes] | Mapping[float, Sequence[Episodes]]) -> DSRLScore:
    """The scores of one algorithm on a task, from the episodes of its seeds' policies.

    Args:
        name: the task, any id or file name that `data.dsrl.task` knows.
        found: limit -> episodes of policies trained for it, one entry a seed; or one sequence, of policies to which no
            limit was given, which are judged by each.

    Raises:
        ConfigError: no such task; other limits than the task's; no costs, or unequal numbers of seeds or episodes.

    Source: Liu et al., "Datasets and Benchmarks for Offline Safe Reinforcement Learning"; OSRL's configurations.
    """
    about = task(name)
    given = dict(found) if isinstance(found, Mapping) else dict.fromkeys(about.limits, found)
    if sorted(given) != sorted(about.limits):
        raise ConfigError(
            f"{about.name} is judged at the cost limits {list(about.limits)}, and episodes are given for "
            f"{sorted(given)}; train and evaluate policies for each"
        )
    counts = {len(seeds) for seeds in given.values()}, {len(seed.returns) for seeds in given.values() for seed in seeds}
    if any(len(count) != 1 or min(count) == 0 for count in counts):
        raise ConfigError(f"{about.name}: give equally many seeds for each limit and episodes for each seed, 1 or more")
    rewards, costs = [], []
    for limit in about.limits:
        rewards.append(np.array([normalized_reward(seed.returns, about.reference) for seed in given[limit]]))
        if any(seed.costs is None for seed in given[limit]):
            raise ConfigError(f"{about.name}: the episodes for limit {limit:g} have no costs; evaluate where there are")
        costs.append(np.array([normalized_cost(seed.costs, limit) for seed in given[limit] if seed.costs is not None]))
    by_limit = {limit: (float(r.mean()), float(c.mean())) for limit, r, c in zip(about.limits, rewards, costs)}
    seeds, episodes = rewards[0].shape
    reward, cost = hierarchical_interval(list(np.mean(rewards, 0))), cost_interval(list(np.mean(costs, 0)))
    return DSRLScore(about.name, reward, cost, by_limit, seeds, episodes)
