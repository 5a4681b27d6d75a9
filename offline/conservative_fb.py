"""VC-FB and MC-FB: forward-backward representations that are held down where the data has no action."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update, algorithm_of, require
from surefoot.core.losses.successor_measures import measure_penalty, value_penalty
from surefoot.core.nn.networks import pairs
from surefoot.core.nn.temperature import Temperature
from surefoot.offline.fb import FB, FBConfig

HIGHEST = 1e6
"""Largest weight of the penalty."""


@dataclasses.dataclass(frozen=True)
class ConservativeFBConfig(FBConfig):
    """Settings of VC-FB and MC-FB; the defaults are the authors'."""

    actor_learning_rate: float = 3e-5
    penalty_weight: float = option(1.0, "alpha; where it is learned, its start", range=">= 0")
    learn_penalty_weight: bool = option(True, "raise it while the penalty is above penalty_target, lower it below")
    penalty_target: float = option(50.0, "of both critics together")
    uniform_actions: int = option(6, "considered actions, uniform", range=">= 1")
    policy_actions: int = option(2, "of the policy at the state, and as many at the next state", range=">= 1")
    data_actions: int = option(2, "how often the data's own is among them", range=">= 0")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        fits = not self.learn_penalty_weight or self.penalty_weight > 0
        require(fits, name, "penalty_weight", self.penalty_weight, "> 0 to be learned")


class VCFB(FB):
    r"""Value-conservative FB of Jeen, Bewley and Cullen, "Zero-Shot Reinforcement Learning from Low Quality Data"
    (NeurIPS 2024).

    FB's loss plus :math:`\alpha C`, where of twelve considered actions six are uniform, two the policy's, two the
    policy's at the next state and valued there, and two copies of the data's:

    .. math:: C = \textstyle\sum_i E_j [\log \sum_k e^{F_i(s_j, a_k, z_j) \cdot z_j} - F_i(s_j, a_j, z_j) \cdot z_j]

    alpha is a multiplier, which rises while C is above its target: it descends :math:`-\frac12 \alpha (\bar C - 50)`.
    """

    name = "vc_fb"
    Config: ClassVar[type] = ConservativeFBConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "official": {},
        "maze": {"latent": 100, "discount": 0.99},
        "fixed": {"learn_penalty_weight": False, "penalty_weight": 0.01},
    }
    config: ConservativeFBConfig
    penalty_seen: Tensor
    """() C of the step's batch, where its weight is learned."""

    def build(self) -> None:
        """FB's networks and, where it is learned, the penalty's weight."""
        super().build()
        if self.config.learn_penalty_weight:
            self.penalty_weight = Temperature(self.config.penalty_weight, "exp")
            self.register_buffer("penalty_seen", torch.zeros(()))

    def penalty(self, sampled: Tensor, own: Tensor, tasks: Tensor, embedded: Tensor) -> Tensor:
        """() C, of F at considered actions (2, K, B, D) and the data's (2, B, D), tasks and B (B, D)."""
        return value_penalty(sampled, own, tasks, self.config.data_actions)

    def _considered(self, batch: Batch, tasks: Tensor, noise: dict[str, Tensor]) -> Tensor:
        """(2, K, B, D) F of uniform actions and of the policy's at both states, each at its state."""
        c, size = self.config, self.spec.action_dim
        now, following = batch["observations"], batch["next_observations"]

        def drawn(states: Tensor, numbers: Tensor) -> Tensor:
            several = numbers.unflatten(-1, (c.policy_actions, size)).movedim(-2, 0)
            return self.noisy_action(states, tasks, several)

        with torch.no_grad():
            uniform = 2 * noise["uniform_action"].unflatten(-1, (-1, size)).movedim(-2, 0) - 1
            here = torch.cat([uniform, drawn(now, noise["policy_action"])])
            there = drawn(following, noise["next_policy_action"])
        chosen = torch.cat([pairs(now, here), pairs(following, there)])
        states = chosen[..., : now.shape[-1]]
        with_tasks = torch.cat([states, tasks.expand(*states.shape[:-1], -1)], -1)
        found = self.forward_map(chosen.flatten(0, 1), with_tasks.flatten(0, 1))
        return found.unflatten(1, chosen.shape[:2])

    def representation_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """FB's loss and the weighted penalty."""
        c = self.config
        loss, metrics, (tasks, forward, embedded) = self._representation_loss(batch, noise)
        penalty = self.penalty(self._considered(batch, tasks, noise), forward, tasks, embedded)
        metrics = {**metrics, "penalty": penalty}
        if not c.learn_penalty_weight:
            return loss + c.penalty_weight * penalty, metrics
        return loss + self._weight() * penalty, metrics

    def _weight(self) -> Tensor:
        return self.penalty_weight().clamp(0, HIGHEST)

    def penalty_weight_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """The multiplier, which rises while the penalty of the batch is above its target."""
        weight = self._weight()
        return -0.5 * weight * (self.penalty_seen - self.config.penalty_target), {"penalty_weight": weight}

    def updates(self) -> list[Update]:
        """FB's with the penalty and, behind the first, that of its weight."""
        c, size = self.config, self.spec.action_dim
        first, *others = super().updates()
        noise = {
            "uniform_action": Noise("uniform", c.uniform_actions * size),
            "policy_action": Noise("normal", c.policy_actions * size),
            "next_policy_action": Noise("normal", c.policy_actions * size),
        }
        more = dataclasses.replace(first, loss=self.representation_loss, noise={**first.noise, **noise})
        if not c.learn_penalty_weight:
            return [more, *others]
        seen = dataclasses.replace(more, follows={**more.follows, "penalty_seen": ("penalty", 1.0)})
        return [seen, Update(self.penalty_weight_loss, ("penalty_weight",), Adam(c.learning_rate)), *others]


class MCFB(VCFB):
    r"""Measure-conservative FB of the same paper: the penalty is on all successor measures, not on the task's values.

    .. math:: C = \textstyle\sum_i E_{j, l} [\log \sum_k e^{F_i(s_j, a_k, z_j) \cdot B(s'_l)} - M_i[j, l]]
    """

    name = "mc_fb"

    def penalty(self, sampled: Tensor, own: Tensor, tasks: Tensor, embedded: Tensor) -> Tensor:
        """As of VC-FB, over all next states of the batch."""
        return measure_penalty(sampled, own, embedded, self.config.data_actions)
