"""Residual policies by PPO: a change of each step's action of a frozen policy, whatever that remembers."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor, Evaluation, SampleAux
from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.actors.memory import Memory
from surefoot.core.actors.memory_actors import ChunkActor, WrappingActor
from surefoot.core.actors.residual_actor import StepResidualActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Agent, Batch, require
from surefoot.core.engine.traits import Requires, WarmStart
from surefoot.online.base.frozen import check_frozen, described, head_of, seen_as, take_base
from surefoot.online.base.on_policy_agent import in_parts, kept_of
from surefoot.online.ppo import PPO, PPOConfig


@dataclasses.dataclass(frozen=True)
class ResidualPPOConfig(PPOConfig):
    """Settings of a residual policy that PPO learns."""

    scale: float = option(0.1, "alpha, size of the change in units of half the range of an action", range=">= 0")
    base: str | None = option(None, "description of the base's head, as JSON; null: as the run that it starts from")
    hidden: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    initial_log_std: float = option(-1.0, "log standard deviation of the change at first")
    discount: float = 0.999
    target_kl: float | None = 0.1
    normalize_observations: bool = False  # the base's normaliser stays
    encoder_trains: bool = False  # always: the base reads these features

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        require(self.chunk in (None, 1), "residual_ppo", "chunk", self.chunk, "1: each step's action is changed")
        check_frozen(self)


class ResidualPPO(PPO):
    r"""ResiP of Ankile et al., "From Imitation to Refinement: Residual RL for Precise Assembly" (2024).

    A policy b stays as it is (`init=` a run), with its own memory: one of chunks plays its plan. At each step

    .. math::
        a = \mathrm{clip}(b + \alpha\, \delta, -1, 1), \quad \delta \sim \mathcal N(\mu(s, b), \sigma^2)

    and PPO learns mu, which is 0 at first, by the density of delta. Values are of the observation alone. The authors
    hold the deviation at e^-1; here it starts there and is learned. The base's encoder and normaliser are not trained.
    """

    name = "residual_ppo"
    Config: ClassVar[type[ResidualPPOConfig]] = ResidualPPOConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}}
    warm_start = WarmStart(networks=("actor", "normalizer", "base"))
    corrects_staleness = False
    requires = Requires(masks=False, discrete=False)
    row_separable = False
    config: ResidualPPOConfig

    def build_actor(self) -> None:
        """The change of what is seen and of the base's action, and the base as it is described."""
        c, size = self.config, self.spec.action_dim
        self.actor = self.head_of(self.features + size)
        with torch.no_grad():
            self.actor.mlp.weights[-1].zero_()
        self.base: Actor = TanhGaussianActor(self.features, size, c.hidden)
        if c.base is not None:
            self.base, width = head_of(c.base, self.features, self.name)
            if width != size:
                raise ConfigError(f"{self.name}.base gives {width} numbers, and actions have {size}: leave it out")
        self.base.requires_grad_(False)
        head: Any = self.base
        while isinstance(head, WrappingActor):
            if isinstance(head, ChunkActor):
                head.branches = False
            head = head.inner

    @classmethod
    def inherit_options(cls, config: Mapping[str, Any], source: Agent) -> dict[str, Any]:
        """The base's head and how it sees.

        Raises:
            ConfigError: a policy that chooses among numbers; an encoder other than the base's.
        """
        head: Actor = source.policy().actor
        if head.discrete:
            raise ConfigError(f"residual_ppo corrects actions, and {source.name} chooses: give init= another run")
        mine = getattr(source.config, "base", None) if type(source) is cls else described(head, source.spec.action_dim)
        found = {} if config.get("base") is not None else {"base": mine}
        return found | seen_as(cls, config, source)

    def load_from(self, source: Agent) -> list[str] | None:
        """The base and its encoder, which stay; of a run of this algorithm all."""
        return None if type(source) is type(self) else take_base(self, source, source.policy().actor)

    @property
    def base_noise_dim(self) -> int:
        """Numbers that the base draws by; 0 of one that can do without."""
        return self.base.noise_dim if self.base.always_samples else 0

    @property
    def explore_dim(self) -> int:
        """Of the base's noise and of the change's."""
        return self.base_noise_dim + self.actor.held_dim

    def begin(self, rows: int) -> Memory:
        """What the base remembers at the first step of an episode."""
        return self.base.begin(rows)

    def decide(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, SampleAux, Memory]:
        """The sum, which is clipped; what is kept are the base's action and the change."""
        first = self.base_noise_dim
        base, memory = self.base.step(observations, memory, noise[..., :first] if first else None)
        change, _ = self.actor.sample(torch.cat([observations, base], -1), noise[..., first:])
        actions = (base + self.config.scale * change).clamp(-1, 1)
        return actions, {"base": base, "change": change}, self.base.executed(memory, actions)

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, SampleAux]:
        """As `decide`, at the first step of an episode."""
        return self.decide(observations, self.begin(observations.shape[0]), noise)[:2]

    def evaluate(self, batch: Mapping[str, Tensor]) -> Evaluation:
        """Density of the changes."""
        kept = kept_of(batch)
        return self.actor.evaluate(torch.cat([batch["observations"], kept["base"]], -1), kept["change"], {})

    def log_prob(self, block: Mapping[str, Tensor]) -> Tensor:
        """(T, N) log-densities of a block's changes."""
        kept = kept_of(block)
        read = torch.cat([block["observations"], kept["base"]], -1)
        return in_parts(self.actor.log_density, read, kept["change"])

    def block_behaviour(self, block: Mapping[str, Tensor]) -> Tensor:
        """(T, N, H) the distributions of changes."""
        read: Batch = {"read": torch.cat([block["observations"], kept_of(block)["base"]], -1)}
        return self.behaviour(read["read"])

    def leaving_actor(self) -> Actor:
        """Base and change as one head."""
        base: Any = copy.deepcopy(self.base)
        head = base
        while isinstance(head, WrappingActor):
            if isinstance(head, ChunkActor):
                head.branches = True
            head = head.inner
        return StepResidualActor(base, self.actor, self.config.scale)  # type: ignore[arg-type]
