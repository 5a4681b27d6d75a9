"""COCOA: around any algorithm from data, networks that read a state as an anchor in the data and the way from it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.heads import MLPActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Rule, Update, algorithm_of, require
from surefoot.core.engine.sources import Source, Stores, Uniform
from surefoot.core.engine.traits import Requires
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.transduction import TransducedMLP
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Dataset
from surefoot.data.sources import Added
from surefoot.model_based.mobile import MOBILE, MOBILEConfig
from surefoot.model_based.mopo import MOPO, MOPOConfig
from surefoot.offline.cql import CQL, CQLConfig
from surefoot.offline.iql import IQL, IQLConfig
from surefoot.world_models.ensemble.anchors import AnchoredActor, anchored, seeker_of, transduce
from surefoot.world_models.ensemble.learning import (
    HOLDOUT,
    MODEL,
    BestSoFar,
    EnsembleConfig,
    ensemble_of,
    learn_model,
    model_sources,
    prepare_model,
    weight_notes,
)

BACKWARDS, SEEKING = "backwards", "seeking"
TRANSDUCED = ("actor", "critic", "value")
"""Networks that are transduced, of those that an algorithm has."""


@dataclasses.dataclass(frozen=True)
class COCOAConfig(EnsembleConfig):
    """Settings of the wrapper; the defaults of widths are the authors' around IQL."""

    model_updates: int = option(
        20_000, "training steps of the models at most, before the first of the seeker; of the run's", range=">= 1"
    )
    seeker_updates: int = option(
        10_000, "training steps of the policy that seeks anchors, before the first of the algorithm", range=">= 1"
    )
    anchor_steps: int = option(
        1,
        "steps that it takes in the model from a state to its anchor, H; 0: the state is its own anchor",
        range=">= 0",
    )
    transducer: tuple[int, ...] = option((64, 64), "widths of f and g; the last is t, how many features they make")
    embedding: int = option(4, "products that are summed to a feature, k", range=">= 1")
    reverse_starts: int = option(
        10_000, "next states of the data from which the reverse model is followed", range=">= 1"
    )
    reverse_steps: int = option(5, "steps of the reverse model from each start", range=">= 1")
    divergence: float = option(
        0.8, "share of a random action of the data, the direction that is kept to on the way back"
    )
    divergence_noise: float = option(
        0.1, "standard deviation of the noise around that direction, in each step", range=">= 0"
    )
    seeker_hidden: tuple[int, ...] = option((100, 100), "widths of the seeker's hidden layers")
    seeker_learning_rate: float = option(1e-3, "learning rate of the seeker", range=">= 0")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        require(len(self.transducer) >= 1, name, "transducer", self.transducer, "at least one width")
        require(getattr(self, "history", 1) == 1, name, "history", getattr(self, "history", 1), "1")
        require(getattr(self, "dropout", 0) == 0, name, "dropout", getattr(self, "dropout", 0), "0")


class COCOA(Agent):
    r"""COCOA of Song, Lee and Kim, "Compositional Conservatism" (ICLR 2024): the wrapper.

    It is the first base of an agent whose second is the algorithm around which it is put.

    .. math::
        \bar s = \text{H steps of } \pi_{seek} \text{ in the model from } s, \quad \delta = s - \bar s, \quad
        h_j = \textstyle\sum_{d \le k} f_{jd}(\delta, a)\, g_{jd}(\bar s, a)

    and of h an ordinary network makes the policy, Q or V (without a) of the algorithm around which it is, whose losses
    stay as they are. The policy that seeks anchors clones, by squared error, steps back towards the data: from next
    states of the data a reverse model, which predicts s - s' of s' and a, is followed with actions clip(0.8 a_dir +
    N(0, 0.1^2)), a_dir a random action of the data for each start.

    Where the authors' code differs: it starts from every next state, keeps a holdout for the reverse model and stops
    the cloning when it no longer improves, where here the reverse model has all members and both take as many steps as
    stated. Anchors are computed anew for each network; there they are shared within an update, with the same numbers.
    """

    requires = Requires(one_vector=True)
    config: COCOAConfig
    seeker: MLP

    def build(self) -> None:
        """The algorithm's networks, transduced; the models, and the policy that seeks anchors."""
        super().build()
        c, spec = self.config, self.spec
        if not hasattr(self, "model"):
            self.model = ensemble_of(spec, c, units=lambda states: self.normalizer.inverse(states))
            self.model_best = BestSoFar(self.model)
        self.reverse = ensemble_of(spec, dataclasses.replace(c, termination="none", reward_function="learned"))
        self.reverse.elites = torch.arange(self.reverse.members)
        self.seeker = seeker_of(spec.observation_dim, spec.action_dim, c.seeker_hidden)
        for name in (name for name in TRANSDUCED if hasattr(self, name)):
            transduce(getattr(self, name), spec.observation_dim, c.transducer, c.embedding)
        for target, source in self.copies().items():
            if source in TRANSDUCED:
                setattr(self, target, copy.deepcopy(getattr(self, source)).requires_grad_(False))
        for module in self.modules():
            if isinstance(module, TransducedMLP):
                module.anchored_by(self.anchors)

    def anchors(self, states: Tensor) -> Tensor:
        """(B, O) anchors of (B, O) states, without gradient."""
        return anchored(self.model, self.seeker, states, self.config.anchor_steps)

    def policy(self) -> Policy:
        """A copy of the policy with the model and the seeker, which it acts by."""
        for module in self.actor.modules():
            if isinstance(module, TransducedMLP):
                module.anchored_by(torch.nn.Identity())  # not a copy of the whole agent
        inner, seeker, model = copy.deepcopy((self.actor, self.seeker, self.model))
        for module in self.actor.modules():
            if isinstance(module, TransducedMLP):
                module.anchored_by(self.anchors)
        assert isinstance(inner, MLPActor)
        head = AnchoredActor(inner, seeker, model, self.config.anchor_steps)
        return Policy.of(head, self.normalizer, self.action_low, self.action_high)

    @property
    def _has_model(self) -> bool:
        """Whether the algorithm itself learns the forward model."""
        return bool(getattr(self, "learned", False))

    def prepare(self, dataset: Dataset) -> Dataset:
        """As the algorithm; the statistics of both models."""
        ready: Dataset = super().prepare(dataset)
        if not self._has_model:
            ready = prepare_model(self, ready)
        columns = {name: getattr(ready, name)[ready.transitions] for name in ("observations", "actions", "rewards")}
        columns["next_observations"] = ready.next_observations[ready.transitions]
        self.reverse.fit_statistics(turned_round(columns))
        return ready

    def notes(self, dataset: Dataset) -> list[str]:
        """How much of the run is the algorithm's."""
        c = self.config
        first = c.model_updates + c.seeker_updates
        weights = [] if self._has_model else weight_notes(dataset, c)
        own = [f"{self.name}: the policy is trained from step {first + 1:,} on", *weights]
        return [*super().notes(dataset), *own]

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """The algorithm's, the models', and the steps back towards the data."""
        c = self.config
        rows = {"observations": (self.spec.observation_dim,), "actions": (self.spec.action_dim,)}
        seeking = Added(c.reverse_starts * c.reverse_steps, rows, SEEKING)
        seeking.dtype = stores.data["rewards"].dtype
        return {
            **super().sources(stores),
            **({} if self._has_model else model_sources(stores, c)),
            BACKWARDS: Uniform(stores.data, stream=BACKWARDS),
            SEEKING: seeking,
        }

    def reverse_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Gaussian log-likelihood of the way back from the next state."""
        loss, metrics = self.reverse.loss(turned_round(batch))
        return loss, {"reverse_likelihood": metrics["model_likelihood"]}

    def steps_back(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Any], Metrics]:
        """Rows (state, action that leads towards the data), by the reverse model from next states of the data."""
        c, size = self.config, self.spec.action_dim
        states, direction = batch["next_observations"], batch["actions"].flip(0)  # of other rows: they are random
        around, members = noise["around"].unflatten(-1, (-1, size)), noise["reverse_member"]
        drawn = noise["reverse"].unflatten(-1, (-1, self.reverse.noise_dim))
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for step in range(c.reverse_steps):
            actions = (c.divergence * direction + c.divergence_noise * around[:, step]).clamp(-1, 1)
            prediction = self.reverse.predict(states, actions, self.reverse.draw_elites(members[:, step]))
            change = (prediction.mean + prediction.std * drawn[:, step])[..., : self.spec.observation_dim]
            states = states + change
            found.append((states, actions, states.isfinite().all(-1)))
        rows, chosen, valid = (torch.cat(column) for column in zip(*found, strict=True))
        return {SEEKING: {"observations": rows, "actions": chosen, "valid": valid}}, {"steps_back": valid.sum()}

    def seeker_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error of the actions that lead towards the data."""
        error = torch.tanh(self.seeker(batch["observations"])) - batch["actions"]
        return error.square().mean(), {}

    def updates(self) -> list[Update | Rule]:
        """The models; steps back and their clone; then the algorithm."""
        c, size = self.config, self.spec.action_dim
        own = list(super().updates())
        first, then = c.model_updates, c.seeker_updates
        learned = [e for e in own if {MODEL, HOLDOUT} & set(e.sources)] if self._has_model else learn_model(self, first)
        rest = [e for e in own if e not in learned]
        later = then if self._has_model else first + then
        noise = {
            "around": Noise("normal", c.reverse_steps * size),
            "reverse": Noise("normal", c.reverse_steps * self.reverse.noise_dim),
            "reverse_member": Noise("uniform", c.reverse_steps),
        }
        models, adam = Adam(c.model_learning_rate), Adam(c.seeker_learning_rate)
        return [
            *learned,
            Update(self.reverse_loss, ("reverse",), models, MODEL, until=first, rows=c.model_rows),
            Rule(self.steps_back, source=BACKWARDS, rows=c.reverse_starts, noise=noise, after=first, until=first + 1),
            Update(self.seeker_loss, ("seeker",), adam, SEEKING, after=first, until=first + then),
            *(_later(entry, later) for entry in rest),
        ]


def _later(entry: Update | Rule, steps: int) -> Update | Rule:
    until = None if entry.until is None else entry.until + steps
    return dataclasses.replace(entry, after=entry.after + steps, until=until)


def turned_round(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch as a model of the way back reads it: from next observations to observations."""
    return {**batch, "observations": batch["next_observations"], "next_observations": batch["observations"]}


@dataclasses.dataclass(frozen=True)
class COCOAIQLConfig(COCOAConfig, IQLConfig):
    """Settings of COCOA around IQL."""

    hidden: tuple[int, ...] = (100, 100)


class COCOAIQL(COCOA, IQL):
    """COCOA around IQL."""

    name = "cocoa_iql"
    Config: ClassVar[type] = COCOAIQLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}}
    config: COCOAIQLConfig


@dataclasses.dataclass(frozen=True)
class COCOACQLConfig(COCOAConfig, CQLConfig):
    """Settings of COCOA around CQL."""

    hidden: tuple[int, ...] = (256, 256, 256)
    transducer: tuple[int, ...] = (256, 256, 256)
    embedding: int = 32

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        if self.layer_norm_actor or self.layer_norm_critic:
            raise ConfigError(f"{algorithm_of(self)}: transduced networks have no layer norms; leave them out")


class COCOACQL(COCOA, CQL):
    """COCOA around CQL."""

    name = "cocoa_cql"
    Config: ClassVar[type] = COCOACQLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}}
    config: COCOACQLConfig


@dataclasses.dataclass(frozen=True)
class COCOAMOPOConfig(COCOAConfig, MOPOConfig):
    """Settings of COCOA around MOPO."""

    hidden: tuple[int, ...] = (100, 100)


class COCOAMOPO(COCOA, MOPO):
    """COCOA around MOPO."""

    name = "cocoa_mopo"
    Config: ClassVar[type] = COCOAMOPOConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}}
    config: COCOAMOPOConfig


@dataclasses.dataclass(frozen=True)
class COCOAMOBILEConfig(COCOAConfig, MOBILEConfig):
    """Settings of COCOA around MOBILE."""

    hidden: tuple[int, ...] = (100, 100)


class COCOAMOBILE(COCOA, MOBILE):
    """COCOA around MOBILE."""

    name = "cocoa_mobile"
    Config: ClassVar[type] = COCOAMOBILEConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}}
    config: COCOAMOBILEConfig
