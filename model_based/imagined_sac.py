"""Soft actor-critic on rows that a policy imagines in a world: what model-based algorithms from data have in common."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.base.rates import FALLING
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Rule, Update, algorithm_of, require
from surefoot.core.engine.sources import MAIN, Source, Stores, Uniform
from surefoot.core.losses.value_learning import td_target
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic
from surefoot.core.nn.temperature import Temperature
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import prepare
from surefoot.data.sources import BesideAdded, whole_part
from surefoot.model_based.base.alarm import AlarmConfig, Limits
from surefoot.model_based.base.signals import imagined_signals, value_signals
from surefoot.world_models.dynamics import Dynamics, Outcome
from surefoot.world_models.ensemble.learning import (
    WEIGHTS,
    BestSoFar,
    EnsembleConfig,
    ensemble_of,
    learn_model,
    model_notes,
    model_sources,
    prepare_model,
)
from surefoot.world_models.imagine import imagine, rollout_noise

STARTS = "starts"


@dataclasses.dataclass(frozen=True)
class ImaginedSACConfig(EnsembleConfig, AlarmConfig):
    """Settings of SAC on imagined rows; the defaults are OfflineRL-Kit's, but for the number of rollouts."""

    model_updates: int = option(
        20_000, "training steps of the model at most, before the first of the policy; of the run's", range=">= 1"
    )
    rollout_length: int = option(5, "steps of a rollout from a state of the data, L", range=">= 1")
    rollouts: int = option(10_000, "rollouts each time that rows are imagined; the papers have 50,000", range=">= 1")
    imagine_every: int = option(1_000, "training steps between times that rows are imagined", range=">= 1")
    imagined_kept: int = option(5, "times that rows were imagined whose rows are kept", range=">= 1")
    real_ratio: float = option(0.05, "share of each batch, rows of the data; the others are imagined", range="[0, 1]")
    critics: int = option(2, "number of critics, N, of whose values the minimum counts", range=">= 1")
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(0.005, "rate of the targets' average, every step", range="[0, 1]")
    temperature: float = option(1.0, "weight of the entropy at the start", range="> 0")
    target_entropy: float | None = option(
        None, "entropy that the temperature aims at, in nats; null: minus the number of action dimensions"
    )
    deterministic_backup: bool = option(False, "leave the entropy out of the targets")
    actor_learning_rate: float = option(1e-4, "learning rate of the actor", range=">= 0")
    actor_schedule: str = option(
        "constant",
        "schedule of the actor's learning rate: constant; or cosine or linear, to 0 at the end of the run",
        choices=FALLING,
    )
    critic_learning_rate: float = option(3e-4, "learning rate of the critics", range=">= 0")
    temperature_learning_rate: float = option(1e-4, "learning rate of the temperature", range=">= 0")
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers")
    initialization: str = option(
        "torch", "initial weights: torch, or edac: nn.Linear's kernels, hidden biases 0.1, last layers within 3e-3"
    )
    log_std_range: tuple[float, float] = option((-5.0, 2.0), "range of the log standard deviation", rising=True)
    normalization: str = option("none", "normalization of observations", choices=("none", "observations"))
    reward_range: tuple[float, float] | None = option(
        None, "range of what the task can give, for the alarm; null: the data's"
    )

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        bounds = self.reward_range
        fine = bounds is None or (len(bounds) == 2 and bounds[0] <= bounds[1])
        require(fine, name, "reward_range", bounds, "(lowest, highest) or null")


class ImaginedSAC(Agent):
    r"""Model-based policy optimisation from data, without a penalty: the base of what follows.

    .. math::
        y &= r + \gamma (1 - d)\, (\min_i \hat Q_i(s', a') - \alpha \log\pi(a'|s')), \quad a' \sim \pi(s') \\
        L_Q &= \textstyle\sum_i E\, (Q_i(s, a) - y)^2 \\
        L_\pi &= E\, [\alpha \log\pi(a|s) - \min_i Q_i(s, a)], \quad a \sim \pi(s) \\
        L_\alpha &= -\log\alpha\; E\, [\log\pi(a|s) + \bar H]

    The model is fitted first. Then, every `imagine_every` training steps, the present policy is followed in it for L
    steps from states of the data, and SAC is stepped on a mixture of these rows and the data's. Source: Janner, Fu,
    Zhang and Levine, "When to Trust Your Model" (NeurIPS 2019), as OfflineRL-Kit and the paper of RAVL have it offline.
    OfflineRL-Kit and the official code of MOBILE hold the temperature that weighs the entropy at 1 at most; no paper
    says so, and here it has no upper bound. It matters only where a policy's entropy stays below its target for long.
    """

    name = "imagined_sac"
    Config: ClassVar[type] = ImaginedSACConfig
    required_columns: ClassVar[tuple[str, ...]] = (
        "observations",
        "actions",
        "rewards",
        "terminations",
        "next_observations",
    )
    learned: ClassVar[bool] = True
    """Whether the world is a model that is fitted first; False where a subclass gives another `world`."""
    config: ImaginedSACConfig
    limits: Tensor

    def build(self) -> None:
        """Actor, critics with their targets, temperature, and the world where it is learned."""
        c, sizes = self.config, (self.spec.observation_dim, self.spec.action_dim)
        self.actor: TanhGaussianActor = TanhGaussianActor(
            *sizes, c.hidden, c.initialization, log_std_range=c.log_std_range
        )
        self.critic = Critic(*sizes, c.hidden, c.critics, c.initialization)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.temperature = Temperature(c.temperature)
        self.register_buffer("limits", torch.zeros(5))  # lowest and highest value, best; lowest and highest reward
        if self.learned:
            self.model = ensemble_of(self.spec, c, units=lambda states: self.normalizer.inverse(states))
            self.model_best = BestSoFar(self.model)

    def world(self) -> Dynamics:
        """Where rows are imagined, in the units in which the agent reads observations: the model."""
        return self.model

    @property
    def target_entropy(self) -> float:
        """In nats, of actions in [-1, 1]."""
        wanted = self.config.target_entropy
        return -float(self.spec.action_dim) if wanted is None else wanted

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions, normalise observations; note what the data's rewards allow values to be."""
        ready = prepare(self, dataset, normalization=self.config.normalization)
        if self.learned:
            ready = prepare_model(self, ready)
        if not self.goals_fixed:  # also of a run that began from another: its limits are of other data
            starts = ready.episode_starts
            rewards = self.config.reward_range or (float(ready.rewards.min()), float(ready.rewards.max()))
            terminated = ready.terminations[starts[1:] - 1]
            limits = Limits.of(ready.rewards, starts, terminated, self.config.discount, rewards)
            self.limits.copy_(torch.tensor([limits.low, limits.high, limits.best, *rewards]))
        return ready

    def notes(self, dataset: Dataset) -> list[str]:
        """Where no termination function is known, and how many rows the model's weights leave."""
        return model_notes(dataset, self.config, self.spec.environment) if self.learned else []

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """States to begin from; and the batches of SAC, the data's rows beside imagined ones."""
        c = self.config
        capacity = c.rollouts * c.rollout_length * c.imagined_kept
        ours: dict[str, Source] = {
            STARTS: Uniform(stores.data, stream=STARTS),
            MAIN: BesideAdded(stores.data, c.real_ratio, capacity, MAIN),
        }
        return {**ours, **model_sources(stores, c)} if self.learned else ours

    def of_data(self, batch: Batch) -> int:
        """How many rows of a batch of SAC are the data's: its first ones."""
        return whole_part(self.config.real_ratio, len(batch["rewards"]))

    # -- rows ---------------------------------------------------------------------------------------------

    def judge(self, states: Tensor, actions: Tensor, outcome: Outcome) -> Outcome:
        """What is learned from of a step in the world: here the step as it is."""
        return outcome

    def imagine(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Any], Metrics]:
        """Rows of the present policy in the world, from states of the data."""
        c = self.config
        found = imagine(self.world(), self.actor.act, batch["observations"], noise, c.rollout_length, self.judge)
        rows = {**found.rows(), WEIGHTS: torch.ones_like(found.rewards).flatten()}  # which no model is trained on
        return {MAIN: rows}, imagined_signals(found, self.limits[3:], c.real_ratio)

    # -- SAC ----------------------------------------------------------------------------------------------

    def targets(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """(B,) reward and soft value of a next action."""
        following = batch["next_observations"]
        action, log_density = self.actor.draw(following, noise["next_action"])
        value = ensembles.minimum(self.target_critic(torch.cat([following, action], -1)))
        if not self.config.deterministic_backup:
            value = value - self.temperature() * log_density
        return td_target(batch["rewards"], batch["terminations"], value, self.config.discount)

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared distance of all critics to the targets."""
        q = self.critic(batch["observation_actions"])
        return ensembles.critic_loss(q, self.targets(batch, noise), "sum"), self.value_metrics(q)

    def value_metrics(self, q: Tensor) -> Metrics:
        """What is reported of (N, B) values."""
        alpha = self.temperature()
        weight = torch.zeros_like(alpha) if self.config.deterministic_backup else alpha
        return value_signals(q, self.limits, self.config.discount, weight, self.spec.action_dim)

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Entropy, weighted, and the lowest value of the policy's own actions, reparameterised."""
        observations = batch["observations"]
        action, log_density = self.actor.draw(observations, noise["action"])
        value = ensembles.minimum(self.critic(torch.cat([observations, action], -1)))
        return (self.temperature() * log_density - value).mean(), {"entropy": -log_density}

    def temperature_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Lowers the temperature where the policy's entropy is above its target."""
        _, log_density = self.actor.draw(batch["observations"], noise["action"])
        return self.temperature.loss(log_density, self.target_entropy), {"temperature": self.temperature()}

    def updates(self) -> list[Update | Rule]:
        """The model; then rows, at once and now and again; then critics, actor and temperature."""
        c, size = self.config, self.spec.action_dim
        first = c.model_updates if self.learned else 0
        learned = learn_model(self, until=first) if self.learned else []
        rows = Rule(
            self.imagine, source=STARTS, rows=c.rollouts, noise=rollout_noise(self.world(), c.rollout_length),
            after=first, until=first + 1,
        )  # fmt: skip
        actor = Adam(c.actor_learning_rate, schedule=c.actor_schedule)
        action = {"action": Noise("normal", size)}
        return [
            *learned,
            rows,
            dataclasses.replace(rows, every=c.imagine_every, after=first + 1, until=None),
            Update(
                self.critic_loss, ("critic",), Adam(c.critic_learning_rate), after=first, noise=self.critic_noise(),
                target_updates={"target_critic": ("critic", c.target_rate)},
            ),
            Update(self.actor_loss, ("actor",), actor, after=first, noise=action),
            Update(
                self.temperature_loss, ("temperature",), Adam(c.temperature_learning_rate), after=first,
                noise=action, simultaneous=True,
            ),
        ]  # fmt: skip

    def critic_noise(self) -> dict[str, Noise]:
        """What `critic_loss` reads."""
        return {"next_action": Noise("normal", self.spec.action_dim)}
