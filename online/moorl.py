"""MOORL: SAC meta-learned by Reptile over two tasks, learning from the data and learning from the replay buffer."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping

from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Rule, Update, require
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.engine.traits import Requires
from surefoot.core.policy.policy import Policy
from surefoot.online.loops.replay import Alternation, Replay, alternating_choices, drawn_choices
from surefoot.online.sac import SAC, SoftConfig

SELECTORS = ("random", "alternate")


@dataclasses.dataclass(frozen=True)
class MOORLConfig(SoftConfig):
    """Settings of MOORL; the paper's K, meta rate and probability are not known to us, and these are guesses."""

    initial_steps: int = option(1_000, "environment steps before the first update")
    updates_per_step: float = option(5.0, "training steps per environment step: inner_steps, to act once an iteration")
    inner_steps: int = option(
        5, "K: training steps on one source, between two steps of the meta-parameters", range=">= 1"
    )
    meta_rate: float = option(
        0.5, "share of the way to the inner parameters that the meta-parameters go", range="(0, 1]"
    )
    selector: str = option("random", "which source an iteration learns from: random or alternate", choices=SELECTORS)
    data_probability: float = option(0.5, "probability that a random source is the data", range="[0, 1]")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        whole = self.offline_fraction == 0
        require(whole, "moorl", "offline_fraction", self.offline_fraction, "0: a batch is of one source alone")


class MOORL(SAC):
    r"""MOORL, "A Framework for Integrating Offline-Online Reinforcement Learning" (TMLR 2025), after its description.

    An iteration takes one of two tasks, the data or the replay buffer; from the meta-parameters it takes K steps of
    SAC on that task's batches; then actor and critics move towards what came of it, and continue from there:

    .. math::
        \theta \leftarrow \theta + \epsilon\, (\theta_K - \theta)

    That is Reptile (Nichol, Achiam, Schulman, "On First-Order Meta-Learning Algorithms"). With K = 1 and a rate of 1 it
    is SAC on batches of one source at a time. The meta-policy acts. Targets and temperature follow the inner steps.
    """

    name = "moorl"
    Config = MOORLConfig
    PRESETS = {  # noqa: RUF012
        "k1": {"inner_steps": 1, "updates_per_step": 1.0},
        "k5": {},
        "k10": {"inner_steps": 10, "updates_per_step": 10.0},
    }
    requires = Requires(data="required")
    config: MOORLConfig

    def build(self) -> None:
        """SAC's networks, and the meta-parameters of actor and critics."""
        super().build()
        self.meta_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.meta_critic = copy.deepcopy(self.critic).requires_grad_(False)

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """The data or the replay buffer, one of them for all steps of an iteration.

        Raises:
            ConfigError: there is no data.
        """
        if stores.data is None:
            raise ConfigError("moorl learns from data and from its own steps: give dataset=")
        c = self.config
        choose = alternating_choices if c.selector == "alternate" else drawn_choices(c.data_probability)
        return {MAIN: Alternation(stores.data, Replay(stores.replay), c.inner_steps, choose)}

    def updates(self) -> list[Update | Rule]:
        """SAC's; after K training steps the meta-parameters go part of the way, and the inner ones begin there."""
        c = self.config
        meta = {"meta_actor": ("actor", c.meta_rate), "meta_critic": ("critic", c.meta_rate)}
        begin = {"actor": ("meta_actor", 1.0), "critic": ("meta_critic", 1.0)}
        return [*super().updates(), Rule(every=c.inner_steps, target_updates={**meta, **begin})]

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions of the meta-policy; mean ones without `noise`."""
        return self.meta_actor.act(observations, noise)

    def mean_action(self, observations: Tensor) -> Tensor:
        """(B, A) mean actions of the inner policy, which the losses train and the meta-policy follows."""
        return self.actor.act(observations)

    def policy(self) -> Policy:
        """A copy of the meta-policy that stands on its own."""
        return Policy.of(self.meta_actor, self.normalizer, self.action_low, self.action_high, self.encoder)
