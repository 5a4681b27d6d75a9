"""Behaviour cloning, of all episodes or of the best x %."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from surefoot.core.actors.heads import CategoricalActor, DeterministicActor
from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.engine.traits import Requires, Vision
from surefoot.data.dataset import Dataset
from surefoot.data.decision_source import decisions_of
from surefoot.data.prepare import NORMALIZATIONS, best_episodes, prepare, short_notes


@dataclasses.dataclass(frozen=True)
class BCConfig(EncoderConfig, HistoryConfig):
    """Settings of behaviour cloning (CORL's any_percent_bc)."""

    fraction: float = option(1.0, "share of the episodes that is cloned, best first; 0.1 is 10%BC", range="(0, 1]")
    discount: float = option(0.99, "discount factor of the return that ranks episodes", range="[0, 1]")
    learning_rate: float = option(3e-4, "learning rate", range=">= 0")
    schedule: str = option(
        "constant",
        "schedule of the learning rate: cosine or linear: it falls to 0 over the planned steps",
        choices=("constant", "cosine", "linear"),
    )
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers")
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)


class BC(Agent):
    r"""Regression of actions on observations: :math:`L = E \, \| \pi(s) - a \|^2 / A`.

    Discrete actions are classified: :math:`L = - E \log \pi(a | s)`. x%BC keeps the episodes with the highest
    discounted return first. Episodes are split at their true ends; CORL counts to 1,000 and so drifts by a step an
    episode.
    """

    name = "bc"
    Config = BCConfig
    row_separable = True
    requires = Requires(discrete=True)
    PRESETS = {"bc": {}, "ten_percent": {"fraction": 0.1}}  # noqa: RUF012
    vision = Vision(histories=True)
    required_columns = ("observations", "actions")
    config: BCConfig
    actor: DeterministicActor | CategoricalActor

    def build(self) -> None:
        """One deterministic actor, or one of probabilities of choices."""
        if self.spec.discrete:
            self.actor = CategoricalActor(self.features, self.spec.action_dim, self.config.hidden, activation="relu")
        else:
            self.actor = DeterministicActor(self.features, self.spec.action_dim, self.config.hidden)

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Rows, with as many observations as are read."""
        return {MAIN: decisions_of(stores, 1, history=self.frames)}

    def prepare(self, dataset: Dataset) -> Dataset:
        """Keep the best episodes, then normalise."""
        best = best_episodes(dataset, self.config.fraction, self.config.discount)
        return prepare(self, best, normalization=self.config.normalization)

    def notes(self, dataset: Dataset) -> list[str]:
        """Whether the best episodes are only short."""
        return short_notes(dataset, self.config.fraction, self.config.discount)

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Mean squared error over rows and action dimensions; of choices, the cross-entropy in nats."""
        if isinstance(self.actor, CategoricalActor):
            return -self.actor.density_of(self.actor(batch["observations"]), batch["actions"]).mean(), {}
        error = self.actor(batch["observations"]) - batch["actions"]
        return error.square().mean(), {}

    def updates(self) -> list[Update]:
        """One step of the actor."""
        adam = Adam(self.config.learning_rate, schedule=self.config.schedule)
        return [Update(self.actor_loss, ("actor",), adam)]
