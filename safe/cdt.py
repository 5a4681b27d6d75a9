"""CDT: a transformer that clones actions conditioned on returns and costs to go."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core.actors.transformer_actor import DecisionTransformerActor
from surefoot.core.base.errors import DataError
from surefoot.core.base.options import Options, option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update, require
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.losses.distributions import gaussian_entropy, gaussian_log_density
from surefoot.core.nn.temperature import Temperature
from surefoot.data.dataset import Array, Dataset
from surefoot.data.prepare import NORMALIZATIONS, prepare
from surefoot.data.samplers import Windows
from surefoot.data.sources import WindowSource
from surefoot.data.store import segment_ids
from surefoot.safe.constraint.costs import checked_costs, cost_notes

CEILING = 70.0
"""OSRL's: an episode is sampled in proportion to what its cost leaves of this."""


@dataclasses.dataclass(frozen=True)
class CDTConfig(Options):
    """Settings of CDT; the numbers are OSRL's but for augmentation and warm-up, which are left out."""

    cost_limit: float = option(25.0, "limit of an episode's undiscounted cost", range=">= 0")
    target_cost: float | None = option(None, "cost asked for when acting; null: the limit", range=">= 0")
    target_return: float | None = option(
        None, "return asked for when acting; null: the best of the data's episodes within the limit"
    )
    cost_ceiling: float | None = option(
        None, "episodes are drawn by max(0, ceiling - cost); null: 70, or twice the limit", range="> 0"
    )
    context: int = option(10, "steps of a window, K", range=">= 1")
    width: int = option(128, "width of the transformer", range=">= 1")
    layers: int = option(3, "layers of the transformer", range=">= 1")
    heads: int = option(8, "attention heads", range=">= 1")
    dropout: float = option(0.1, "probability that a hidden unit is dropped", range="[0, 1)")
    temperature: float = option(0.1, "weight of the entropy at the start", range="> 0")
    target_entropy: float | None = option(
        None, "entropy that the temperature aims at, in nats; null: minus the number of action dimensions"
    )
    cost_weight: float = option(0.02, "weight of the prediction whether a step violates")
    learning_rate: float = option(1e-4, "learning rate", range=">= 0")
    weight_decay: float = option(1e-4, "weight decay", range=">= 0")
    max_gradient_norm: float = option(
        0.25, "largest norm of the gradient; a longer one is scaled down to it", range="> 0"
    )
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        require(self.width % self.heads == 0, "cdt", "width", self.width, f"a multiple of the {self.heads} heads")

    @property
    def ceiling(self) -> float:
        """Cost from which on an episode is not sampled."""
        return max(CEILING, 2 * self.cost_limit) if self.cost_ceiling is None else self.cost_ceiling


class CDT(Agent):
    r"""Constrained Decision Transformer of Liu et al. (ICML 2023).

    .. math::
        L = E \sum_{k \le K} -\log \pi(a_k | o_{\le k}) - \alpha H(\pi) + .02 \cdot BCE(1[c_k > 0]), \quad
        o_k = (R_k, C_k, s_k)

    R and C being the undiscounted rewards and costs still to come, alpha the entropy's learned weight. Acting, R starts
    at `target_return` and C at `target_cost`, and what is earned and spent is subtracted. Where no target return is
    given it is the highest return of an episode of the data within the cost limit. OSRL's augmentation by episodes
    shifted to better ones, its warm-up and its clock of learned vectors are not here (a clock of sines and cosines is);
    its cost token is 50 less the cost to go, ours the cost to go. Time-outs end no return other than by ending the
    record, and no window crosses the end of an episode.
    """

    name = "cdt"
    Config: ClassVar[type] = CDTConfig
    PRESETS = {"osrl": {}, "small": {"width": 64, "layers": 2, "heads": 4}}  # noqa: RUF012
    required_columns: ClassVar[tuple[str, ...]] = (
        "observations", "actions", "costs", "returns_to_go", "costs_to_go", "timesteps"
    )  # fmt: skip
    config: CDTConfig
    actor: DecisionTransformerActor

    def build(self) -> None:
        """The transformer and the entropy's weight."""
        c, spec = self.config, self.spec
        sizes = (c.context, c.width, c.layers, c.heads)
        self.actor = DecisionTransformerActor(spec.observation_dim, spec.action_dim, *sizes)
        self.temperature = Temperature(c.temperature, "log")

    @property
    def target_entropy(self) -> float:
        """In nats, of actions in [-1, 1]."""
        wanted = self.config.target_entropy
        return -float(self.spec.action_dim) if wanted is None else wanted

    def prepare(self, dataset: Dataset) -> Dataset:
        """Sums still to come and step numbers as columns; sets scales and the targets to act with.

        Raises:
            DataError: no costs; or no episode within the limit, where a target return was to be read from one.
        """
        costs = checked_costs(dataset, self.name)
        dataset = dataset.replace(costs=costs)
        if not self.rewards_fixed:
            self.actor.return_scale.fill_(max(float(np.abs(dataset.episode_returns).max()), 1e-6))
            self.actor.cost_scale.fill_(self.config.ceiling)
        if not self.goals_fixed:
            returned, cost = self._targets(dataset)
            self.actor.target_return.fill_(returned)
            self.actor.target_cost.fill_(cost)
        extras = {
            "returns_to_go": sums_to_go(dataset, dataset.rewards),
            "costs_to_go": sums_to_go(dataset, costs),
            "timesteps": (np.arange(len(dataset)) - np.repeat(dataset.episode_starts[:-1], dataset.episode_lengths)),
        }
        extras = {name: column.astype(np.float32) for name, column in extras.items()}
        dataset = prepare(self, dataset, normalization=self.config.normalization)
        return dataset.replace(extras={**dataset.extras, **extras})

    def _targets(self, dataset: Dataset) -> tuple[float, float]:
        """The return and the cost to ask for."""
        c, costs = self.config, dataset.replace(costs=checked_costs(dataset, self.name)).episode_costs
        assert costs is not None
        within = dataset.episode_returns[costs <= c.cost_limit]
        if c.target_return is None and len(within) == 0:
            raise DataError(
                f"{dataset.name}: no episode costs {c.cost_limit:g} or less (the cheapest costs {costs.min():g}), so "
                "there is no return to ask for: give cdt.target_return, or another cdt.cost_limit"
            )
        returned = float(within.max()) if c.target_return is None else c.target_return
        return returned, c.cost_limit if c.target_cost is None else c.target_cost

    def notes(self, dataset: Dataset) -> list[str]:
        """The targets that the policy will act with, and how many episodes are sampled."""
        drawn = int((episode_weights(dataset, self.config.ceiling, self.name) > 0).sum())
        returned, cost = self._targets(dataset)
        text = (
            f"{self.name}: acts with a target return of {returned:.1f} and a target cost of {cost:g}; learns from "
            f"{drawn} of {len(dataset.episode_lengths)} episodes, those that cost less than {self.config.ceiling:g}"
        )
        return [*cost_notes(dataset, self.name), text]

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Windows of K steps: an episode is drawn by what its cost leaves of the ceiling, then any row, their end."""
        dataset: Dataset = stores.dataset
        ids = dataset.episode_ids[dataset.valid]
        by_episode = episode_weights(dataset, self.config.ceiling, self.name)
        weights = torch.from_numpy(by_episode[ids] / np.bincount(ids)[ids])
        windows = Windows(self.config.context, "left")
        return {MAIN: WindowSource(stores.data, segment_ids(dataset, stores.data.keys), windows, weights)}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Negative log-density of the windows' actions and of their violations, and the entropy, weighted."""
        mask = batch["mask"]
        mean, log_std, odds = self.actor(batch, noise.get("dropout"))
        density = _average(gaussian_log_density(batch["actions"], mean, log_std), mask)
        entropy = _average(gaussian_entropy(log_std), mask)
        violating = (batch["costs"] > 0).to(odds.dtype)
        missed = _average(nn.functional.softplus(odds) - violating * odds, mask)
        loss = -density - self.temperature().detach() * entropy + self.config.cost_weight * missed
        metrics = {"log_density": density, "entropy": entropy, "cost_entropy": missed}
        return loss + self.temperature.loss(-entropy, self.target_entropy), metrics

    def updates(self) -> list[Update]:
        """One step of transformer and temperature."""
        c = self.config
        adam = Adam(c.learning_rate, weight_decay=c.weight_decay, max_gradient_norm=c.max_gradient_norm)
        keep = {"dropout": Noise("keep", self.actor.masks_dim, 1 - c.dropout)} if c.dropout > 0 else {}
        return [Update(self.actor_loss, ("actor", "temperature"), adam, noise=keep)]


def episode_weights(dataset: Dataset, ceiling: float, algorithm: str) -> Array:
    """(E,) float64 how often each episode is drawn, relative to the others: max(0, ceiling - cost).

    Raises:
        DataError: no costs, or none of the episodes costs less than the ceiling.
    """
    costs: Any = dataset.replace(costs=checked_costs(dataset, algorithm)).episode_costs
    weights = np.maximum(0.0, ceiling - costs)
    if not weights.any():
        raise DataError(
            f"{dataset.name}: every episode costs {costs.min():g} or more, and {algorithm} learns from those below "
            f"{algorithm}.cost_ceiling = {ceiling:g}: raise it"
        )
    return weights


def sums_to_go(dataset: Dataset, values: Array) -> Array:
    """(N,) float64 undiscounted sum of `values` from each row to the end of its episode."""
    starts = dataset.episode_starts
    before = np.concatenate([[0.0], np.cumsum(values.astype(np.float64))])
    return np.repeat(before[starts[1:]], dataset.episode_lengths) - before[:-1]


def _average(values: Tensor, mask: Tensor) -> Tensor:
    """() mean over the steps that the mask keeps."""
    return (values * mask).sum() / mask.sum()
