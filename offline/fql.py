"""FQL: a flow clones the data, and a policy of one step is distilled from it while it maximises the critics."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.chunks import in_chunks
from surefoot.core.actors.flow_actor import OneStepActor
from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update, algorithm_of
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.engine.traits import WarmStart
from surefoot.core.losses.flow import euler
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic, LayerNorm, pairs
from surefoot.core.nn.velocity import PlainVelocity
from surefoot.data.prepare import NORMALIZATIONS, REWARDS
from surefoot.offline import chunked
from surefoot.offline.chunked import ChunkedAgent


@dataclasses.dataclass(frozen=True)
class FQLConfig(EncoderConfig, HistoryConfig):
    """Settings of FQL; the defaults are the official ones, `alpha` for locomotion in mazes."""

    alpha: float = option(
        10.0,
        "weight of the distance to the flow's actions: 3 to 10 locomotion, 300 scene and cube, 1000 puzzle",
        range=">= 0",
    )
    normalize_q: bool = option(False, "divide the value by its mean size; then try alpha in .03 .. 10 on a new problem")
    chunk: int = option(1, "C: actions that are decided at once; 5 in manipulation", range=">= 1")
    flow_steps: int = option(10, "steps of the flow, K", range=">= 1")
    discount: float = option(0.99, "discount factor; .995 in long mazes", range="[0, 1]")
    target_rate: float = option(0.005, "rate of the critics' average, which lags by one update", range="[0, 1]")
    critics: int = option(2, "number of critics", range=">= 1")
    aggregate: str = option(
        "mean",
        "aggregate of the critics in the target: mean, or min (antmaze-large, Adroit)",
        choices=ensembles.AGGREGATES,
    )
    deviations: float = option(0.0, "with mean: standard deviations of the critics that are taken off it", range=">= 0")
    learning_rate: float = option(3e-4, "learning rate", range=">= 0")
    hidden: tuple[int, ...] = option((512, 512, 512, 512), "widths of the hidden layers")
    layer_norm_actor: bool = option(
        False, "layer norm of flow and policy, after each activation, as the critics have them"
    )
    normalization: str = option("none", "normalization of observations", choices=NORMALIZATIONS)
    rewards: str = option("none", "scaling of rewards", choices=REWARDS)

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        ensembles.check_aggregate(name, self.aggregate, self.deviations)


class FQL(ChunkedAgent):
    r"""FQL of Park, Li and Levine, "Flow Q-Learning" (ICML 2025).

    With :math:`x_t = (1 - t) x_0 + t a` of standard normal x_0 and uniform t, F(s, z) the action that K Euler steps of
    the flow v make of z, and the policy mu(s, z):

    .. math::
        L_v &= E\, |v(s, x_t, t) - (a - x_0)|^2 \\
        L_\mu &= \alpha E\, |\mu(s, z) - F(s, z)|^2 - \lambda E\, \overline Q(s, \mu(s, z)) \\
        L_Q &= E\, (r + \gamma (1 - d)\, \overline{\hat Q}(s', \mu(s', z')) - Q_i(s, a))^2

    with means over the numbers of an action, and over the critics; lambda is 1, or 1 / E|Q| (`normalize_q`). Officially
    one optimiser takes one step down the sum. The losses train a network each, so that three optimisers at the same
    parameters do the same; the target critics follow the critics from before the step, as there. Critics see actions
    clipped to [-1, 1]; the distance is that of unclipped ones. The official evaluation asks for temperature 0 and is
    not given it: the policy is stochastic through z, here as there.

    With a chunk of C actions this is QC-FQL (`offline/qc.py`).
    """

    name = "fql"
    Config: ClassVar[type] = FQLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}}
    required_columns: ClassVar[tuple[str, ...]] = (
        "observations",
        "actions",
        "rewards",
        "terminations",
        "next_observations",
    )
    warm_start = WarmStart(networks=("velocity", "normalizer"))
    config: FQLConfig

    def build(self) -> None:
        """The flow, the policy of one step, critics and their targets."""
        c, size, width = self.config, self.decision_dim, self.features
        norm: LayerNorm = "after" if c.layer_norm_actor else False
        self.velocity = PlainVelocity(width, size, c.hidden, velocity_layer_norm=norm)
        self.student = OneStepActor(width, size, c.hidden, layer_norm=norm)
        self.critic = Critic(width, size, c.hidden, c.critics, "xavier", "after", activation="gelu_tanh")
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)

    @property
    def actor(self) -> Actor:
        """What acts: the policy of one step, from a queue where it gives chunks."""
        return in_chunks(self.student, self.config.chunk, self.spec.action_dim)

    def flow_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Flow matching on the data's chunks; what is behind an episode's end does not count."""
        return chunked.cloning_loss(self.velocity, batch, noise), {}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """The distance to where the flow takes the same noise, less the value of the policy's actions."""
        c, seen, z = self.config, batch["observations"], noise["policy"]
        mine = self.student(seen, z)
        with torch.no_grad():
            flowed = euler(lambda x, time: self.velocity(seen, x, time), z, c.flow_steps, limit=1.0)
        distance = (mine - flowed).square().mean()
        q = self.critic(pairs(seen, mine.clamp(-1, 1))).mean(0)
        scale = 1 / q.detach().abs().mean() if c.normalize_q else 1.0
        return c.alpha * distance - scale * q.mean(), {"distillation": distance, "policy_q": q}

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD error against the present policy's action, averaged over the critics."""
        c, following = self.config, batch["next_observations"]
        action = self.student(following, noise["next"]).clamp(-1, 1)
        next_q = ensembles.aggregate(self.target_critic(pairs(following, action)), c.aggregate, c.deviations)
        q = self.critic(batch["observation_actions"])
        target = batch["rewards"] + batch["reach"] * next_q
        return ensembles.critic_loss(q, target, "mean", batch["valid"]), {"q": q}

    def updates(self) -> list[Update]:
        """All at the same parameters, as one optimiser over the sum; the target critics lag."""
        c, adam = self.config, Adam(self.config.learning_rate)
        size = self.decision_dim
        lag = {"target_critic": ("critic", c.target_rate)}
        return [
            Update(self.flow_loss, ("velocity",), adam, noise=chunked.cloning_noise(size)),
            Update(self.actor_loss, ("student",), adam, noise={"policy": Noise("normal", size)}, simultaneous=True),
            Update(
                self.critic_loss,
                ("critic",),
                adam,
                noise={"next": Noise("normal", size)},
                simultaneous=True,
                pre_step_targets=lag,
            ),
        ]
