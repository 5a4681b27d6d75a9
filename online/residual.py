"""Residual policies: SAC learns a small change to what a frozen policy does."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.chunks import in_chunks
from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.actors.residual_actor import ResidualActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Agent, Batch, Metrics, Rule, Update, algorithm_of, require
from surefoot.core.engine.traits import Acting, Requires, WarmStart
from surefoot.core.nn import ensembles
from surefoot.core.policy.policy import Policy
from surefoot.online.base.agents import bootstrapped
from surefoot.online.base.frozen import check_frozen, described, head_of, seen_as, take_base
from surefoot.online.sac import SAC, SoftConfig

LAST_LAYER = 0.01
"""What the last layer of the residual begins as, times the usual: it begins near no change."""


@dataclasses.dataclass(frozen=True)
class ResidualConfig(SoftConfig):
    """Settings of a residual policy; a row of its buffer is a decision: the steps that the base plays of a plan."""

    scale: float = option(0.1, "alpha: the largest change, in units of half the range of an action", range=">= 0")
    progress: int = option(
        30_000, "H, decisions over which the change comes to be used in all of them; 0: from the first on", range=">= 0"
    )
    chunk: int | None = option(
        None, "actions that are decided on at once; null: as many as the base plays of a plan", range=">= 1"
    )
    base: str | None = option(None, "description of the base's head, as JSON; null: as the run that it starts from")
    initial_steps: int = option(8_000, "decisions before the first update")
    initial_actions: str = option(
        "policy", "actions of the initial steps: policy, the base with as much of the change as `progress` lets through"
    )
    updates_per_step: float = option(0.25, "training steps per decision")
    discount: float = option(0.97, "discount factor of a decision")
    target_rate: float = 0.01
    actor_learning_rate: float = 1e-4
    critic_learning_rate: float = 1e-4
    temperature_learning_rate: float = 1e-4
    hidden: tuple[int, ...] = (256, 256, 256)
    encoder_trains: bool = False  # always: the base reads these features

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        who = algorithm_of(self)
        fraction = self.offline_fraction
        require(fraction == 0, who, "offline_fraction", fraction, "0: this algorithm keeps no data")
        started = self.initial_actions == "policy"
        require(started, who, "initial_actions", self.initial_actions, "policy: random ones are no change of the base")
        check_frozen(self)


class Residual(SAC):
    r"""Policy Decorator of Yuan et al., "Model-Agnostic Online Refinement for Large Policy Model" (2024).

    A policy b stays as it is (`init=` any run whose policy decides by the present observation), and SAC adds a change:

    .. math::
        a = \mathrm{clip}(b(s) + \alpha\, \delta, -1, 1), \quad \delta \sim \pi(s, b(s)), \quad \delta \in [-1, 1]^{CA}

    At decision t it is used with probability min(t / H, 1), else b(s) is played alone. The critic values the action
    that was played, which is the clipped sum: it is what the buffer holds. (The authors' code stores and values the sum
    before the environment clips it.) In targets and in the actor's loss the base is asked again, a base that draws by
    new noise. The change reads the base's action too, as in Ankile et al., "From Imitation to Refinement" (2024).
    Of a base that plans chunks, all actions that it plays of a plan are changed at once. The base's encoder and
    normaliser are the residual's, and are not trained.
    """

    name = "residual"
    Config: ClassVar[type[ResidualConfig]] = ResidualConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "official": {},
        "small": {
            "progress": 2_000,
            "initial_steps": 500,
            "updates_per_step": 1.0,
            "target_rate": 0.005,
            "actor_learning_rate": 3e-4,
            "critic_learning_rate": 3e-4,
            "temperature_learning_rate": 3e-4,
            "temperature": 0.1,
            "hidden": (128, 128),
        },
    }
    requires = Requires(data="refused")
    warm_start = WarmStart(networks=("actor", "normalizer", "base"), counters=("decisions",))
    acting = Acting(acts_in_chunks=True)
    config: ResidualConfig
    decisions: Tensor

    def build(self) -> None:
        """The base as it is described, a residual beside it, critics of the sum."""
        super().build()
        c, size = self.config, self.decision_dim
        self.actor = TanhGaussianActor(self.features + size, size, c.hidden, log_std_range=c.log_std_range)
        with torch.no_grad():
            self.actor.mlp.weights[-1].mul_(LAST_LAYER)
        self.base, self.base_dim = self._described(c.base)
        self.base.requires_grad_(False)
        self.register_buffer("decisions", torch.zeros(()))  # t, which the loop counts

    def _described(self, text: str | None) -> tuple[Actor, int]:
        """The base of a description, its weights drawn anew, and how many numbers it gives."""
        if text is None:
            return TanhGaussianActor(self.features, self.decision_dim, self.config.hidden), self.decision_dim
        return head_of(text, self.features, self.name)

    @classmethod
    def inherit_options(cls, config: Mapping[str, Any], source: Agent) -> dict[str, Any]:
        """The base's head and how it sees, and how many actions it plays of a plan.

        Raises:
            ConfigError: a policy that depends on more than the present observation, or that chooses among numbers; an
                encoder other than the base's.
        """
        if type(source) is cls:
            found = {"chunk": source.chunk, "base": source.config.base}
        else:
            head, plays, planned = _base_of(source)
            found = {"chunk": plays, "base": described(head, planned * source.spec.action_dim)}
            if config.get("chunk") is not None and config["chunk"] > planned:
                raise ConfigError(f"{cls.name}.chunk is {config['chunk']}, and the base plans {planned} actions")
        settled = {name: value for name, value in found.items() if config.get(name) is None}
        return settled | seen_as(cls, config, source)

    def load_from(self, source: Agent) -> list[str] | None:
        """The base and its encoder, which stay; of a run of this algorithm all.

        Raises:
            ConfigError: the base is another than this agent was built for.
        """
        if type(source) is type(self):
            return None
        head, *_ = _base_of(source)
        return take_base(self, source, head)

    def head(self) -> ResidualActor:
        """Base and residual as one head."""
        return ResidualActor(self.base, self.actor, self.decision_dim, self.config.scale, self.base_dim)

    @property
    def base_noise_dim(self) -> int:
        """Numbers that the base draws by; 0 of one that can do without."""
        return self.base.noise_dim if self.base.always_samples else 0

    @property
    def explore_dim(self) -> int:
        """Of the base's noise, of the residual's, and the number that decides whether it is used."""
        return self.base_noise_dim + self.decision_dim + 1

    def used(self, drawn: Tensor) -> Tensor:
        """(B,) bool of (B,) standard normal numbers: with probability min(t / H, 1)."""
        share = torch.ones_like(self.decisions) if self.config.progress == 0 else self.decisions / self.config.progress
        return torch.special.ndtr(drawn) <= share.clamp(max=1)

    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(B, C A) what is played: the base's action, changed where the change is used."""
        head, first = self.head(), self.base_noise_dim
        base = head.based(observations, noise[..., :first])
        change = self.actor.act(torch.cat([observations, base], -1), noise[..., first:-1])
        return head.corrected(base, change * self.used(noise[..., -1]).unsqueeze(-1))

    def chosen(self, observations: Tensor, base_noise: Tensor | None, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C A) sums that are drawn for (B, F) observations, and the log-densities (B,) of their changes."""
        head = self.head()
        base = head.based(observations, base_noise)
        change, log_density = self.actor.draw(torch.cat([observations, base], -1), noise)
        return head.corrected(base, change), log_density

    def targets(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """(B,) reward and soft value of a next sum."""
        following = batch["next_observations"]
        action, log_density = self.chosen(following, noise.get("base"), noise["next_action"])
        next_q = ensembles.minimum(self.target_critic(torch.cat([following, action], -1)))
        return bootstrapped(batch, next_q - self.temperature() * log_density, self.config.discount)

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """SAC's, of sums."""
        observations = batch["observations"]
        action, log_density = self.chosen(observations, noise.get("base"), noise["action"])
        value = ensembles.minimum(self.critic(torch.cat([observations, action], -1)))
        return (self.temperature() * log_density - value).mean(), {"entropy": -log_density}

    def temperature_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """SAC's, of changes."""
        _, log_density = self.chosen(batch["observations"], noise.get("base"), noise["action"])
        return self.temperature.loss(log_density, self.target_entropy), {"temperature": self.temperature()}

    def updates(self) -> list[Update | Rule]:
        """SAC's, each with the base's noise where it draws."""
        found = super().updates()
        if self.base_noise_dim == 0:
            return found
        drawn = {"base": Noise("normal", self.base_noise_dim)}
        return [dataclasses.replace(u, noise={**u.noise, **drawn}) if isinstance(u, Update) else u for u in found]

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, C A) of base and change."""
        return self.head().act(observations, noise)

    def policy(self) -> Policy:
        """A copy of both as one head, which plays its chunks from memory."""
        head = in_chunks(copy.deepcopy(self.head()), self.chunk, self.spec.action_dim)
        return Policy.of(head, self.normalizer, self.action_low, self.action_high, self.encoder)


def _base_of(source: Agent) -> tuple[Actor, int, int]:
    """The head by which an agent's policy decides, a copy, how many actions it plays of a plan, and how many it plans.

    Raises:
        ConfigError: what it decides depends on more than the present observation, or is a choice.
    """
    head: Actor = source.policy().actor
    plays, planned = 1, 1
    if type(head) is ChunkActor:
        plays, planned = int(head.execute), int(head.chunk)
        head = head.inner
    if head.discrete or head.has_memory:
        what = "chooses among numbers" if head.discrete else "depends on more than the present observation"
        raise ConfigError(
            f"residual corrects actions that follow from the present observation, and the {head.kind} policy of "
            f"{source.name} {what}: give init= another run"
        )
    return head, plays, planned
