"""FamO2O over CQL: a policy for every weight of value against entropy, and a model that picks one for each state."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.family import BalanceModel, TanhFamilyActor
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update, algorithm_of, require
from surefoot.core.nn import ensembles
from surefoot.core.policy.policy import Policy
from surefoot.offline.cql import CQL, CQLConfig
from surefoot.offline.famo2o import family_policy, widened


@dataclasses.dataclass(frozen=True)
class FamO2OCQLConfig(CQLConfig):
    """Settings of FamO2O over CQL: CQL's, with the weight and the range that the authors have on locomotion."""

    coefficients: tuple[float, float] = option(
        (0.5, 1.5), "range of beta, which multiplies the value in the policy's loss"
    )
    balance_learning_rate: float = option(3e-4, "learning rate of the model that picks beta", range=">= 0")
    cql_weight: float = option(1.0, "weight of the conservative term; where it is learned, its start")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        low, high = self.coefficients
        require(0 <= low <= high, name, "coefficients", self.coefficients, "(low, high) with 0 <= low <= high")


class FamO2OCQL(CQL):
    r"""FamO2O of Wang et al., "Train Once, Get a Family" (NeurIPS 2023), its CQL variant (LeapLabTHU/FamO2O, jax_cql).

    CQL whose universal policy reads the state and an embedding of a coefficient beta, drawn uniformly from the range at
    every state of a batch. The balance model picks one for each state, and draws nothing:

    .. math::
        L_\pi &= E\, [\alpha \log\pi(a | s, \beta) - \beta \min_i Q_i(s, a)],
        \quad \beta \sim U[\beta_-, \beta_+],\; a \sim \pi(s, \beta) \\
        L_b &= -E \min_i Q_i(s, a'), \quad a' \sim \pi(s, b(s))

    Where the official code differs: it computes the coefficient at s and uses it at s' too, for the target and for the
    conservative term's actions from there; here the policy at s' reads a coefficient of s'. Its balance model maps
    tanh x in (-1, 1) to low + (high - low) x, which reaches down to -0.5 with the range of 0.5 to 1.5; here the tanh is
    mapped to (0, 1) first. Options that the official settings do not name are those of `cql`.
    """

    name = "famo2o_cql"
    Config = FamO2OCQLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"locomotion": {}}
    balance: BalanceModel
    config: FamO2OCQLConfig

    def build(self) -> None:
        """CQL's networks, and in place of its actor the universal policy and the balance model."""
        CQL.build(self)
        family = self.make_family()
        self.actor, self.balance = family.member, family.balance  # type: ignore[assignment]

    def make_family(self) -> TanhFamilyActor:
        """Policy and balance model as one head, weights drawn anew."""
        c = self.config
        sizes = (self.spec.observation_dim, self.spec.action_dim, c.hidden, c.initialization)
        norm: dict[str, Any] = {"layer_norm": c.layer_norm_actor, "norm_epsilon": c.layer_norm_epsilon}
        return TanhFamilyActor(*sizes, c.log_std_range, c.coefficients, **norm)

    def coefficients(self, batch: Batch, noise: dict[str, Tensor], where: str) -> Tensor:
        """(B,) that the universal policy reads at `observations` or `next_observations`: all of the range alike."""
        low, high = self.config.coefficients
        return low + (high - low) * noise[NAMES[where]].squeeze(-1)

    def coefficient_noise(self, *where: str) -> dict[str, Noise]:
        """What `coefficients` reads there."""
        return {NAMES[one]: Noise("uniform", 1) for one in where}

    def policy_input(self, batch: Batch, noise: dict[str, Tensor], where: str) -> Tensor:
        """(B, O + 6) observations, and the embedding of a coefficient for each."""
        return widened(batch[where], self.coefficients(batch, noise, where))

    def weighed(self, values: Tensor, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """(B,) values of the policy's actions, each times the coefficient that the policy read."""
        return self.coefficients(batch, noise, "observations") * values

    def balance_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Minus the value of the universal policy's action at the coefficient picked."""
        observations = batch["observations"]
        coefficients = self.balance(observations)
        action, _ = self.actor.draw(widened(observations, coefficients), noise["action"])
        q = ensembles.minimum(self.critic(torch.cat([observations, action], -1)))
        return -q.mean(), {"coefficient": coefficients}

    def updates(self) -> list[Update | Rule]:
        """CQL's and the balance model's, all at the same parameters, then the targets' average."""
        both = ("observations", "next_observations")
        places = {"critic_loss": both, "actor_loss": both[:1], "temperature_loss": both[1:]}
        more = [
            dataclasses.replace(update, noise={**update.noise, **self.coefficient_noise(*places[update.name])})
            for update in CQL.updates(self)
        ]
        adam, action = Adam(self.config.balance_learning_rate), {"action": Noise("normal", self.spec.action_dim)}
        return [*more, Update(self.balance_loss, ("balance",), adam, noise=action, simultaneous=True)]

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions at the coefficients that the balance model's means stand for; mean ones without `noise`."""
        return self.actor.act(widened(observations, self.balance(observations)), noise)

    def policy(self) -> Policy:
        """A copy of policy and balance model together."""
        return family_policy(self)


NAMES = {"observations": "coefficient", "next_observations": "next_coefficient"}
"""Of the random numbers by which coefficients are drawn, by where they are read."""
