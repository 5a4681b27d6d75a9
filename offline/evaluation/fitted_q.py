"""Fitted-Q evaluation: what a policy would return, estimated from data alone."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.base.actions import to_agent
from surefoot.core.base.counter import CounterGenerator
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.options import Options, option
from surefoot.core.base.spec import in_words
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Spec, Update
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Drawn
from surefoot.core.losses.value_learning import td_target
from surefoot.core.nn.networks import Critic
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Array, Dataset
from surefoot.data.prepare import discounted_returns, scaled_actions
from surefoot.data.store import Store, Workspace
from surefoot.offline.evaluation.single_actions import PART, single_actions

BATCH = 256
"""Rows of a training step."""


@dataclasses.dataclass(frozen=True)
class FittedQConfig(Options):
    """Settings of fitted-Q evaluation."""

    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(
        0.05,
        "rate of the target's average, ten times that of control: the estimate must travel 1 / (1 - discount) steps",
        range="[0, 1]",
    )
    learning_rate: float = option(3e-4, "learning rate", range=">= 0")
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers")


class FittedQ(Agent):
    r"""Q of a fixed policy: :math:`L = E (r + \gamma (1 - d) \hat Q(s', \pi(s')) - Q(s, a))^2`.

    Source: Le, Voloshin and Yue, "Batch Policy Learning under Constraints" (2019), with an averaged target
    instead of refitting from scratch.
    """

    name = "fitted_q"
    Config = FittedQConfig
    required_columns = ("observations", "actions", "rewards", "terminations", "next_observations", "next_actions")
    config: FittedQConfig
    actor: DeterministicActor

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
        return [Update(self.critic_loss, ("critic",), Adam(self.config.learning_rate), target_updates=targets)]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What fitted-Q evaluation found."""

    values: Array  # (E,) float64: discounted return from the first state of each episode, in reward units
    drift: float  # by how much the mean still moved in the last fifth of the steps: far from 0 is not converged


def fitted_q_estimate(
    policy: Policy, dataset: Dataset, steps: int, seed: int, discount: float = 0.99, kernels: bool = True
) -> Estimate:
    """Estimated discounted return of `policy` from the first state of each episode.

    The rows of a block of training steps are made ready at a time, so that beside the dataset it takes the memory of
    some thousand rows, and four bytes for each number of an action of at most as many rows as are drawn.

    Args:
        policy: what is judged, in the dataset's units.
        dataset: transitions, with unscaled rewards.
        steps: of training the critic.
        seed: of its weights and batches.
        discount: of the return.
        kernels: train the critic over the native module, where it was built.

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
    rows = Rows(policy, dataset, discount, steps * BATCH)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        agent = FittedQ(rows.spec, discount=discount)
    learner = Learner(
        [agent], [seed], Blocks(rows.ready, rows.population), batch_size=BATCH, planned_steps=steps, kernels=kernels
    )
    first = dataset.episode_starts[:-1]
    actions = single_actions(policy, dataset.observations[first], call=1)

    def values() -> Array:
        found = np.empty(len(first), np.float64)
        for begin in range(0, len(first), PART):
            part = slice(begin, begin + PART)
            with torch.no_grad():
                found[part] = agent.critic(rows.pairs(first[part], actions[part]))[0].double().numpy()
        return found / rows.scale

    learner.run(steps - steps // 5)
    before = values().mean()
    learner.run(steps // 5)
    final = values()
    return Estimate(final, float(final.mean() - before))


class Rows:
    """Transitions of a dataset as the critic reads them, made ready for those that are asked for.

    Whatever the dataset's size, this keeps no copy of it: the policy's next actions alone are kept where that takes
    fewer of them than `drawn`, and else made for each block of rows anew.

    Args:
        policy: that is judged.
        dataset: with unscaled rewards.
        discount: of the return.
        drawn: rows that training draws in all, with replacement.
    """

    def __init__(self, policy: Policy, dataset: Dataset, discount: float, drawn: int) -> None:
        self.policy, self.dataset = policy, dataset
        self.low, self.high = policy.action_low.numpy(), policy.action_high.numpy()
        self.spec = Spec.of(dataset, self.low, self.high)
        self.normalizer = policy.normalizer.__class__(self.spec.observation_dim)
        fit_in_parts(self.normalizer, dataset.observations)
        spread = float(discounted_returns(dataset, discount).std())
        self.scale = (
            1 / spread if spread > 0 else 1.0
        )  # values of order one, which is what initial weights are made for
        self.valid = None if bool(dataset.transitions.all()) else np.flatnonzero(dataset.transitions)
        self.population = len(dataset) if self.valid is None else len(self.valid)
        self.following = single_actions(policy, dataset.next_observations) if len(dataset) <= drawn else None
        self.calls = 1
        """Of a policy that always samples: draws of noise until now, and one more for the first actions."""

    def ready(self, chosen: Array) -> dict[str, Array]:
        """Column -> (n, ...) float32 of n rows that may be sampled, by their numbers among these."""
        rows = chosen if self.valid is None else self.valid[chosen]
        data = self.dataset
        after = data.next_observations[rows]
        if self.following is None:
            self.calls += 1
            following = single_actions(self.policy, after, self.calls)
        else:
            following = self.following[rows]
        return {
            "observations": self._normalised(data.observations[rows]),
            "actions": scaled_actions(data, data.actions[rows], self.low, self.high),
            "rewards": (data.rewards[rows] * self.scale).astype(np.float32),
            "terminations": data.terminations[rows],
            "next_observations": self._normalised(after),
            "next_actions": self._scaled(following),
        }

    def pairs(self, rows: Array, actions: Array) -> Tensor:
        """(n, O + A) what the critic reads at rows of the dataset and (n, A) actions in the environment's units."""
        observations = self._normalised(self.dataset.observations[rows])
        return torch.from_numpy(np.concatenate([observations, self._scaled(actions)], 1))

    def _normalised(self, observations: Array) -> Array:
        return np.asarray(self.normalizer(torch.from_numpy(observations)).numpy())

    def _scaled(self, actions: Array) -> Array:
        """In [-1, 1] within the bounds, and not clipped: where the policy goes is what is judged."""
        return np.asarray(to_agent(actions, self.low, self.high), np.float32)


class Blocks(Drawn):
    """Rows drawn as `Uniform` draws them, of which a block of training steps at a time is made ready."""

    def __init__(self, ready: Callable[[Array], dict[str, Array]], population: int) -> None:
        """Draw from `population` rows; `ready` gives the columns of some of them."""
        super().__init__()
        self.ready, self.population = ready, population
        self.store = Store.pack(ready(np.zeros(1, np.int64)))

    def draw(self, source: CounterGenerator, shape: tuple[int, ...]) -> Tensor:
        """Places of a block's rows in the store, which then holds these rows alone."""
        drawn = source.integers(0, self.population, shape)
        rows, places = np.unique(drawn.cpu().numpy(), return_inverse=True)
        self.store = Store.pack(self.ready(rows))
        return torch.from_numpy(places.reshape(drawn.shape)).to(drawn.device)

    def rows(self, step: int) -> Tensor:
        """(1, rows) int64 places, in the store of the block, of training step `step` >= 0."""
        return self.drawn(step)

    def gather(self, indices: Tensor, out: Any = None) -> Batch:
        """As `Source.gather`."""
        return self.store.gather(indices, out)

    def workspace(self, shape: int) -> Workspace:
        """As of a store: all of them have the same columns."""
        return self.store.workspace(shape)


def fit_in_parts(normalizer: Normalizer, values: Array) -> None:
    """As `Normalizer.fit`, with the sums of a part of the (N, width) values at a time, within float64's rounding."""
    parts = [slice(begin, begin + PART) for begin in range(0, len(values), PART)]
    mean, squares = torch.zeros(2, values.shape[1], dtype=torch.float64)
    for part in parts:
        mean += torch.from_numpy(values[part]).double().sum(0) / len(values)
    for part in parts:
        squares += (torch.from_numpy(values[part]).double() - mean).square().sum(0) / len(values)
    normalizer.take(mean, squares.sqrt())
