"""`MeasuredModel`: an agent that learns an ensemble while it acts, and measures it on rows that are held out."""

from __future__ import annotations

from torch import Tensor

from surefoot.core.engine.agent import Batch, Metrics
from surefoot.core.engine.sources import Source
from surefoot.data.collect import TransitionBuffer
from surefoot.online.base.agents import OffPolicyAgent
from surefoot.online.loops.model_replay import Members, Newest, Split
from surefoot.world_models.ensemble.ensemble import GaussianEnsemble
from surefoot.world_models.ensemble.gaussian import gaussian_loss
from surefoot.world_models.ensemble.learning import temperatures

MODEL, HOLDOUT, FRESH = "model", "model_holdout", "model_fresh"
FRESH_ROWS = 250
"""Newest rows on which the model is measured."""
HELD_EVERY = 10
"""One vector step in so many is held out from the model."""


class MeasuredModel(OffPolicyAgent):
    """Elites are chosen by the holdout, and the newest rows say how much worse the model is on them."""

    model: GaussianEnsemble
    held: Tensor
    """() the holdout's loss."""

    def model_sources(self, buffer: TransitionBuffer, members: int) -> dict[str, Source]:
        """Rows for each of the members, their holdout and the newest, of the replay buffer."""
        return {
            MODEL: Members(buffer, HELD_EVERY, members, MODEL),
            HOLDOUT: Split(buffer, HELD_EVERY, True, HOLDOUT),
            FRESH: Newest(buffer, FRESH),
        }

    def model_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Gaussian log-likelihood of the rows of each member."""
        return self.model.loss(batch)

    def choose(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """The elites, by the holdout, and what its likelihood is; a model that came recalibrated is so anew."""
        errors = self.model.holdout_errors(batch)
        likelihood = self.model.holdout_errors(batch, None, gaussian_loss).mean()
        found = {"model.elites": errors.argsort(stable=True)[: len(self.model.elites)]}
        if bool((self.model.temperature != 1).any()):
            found["model.temperature"] = temperatures(self.model, found, batch)
        return {**found, "held": likelihood}, {"model_error": errors.mean(), "model_held": likelihood}

    def drift(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """How much worse the model is on the newest rows, in nats a number (half of the loss, less its constant)."""
        fresh = self.model.holdout_errors(batch, None, gaussian_loss).mean()
        return {}, {"calibration_drift": 0.5 * (fresh - self.held)}
