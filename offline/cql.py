"""CQL: soft actor-critic on fixed data, its values pushed down wherever the data has no action."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Rule, Update, algorithm_of, require
from surefoot.core.losses.value_learning import conservative_gap, td_target
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic, pairs
from surefoot.core.nn.temperature import Temperature
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import NORMALIZATIONS, prepare


@dataclasses.dataclass(frozen=True)
class CQLConfig(HistoryConfig):
    """Settings of CQL; the defaults are those of zhouzypaul/wsrl on locomotion, with two critics."""

    cql_weight: float = option(5.0, "weight of the conservative term; where it is learned, its start", range=">= 0")
    learn_cql_weight: bool = option(False, "raise cql_weight while the gap is above cql_gap, lower it below")
    cql_gap: float = option(0.8, "gap that the learned cql_weight aims at, in units of the values")
    cql_temperature: float = option(1.0, "temperature of the soft maximum, T", range="> 0")
    gap_low: float | None = option(
        None, "a row's gap is clipped from below, and trains no critic there; CORL on AntMaze: -200"
    )
    gap_high: float | None = option(None, "a row's gap is clipped from above, and trains no critic there")
    sampled_actions: int = option(
        10,
        "actions that are sampled of each kind, n: uniform, the policy's, and the policy's at the next state",
        range=">= 1",
    )
    importance_sampling: bool = option(True, "subtract the log-density that each sampled action was drawn with")
    max_target_backup: bool = option(True, "the target is the best of n next actions; else one is drawn")
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(0.005, "rate of the targets' average, every step", range="[0, 1]")
    critics: int = option(2, "number of critics, E")
    subset: int = option(2, "M: critics, drawn anew at each step, of the target's minimum and of the conservative term")
    subset_replacement: bool = option(False, "draw the subset with replacement, as zhouzypaul/wsrl does")
    temperature: float = option(1.0, "weight of the entropy at the start", range="> 0")
    target_entropy: float | None = option(
        None, "entropy that the temperature aims at, in nats; null: minus the number of action dimensions"
    )
    actor_learning_rate: float = option(1e-4, "learning rate of the actor", range=">= 0")
    critic_learning_rate: float = option(
        3e-4, "learning rate of the critics, and of the learned cql_weight", range=">= 0"
    )
    temperature_learning_rate: float = option(1e-4, "learning rate of the temperature", range=">= 0")
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers")
    critic_hidden: tuple[int, ...] | None = option(None, "widths of the critics' hidden layers; null: as `hidden`")
    layer_norm_actor: bool = option(False, "layer norm in the actor's network")
    layer_norm_critic: bool = option(False, "layer norm in the critics' networks")
    layer_norm_epsilon: float = option(
        1e-6, "number that both layer norms add to the variance; flax's", range="[1e-12, 1]"
    )
    log_std_range: tuple[float, float] = option(
        (math.log(1e-5), math.log(10.0)),
        "range of the log standard deviation before the tanh: deviations from 1e-5 to 10",
        rising=True,
    )
    initialization: str = option("orthogonal", "initial weights")
    reward_scale: float = option(1.0, "rewards are trained on as reward_scale * r + reward_shift", range="> 0")
    reward_shift: float = option(0.0, "number added to scaled rewards")
    normalization: str = option("none", "normalization of observations", choices=NORMALIZATIONS)

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        fits = not self.learn_cql_weight or self.cql_weight > 0
        require(fits, name, "cql_weight", self.cql_weight, "> 0 to be learned")
        low, high = self.gap_low, self.gap_high
        require(low is None or high is None or low < high, name, "gap_low", low, f"below gap_high, {high}")
        require(1 <= self.subset <= self.critics, name, "subset", self.subset, f"in 1 to {self.critics} critics")


ENSEMBLE: dict[str, Any] = {"critics": 10, "subset": 2, "layer_norm_actor": True, "layer_norm_critic": True}
DOMAINS: dict[str, dict[str, Any]] = {
    "wsrl-locomotion": ENSEMBLE,
    "wsrl-kitchen": {**ENSEMBLE, "hidden": (512, 512, 512), "importance_sampling": False, "reward_shift": -4.0},
    "wsrl-adroit": {
        **ENSEMBLE,
        "hidden": (512, 512),
        "critic_hidden": (512, 512, 512),
        "cql_weight": 1.0,
        "reward_scale": 10.0,
        "reward_shift": 5.0,
    },
    "wsrl-antmaze": {
        **ENSEMBLE,
        "critic_hidden": (256, 256, 256, 256),
        "cql_weight": 1.0,
        "learn_cql_weight": True,
        "reward_scale": 10.0,
        "reward_shift": -5.0,
    },
}
"""The settings of zhouzypaul/wsrl, by domain."""


class CQL(Agent):
    r"""CQL(H) of Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning" (NeurIPS 2020).

    .. math::
        y &= r + \gamma (1 - d) \max_{k \le n} \min_{i \in S} \hat Q_i(s', a'_k), \quad a'_k \sim \pi(s') \\
        L_Q &= \tfrac1E \textstyle\sum_i E\, (Q_i(s, a) - y)^2
            + \alpha_{cql}\, E\, [\log \sum_k e^{Q(s, a_k) - \log\mu_k(a_k)} - Q(s, a)] \\
        L_\pi &= E\, [\alpha \log\pi(a|s) - \min_i Q_i(s, a)], \quad a \sim \pi(s) \\
        L_\alpha &= -\alpha\, E\, [\log\pi(a'|s') + \bar H]

    Of the 3n actions a_k, n are uniform, n from the policy at s and n from it at s'; mu_k is what a_k was drawn from.
    As in zhouzypaul/wsrl: all losses at the same old parameters, no entropy in the target, the entropy that the
    temperature follows is that at the next observations. Two things differ: its critics share one output layer, which
    reads each member's last hidden layer, while here each has its own; and with `max_target_backup` its temperature
    follows the mean of n next actions a row, here one, whose expectation is the same. In CORL's code (and
    young-geng/CQL) the temperature follows the entropy at the observations, is exp of its parameter, and the policy
    trains two more numbers, a scale and a shift of its log deviations.
    """

    name = "cql"
    Config: ClassVar[type] = CQLConfig
    PRESETS = {"locomotion": {}, **DOMAINS}  # noqa: RUF012
    required_columns: ClassVar[tuple[str, ...]] = (
        "observations",
        "actions",
        "rewards",
        "terminations",
        "next_observations",
    )
    config: CQLConfig

    def build(self) -> None:
        """Actor, critics with their targets, temperature and, where it is learned, the conservative term's weight."""
        c, sizes = self.config, (self.spec.observation_dim, self.spec.action_dim)
        shape: dict[str, Any] = {"initialization": c.initialization, "norm_epsilon": c.layer_norm_epsilon}
        self.actor: TanhGaussianActor = TanhGaussianActor(
            *sizes, c.hidden, log_std_range=c.log_std_range, layer_norm=c.layer_norm_actor, **shape
        )
        hidden = c.hidden if c.critic_hidden is None else c.critic_hidden
        self.critic = Critic(*sizes, hidden, c.critics, layer_norm=c.layer_norm_critic, **shape)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.temperature = Temperature(c.temperature, "softplus")
        if c.learn_cql_weight:
            self.cql_weight = Temperature(c.cql_weight, "softplus")

    @property
    def target_entropy(self) -> float:
        """In nats, of actions in [-1, 1]."""
        wanted = self.config.target_entropy
        return -float(self.spec.action_dim) if wanted is None else wanted

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions and rewards, normalise observations."""
        if not self.rewards_fixed:
            self.reward_scale.fill_(self.config.reward_scale)
            self.reward_shift.fill_(self.config.reward_shift)
        return prepare(self, dataset, normalization=self.config.normalization)

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD error of all critics, and by how much sampled actions seem better than the data's."""
        c = self.config
        members = ensembles.subset(noise["subset"], c.subset, c.subset_replacement) if "subset" in noise else None
        target = self._target(batch, noise, members)
        data, sampled, log_densities = self._values(batch, noise, members)
        td = (data - target).square().mean()
        bounded, among = self._bounded(sampled, batch), data if members is None else data[members]
        gap = conservative_gap(bounded, among, log_densities if c.importance_sampling else None, c.cql_temperature)
        if c.gap_low is not None or c.gap_high is not None:
            gap = gap.clamp(c.gap_low, c.gap_high)
        gap = gap.mean()
        metrics = {"q": data, "q_sampled": sampled, "cql_gap": gap}
        if not c.learn_cql_weight:
            return td + c.cql_weight * gap, metrics
        weight, above = self.cql_weight(), gap - c.cql_gap
        loss = td + weight.detach() * above - weight * above.detach()  # descends in the critics, ascends in the weight
        return loss, {**metrics, "cql_weight": weight}

    def _target(self, batch: Batch, noise: dict[str, Tensor], members: Tensor | None) -> Tensor:
        """(B,) reward and the value of the best of the next actions, each valued by the lowest of some critics."""
        seen = self.policy_input(batch, noise, "next_observations")
        several, _ = self._policy_pairs(seen, batch["next_observations"], noise["next_action"])
        next_q = ensembles.lowest(self.target_critic, several, members)
        return td_target(batch["rewards"], batch["terminations"], next_q.amax(0), self.config.discount)

    def _values(self, batch: Batch, noise: dict[str, Tensor], members: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Of the data's actions (E, B), of the sampled ones (M, 3n, B), and the latters' log-densities (3n, B)."""
        observations, size = batch["observations"], self.spec.action_dim
        uniform = 2 * noise["uniform_action"].unflatten(-1, (-1, size)).movedim(-2, 0) - 1
        blocks = [
            (pairs(observations, uniform), torch.full_like(uniform[..., 0], -size * math.log(2))),
            self._policy_pairs(self.policy_input(batch, noise, "observations"), observations, noise["policy_action"]),
            self._policy_pairs(
                self.policy_input(batch, noise, "next_observations"), observations, noise["next_policy_action"]
            ),
        ]
        among = torch.cat([part for part, _ in blocks])
        count, rows = among.shape[:2]
        log_densities = torch.cat([density for _, density in blocks])
        if members is not None:
            data, q = self.critic(batch["observation_actions"]), self.critic(among.flatten(0, 1), members)
        else:  # the same in one call, which is quicker
            data, q = self.critic(torch.cat([batch["observation_actions"], among.flatten(0, 1)])).split(
                [rows, count * rows], 1
            )
        return data, q.unflatten(1, (count, rows)), log_densities

    def policy_input(self, batch: Batch, noise: dict[str, Tensor], where: str) -> Tensor:
        """(B, O) what the policy reads at a batch's `observations` or `next_observations`: just them."""
        return batch[where]

    def _policy_pairs(self, seen: Tensor, valued_at: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Pairs (n, B, O + A) of observations and actions that the policy draws, and log-densities (n, B).

        Args:
            seen: (B, ...) what the policy reads.
            valued_at: (B, O) observations that the actions are paired with.
            noise: (B, n A) standard normal.
        """
        actions, log_densities = self.actor.draw(seen, noise.unflatten(-1, (-1, self.spec.action_dim)).movedim(-2, 0))
        return pairs(valued_at, actions), log_densities

    def _bounded(self, sampled: Tensor, batch: Batch) -> Tensor:
        """The values (M, 3n, B) that the conservative term pushes down: all of them."""
        return sampled

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Entropy, weighted, and the lowest value of the policy's own actions, reparameterised."""
        action, log_density = self.actor.draw(self.policy_input(batch, noise, "observations"), noise["action"])
        q = ensembles.minimum(self.critic(torch.cat([batch["observations"], action], -1)))
        return (self.temperature() * log_density - self.weighed(q, batch, noise)).mean(), {"entropy": -log_density}

    def weighed(self, values: Tensor, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """(B,) values of the policy's actions as its loss counts them: as they are."""
        return values

    def temperature_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Lowers the temperature where the policy's entropy at the next observations is above its target."""
        _, log_density = self.actor.draw(self.policy_input(batch, noise, "next_observations"), noise["action"])
        return self.temperature.loss(log_density, self.target_entropy), {"temperature": self.temperature()}

    def updates(self) -> Sequence[Update | Rule]:
        """All at the same parameters, then the targets' average."""
        c, size = self.config, self.spec.action_dim
        several = c.sampled_actions * size
        noise = {
            "next_action": Noise("normal", several if c.max_target_backup else size),
            "uniform_action": Noise("uniform", several),
            "policy_action": Noise("normal", several),
            "next_policy_action": Noise("normal", several),
            **ensembles.subset_noise(c.critics, c.subset, c.subset_replacement),
        }
        action = {"action": Noise("normal", size)}
        trained = ("critic", "cql_weight") if c.learn_cql_weight else ("critic",)
        targets = {"target_critic": ("critic", c.target_rate)}
        actor, temperature = Adam(c.actor_learning_rate), Adam(c.temperature_learning_rate)
        return [
            Update(self.critic_loss, trained, Adam(c.critic_learning_rate), target_updates=targets, noise=noise),
            Update(self.actor_loss, ("actor",), actor, noise=action, simultaneous=True),
            Update(self.temperature_loss, ("temperature",), temperature, noise=action, simultaneous=True),
        ]
