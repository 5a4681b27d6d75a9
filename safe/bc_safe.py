"""BC-Safe: behaviour cloning of the episodes within a cost limit, or of another selection by cost."""

from __future__ import annotations

import dataclasses

import numpy as np
from torch import Tensor

from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.base.errors import DataError
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update
from surefoot.core.engine.traits import Requires
from surefoot.data.dataset import Array, Dataset
from surefoot.data.prepare import NORMALIZATIONS, prepare
from surefoot.safe.constraint.costs import checked_costs, cost_notes

MODES = ("safe", "all", "risky", "boundary", "frontier")
FIT = 0.9
"""Share of the front's variance that a polynomial must explain to be taken."""


@dataclasses.dataclass(frozen=True)
class BCSafeConfig(HistoryConfig):
    """Settings of BC-Safe; the numbers are OSRL's."""

    cost_limit: float = option(25.0, "limit of an episode's undiscounted cost", range=">= 0")
    mode: str = option("safe", "episodes cloned: safe, all, risky, boundary or frontier", choices=MODES)
    learning_rate: float = option(1e-3, "learning rate", range=">= 0")
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers")
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)


def chosen_episodes(returns: Array, costs: Array, limit: float, mode: str) -> Array:
    """Numbers of the episodes that a mode clones, in order.

    safe: cost at most the limit; all; risky: at least twice the limit; boundary: from half to one and a half of it;
    frontier: returns within a fifth of their range below the front of the best returns for their cost.

    Args:
        returns: (E,) undiscounted.
        costs: (E,) undiscounted, >= 0.
        limit: >= 0.
        mode: a word of `MODES`.

    Source: OSRL's BC modes.
    """
    if mode == "frontier":
        near = returns >= front(returns, costs)(costs) - np.ptp(returns) / 5
        return np.flatnonzero(near)
    chosen = {
        "safe": costs <= limit,
        "all": np.ones(len(costs), np.bool_),
        "risky": costs >= 2 * limit,
        "boundary": (costs >= 0.5 * limit) & (costs <= 1.5 * limit),
    }
    return np.flatnonzero(chosen[mode])


def front(returns: Array, costs: Array) -> np.polynomial.Polynomial:
    """The best return for a cost, as a polynomial through the episodes that no cheaper one beats.

    Of degree 0, 1 or 2: the first that explains nine tenths of their variance, else the last that they allow.
    """
    order = np.lexsort((-returns, costs))  # by cost, the best of equal ones first
    best = np.maximum.accumulate(returns[order])
    on_front = order[np.concatenate([[True], best[1:] > best[:-1]])]
    x, y = costs[on_front], returns[on_front]
    for degree in range(min(3, len(x))):
        fitted = np.polynomial.Polynomial.fit(x, y, degree)
        spread = ((y - y.mean()) ** 2).sum()
        if spread == 0 or 1 - ((y - fitted(x)) ** 2).sum() / spread >= FIT:
            break
    return fitted


class BCSafe(Agent):
    r"""Regression of actions on observations, :math:`L = E \, \| \pi(s) - a \|^2 / A`, on episodes chosen by cost.

    OSRL's rule for `safe`: whole episodes whose undiscounted cost is at most the limit.
    """

    name = "bc_safe"
    Config = BCSafeConfig
    PRESETS = {mode: {"mode": mode} for mode in MODES}  # noqa: RUF012
    required_columns = ("observations", "actions")
    requires = Requires(costs=True)
    config: BCSafeConfig
    actor: DeterministicActor

    def build(self) -> None:
        """One deterministic actor."""
        self.actor = DeterministicActor(self.spec.observation_dim, self.spec.action_dim, self.config.hidden)

    def prepare(self, dataset: Dataset) -> Dataset:
        """Keep the episodes of the mode, then normalise.

        Raises:
            DataError: no costs, or no episode that the mode keeps.
        """
        c = self.config
        costs = dataset.replace(costs=checked_costs(dataset, self.name)).episode_costs
        assert costs is not None
        kept = chosen_episodes(dataset.episode_returns, costs, c.cost_limit, c.mode)
        if len(kept) == 0:
            raise DataError(
                f"{dataset.name}: none of {len(costs)} episodes is {c.mode} for a cost limit of {c.cost_limit:g}: they "
                f"cost {costs.min():g} to {costs.max():g}; choose another bc_safe.cost_limit or bc_safe.mode"
            )
        return prepare(self, dataset.select_episodes(kept), normalization=c.normalization)

    def notes(self, dataset: Dataset) -> list[str]:
        """How many episodes are cloned."""
        costs = dataset.replace(costs=checked_costs(dataset, self.name)).episode_costs
        assert costs is not None
        kept = chosen_episodes(dataset.episode_returns, costs, self.config.cost_limit, self.config.mode)
        text = f"{self.name}: clones {len(kept)} of {len(costs)} episodes, those that are {self.config.mode}"
        return [*cost_notes(dataset, self.name), text]

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Mean squared error over rows and action dimensions."""
        error = self.actor(batch["observations"]) - batch["actions"]
        return error.square().mean(), {}

    def updates(self) -> list[Update]:
        """One step of the actor."""
        return [Update(self.actor_loss, ("actor",), Adam(self.config.learning_rate))]
