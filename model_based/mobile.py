"""MOBILE: targets are lowered by how much the members of the model disagree on the value of what follows."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Batch, algorithm_of, require
from surefoot.core.nn import ensembles
from surefoot.model_based.imagined_sac import ImaginedSAC, ImaginedSACConfig
from surefoot.world_models.ensemble.uncertainty import bellman_inconsistency


@dataclasses.dataclass(frozen=True)
class MOBILEConfig(ImaginedSACConfig):
    """Settings of MOBILE."""

    penalty: float = option(
        1.0, "weight of the penalty, beta; the paper's are 0.1 to 2, by task, and 5 on hopper-random", range=">= 0"
    )
    samples: int = option(10, "next states that each elite draws, M", range=">= 1")
    clamp_targets: bool = option(
        False, "clamp targets at 0 and above, as the official code does: only for tasks whose rewards are >= 0"
    )

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        require(self.model_elites >= 2, name, "model_elites", self.model_elites, ">= 2, which can disagree")


class MOBILE(ImaginedSAC):
    r"""MOBILE of Sun et al., "Model-Bellman Inconsistency for Model-based Offline RL" (ICML 2023).

    .. math::
        y &= r - \beta\, U(s, a) + \gamma (1 - d)\, (\min_i \hat Q_i(s', a') - \alpha \log\pi(a'|s')) \\
        U(s, a) &= \mathrm{std}_e \tfrac1M \textstyle\sum_m \min_i \hat Q_i(s'_{e m}, a'_{e m}), \quad
            s'_{e m} \sim p_e(s, a), \quad a'_{e m} \sim \pi(s'_{e m})

    over the elites e, with one less than their number in the variance. Only imagined rows are penalised. The official
    code also clamps targets at 0 and above, which the paper does not say and which is wrong where rewards are negative:
    `clamp_targets`, off by default.
    """

    name = "mobile"
    Config: ClassVar[type] = MOBILEConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "official": {"rollouts": 50_000, "clamp_targets": True, "actor_schedule": "cosine"},
        "halfcheetah-medium": {"rollouts": 50_000, "penalty": 0.5, "clamp_targets": True, "actor_schedule": "cosine"},
    }
    config: MOBILEConfig

    def inconsistency(self, states: Tensor, actions: Tensor, noise: dict[str, Tensor]) -> Tensor:
        """(B,) U, without gradient.

        Args:
            states: (B, S).
            actions: (B, A).
            noise: `member_state` (B, K M D) and `member_action` (B, K M A), standard normal.
        """
        size = self.spec.observation_dim
        predicted = self.model.predict_elites(states, actions)  # (K, B, D)
        to_states = self._by_member(noise["member_state"])[: len(states), ..., :size]
        to_actions = self._by_member(noise["member_action"])[: len(states)]
        mean, std = (part[..., :size].transpose(0, 1).unsqueeze(2) for part in (predicted.mean, predicted.std))
        following = (states[:, None, None] + mean + std * to_states).flatten(0, 2)  # (B K M, S)
        chosen = self.actor.act(following, to_actions.flatten(0, 2))
        value = ensembles.minimum(self.target_critic(torch.cat([following, chosen], -1)))
        members = value.unflatten(0, to_actions.shape[:3]).permute(1, 2, 0)  # (K, M, B)
        return bellman_inconsistency(members).detach()

    def _by_member(self, noise: Tensor) -> Tensor:
        """(B, K, M, ...)."""
        c = self.config
        return noise.unflatten(-1, (c.model_elites, c.samples, -1))

    def targets(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """(B,) its base's, lowered on imagined rows."""
        found = ImaginedSAC.targets(self, batch, noise)
        real = self.of_data(batch)
        if self.config.penalty > 0 and real < len(found):
            imagined = {name: batch[name][real:] for name in ("observations", "actions")}
            penalty = self.inconsistency(imagined["observations"], imagined["actions"], noise)
            found = found - self.config.penalty * torch.cat([torch.zeros_like(found[:real]), penalty])
        return found.clamp(min=0) if self.config.clamp_targets else found

    def critic_noise(self) -> dict[str, Noise]:
        """Its base's, and what members draw."""
        c, spec = self.config, self.spec
        found = ImaginedSAC.critic_noise(self)
        if c.penalty == 0:
            return found
        each = c.model_elites * c.samples
        return {
            **found,
            "member_state": Noise("normal", each * (spec.observation_dim + 1)),
            "member_action": Noise("normal", each * spec.action_dim),
        }
