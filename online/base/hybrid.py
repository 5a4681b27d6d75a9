"""What H2O and DARC share: SAC on real data and a simulator that is wrong, with discriminators that say how wrong.

Losses are given the real rows (the dataset's) and the simulated ones (the replay buffer's) apart, as many of each.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Metrics, Rule, Update, algorithm_of, require
from surefoot.core.engine.sources import Batch, Source, Stores, Uniform, joined
from surefoot.core.engine.traits import Requires
from surefoot.online.base.dynamics_gap import DynamicsGap
from surefoot.online.loops.replay import Replay
from surefoot.online.sac import SAC, SoftConfig

REAL, SIMULATED = "real", "simulated"
BOTH = (REAL, SIMULATED)
"""Sources of the agent's losses."""
TO_TELL_APART = ("discriminators_real", "discriminators_simulated")
"""Sources of the discriminators: rows of their own."""
Parts = dict[str, Batch]
"""Source -> batch."""


@dataclasses.dataclass(frozen=True)
class HybridConfig(SoftConfig):
    """What hybrid agents add to SAC's settings, and where their defaults differ; those of t6-thu/H2O."""

    initial_steps: int = option(1_000, "environment steps before the first update")
    initial_actions: str = option(
        "policy", "actions of the initial steps: uniform over the action space, or policy, the policy's own"
    )
    critic_loss_over: str = option("sum", "the critics' losses are summed")
    discriminator_rows: int = option(
        256, "real rows, and as many simulated ones, of each of the discriminators' steps", range=">= 1"
    )
    discriminator_noise: float = option(
        0.1, "standard deviation added to s, a and s' while the discriminators train", range=">= 0"
    )
    discriminator_bound: float | None = option(
        2.0, "bound of the discriminators' outputs, which are this times tanh; null: not bounded", range="> 0"
    )
    discriminator_learning_rate: float = option(3e-4, "learning rate of the discriminators", range=">= 0")
    discriminator_hidden: tuple[int, ...] = option((256, 256), "widths of the discriminators' hidden layers")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        fraction = self.offline_fraction
        require(fraction == 0, name, "offline_fraction", fraction, "0: half of the rows are real in any case")
        require(self.critic_loss_over == "sum", name, "critic_loss_over", self.critic_loss_over, "sum")


class HybridAgent(SAC):
    """SAC on real and simulated rows, with both discriminators; losses of its own are given the two apart."""

    requires = Requires(data="required", gap=True, one_vector=True)
    config: HybridConfig

    def build(self) -> None:
        """SAC's networks and the discriminators."""
        super().build()
        c, sizes = self.config, (self.spec.observation_dim, self.spec.action_dim)
        self.dynamics = DynamicsGap(*sizes, c.discriminator_hidden, c.discriminator_bound)

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Real and simulated rows for the agent, and others for the discriminators.

        Raises:
            ConfigError: there is no data.
        """
        if stores.data is None:
            raise ConfigError(f"{self.name} learns from real data beside a simulator: give dataset=")
        real = {one: Uniform(stores.data, stream=one) for one in (REAL, TO_TELL_APART[0])}
        simulated = {one: Replay(stores.replay, one) for one in (SIMULATED, TO_TELL_APART[1])}
        return {**real, **simulated}

    def discriminator_loss(self, parts: Parts, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Cross-entropies of telling real from simulated rows, their (s, a, s') blurred.

        Args:
            parts: B real and B simulated rows.
            noise: `blur` (2 B, O + A + O), standard normal, of the real rows first.
        """
        rows, blur = joined(parts, *TO_TELL_APART), self.config.discriminator_noise * noise["blur"]
        width = rows["observation_actions"].shape[-1]
        pairs, following = rows["observation_actions"] + blur[:, :width], rows["next_observations"] + blur[:, width:]
        pair, transition = self.dynamics.losses(pairs, following)
        return pair + transition, {"pair_loss": pair, "transition_loss": transition}


def half_of(batch_size: int, name: str) -> int:
    """Rows of each kind in a batch.

    Raises:
        ConfigError: an odd number of rows, which real and simulated ones can't share equally.
    """
    if batch_size % 2:
        raise ConfigError(
            f"{name} learns from batches that are half real and half simulated, and batch_size={batch_size} is odd: "
            "give an even one"
        )
    return batch_size // 2


def of_all_rows(loss: Callable[[Batch, dict[str, Tensor]], tuple[Tensor, Metrics]]) -> Callable[..., Any]:
    """A loss of rows as one of real and simulated rows, which it does not tell apart."""

    @functools.wraps(loss)
    def of_parts(parts: Parts, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        return loss(joined(parts), noise)

    return of_parts


def hybrid_updates(
    agent: HybridAgent, sources: tuple[str, ...], rows: int, **critic_noise: Noise
) -> list[Update | Rule]:
    """Discriminators; then temperature, actor and critics at the same parameters; then targets: t6-thu/H2O's order.

    Args:
        agent: whose losses they are of.
        sources: that its losses read.
        rows: of each of them.
        critic_noise: what the critics' loss reads beside the next action's noise.
    """
    c, spec, action = agent.config, agent.spec, Noise("normal", agent.spec.action_dim)
    blur = {"blur": Noise("normal", 2 * spec.observation_dim + spec.action_dim)}
    adam, own = Adam(c.discriminator_learning_rate), {"action": action}
    targets = {"target_critic": ("critic", c.target_rate)}
    temperature, actor, critic = (
        Adam(rate) for rate in (c.temperature_learning_rate, c.actor_learning_rate, c.critic_learning_rate)
    )
    weigh = Update(of_all_rows(agent.temperature_loss), ("temperature",), temperature, sources, rows=rows, noise=own)
    act = Update(
        of_all_rows(agent.actor_loss),
        ("actor",),
        actor,
        sources,
        rows=rows,
        noise=own,
        simultaneous=c.learn_temperature,
    )
    return [
        Update(agent.discriminator_loss, ("dynamics",), adam, TO_TELL_APART, rows=c.discriminator_rows, noise=blur),
        *([weigh] if c.learn_temperature else []),
        act,
        Update(
            agent.critic_loss,
            ("critic",),
            critic,
            sources,
            rows=rows,
            target_updates=targets,
            noise={"next_action": action, **critic_noise},
            simultaneous=True,
        ),
    ]
