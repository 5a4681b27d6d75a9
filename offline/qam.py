"""QAM: a flow is improved by the critics' gradient, which its adjoint carries back along the flow's own paths."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.chunks import in_chunks
from surefoot.core.actors.flow_actor import FlowActor, OneStepActor
from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.engine.traits import WarmStart
from surefoot.core.losses.adjoint import adjoints, matching_loss, memoryless_path, pulled
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic, LayerNorm, pairs
from surefoot.core.nn.velocity import PlainVelocity
from surefoot.data.prepare import NORMALIZATIONS, REWARDS
from surefoot.offline import chunked
from surefoot.offline.chunked import ChunkedAgent


@dataclasses.dataclass(frozen=True)
class QAMConfig(EncoderConfig, HistoryConfig):
    """Settings of QAM; the defaults are the official ones."""

    inverse_temperature: float = option(
        3.0, "inverse temperature, beta: 1 scene and cube-double, 3 puzzle-3x3, 10 antmaze, 30 puzzle-4x4", range=">= 0"
    )
    chunk: int = option(1, "C: actions that are decided at once; 5 in manipulation", range=">= 1")
    flow_steps: int = option(10, "steps of the flows, K", range=">= 1")
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(
        0.005, "rate of the averages of critics and cloned flow, which lag by one update", range="[0, 1]"
    )
    critics: int = option(10, "number of critics", range=">= 1")
    deviations: float = option(
        0.5, "standard deviations of the critics that the target takes off their mean", range=">= 0"
    )
    learning_rate: float = option(3e-4, "learning rate", range=">= 0")
    max_gradient_norm: float = option(
        1.0, "largest norm of all gradients together; a longer one is scaled down to it", range="> 0"
    )
    hidden: tuple[int, ...] = option((512, 512, 512, 512), "widths of the hidden layers")
    layer_norm_actor: bool = option(
        False, "layer norm of both flows and what acts, after each activation, as the critics have them"
    )
    normalization: str = option("none", "normalization of observations", choices=NORMALIZATIONS)
    rewards: str = option("none", "scaling of rewards", choices=REWARDS)


class QAM(ChunkedAgent):
    r"""QAM of Li and Levine, "Q-learning with Adjoint Matching" (2026).

    The flow v clones the data; the flow u, which acts, is drawn towards
    :math:`\pi(a|s) \propto \mu(a|s)\, e^{\beta Q(s, a)}` of the cloned :math:`\mu`. A path of u with the memoryless
    noise :math:`\sigma_k` ends at an action x_K; the critics' gradient there goes back along it as the adjoint
    A of the cloned flow (`core.losses.adjoint`), and

    .. math::
        L_u = E \textstyle\sum_k |2 (u - \hat v)(x_k, t_k) / \sigma_k + \sigma_k A_k|^2, \quad
        A_K = -\beta \nabla_a \overline{\hat Q}(s, a)

    Critics are regressed on r + gamma^C (mean - rho std of the averaged critics at the action of u); v clones by flow
    matching. One Adam steps all three networks down the sum, its gradients clipped together, as in the official code;
    averages follow the networks from before the step. As there a chunk that a time limit cuts is not cloned at all,
    where QC and FQL clone what there is of it. The official code keeps a target of u that nothing reads: ours has none.
    """

    name = "qam"
    Config: ClassVar[type] = QAMConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}}
    required_columns = ("observations", "actions", "rewards", "terminations", "next_observations")
    warm_start = WarmStart(networks=("velocity", "normalizer"))
    config: QAMConfig

    def build(self) -> None:
        """The cloned flow and its average, the improved one, critics and their targets."""
        c, size, width = self.config, self.decision_dim, self.features
        self.velocity = PlainVelocity(width, size, c.hidden, velocity_layer_norm=self.norm)
        self.improved = PlainVelocity(width, size, c.hidden, velocity_layer_norm=self.norm)
        self.critic = Critic(width, size, c.hidden, c.critics, "xavier", "after", activation="gelu_tanh")
        self.average_velocity = copy.deepcopy(self.velocity).requires_grad_(False)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)

    @property
    def norm(self) -> LayerNorm:
        """Where the flows and what is distilled from them have layer norms."""
        return "after" if self.config.layer_norm_actor else False

    @property
    def head(self) -> FlowActor:
        """The improved flow."""
        return FlowActor(self.improved, self.decision_dim, self.config.flow_steps)

    @property
    def actor(self) -> Actor:
        """What acts: the improved flow, from a queue where it gives chunks."""
        return in_chunks(self.head, self.config.chunk, self.spec.action_dim)

    def adjoint_loss(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """The improved flow's distance from the cloned one plus what the critics ask for, along paths of its own."""
        c, seen = self.config, batch["observations"]

        def improved(x: Tensor, time: Tensor) -> Tensor:
            return self.improved(seen, x, time)

        def cloned(x: Tensor, time: Tensor) -> Tensor:
            return self.average_velocity(seen, x, time)

        def value(actions: Tensor) -> Tensor:
            return self.target_critic(pairs(seen, actions.clamp(-1, 1))).mean(0)

        drawn = noise["path"].unflatten(-1, (c.flow_steps, -1)).unbind(-2)
        with torch.no_grad():
            path = memoryless_path(improved, cloned, drawn)
        return matching_loss(improved, cloned, path, adjoints(cloned, value, path, c.inverse_temperature))

    def next_action(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(B, D) what the policy does, as the critics' target has it."""
        return self.head.act(observations, noise)

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD error against the policy's action, averaged over the critics."""
        c, following = self.config, batch["next_observations"]
        with torch.no_grad():
            action = self.next_action(following, noise["next"])
            next_q = ensembles.aggregate(self.target_critic(pairs(following, action)), "mean", c.deviations)
            target = batch["rewards"] + batch["reach"] * next_q
        q = self.critic(batch["observation_actions"])
        return ensembles.critic_loss(q, target, "mean", batch["valid"]), {"q": q}

    def loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """The sum of cloning, critics' and adjoint matching's losses, each with a gradient to its own network only."""
        adjoint = self.adjoint_loss(batch, noise)
        critic, metrics = self.critic_loss(batch, noise)
        cloning = chunked.cloning_loss(self.velocity, batch, noise, batch["valid"])
        return cloning + critic + adjoint, {**metrics, "cloning": cloning, "critic": critic, "adjoint": adjoint}

    def updates(self) -> list[Update]:
        """One step of all networks; averages lag."""
        c, size = self.config, self.decision_dim
        drawn = {
            **chunked.cloning_noise(size),
            "next": Noise("normal", size),
            "path": Noise("normal", c.flow_steps * size),
        }
        lag = {
            "target_critic": ("critic", c.target_rate),
            "average_velocity": ("velocity", c.target_rate),
        }
        adam = Adam(c.learning_rate, max_gradient_norm=c.max_gradient_norm)
        return [Update(self.loss, ("velocity", "critic", "improved"), adam, noise=drawn, pre_step_targets=lag)]


@dataclasses.dataclass(frozen=True)
class QAMFConfig(QAMConfig):
    """Settings of QAM-F."""

    alpha: float = option(10.0, "weight of the student's distance to the improved flow's actions", range=">= 0")


class QAMF(QAM):
    r"""QAM-F of the same paper: as in FQL a policy of one step is distilled, here from the improved flow, and acts.

    .. math:: L_\mu = \alpha E\, |\mu(s, z) - U(s, z)|^2 - E\, \overline Q(s, \mu(s, z))

    with U(s, z) where the improved flow takes z. It also gives the actions of the critics' target.
    """

    name = "qam_f"
    Config: ClassVar[type] = QAMFConfig
    config: QAMFConfig

    def build(self) -> None:
        """The student beside QAM's networks."""
        super().build()
        c = self.config
        self.student = OneStepActor(self.features, self.decision_dim, c.hidden, layer_norm=self.norm)

    @property
    def actor(self) -> Actor:
        """What acts: the student, from a queue where it gives chunks."""
        return in_chunks(self.student, self.config.chunk, self.spec.action_dim)

    def next_action(self, observations: Tensor, noise: Tensor) -> Tensor:
        """The student's."""
        return self.student.act(observations, noise)

    def student_loss(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """FQL's, of the improved flow; the critics, trained in the same step, get no gradient of it."""
        seen, z = batch["observations"], noise["policy"]
        mine = self.student(seen, z)
        with torch.no_grad():
            flowed = self.head.act(seen, z)
        slope = pulled(lambda a: self.critic(pairs(seen, a.clamp(-1, 1))).mean(0).unsqueeze(-1), mine)
        return self.config.alpha * (mine - flowed).square().mean() - (slope * mine).sum(-1).mean()

    def loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """QAM's sum, and the student's loss (in place of the value its slope times the action: of equal gradient)."""
        student = self.student_loss(batch, noise)
        others, metrics = super().loss(batch, noise)
        return others + student, {**metrics, "student": student}

    def updates(self) -> list[Update]:
        """One step of all networks; averages lag."""
        (update,) = super().updates()
        noise = {**update.noise, "policy": Noise("normal", self.decision_dim)}
        return [dataclasses.replace(update, trains=(*update.trains, "student"), noise=noise)]
