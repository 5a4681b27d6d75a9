"""QAM-E: QAM whose actions are edited within a small range by a policy that maximises the critics."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.chunks import in_chunks
from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.actors.steered import EditedActor
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Batch, Metrics, Update
from surefoot.core.losses.adjoint import pulled
from surefoot.core.nn.networks import pairs
from surefoot.core.nn.temperature import Temperature
from surefoot.offline.qam import QAM, QAMConfig


@dataclasses.dataclass(frozen=True)
class QAMEConfig(QAMConfig):
    """Settings of QAM-E."""

    edit_scale: float = option(0.1, "c: an edit changes each number of an action by no more", range="> 0")
    temperature: float = option(1.0, "weight of the edits' entropy at the start, alpha; learned", range="> 0")
    target_entropy_per_dimension: float = option(
        -0.5, "entropy of the edits that the temperature aims at, for each action dimension, in nats"
    )
    edit_activation: str = option("gelu_tanh", "activation of the editing policy's hidden layers")
    edit_log_std_range: tuple[float, float] = option(
        (-20.0, 2.0), "range of the edits' log standard deviation, before the tanh", rising=True
    )


class QAME(QAM):
    r"""QAM-E of Li and Levine, "Q-learning with Adjoint Matching" (2026): a second policy edits the flow's action.

    .. math::
        a &= \mathrm{clip}(U(s, z) + c\, e), \quad e \sim \tanh \mathcal N(s, U(s, z)) \\
        L_e &= E\, [\alpha \log \pi(e | s, U(s, z)) - \overline Q(s, a)], \quad
        L_\alpha = -\alpha\, E\, [\log \pi(e | s, U(s, z)) + \bar H]

    with U(s, z) where the improved flow takes z, which gets no gradient. Edited actions, edits drawn anew, are those of
    the critics' target, whose backup has no entropy. One Adam steps these networks with QAM's. The editing policy has
    the backbone of QAM's other networks, GELU in its tanh form and Glorot's weights, without layer norms, as in the
    official code. What acts takes the mean edit, as the evaluation of all tanh-Gaussians here does; the official
    evaluation draws one.
    """

    name = "qam_e"
    Config: ClassVar[type] = QAMEConfig
    earlier: ClassVar[dict[str, Any]] = {"edit_activation": "relu", "edit_log_std_range": (-5.0, 2.0)}
    config: QAMEConfig

    def build(self) -> None:
        """The editing policy and its temperature beside QAM's networks."""
        super().build()
        c, size = self.config, self.decision_dim
        self.edit = TanhGaussianActor(
            self.features + size,
            size,
            c.hidden,
            "xavier",
            c.edit_log_std_range,
            activation=c.edit_activation,
        )
        self.temperature = Temperature(c.temperature, "exp")

    @property
    def editor(self) -> EditedActor:
        """Flow and edit as one head."""
        return EditedActor(self.head, self.edit, self.config.edit_scale)

    @property
    def actor(self) -> Actor:
        """What acts: the edited flow, from a queue where it gives chunks."""
        return in_chunks(self.editor, self.config.chunk, self.spec.action_dim)

    def next_action(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(B, D) the flow's action of the first half of (B, 2 D) noise, edited by the other half."""
        start, drawn = noise.chunk(2, -1)
        return self.editor.edited(observations, self.head.act(observations, start), drawn)[0].clamp(-1, 1)

    def edit_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """SAC's for the edits, and for their temperature; the critics, trained in the same step, get no gradient."""
        c, seen = self.config, batch["observations"]
        with torch.no_grad():
            flowed = self.head.act(seen, noise["policy"])
        action, log_density = self.editor.edited(seen, flowed, noise["edit"])
        slope = pulled(lambda a: self.critic(pairs(seen, a.clamp(-1, 1))).mean(0).unsqueeze(-1), action)
        alpha = self.temperature()
        edits = (alpha.detach() * log_density - (slope * action).sum(-1)).mean()
        target = c.target_entropy_per_dimension * action.shape[-1]
        return edits + self.temperature.loss(log_density, target), {"edit_entropy": -log_density, "temperature": alpha}

    def loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """QAM's sum and the edits' (in place of the value its slope times the action: of equal gradient)."""
        edits, own = self.edit_loss(batch, noise)
        others, metrics = super().loss(batch, noise)
        return others + edits, {**metrics, **own}

    def updates(self) -> list[Update]:
        """One step of all networks; averages lag."""
        (update,) = super().updates()
        one = Noise("normal", self.decision_dim)
        both = Noise("normal", 2 * self.decision_dim)
        noise = {**update.noise, "next": both, "policy": one, "edit": one}
        return [dataclasses.replace(update, trains=(*update.trains, "edit", "temperature"), noise=noise)]
