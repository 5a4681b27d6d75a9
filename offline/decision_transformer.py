"""DT: a transformer that clones what followed in the data when so much was still to be earned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from surefoot.core.actors.transformer_actor import DecisionTransformerActor
from surefoot.core.base.options import Options, option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update, require
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import NORMALIZATIONS, best_return, prepare, returns_to_go, short_notes
from surefoot.data.samplers import Windows
from surefoot.data.sources import WindowSource
from surefoot.data.store import segment_ids


@dataclasses.dataclass(frozen=True)
class DTConfig(Options):
    """Settings of the decision transformer; the defaults are the paper's for locomotion."""

    target_return: float | None = option(
        None, "return asked for when acting, undiscounted; null: the best of the data's episodes"
    )
    context: int = option(20, "steps of a window, K", range=">= 1")
    width: int = option(128, "width of the transformer")
    layers: int = option(3, "layers of the transformer", range=">= 1")
    heads: int = option(1, "attention heads")
    dropout: float = option(0.1, "probability that a hidden unit is dropped", range="[0, 1)")
    learning_rate: float = option(1e-4, "learning rate", range=">= 0")
    schedule: str = option(
        "constant", "schedule of the learning rate: constant, cosine, linear or warm_up, which stays where it rose to"
    )
    warm_up: int = option(
        0, "training steps in which the rate rises from 0 first; of all schedules but constant", range=">= 0"
    )
    weight_decay: float = option(1e-4, "weight decay", range=">= 0")
    max_gradient_norm: float = option(
        0.25, "largest norm of the gradient; a longer one is scaled down to it", range="> 0"
    )
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        require(self.heads >= 1 and self.width % self.heads == 0, "dt", "heads", self.heads, "a divisor of the width")
        rises = self.warm_up == 0 or self.schedule != "constant"
        require(rises, "dt", "warm_up", self.warm_up, "0 with the schedule constant; choose warm_up")


class DT(Agent):
    r"""Decision transformer of Chen et al. (NeurIPS 2021).

    .. math:: L = E\, \frac{1}{K} \sum_{k \le K} \| \pi(s_{\le k}, a_{< k}, R_{\le k}) - a_k \|^2 / A

    R being the undiscounted rewards still to come. Acting, R starts at `target_return`, and what is earned is
    subtracted. Other than in the paper the target is the best return of the data's episodes where none is given, time
    is encoded by sines and cosines, actions are clipped instead of squashed, returns are divided by the data's largest,
    networks start as torch's do and not at a deviation of 0.02, and attention itself has no dropout. No window crosses
    an episode's end, and padding counts in no mean, as it does in CORL's. `preset=corl` has the rate's warm-up of CORL
    and of the authors, who train on batches of 64, 100,000 updates.
    """

    name = "dt"
    Config: ClassVar[type] = DTConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "corl": {"schedule": "warm_up", "warm_up": 10_000},
        "mbrcsl": {"learning_rate": 6e-3, "schedule": "cosine", "max_gradient_norm": 1.0},
        "small": {"width": 64, "layers": 2, "context": 10, "learning_rate": 1e-3},
    }
    required_columns: ClassVar[tuple[str, ...]] = ("observations", "actions", "returns_to_go", "timesteps")
    config: DTConfig
    actor: DecisionTransformerActor

    def build(self) -> None:
        """The transformer."""
        c, spec = self.config, self.spec
        sizes = (c.context, c.width, c.layers, c.heads)
        self.actor = DecisionTransformerActor(spec.observation_dim, spec.action_dim, *sizes, costs=False)

    def prepare(self, dataset: Dataset) -> Dataset:
        """Returns still to come and step numbers as columns; sets the scale of returns and the target."""
        if not self.goals_fixed:
            target = self.config.target_return
            self.actor.target_return.fill_(best_return(dataset) if target is None else target)
        if not self.rewards_fixed:
            self.actor.return_scale.fill_(max(float(np.abs(dataset.episode_returns).max()), 1e-6))
        ready = prepare(self, dataset, normalization=self.config.normalization)
        steps = np.arange(len(ready)) - np.repeat(ready.episode_starts[:-1], ready.episode_lengths)
        extras = {"returns_to_go": returns_to_go(ready, 1.0), "timesteps": steps.astype(np.float32)}
        return ready.replace(extras={**ready.extras, **extras})

    def notes(self, dataset: Dataset) -> list[str]:
        """The return that it will ask for."""
        asked = self.config.target_return
        own = f"dt: asks for a return of {best_return(dataset) if asked is None else asked:.1f} when acting"
        return [own, *(short_notes(dataset, 0) if asked is None else [])]

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Windows of K steps that end at a row drawn uniformly."""
        windows = Windows(self.config.context, "left")
        return {MAIN: WindowSource(stores.data, segment_ids(stores.dataset, stores.data.keys), windows)}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Mean squared error of the actions of the steps that are there."""
        mean, _, _ = self.actor(batch, noise.get("dropout"))
        errors = (mean - batch["actions"]).square().mean(-1)
        return (errors * batch["mask"]).sum() / batch["mask"].sum(), {}

    def updates(self) -> list[Update]:
        """One step of the transformer."""
        c = self.config
        adam = Adam(
            c.learning_rate,
            weight_decay=c.weight_decay,
            schedule=c.schedule,
            warm_up=c.warm_up,
            max_gradient_norm=c.max_gradient_norm,
        )
        keep = {"dropout": Noise("keep", self.actor.masks_dim, 1 - c.dropout)} if c.dropout > 0 else {}
        return [Update(self.actor_loss, ("actor",), adam, noise=keep)]
