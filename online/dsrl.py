"""DSRL: SAC chooses the noise from which a frozen flow draws its chunk of actions."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.chunks import in_chunks
from surefoot.core.actors.flow_actor import FlowActor
from surefoot.core.actors.steered import SteeredActor
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Agent, algorithm_of, require
from surefoot.core.engine.traits import Acting, Requires, WarmStart
from surefoot.core.policy.policy import Policy
from surefoot.online.base.frozen import check_frozen
from surefoot.online.base.pretrained import STEPS, FlowOptions, inherit_options, take_clone, velocity_network
from surefoot.online.sac import SAC, SoftConfig


@dataclasses.dataclass(frozen=True)
class DSRLConfig(FlowOptions, SoftConfig):
    """Settings of DSRL; a row of its buffer is a decision, and steps of experience are counted in those."""

    reach: float = option(1.5, "the noise that is chosen lies within so many deviations, b", range="> 0")
    initial_steps: int = option(1_500, "decisions before the first update: the clone's own, of noise within the reach")
    updates_per_step: float = option(20.0, "training steps per decision")
    discount: float = option(0.99, "discount factor of a decision")
    target_entropy: float | None = 0.0
    clip_each: bool | None = option(
        None, "clip what the flow draws after each of its steps; null: as the clone, else not"
    )
    hidden: tuple[int, ...] = (128, 128, 128)
    encoder_trains: bool = False  # always: noise is chosen by the features that the clone reads

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        who = algorithm_of(self)
        fraction = self.offline_fraction
        require(fraction == 0, who, "offline_fraction", fraction, "0: the actions of data are no noise")
        check_frozen(self)
        require(self.chunk is None or self.chunk >= 1, who, "chunk", self.chunk, "None or >= 1")


class DSRL(SAC):
    r"""DSRL of Wagenmaker et al., "Steering Your Diffusion Policy with Latent Space Reinforcement Learning" (2025).

    A cloned flow F stays as it is (`init=` a run of `flow_bc`). SAC's action is the noise that F begins from,

    .. math:: w = b \tanh u, \quad u \sim \pi(s), \quad c = F(s, w)

    and its reward the sum over the chunk c, of which the environment plays what it can: where an episode ends inside
    it, the rest is dropped, and a time limit bootstraps from the episode's own last observation. The official wrapper
    plays on into the next episode, and tells a limit as an end. Networks are plain ReLU MLPs, where the authors' are of
    tanh with layer norms. This is the variant whose critics value noise; `dsrl_na` is
    the authors' other one, whose critics value actions.
    """

    name = "dsrl"
    Config: ClassVar[type[DSRLConfig]] = DSRLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "official": {},
        "wide": {"reach": 2.5},  # walker
    }
    requires = Requires(data="refused")
    warm_start = WarmStart(networks=("actor", "normalizer", "base"))
    acting = Acting(acts_in_chunks=True)
    config: DSRLConfig

    def build(self) -> None:
        """SAC's networks for noise, and the flow."""
        super().build()
        c, size = self.config, self.decision_dim
        network = velocity_network(c, self.features, size)
        self.base = FlowActor(network, size, c.flow_steps or STEPS, clip_each=bool(c.clip_each))
        self.base.requires_grad_(False)

    inherit_options = classmethod(inherit_options)

    def load_from(self, source: Agent) -> list[str] | None:
        """The clone's velocity, which stays; of a run of this algorithm all."""
        if type(source) is type(self):
            return None
        take_clone(self, source, self.base.network, self.base.steps)
        return ["base"]

    def steered(self) -> SteeredActor:
        """Choice and flow as one head."""
        return SteeredActor(self.actor, self.base, self.config.reach)

    def first_actions(self, uniform: Tensor) -> Tensor:
        """(..., C A) choices that give the clone normal noise, cut at the reach."""
        reach = self.config.reach
        return torch.special.ndtri((uniform + 1) / 2).clamp(-reach, reach) / reach

    def played(self, observations: Tensor, actions: Tensor) -> Tensor:
        """(B, C A) chunks that the flow draws from (B, C A) choices in [-1, 1]."""
        return self.steered().decoded(observations, actions)

    def policy(self) -> Policy:
        """A copy of both, which plays its chunks from memory."""
        head = in_chunks(copy.deepcopy(self.steered()), self.chunk, self.spec.action_dim)
        return Policy.of(head, self.normalizer, self.action_low, self.action_high, self.encoder)
