"""What agents that learn online have in common, beside what every `Agent` has."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.chunks import decisions
from surefoot.core.actors.memory import Memory
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import Options, option
from surefoot.core.engine.agent import Agent, Batch, algorithm_of, require
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.engine.traits import Acting, Requires
from surefoot.core.losses.value_learning import td_target
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import prepare
from surefoot.data.store import recording_ids
from surefoot.online.loops.relabelling import RelabelledReplay
from surefoot.online.loops.replay import FinishedReplay, Mixture, Replay, ReplaySteps

INITIAL_ACTIONS = ("uniform", "policy")


@dataclasses.dataclass(frozen=True)
class OffPolicyConfig(Options):
    """How an off-policy algorithm gathers experience and how often it learns from it."""

    num_envs: int = option(1, "parallel environments of each seed", range=">= 1")
    replay_capacity: int = option(
        1_000_000, "transitions of each seed that are kept, rounded down to whole vector steps"
    )
    replay_memory: float | None = option(
        None, "GB (1e9 bytes) that they may take; fewer are kept where they need more", range="> 0"
    )
    initial_steps: int = option(100, "environment steps before the first update", range=">= 1")
    initial_actions: str = option(
        "uniform",
        "actions of the initial steps: uniform over the action space, or policy, the policy's own",
        choices=INITIAL_ACTIONS,
    )
    updates_per_step: float = option(1.0, "training steps per environment step (transition) of a seed", range="> 0")
    offline_fraction: float = option(
        0.0, "share of each batch, drawn from the rows of a dataset; 0 keeps none", range="[0, 1)"
    )

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        least = f">= num_envs, {self.num_envs}"
        require(self.replay_capacity >= self.num_envs, name, "replay_capacity", self.replay_capacity, least)

    def training_steps(self, step: int) -> int:
        """Training steps that should have been taken after `step` environment steps."""
        return max(0, math.floor((step - self.initial_steps) * self.updates_per_step + 1e-9))


@dataclasses.dataclass(frozen=True)
class CounterfactualConfig(OffPolicyConfig):
    """The option of agents that learn from plain rows of replay, which an objective's machine may multiply."""

    counterfactual: bool = option(
        False, "each transition as from every state of the objective's machine (CRM); needs objective="
    )


@dataclasses.dataclass(frozen=True)
class NStepConfig(CounterfactualConfig):
    """Options of agents whose targets may be of several steps."""

    n_step: int = option(
        1, "steps of reward before the target's bootstrap, n; an episode's end cuts them short", range=">= 1"
    )
    hindsight: int = option(
        0, "rows with a goal that was reached later, for each that keeps its own: 4 is usual", range=">= 0"
    )

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        alone = self.n_step == 1 or self.offline_fraction == 0
        require(alone, name, "offline_fraction", self.offline_fraction, "0 where n_step is above 1")
        single = self.n_step == 1 or self.hindsight == 0
        require(single, name, "hindsight", self.hindsight, "0 where n_step is above 1")
        plain = not self.counterfactual or (self.n_step == 1 and self.hindsight == 0)
        require(
            plain, name, "counterfactual", self.counterfactual, "false where n_step is above 1 or hindsight above 0"
        )


class OffPolicyAgent(Agent):
    """An agent that `OffPolicyLoop` trains: it learns from a replay buffer that its own actions fill.

    The loop writes rewards as r * `reward_scale` + `reward_shift` and observations as `normalizer` leaves them, so
    that data met online goes through the map that an offline run has chosen.
    """

    config: OffPolicyConfig
    requires = Requires(data="optional", online=True)
    required_columns: ClassVar[tuple[str, ...]] = (
        "observations",
        "actions",
        "rewards",
        "terminations",
        "next_observations",
    )
    acting: ClassVar[Acting] = Acting()
    """How it acts while it trains."""
    corrections: int = 0
    """Steps of each seed in which a person acted that are kept apart too, for its `sources`."""
    batch_size: int = 256
    """Rows of one critic step; the loop sets it before it asks for `updates`."""

    @property
    def n_step(self) -> int:
        """Steps of reward in a target, n: more than 1 only with `NStepConfig`."""
        return int(getattr(self.config, "n_step", 1))

    @property
    def explore_dim(self) -> int:
        """Standard normal numbers per row that `explore` reads."""
        return self.decision_dim

    def first_actions(self, uniform: Tensor) -> Tensor:
        """(..., A) actions before the first update of (..., A) numbers that are uniform on [-1, 1)."""
        return uniform

    def played(self, observations: Tensor, actions: Tensor) -> Tensor:
        """(B, C A) what the environment is given for (B, C A) actions that are stored, of agents that act in chunks."""
        return actions

    @classmethod
    def data_with(cls, config: Mapping[str, Any]) -> str:
        """`requires.data`, but nothing where rows of the data usually stand in each batch and none are wanted."""
        usual = cls.Config().offline_fraction
        return "refused" if config.get("offline_fraction", usual) == 0 < usual else cls.requires.data

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """The replay buffer, or rows of n steps of it, or rows of the data and of the buffer in every batch.

        Raises:
            ConfigError: a dataset that the agent does not keep, or none where it does.
        """
        fraction = self.config.offline_fraction
        replay = (FinishedReplay if "returns_to_go" in self.required_columns else Replay)(stores.replay)
        if stores.data is None:
            if fraction > 0:
                raise ConfigError(f"{self.name} draws {fraction:g} of each batch from a dataset: give dataset=")
            if stores.relabelling is not None:
                return {MAIN: RelabelledReplay(replay, stores.relabelling)}
            return {MAIN: self._replay(stores, replay)}
        if fraction == 0:
            raise ConfigError(
                f"{self.name} keeps no offline data: leave dataset= out, or set algo.offline_fraction to the part of "
                "each batch that is to come from it"
            )
        if stores.relabelling is not None:
            recordings = torch.as_tensor(recording_ids(stores.dataset, stores.data.keys))
            return {MAIN: RelabelledReplay(replay, stores.relabelling, stores.data, recordings, fraction)}
        return {MAIN: Mixture(stores.data, replay, fraction)}

    def _replay(self, stores: Stores, rows: Source) -> Source:
        """The source of an agent that learns from its replay buffer alone: plain rows, or those of several steps."""
        discount: float = vars(self.config).get("discount", 1.0)
        return rows if self.n_step == 1 else ReplaySteps(stores.replay, self.n_step, discount)

    def prepare(self, dataset: Dataset) -> Dataset:
        """A dataset as rows to learn from beside the replay buffer: actions scaled, rewards and observations too."""
        return prepare(self, dataset, rewards="none", normalization="none")

    def returns_to_go(self, rewards: Tensor, terminations: Tensor) -> Tensor:
        """(L,) what each step of an episode that is over brought from there on, for agents that read `returns_to_go`.

        Args:
            rewards: (L,) as stored.
            terminations: (L,) 0 or 1.
        """
        raise TypeError(f"{type(self).__name__} must define returns_to_go")

    def begin(self, rows: int) -> Memory:
        """The memory of `rows` rows at the first step of an episode, of agents whose acting is `stateful`."""
        return self.actor.begin(rows)

    def explore_on(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """As `explore`, of agents whose acting is `stateful`: actions that will be carried out, and the new memory."""
        return self.actor.step(observations, memory, noise)

    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(B, A) actions in [-1, 1] to gather experience by; (B, C A) of agents that choose several at once.

        Args:
            observations: (B, O) normalised.
            noise: (B, `explore_dim`) standard normal.
        """
        return self.act(observations, noise)


def rows_of_steps(agent: Any, batch: Batch) -> Batch:
    r"""Rows of n steps of an agent with `NStepConfig`, as its `annotate`; plain rows where n is 1.

    .. math:: y = \sum_{k < m} \gamma^k r_{t+k} + \gamma^m (1 - d)\, V(s_{t+m}), \quad m \le n

    where m < n only where the episode ends or the newest step is reached. The steps after the first are not corrected
    for actions that the present policy would not take, as in Rainbow (Hessel et al., 2018) and D4PG (Barth-Maron et
    al., 2018), so that n is a compromise: 3 to 5 are usual.

    Args:
        agent: of an off-policy algorithm.
        batch: windows (B, n, ...) with `mask` (B, n), plain rows, or rows of steps as `ReplaySteps` gives them.

    Returns:
        The batch with `observations`, `actions` and `observation_actions` of the first step, `rewards` (B,) the
        discounted sum, `reach` (B,) what discounts the value behind it, and `next_observations` where that is.
    """
    if "mask" not in batch:
        return batch
    rows = decisions(batch, agent.config.discount, agent.n_step)
    actions = batch["actions"][..., 0, :]
    return {**rows, "actions": actions, "observation_actions": torch.cat([rows["observations"], actions], -1)}


def bootstrapped(batch: Batch, next_values: Tensor, discount: float) -> Tensor:
    """(B,) targets without gradient: of plain rows as `td_target`, of rows that `rows_of_steps` made of n steps.

    Args:
        batch: `rewards` (B,), and `reach` (B,) or `terminations` (B,).
        next_values: (B,) of `next_observations`.
        discount: per step.
    """
    if "reach" in batch:
        return (batch["rewards"] + batch["reach"] * next_values).detach()
    return td_target(batch["rewards"], batch["terminations"], next_values, discount)
