"""ReBRAC: TD3+BC with a penalty of its own for the actor and for the critics, larger networks and layer norms."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.chunks import decisions, in_chunks
from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.losses.value_learning import smoothed_actions
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic, LayerNorm, pairs
from surefoot.data.decision_source import decisions_of
from surefoot.data.prepare import NORMALIZATIONS, REWARDS
from surefoot.offline.chunked import ChunkedAgent


@dataclasses.dataclass(frozen=True)
class ReBRACConfig(EncoderConfig, HistoryConfig):
    """Settings of ReBRAC; the defaults are those of CORL's code, the penalties its ones for Hopper and medium data."""

    actor_penalty: float = option(
        0.01, "weight of the squared distance to the data's action, beta_1, against the normalized value", range=">= 0"
    )
    critic_penalty: float = option(
        0.01, "weight of the squared distance to the data's next action, beta_2, in units of the value", range=">= 0"
    )
    chunk: int = option(1, "C: actions that are decided at once", range=">= 1")
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(
        0.005, "rate of the averages of critics and actor, only when the actor is stepped", range="[0, 1]"
    )
    target_noise: float = option(0.2, "standard deviation added to the target actor's action", range=">= 0")
    target_noise_clip: float = option(0.5, "bound of the target actor's noise", range=">= 0")
    actor_every: int = option(2, "critic steps per actor step", range=">= 1")
    critics: int = option(2, "number of critics", range=">= 1")
    aggregate: str = option(
        "min", "aggregate of the critics, in target and actor: min or mean", choices=ensembles.AGGREGATES
    )
    deviations: float = option(0.0, "with mean: standard deviations of the critics that are taken off it", range=">= 0")
    critic_loss: str = option(
        "sum",
        "reduction of the loss over the critics: sum (CORL) or mean (FQL's code)",
        choices=("sum", "mean"),
    )
    order: str = option(
        "sequential",
        "order of the updates: sequential: the actor sees the new critics (CORL); together: the old ones (FQL's code)",
        choices=("sequential", "together"),
    )
    learning_rate: float = option(1e-3, "learning rate", range=">= 0")
    hidden: tuple[int, ...] = option((256, 256, 256), "widths of the hidden layers")
    activation: str = option("relu", "activation of the hidden layers")
    layer_norm_actor: bool = option(
        False,
        "layer norm in the actor after each activation, as the critics' (CORL's and the authors' option actor_ln)",
    )
    initialization: str = option(
        "edac", "initial weights: edac: biases 0.1 and a last layer near 0 (CORL); xavier (FQL's code)"
    )
    last_layer: float = option(
        1e-3,
        "size of the actor's last layer: bound of its weights (edac), or what they are multiplied by (xavier)",
        range=">= 0",
    )
    normalization: str = option("none", "normalization of observations", choices=NORMALIZATIONS)
    rewards: str = option("none", "scaling of rewards", choices=REWARDS)

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        ensembles.check_aggregate("rebrac", self.aggregate, self.deviations)


class ReBRAC(ChunkedAgent):
    r"""ReBRAC of Tarasov et al., "Revisiting the Minimalist Approach to Offline Reinforcement Learning" (NeurIPS 2023).

    .. math::
        L_Q &= E \textstyle\sum_i (y - Q_i(s, a))^2, \quad
            y = r + \gamma (1 - d)\, [\min_j \hat Q_j(s', \tilde a) - \beta_2 \|\tilde a - a'\|^2] \\
        L_\pi &= E\, [\beta_1 \|\pi(s) - a\|^2 - \lambda \min_i Q_i(s, \pi(s))], \quad
            \lambda = 1 / E |\min_i Q_i(s, \pi(s))|

    with :math:`\tilde a = \hat\pi(s') + \epsilon` clipped, a' the data's next action, distances summed over dimensions.

    Two public codes differ. The preset `corl` (default) is CORL's, which equals the authors' own: critics first, then
    the actor against the new ones, the target critics follow the new critics and the target actor the actor as it was
    before its step. The preset `fql` is that of FQL's authors: one optimiser over both losses, so that the actor sees
    the old critics and both targets lag, the mean over critics, other networks. Where ours differs from either:
    the actor rests between its steps, while in the latter Adam keeps moving it by its momentum, in the long run
    sqrt(2) times as far for each gradient; the actor's steps
    are the even ones, in CORL the odd ones; the next action is that of the same episode, and where a time limit hides
    it nothing is taken off, while FQL's code takes the next episode's first action. CORL trains with batches of 1024.

    With chunks (Li and Levine, "Q-learning with Adjoint Matching", compare with it so) an action is C actions, and
    distances are summed over those that are in the data.
    """

    name = "rebrac"
    Config = ReBRACConfig
    PRESETS: ClassVar[dict[str, dict[str, object]]] = {
        "corl": {},
        "fql": {
            "order": "together",
            "critic_loss": "mean",
            "learning_rate": 3e-4,
            "hidden": (512, 512, 512, 512),
            "activation": "gelu_tanh",
            "initialization": "xavier",
            "last_layer": 0.1,
        },
    }
    required_columns = ("observations", "actions", "rewards", "terminations", "next_observations")
    config: ReBRACConfig
    actor: Actor

    def build(self) -> None:
        """Critics with layer norms after the activation, the actor, and targets of both."""
        c, size, width = self.config, self.decision_dim, self.features
        self.critic = Critic(width, size, c.hidden, c.critics, c.initialization, "after", activation=c.activation)
        norm: LayerNorm = "after" if c.layer_norm_actor else False
        head = DeterministicActor(width, size, c.hidden, c.initialization, c.activation, norm)
        with torch.no_grad():
            if c.initialization == "xavier":
                head.mlp.weights[-1].mul_(c.last_layer)
            else:
                for last in (head.mlp.weights[-1], head.mlp.biases[-1]):
                    last.uniform_(-c.last_layer, c.last_layer)
        self.actor = in_chunks(head, c.chunk, self.spec.action_dim)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Windows of two chunks: the one that is valued and the data's next one."""
        length = self.config.chunk
        return {MAIN: decisions_of(stores, 2 * length, length, self.frames)}

    def annotate(self, batch: Batch) -> Batch:
        """The chunk and its target's parts; the data's next chunk, and 0 where it is not in the episode."""
        length = self.config.chunk
        actions, mask = batch["actions"][..., length:, :], batch["mask"][..., length:]
        following = {
            "next_actions": actions.flatten(-2),
            "next_mask": mask.unsqueeze(-1).expand_as(actions).flatten(-2),
        }
        return {**decisions(batch, self.config.discount, length), **following}

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD error of the critics against the target policy's value less its distance from the data."""
        c, following = self.config, batch["next_observations"]
        action = self.target_actor(following)
        action = smoothed_actions(action, noise["target_noise"], c.target_noise, c.target_noise_clip)
        penalty = (batch["next_mask"] * (action - batch["next_actions"]).square()).sum(-1)
        next_q = ensembles.aggregate(self.target_critic(pairs(following, action)), c.aggregate, c.deviations)
        target = batch["rewards"] + batch["reach"] * (next_q - c.critic_penalty * penalty)
        q = self.critic(batch["observation_actions"])
        return ensembles.critic_loss(q, target, c.critic_loss, batch["valid"]), {"q": q, "next_distance": penalty}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """The distance to the data's actions, weighted, less the normalised value of the policy's."""
        c, seen = self.config, batch["observations"]
        action = self.actor(seen)
        q = ensembles.aggregate(self.critic(pairs(seen, action)), c.aggregate, c.deviations)
        penalty = (batch["mask"] * (action - batch["actions"]).square()).sum(-1)
        scale = 1 / q.detach().abs().mean()
        return (c.actor_penalty * penalty - scale * q).mean(), {"distance": penalty}

    def updates(self) -> list[Update | Rule]:
        """Critics at every step; actor and targets at every second, in the order of either code."""
        c, adam = self.config, Adam(self.config.learning_rate)
        smoothing = {"target_noise": Noise("normal", self.decision_dim)}
        critic, actor = {"target_critic": ("critic", c.target_rate)}, {"target_actor": ("actor", c.target_rate)}
        together = c.order == "together"
        return [
            Update(self.critic_loss, ("critic",), adam, noise=smoothing),
            Update(
                self.actor_loss,
                ("actor",),
                adam,
                every=c.actor_every,
                simultaneous=together,
                pre_step_targets={**critic, **actor} if together else actor,
                target_updates={} if together else critic,
            ),
        ]
