"""A model of the dynamics alone: an ensemble learned from a dataset, and how far it is to be believed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Agent, Rule, Update
from surefoot.core.engine.sources import Source, Stores
from surefoot.core.engine.traits import Requires, WarmStart
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import prepare
from surefoot.world_models.calibration import calibration
from surefoot.world_models.ensemble.learning import (
    READS,
    BestSoFar,
    EnsembleConfig,
    ensemble_of,
    learn_model,
    model_notes,
    model_sources,
    prepare_model,
)


@dataclasses.dataclass(frozen=True)
class DynamicsConfig(EnsembleConfig):
    """The model's, and what it predicts."""

    model_costs: bool = option(False, "predict the data's costs too")
    model_recalibrated: bool = option(True, "scale predicted variances to what the holdout likes best")


class LearnedDynamics(Agent):
    """A probabilistic ensemble of the change of the state and the reward, without a policy.

    Sources: Chua, Calandra, McAllister and Levine (PETS, 2018); the recipe of training is that of Janner, Fu, Zhang and
    Levine (MBPO, 2019). `model` is a `world_models.GaussianEnsemble`.
    """

    name = "dynamics"
    Config = DynamicsConfig
    required_columns = READS
    requires = Requires(policy=False)
    warm_start = WarmStart(networks=("model", "model_best"))
    config: DynamicsConfig

    def build(self) -> None:
        """The members, and those of them that a holdout preferred."""
        costs = self.config.model_costs
        self.model = ensemble_of(self.spec, self.config, costs)
        self.model_best = BestSoFar(self.model)
        self.required_columns = (*READS, "costs") if costs else READS  # type: ignore[misc, assignment]

    def prepare(self, dataset: Dataset) -> Dataset:
        """Actions into [-1, 1]; observations and rewards stay in the environment's units."""
        return prepare_model(self, prepare(self, dataset))

    def notes(self, dataset: Dataset) -> list[str]:
        """Whether it is known where episodes end, how many rows weights leave, and costs that are left out."""
        costs = dataset.costs is not None and not self.config.model_costs
        left = ["the model leaves the data's costs out: algo.model_costs=true where plans are to keep a limit"]
        return [*model_notes(dataset, self.config, self.spec.environment), *(left if costs else [])]

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Rows for each member, and the holdout."""
        return model_sources(stores, self.config)

    def judged_on(self, held_out: Dataset, seed: int) -> dict[str, Any]:
        """Likelihood, coverage and errors of many steps ahead on episodes that it never saw."""
        best = self.model_best
        training = {"epochs": int(best.epochs), "holdout_errors": best.errors.tolist()}
        return {"model": {**training, **calibration(self.model, prepare(self, held_out))}}

    def updates(self) -> list[Update | Rule]:
        """One update, until no member improves any more."""
        return learn_model(self)
