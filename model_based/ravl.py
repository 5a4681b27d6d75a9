"""RAVL: many diverse critics, whose minimum is low where no row is ever trained; no penalty for the model."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Batch, Metrics, Rule, Update, algorithm_of, require
from surefoot.core.nn import ensembles
from surefoot.model_based.imagined_sac import ImaginedSAC, ImaginedSACConfig


@dataclasses.dataclass(frozen=True)
class RAVLConfig(ImaginedSACConfig):
    """Settings of RAVL; the defaults are those that the official code documents for halfcheetah-medium."""

    critics: int = option(10, "number of critics, N")
    diversity: float = option(1.0, "eta, weight of the critics' agreement on where a better action lies", range=">= 0")
    actor_learning_rate: float = 3e-4
    temperature_learning_rate: float = 3e-4
    hidden: tuple[int, ...] = (256, 256, 256)
    initialization: str = "edac"

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        enough = self.critics >= 2 or self.diversity == 0
        require(enough, name, "critics", self.critics, ">= 2 where their diversity counts")


class RAVL(ImaginedSAC):
    r"""RAVL of Sims, Lu, Foerster and Teh, "The Edge-of-Reach Problem in Offline Model-Based RL" (NeurIPS 2024).

    .. math::
        y &= r + \gamma (1 - d)\, (\min_{i \le N} \hat Q_i(s', a') - \alpha \log\pi(a'|s')) \\
        L_Q &= \textstyle\sum_i E\, (Q_i(s, a) - y)^2
            + \eta\, \tfrac{1}{N - 1} E \sum_{i \ne j} \langle n_i, n_j \rangle, \quad
            n_i = \nabla_a Q_i(s, a) / (|\nabla_a Q_i(s, a)| + 10^{-10})

    The first preprint's equation has the sign of the second term wrong; this is the official code's. Where critics were
    never trained they are independent, and the minimum of N lies 1.5 (N = 10) to 2.2 (N = 50) of their standard
    deviations below the mean, so that values at the edge of reach don't attract the policy. As in the official code,
    each step takes the temperature first, then the actor, then the critics.
    """

    name = "ravl"
    Config: ClassVar[type] = RAVLConfig
    config: RAVLConfig

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared distance of all critics to the targets, and how much they agree."""
        target, eta = self.targets(batch, noise), self.config.diversity
        if eta == 0:
            return super().critic_loss(batch, noise)
        q, gradients = self.critic.with_action_gradient(batch["observation_actions"], self.spec.action_dim)
        agreement = ensembles.diversity(gradients)
        loss = ensembles.critic_loss(q, target, "sum") + eta * agreement
        return loss, {**self.value_metrics(q), "agreement": agreement}

    def updates(self) -> list[Update | Rule]:
        """As its base; temperature, actor, critics."""
        *before, critic, actor, temperature = super().updates()
        assert isinstance(actor, Update) and isinstance(temperature, Update)  # noqa: PT018
        return [*before, dataclasses.replace(temperature, simultaneous=False), actor, critic]
