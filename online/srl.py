"""SRL: SAC whose actor emits sequences of actions from one observation, and learns them through a model."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.sequence_actor import SequenceActor
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update, require
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.engine.traits import Acting, Requires
from surefoot.core.losses.value_learning import td_target
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import MLP, Critic
from surefoot.core.nn.temperature import Temperature
from surefoot.online.base.agents import OffPolicyAgent
from surefoot.online.loops.replay import ReplayWithPrevious
from surefoot.online.sac import SAC, SoftConfig


@dataclasses.dataclass(frozen=True)
class SRLConfig(SoftConfig):
    """Settings of SRL: SAC's, the length of its sequences, and the model that it learns them through."""

    initial_steps: int = 10_000
    critic_loss_over: str = "sum"
    sequence: int = option(8, "actions of a sequence that the actor learns, J", range="[1, 1000]")
    play: int | None = option(
        None, "actions that are played before an observation is read again; null: all J", range="[1, 1000]"
    )
    width: int = option(256, "width of the actor's recurrent unit and of what it begins with", range=">= 1")
    model_hidden: tuple[int, ...] = option((400, 300), "widths of the model's hidden layers")
    model_learning_rate: float = option(3e-4, "learning rate of the model", range=">= 0")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        only = "0: rows of data don't have the actions before"
        require(self.offline_fraction == 0, "srl", "offline_fraction", self.offline_fraction, only)

    @property
    def length(self) -> int:
        """Actions that are played for each observation that is read."""
        return self.sequence if self.play is None else self.play


class SRL(SAC):
    r"""SRL of Patel and Siegelmann, "Overcoming Slow Decision Frequencies in Continuous Control" (ICLR 2025).

    With :math:`\pi(\cdot|s, a_{-1})` the first action of a sequence after an action :math:`a_{-1}`, and a model m whose
    slow copy is :math:`\hat m`:

    .. math::
        y &= r + \gamma (1 - d)\, (\min_i \hat Q_i(s', a') - \alpha \log\pi(a'|s', a)), \quad a' \sim \pi(s', a) \\
        L_Q &= \textstyle\sum_i E\, (Q_i(s, a) - y)^2, \quad L_m = E\, (m(s, a) - s')^2 \\
        L_\pi &= \textstyle\sum_{p < J} E\, [\alpha \log\pi(a_p|\ldots) - \min_i Q_i(\hat s_p, a_p)], \quad
        \hat s_0 = s, \; \hat s_{p+1} = \overline{\hat m}(\hat s_p, a_p) \\
        L_\alpha &= -\log\alpha\; E\, [\tfrac1J \textstyle\sum_p \log\pi(a_p|\ldots) + \bar H]

    The gradient reaches the actor through its unit and the critics, not through the model, which is of no use once the
    policy acts. Critics learn from real steps alone; that an episode may end inside a sequence is not in the actor's
    loss, which is a sum, so that the actor's steps grow with J. All this is the official code's. In training it acts
    as the policy does, by sequences of `play` actions.
    """

    name = "srl"
    Config: ClassVar[type] = SRLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}}
    acting = Acting(stateful=True)
    requires = Requires(one_vector=True)
    annotate = OffPolicyAgent.annotate
    config: SRLConfig  # type: ignore[assignment]
    actor: SequenceActor  # type: ignore[assignment]

    def build(self) -> None:
        """Actor, twin critics with their targets, the model with its slow copy, temperature."""
        c, sizes = self.config, (self.features, self.decision_dim)
        self.actor = SequenceActor(*sizes, c.length, c.width, c.log_std_range)
        self.actor.branches = False  # several seeds act in one call
        self.critic = Critic(*sizes, c.hidden, 2)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.model = MLP(sum(sizes), self.features, c.model_hidden)
        self.target_model = copy.deepcopy(self.model).requires_grad_(False)
        self.temperature = Temperature(c.temperature, c.temperature_form)

    @property
    def explore_dim(self) -> int:
        """Of the actions of a sequence that is played."""
        return self.actor.noise_dim

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """The replay buffer, with the action before each row."""
        return {MAIN: ReplayWithPrevious(stores.replay)}

    def targets(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """(B,) reward and soft value of the first action of a sequence from the next observation."""
        following = batch["next_observations"]
        actions, log_density = self.actor.draw(following, batch["actions"], noise["next_action"].unsqueeze(-2))
        next_q = ensembles.minimum(self.target_critic(torch.cat([following, actions[..., 0, :]], -1)))
        next_value = next_q - self.temperature() * log_density[..., 0]
        return td_target(batch["rewards"], batch["terminations"], next_value, self.config.discount)

    def model_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Mean squared error of the next observation, which is predicted itself."""
        return (self.model(batch["observation_actions"]) - batch["next_observations"]).square().mean(), {}

    def drawn(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(B, J, A) sequences of the present policy at a batch's rows, and (B, J) their log-densities."""
        steps = noise["actions"].unflatten(-1, (self.config.sequence, self.decision_dim))
        return self.actor.draw(batch["observations"], batch["previous_actions"], steps)

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Entropy, weighted, and value of the sequence's actions at the states that the model says they lead to."""
        actions, log_density = self.drawn(batch, noise)
        state, loss = batch["observations"], torch.zeros_like(log_density[..., 0])
        for action, density in zip(actions.unbind(-2), log_density.unbind(-1), strict=True):
            value = ensembles.minimum(self.critic(torch.cat([state, action], -1)))
            loss = loss + self.temperature() * density - value
            state = self.target_model(torch.cat([state, action.detach()], -1)).detach()
        return loss.mean(), {"entropy": -log_density}

    def temperature_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Lowers the temperature where the policy's mean entropy over a sequence is above its target."""
        _, log_density = self.drawn(batch, noise)
        return self.temperature.loss(log_density.mean(-1), self.target_entropy), {"temperature": self.temperature()}

    def updates(self) -> list[Update | Rule]:
        """Critics and model, each with its average; then actor and temperature at the same parameters."""
        c, size = self.config, self.decision_dim
        critic, model, actor, temperature = (
            Adam(rate)
            for rate in (
                c.critic_learning_rate,
                c.model_learning_rate,
                c.actor_learning_rate,
                c.temperature_learning_rate,
            )
        )
        sequences = {"actions": Noise("normal", c.sequence * size)}
        slow = {name: {f"target_{name}": (name, c.target_rate)} for name in ("critic", "model")}
        first = {"next_action": Noise("normal", size)}
        found: list[Update | Rule] = [
            Update(self.critic_loss, ("critic",), critic, target_updates=slow["critic"], noise=first),
            Update(self.model_loss, ("model",), model, target_updates=slow["model"]),
            Update(self.actor_loss, ("actor",), actor, noise=sequences),
        ]
        if c.learn_temperature:
            found.append(
                Update(self.temperature_loss, ("temperature",), temperature, noise=sequences, simultaneous=True)
            )
        return found
