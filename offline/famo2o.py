"""FamO2O: a policy for every trade-off between improving and cloning, and a model that picks one for each state."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.family import FamilyActor, StochasticBalanceModel, embedded
from surefoot.core.actors.heads import GaussianActor
from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update, algorithm_of, require
from surefoot.core.losses.value_learning import advantage_weights
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic, Value
from surefoot.core.nn.temperature import Temperature
from surefoot.core.policy.policy import Policy
from surefoot.data.prepare import NORMALIZATIONS, REWARDS
from surefoot.offline.iql import IQL


@dataclasses.dataclass(frozen=True)
class FamO2OConfig(HistoryConfig):
    """Settings of FamO2O over IQL; the defaults are the authors' for AntMaze."""

    coefficients: tuple[float, float] = option((8.0, 14.0), "range of beta, which multiplies the advantage")
    temperature: float = option(1.0, "weight of the balance model's entropy at the start; learned", range="> 0")
    target_entropy: float = option(
        -0.5, "entropy of the balance model that the temperature aims at, in nats, of its tanh"
    )
    expectile: float = option(0.9, "tau of the value loss", range="(0, 1)")
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(0.005, "rate of the critics' average, every step", range="[0, 1]")
    learning_rate: float = option(3e-4, "learning rate of everything", range=">= 0")
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers of everything")
    log_std_min: float = option(-5.0, "least log standard deviation of the policy", range="<= 2")
    initialization: str = option("orthogonal", "initial weights")
    critic_weight: float = option(1.0, "weight of each critic's squared error")
    rewards: str = option("minus_one", "scaling of rewards", choices=REWARDS)
    normalization: str = option("none", "normalization of observations", choices=NORMALIZATIONS)

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        low, high = self.coefficients
        require(0 <= low <= high, name, "coefficients", self.coefficients, "(low, high) with 0 <= low <= high")


def widened(observations: Tensor, coefficients: Tensor) -> Tensor:
    """(B, O + 6) what a universal policy reads at (B, O) observations and (B,) coefficients."""
    return torch.cat([observations, embedded(coefficients)], -1)


def family_policy(agent: Any) -> Policy:
    """A copy of the `actor` and `balance` of an agent together, as the head that its `make_family` draws anew."""
    with torch.random.fork_rng(devices=[]):
        family = agent.make_family()
    family.member, family.balance = agent.actor, agent.balance
    return agent.policy_of(family)


class FamO2O(Agent):
    r"""FamO2O of Wang et al., "Train Once, Get a Family" (NeurIPS 2023), its IQL variant (LeapLabTHU/FamO2O, jax_iql).

    Value and critics are IQL's. The universal policy reads the state and an embedding of a coefficient beta, drawn
    uniformly from the range; the balance model picks one for each state:

    .. math::
        L_\pi &= -E \min(e^{\beta (\min_i \hat Q_i(s, a) - V(s))}, 100) \log \pi(a | s, \beta),
        \quad \beta \sim U[\beta_-, \beta_+] \\
        L_b &= E\, [T \log b(\beta | s) - \min_i \hat Q_i(s, a')], \quad \beta \sim b(s),\; a' \sim \pi(s, \beta) \\
        L_T &= -T\, E\, [\log b(\beta | s) + \bar H]

    Where the official code differs: its advantages are (B,) and its coefficients (B, 1), so that the exponent is
    broadcast to (B, B), and row j gets the mean over i of min(exp(beta_i A_j), 100): a weight that does not depend on
    its own beta. Here each row has its own. a' is clipped before it is valued, as it is when acting. The authors also
    act by samples of the policy when evaluating; here evaluation takes the mean, as for all Gaussian policies.
    `famo2o_cql` is the variant on CQL.
    """

    name = "famo2o"
    Config = FamO2OConfig
    PRESETS = {  # noqa: RUF012
        "official": {},
        "locomotion": {"coefficients": (1.0, 5.0), "expectile": 0.7, "rewards": "return_range"},
    }
    required_columns: ClassVar[tuple[str, ...]] = IQL.required_columns
    coefficient_noise: ClassVar[Noise] = Noise("uniform", 1)
    """What `coefficients` reads of each row, as noise["coefficient"]."""
    config: FamO2OConfig
    actor: GaussianActor
    balance: StochasticBalanceModel
    prepare, annotate, value_loss, critic_loss = IQL.prepare, IQL.annotate, IQL.value_loss, IQL.critic_loss

    def build(self) -> None:
        """Value, twin critics with targets, universal policy, balance model and the weight of its entropy."""
        c, sizes = self.config, (self.spec.observation_dim, self.spec.action_dim)
        self.value = Value(sizes[0], c.hidden, c.initialization)
        self.critic = Critic(*sizes, c.hidden, 2, c.initialization)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        family = self.make_family()
        self.actor, self.balance = family.member, family.balance  # type: ignore[assignment]
        self.temperature = Temperature(c.temperature, "exp")

    def make_family(self) -> FamilyActor:
        """Policy and balance model as one head, weights drawn anew."""
        c = self.config
        sizes = (self.spec.observation_dim, self.spec.action_dim, c.hidden, c.initialization)
        return FamilyActor(*sizes, (c.log_std_min, 2.0), c.coefficients)

    def coefficients(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """(B,) at which the universal policy is trained: all of the range alike."""
        low, high = self.config.coefficients
        return low + (high - low) * noise["coefficient"].squeeze(-1)

    def balance_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Entropy, weighted, and value of the universal policy's action at the coefficients picked."""
        observations = batch["observations"]
        coefficients, log_density = self.balance.sample(observations, noise["choice"])
        action = self.actor.act(widened(observations, coefficients), noise["action"])
        q = ensembles.minimum(self.target_critic(torch.cat([observations, action], -1)))
        loss = (self.temperature() * log_density - q).mean()
        return loss, {"coefficient": coefficients, "balance_entropy": -log_density}

    def temperature_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Lowers the temperature where the balance model's entropy is above its target."""
        _, log_density = self.balance.sample(batch["observations"], noise["choice"])
        return self.temperature.loss(log_density, self.config.target_entropy), {"temperature": self.temperature()}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Negative log-density of the data's actions, each weighted by exp(its own coefficient times advantage)."""
        coefficients = self.coefficients(batch, noise).detach()
        weight = self.weights(batch["target_q"] - self.value(batch["observations"]), coefficients)
        observations = widened(batch["observations"], coefficients)
        return -(weight * self.actor.log_density(observations, batch["actions"])).mean(), {"weight": weight}

    def weights(self, advantages: Tensor, coefficients: Tensor) -> Tensor:
        """(B,) min(exp(beta_j A_j), 100), row by row."""
        return advantage_weights(advantages * coefficients, 1.0)

    def updates(self) -> list[Update]:
        """Value; balance model, temperature and policy at the same parameters; critics, with what the value became."""
        c = self.config
        adam, choice = Adam(c.learning_rate), {"choice": Noise("normal", 1)}
        targets = {"target_critic": ("critic", c.target_rate)}
        action = {"action": Noise("normal", self.spec.action_dim)}
        return [
            Update(self.value_loss, ("value",), adam),  # type: ignore[misc]  # IQL's
            Update(self.balance_loss, ("balance",), adam, noise={**choice, **action}),
            Update(self.temperature_loss, ("temperature",), adam, simultaneous=True, noise=choice),
            Update(self.actor_loss, ("actor",), adam, simultaneous=True, noise={"coefficient": self.coefficient_noise}),
            Update(self.critic_loss, ("critic",), adam, target_updates=targets),  # type: ignore[misc]
        ]

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions at the coefficients that the balance model's means stand for; mean ones without `noise`."""
        return self.actor.act(widened(observations, self.balance(observations)), noise)

    def policy(self) -> Policy:
        """A copy of policy and balance model together."""
        return family_policy(self)
