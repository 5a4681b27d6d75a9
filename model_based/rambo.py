"""RAMBO: the model is an adversary, which keeps being fitted and is pulled to where the policy is worth less."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update
from surefoot.core.engine.sources import MAIN
from surefoot.core.nn import ensembles
from surefoot.model_based.imagined_sac import ImaginedSAC, ImaginedSACConfig
from surefoot.world_models.dynamics import StepNoise
from surefoot.world_models.ensemble.learning import MODEL, WEIGHTS


@dataclasses.dataclass(frozen=True)
class RAMBOConfig(ImaginedSACConfig):
    """Settings of RAMBO."""

    real_ratio: float = 0.5
    adversary_weight: float = option(
        3e-4, "weight of the adversary's loss, w; 0: the model only keeps being fitted", range=">= 0"
    )
    adversary_learning_rate: float = option(3e-4, "learning rate of the adversary", range=">= 0")
    adversary_every: int = option(
        1, "training steps for one of the adversary; the official code takes 1,000 in a row every 1,000", range=">= 1"
    )


class RAMBO(ImaginedSAC):
    r"""RAMBO of Rigter, Lacerda and Hawes, "RAMBO-RL" (NeurIPS 2022).

    .. math::
        L = L_{NLL} + w\, E\, [\log p(s', r | s, a)\, \tilde A], \quad
        A = r + \gamma (1 - d) V(s') - Q(s, a), \quad s', r \sim p, \quad a \sim \pi(s)

    p is the mixture of the elites, V(s') the least target critic at an action of the policy, and \tilde A is A less its
    mean over its deviation. As the paper's policy-gradient form has it, outcomes that are better than expected are made
    less likely. The states are those of SAC's batch. The paper clones the data first, and steps the adversary 1,000
    times in a row; here it is stepped beside the critics, and there is no clone.
    """

    name = "rambo"
    Config: ClassVar[type] = RAMBOConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    config: RAMBOConfig

    def adversary_loss(self, parts: dict[str, Batch], noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """The model's own loss, and the likelihood of outcomes that are better than expected."""
        model, states = self.model, parts[MAIN]["observations"]
        fitted, metrics = model.loss(parts[MODEL], parts[MODEL].get(WEIGHTS))
        rows, size = len(states), self.spec.action_dim
        to_act, to_follow, to_step = noise["adversary"][:rows].split([size, size, model.noise_dim], -1)
        with torch.no_grad():
            actions = self.actor.act(states, to_act)
            member = model.draw_elites(noise["adversary_member"][:rows, 0])
            outcome = model.step(states, actions, StepNoise(member, to_step))
            better = self.advantages(states, actions, outcome.states, outcome.rewards, outcome.ended, to_follow)
        found = torch.cat([outcome.states - states, outcome.rewards.unsqueeze(-1)], -1)
        predicted = model.predict_elites(states, actions)
        errors = (predicted.mean - found).square() * (-predicted.log_variance).exp() + predicted.log_variance
        members = -0.5 * (errors + math.log(2 * math.pi)).sum(-1)
        likelihood = members.logsumexp(0) - math.log(len(members))
        pull = (likelihood * better).mean()
        return fitted + self.config.adversary_weight * pull, {**metrics, "adversary": pull}

    def advantages(
        self, states: Tensor, actions: Tensor, following: Tensor, rewards: Tensor, ended: Tensor, noise: Tensor
    ) -> Tensor:
        """(B,) how much better outcomes are than was expected, less their mean and over their deviation."""
        value = ensembles.minimum(self.target_critic(torch.cat([following, self.actor.act(following, noise)], -1)))
        expected = ensembles.minimum(self.target_critic(torch.cat([states, actions], -1)))
        found = rewards + self.config.discount * (1 - ended.to(rewards.dtype)) * value - expected
        return (found - found.mean()) / (found.std() + 1e-6)

    def updates(self) -> list[Update | Rule]:
        """Its base's; and beside the critics the adversary."""
        c, found = self.config, super().updates()
        first = next(entry.after for entry in found if isinstance(entry, Update) and entry.trains == ("critic",))
        width = 2 * self.spec.action_dim + self.model.noise_dim
        adversary = Update(
            self.adversary_loss, ("model",), Adam(c.adversary_learning_rate), (MODEL, MAIN), c.adversary_every,
            after=first,
            noise={"adversary": Noise("normal", width), "adversary_member": Noise("uniform", 1)},
        )  # fmt: skip
        return [*found, adversary]
