"""PETS: planning by CEM over many futures of an ensemble that is learned while acting."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.memory import Memory
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Rule, Update, algorithm_of, require
from surefoot.core.engine.sources import Source, Stores
from surefoot.core.engine.traits import Acting, Requires, WarmStart
from surefoot.model_based.base.alarm import AlarmConfig
from surefoot.model_based.base.measured import FRESH, FRESH_ROWS, HOLDOUT, MODEL, MeasuredModel
from surefoot.online.base.agents import OffPolicyConfig
from surefoot.online.loops.replay import Replay
from surefoot.world_models.ensemble.learning import ModelConfig, ensemble_of, known_notes
from surefoot.world_models.ensemble.planner import SEARCH, EnsemblePlanner
from surefoot.world_models.ensemble.renormalise import measured
from surefoot.world_models.known.terminations import AUTO

ALL = "all"
DECAYS = (2.5e-5, 5e-5, 7.5e-5, 1e-4)


@dataclasses.dataclass(frozen=True)
class PETSConfig(OffPolicyConfig, ModelConfig, AlarmConfig):
    """Settings of PETS; the defaults are mbrl-lib's for a cart-pole."""

    initial_steps: int = option(200, "environment steps with random actions: one episode there")
    updates_per_step: float = option(5.0, "training steps of the model for each step of the environment")
    model_members: int = 5
    model_elites: int = option(5, "members of the model that are asked, here all")
    model_hidden: tuple[int, ...] = (200, 200, 200)
    model_decays: tuple[float, ...] = DECAYS
    model_normalize_targets: bool = True
    reward_function: str = option(
        AUTO, "the task's own where it is known, as in the paper; learned; or module:function"
    )
    measure_every: int = option(500, "training steps after which statistics and elites are found anew", range=">= 1")
    horizon: int = option(15, "steps looked ahead")
    samples: int = option(350, "candidates in each iteration of CEM")
    iterations: int = option(5, "iterations of the search")
    elite_share: float = option(0.1, "share of the candidates that the Gaussian is fitted to")
    momentum: float = option(0.1, "share of the old Gaussian that is kept")
    futures: int = option(20, "particles of each candidate")
    propagation: str = option("tsinf", "tsinf: a particle keeps its member; ts1: it draws one at each step")
    risk: str = option("mean", "risk measure of the futures' returns: mean, worst, cvar:BETA, entropic:THETA, std:C")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        least = min(self.model_elites, self.model_members) if self.propagation == "tsinf" else 1
        fits = self.futures <= 1 or self.futures >= least  # 1 is the mean outcome
        which = f"1, or {least} and more, so that each of the {least} elites has a particle (or propagation=ts1)"
        require(fits, algorithm_of(self), "futures", self.futures, which)
        only = "0: it learns from what it meets alone"
        require(self.offline_fraction == 0, algorithm_of(self), "offline_fraction", self.offline_fraction, only)


class PETS(MeasuredModel):
    r"""PETS of Chua, Calandra, McAllister and Levine (NeurIPS 2018): planning in an ensemble that is learned meanwhile.

    "Deep Reinforcement Learning in a Handful of Trials using Probabilistic Dynamics Models":

    .. math:: a_{t:t+H} = \arg\max\; \tfrac1F \textstyle\sum_f \sum_{i=t}^{t+H} r(s^f_i, a_i), \quad
        s^f_{i+1} \sim p_{b(f)}(\cdot | s^f_i, a_i)

    by CEM from the last plan, with truncated normals, at every step. r is the task's own where `reward_function` knows
    it, as in the paper, and learned elsewhere. The paper trains the ensemble after each episode; here it keeps being
    trained all the time, on rows of which one step in ten is held out; the elites, and how much worse the model is on
    the newest rows than on its holdout, are found as in MBPO. Other risk measures than the mean are this library's.
    """

    name = "pets"
    Config: ClassVar[type] = PETSConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "cartpole": {},
        "halfcheetah": {
            "initial_steps": 1_000, "model_hidden": (200, 200, 200, 200), "model_decays": (*DECAYS[:3], 7.5e-5, 1e-4),
            "horizon": 30, "samples": 400, "elite_share": 0.16, "momentum": 0.12,
        },
        "small": {
            "model_hidden": (64, 64), "model_decays": (), "horizon": 12, "samples": 100, "iterations": 3, "futures": 5,
        },
    }  # fmt: skip
    requires = Requires(data="refused")
    acting = Acting(stateful=True, rows=64)
    warm_start = WarmStart(networks=("model",))
    config: PETSConfig

    def build(self) -> None:
        """The ensemble; its planner is made when it is asked, which refuses settings that are none."""
        self.model = ensemble_of(self.spec, self.config)
        self.register_buffer("held", torch.zeros(()))  # the holdout's loss
        self.actor  # noqa: B018

    def load_from(self, source: Agent) -> list[str] | None:
        """Nothing more than its networks, but of no normalised agent: its model reads other units than functions do."""
        if bool((source.normalizer.mean != 0).any()) or bool((source.normalizer.scale != 1).any()):
            raise ConfigError(
                f"the {source.name} run normalised observations, and pets plans by ends and rewards in the "
                "environment's units: train it with algo.normalization=none (or algo.normalize_observations=false)"
            )
        return None

    @property
    def actor(self) -> EnsemblePlanner:
        """What acts: a search from the last plan."""
        c = self.config
        options = {**SEARCH, **{name: getattr(c, name) for name in SEARCH if hasattr(c, name)}}
        return EnsemblePlanner(self.model, options, c.termination, self.spec.environment, c.reward_function)

    @property
    def explore_dim(self) -> int:
        """The seed of a search: it explores by what CEM leaves to chance, without noise of its own."""
        return 1

    def explore_on(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """(B, A) planned actions and the plan."""
        return self.actor.step(observations, memory, noise)

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Rows for each member, its holdout, the newest, and any rows."""
        return {**self.model_sources(stores.replay, self.config.model_members), ALL: Replay(stores.replay, ALL)}

    def notes(self, dataset: Any) -> list[str]:
        """Where no termination function is known, or no reward; not how to give one, which no policy holds."""
        return [note.partition(";")[0] for note in known_notes(self.config, self.spec.environment)]

    def statistics(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """Means and deviations of the model's inputs and targets, of rows of the buffer; what it predicts stays."""
        return measured(self.model, batch), {}

    def updates(self) -> list[Update | Rule]:
        """Statistics at the first step and after each measurement of the holdout; the model at every step."""
        c = self.config
        return [
            Rule(self.statistics, ("model",), source=ALL, rows=4 * c.model_rows, until=1),
            Update(self.model_loss, ("model",), Adam(c.model_learning_rate), MODEL, rows=c.model_rows),
            Rule(self.choose, ("model", "held"), source=HOLDOUT, rows=c.model_holdout_limit, every=c.measure_every),
            Rule(self.drift, source=FRESH, rows=FRESH_ROWS, every=c.measure_every),
            Rule(self.statistics, ("model",), source=ALL, rows=4 * c.model_rows, every=c.measure_every),
        ]
