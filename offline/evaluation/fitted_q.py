"""Fitted-Q evaluation: what a policy would return, estimated from data alone."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.base.actions import to_agent
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.spec import in_words
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Spec, Update
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.losses.value_learning import td_target
from surefoot.core.nn.networks import Critic
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Array, Dataset
from surefoot.data.prepare import discounted_returns, scale_actions
from surefoot.data.store import store_from_dataset


@dataclasses.dataclass(frozen=True)
class FittedQConfig:
    """Settings of fitted-Q evaluation."""

    discount: float = 0.99
    target_rate: float = 0.05  # ten times that of control: the estimate must travel 1 / (1 - discount) steps
    learning_rate: float = 3e-4
    hidden: tuple[int, ...] = (256, 256)


class FittedQ(Agent):
    r"""Q of a fixed policy: :math:`L = E (r + \gamma (1 - d) \hat Q(s', \pi(s')) - Q(s, a))^2`.

    Source: Le, Voloshin and Yue, "Batch Policy Learning under Constraints" (2019), with an averaged target
    instead of refitting from scratch.
    """

    name = "fitted_q"
    Config = FittedQConfig
    reads = ("observations", "actions", "rewards", "terminations", "next_observations", "next_actions")
    config: FittedQConfig

    def build(self) -> None:
        """One critic with its target; the actor is there for the engine's sake and never trained."""
        sizes = (self.spec.observation_dim, self.spec.action_dim)
        self.critic = Critic(*sizes, self.config.hidden, 1)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor = DeterministicActor(*sizes, (1,))

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD error at the policy's next action."""
        following = torch.cat([batch["next_observations"], batch["next_actions"]], -1)
        next_q = self.target_critic(following)[0]
        target = td_target(batch["rewards"], batch["terminations"], next_q, self.config.discount)
        q = self.critic(batch["observation_actions"])[0]
        return (q - target).square().mean(), {"q": q}

    def updates(self) -> list[Update]:
        """One step of the critic."""
        targets = {"target_critic": ("critic", self.config.target_rate)}
        return [Update(self.critic_loss, ("critic",), Adam(self.config.learning_rate), then=targets)]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What fitted-Q evaluation found."""

    values: Array  # (E,) float64: discounted return from the first state of each episode, in reward units
    drift: float  # by how much the mean still moved in the last fifth of the steps: far from 0 is not converged


def fitted_q_estimate(policy: Policy, dataset: Dataset, steps: int, seed: int, discount: float = 0.99) -> Estimate:
    """Estimated discounted return of `policy` from the first state of each episode.

    Args:
        policy: what is judged, in the dataset's units.
        dataset: transitions, with unscaled rewards.
        steps: of training the critic.
        seed: of its weights and batches.
        discount: of the return.

    Returns:
        The estimate. Off the data it extrapolates: a warning sign is a value above the best discounted
        return in the data.

    Raises:
        DataError: observations are images or several arrays.
        ConfigError: the policy remembers its episode (histories, chunks, recurrent ones): rows are judged one by one.
    """
    if dataset.observation_dim == 0:
        raise DataError(
            f"{dataset.name}: fitted Q learns from one vector, and observations are {in_words(dataset.arrays)}: "
            "evaluate the policy in its environment"
        )
    if policy.has_memory:
        raise ConfigError(
            "fitted Q asks a policy for its action at single rows, and this one remembers what came before them "
            "(a history, a chunk or a recurrent state): evaluate it in its environment"
        )
    low, high = policy.action_low.numpy(), policy.action_high.numpy()
    memory = policy.begin(len(dataset.observations))

    def scaled(observations: Array) -> Array:
        nonlocal memory
        rows = {name: value[: len(observations)] for name, value in memory.items()}
        actions, memory = policy.act(torch.from_numpy(observations), rows)
        scaled: Array = to_agent(actions.numpy(), low, high).astype(np.float32)
        return scaled

    spec = Spec.of(dataset, low, high)
    normalizer = policy.normalizer.__class__(spec.observation_dim)
    normalizer.fit(torch.from_numpy(dataset.observations))
    spread = float(discounted_returns(dataset, discount).std())
    scale = 1 / spread if spread > 0 else 1.0  # values of order one, which is what the initial weights are made for
    ready = scale_actions(dataset, low, high).replace(
        rewards=(dataset.rewards * scale).astype(np.float32),
        observations=normalizer(torch.from_numpy(dataset.observations)).numpy(),
        next_observations=normalizer(torch.from_numpy(dataset.next_observations)).numpy(),
        extras={**dataset.extras, "next_actions": scaled(dataset.next_observations)},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        agent = FittedQ(spec, discount=discount)
    store = store_from_dataset(ready, agent.reads)
    learner = Learner([agent], [seed], Uniform(store), planned_steps=steps)
    first = ready.episode_starts[:-1]
    pairs = torch.from_numpy(np.concatenate([ready.observations[first], scaled(dataset.observations[first])], 1))

    def values() -> Array:
        with torch.no_grad():
            return agent.critic(pairs)[0].double().numpy() / scale

    learner.run(steps - steps // 5)
    before = values().mean()
    learner.run(steps // 5)
    final = values()
    return Estimate(final, float(final.mean() - before))
