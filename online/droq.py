"""DroQ: REDQ with two critics instead of ten, which dropout and layer norm keep as uncertain as many."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from surefoot.core.base import dropout
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Rule, Update
from surefoot.core.nn.networks import Critic
from surefoot.online.redq import REDQ, REDQConfig


@dataclasses.dataclass(frozen=True)
class DroQConfig(REDQConfig):
    """Settings of DroQ; the defaults are the paper's, where they differ from REDQ's."""

    critics: int = option(2, "number of critics, M, all of which the target's minimum is of")
    dropout: float = option(0.01, "probability that a hidden unit of a critic is dropped", range="[0, 1)")
    layer_norm_critic: bool = True


class DroQ(REDQ):
    r"""DroQ of Hiraoka et al., "Dropout Q-Functions for Doubly Efficient Reinforcement Learning" (ICLR 2022).

    .. math::
        h_l &= \mathrm{relu}(\mathrm{norm}(m_l \odot (W_l h_{l-1} + b_l))), \quad
            m_l \in \{0, 1 / (1 - p)\}, \quad P(m_l = 0) = p \\
        y &= r + \gamma (1 - d)\, (\min_{i \le M} \hat Q_i(s', a') - \alpha \log\pi(a'|s')) \\
        L_Q &= \textstyle\sum_i E\, (Q_i(s, a) - y)^2 \\
        L_\pi &= E\, [\alpha \log\pi(a|s) - \tfrac1M \textstyle\sum_i Q_i(s, a)]

    Dropout comes before the layer norm, and never rests: targets, critic losses and the actor's loss draw masks m anew,
    for each critic, row and unit. All else is REDQ's: G = 20 critic steps per environment step, each on a batch of its
    own; actor and temperature learn from the last one, after the last critic step.

    That is the paper's algorithm 2. Of the authors' two programs one has p = 0.01 in all tasks, as here, and draws one
    more batch for the actor; the other has 0.0001 (Hopper), 0.005 (Walker2d), 0.01 (Ant) or 0.1 (Humanoid), and steps
    the actor at the critics before their last step. The presets have REDQ's target entropies, as both programs have;
    HalfCheetah is not among their tasks. `walk_in_the_park` has the settings of ikostrikov/walk_in_the_park, the code
    of Smith, Kostrikov and Levine, "A Walk in the Park" (2022), which teaches a quadruped to walk.
    """

    name = "droq"
    Config: ClassVar[type] = DroQConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        **REDQ.PRESETS,
        "walk_in_the_park": {
            "initial_steps": 1_000,
            "critic_loss_over": "mean",
            "temperature": 0.1,
            "temperature_form": "exp",
            "target_entropy_per_dimension": -0.5,
            "layer_norm_epsilon": 1e-6,
        },
    }
    config: DroQConfig

    def build(self) -> None:
        """REDQ's networks; dropout of the critics stands before their layer norms."""
        super().build()
        for critic in (self.critic, self.target_critic):
            critic.mlp.dropout = "sums"

    @property
    def units(self) -> int:
        """Hidden units of all critics together."""
        return self.config.critics * sum(self.critic.mlp.hidden)

    def asked(self, critic: Critic, noise: dict[str, Tensor], at: str) -> Callable[..., Tensor]:
        """The critics under dropout masks of their own, (M, B, hidden units)."""
        c = self.config
        if c.dropout == 0:
            return critic
        masks = dropout.masks(noise[f"{at}_dropped"], self.units, 1 - c.dropout)
        return functools.partial(critic, masks=masks.unflatten(-1, (c.critics, -1)).movedim(-2, 0))

    def updates(self) -> list[Update | Rule]:
        """REDQ's, with the places of dropped units among the noise."""
        critic, actor, *others = super().updates()
        if self.config.dropout == 0:
            return [critic, actor, *others]
        dropped = Noise("dropped", self.units, 1 - self.config.dropout)
        of_critic = {**critic.noise, "next_action_dropped": dropped, "stored_dropped": dropped}
        of_actor = {**actor.noise, "action_dropped": dropped}
        return [dataclasses.replace(critic, noise=of_critic), dataclasses.replace(actor, noise=of_actor), *others]
