"""Recurrent PPO: PPO whose policy and critic remember an episode's observations in a GRU or an LSTM."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from surefoot.core.actors.actor import DistributionActor, Evaluation, SampleAux
from surefoot.core.actors.memory import Memory
from surefoot.core.actors.memory_actors import GatedActor, GRUActor, LSTMActor
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Batch, require
from surefoot.core.engine.traits import Teams
from surefoot.core.nn.networks import Value
from surefoot.core.nn.recurrent import UNITS, Gates
from surefoot.online.base.on_policy_agent import BEGINS, MEMORY, head_gain, in_parts, kept_of
from surefoot.online.ppo import PPO, PPOConfig

ACTORS: dict[str, type[GatedActor]] = {"gru": GRUActor, "lstm": LSTMActor}
"""Option `memory` -> head that reads it."""
CRITICS = ("own", "shared", "none")
ACTOR, CRITIC = "actor", "critic"
"""What is remembered: the actor's state, and the critic's where it has its own."""


@dataclasses.dataclass(frozen=True)
class RecurrentPPOConfig(PPOConfig):
    """Settings of recurrent PPO: PPO's, and those of the memory."""

    num_envs: int = 16
    horizon: int | None = 128
    minibatches: int = option(4, "minibatches of each pass, each of whole sequences: must divide N T / L")
    memory: str = option("lstm", "memory that takes in each observation: lstm or gru", choices=ACTORS)
    memory_width: int = option(128, "width of the state that policy and critic read", range=">= 1")
    critic_memory: str = option(
        "own", "memory of the critic: own; shared: the actor's, which the critic does not train; none", choices=CRITICS
    )
    sequence: int | None = option(
        None, "steps that gradients go back through, L, which must divide T; null: a whole block"
    )

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = "recurrent_ppo"
        divides = self.sequence is None or (self.sequence >= 1 and self.length % self.sequence == 0)
        fits = f"None, or a number that divides the {self.length} steps of a block"
        require(divides, name, "sequence", self.sequence, fits)
        count = self.rows // self.sequence_steps
        fits = f"a number that divides the {count} sequences of a block ({self.sequence_steps} steps each)"
        require(count % self.minibatches == 0, name, "minibatches", self.minibatches, fits)
        words = "1: what is remembered takes in every step"
        require(self.chunk in (None, 1), name, "chunk", self.chunk, words)

    @property
    def sequence_steps(self) -> int:
        """L: steps of one environment that stand together in a minibatch."""
        return self.length if self.sequence is None else self.sequence


class RecurrentValue(nn.Module):
    """State values of what a recurrent unit of their own has seen of an episode, or of what they are given."""

    def __init__(self, memory: Gates | None, head: Value) -> None:
        """Take the unit, None where the head's inputs come from elsewhere, and the head."""
        super().__init__()
        self.memory, self.head = memory, head

    def forward(self, features: Tensor) -> Tensor:
        """(B,) values of what the head reads."""
        value: Tensor = self.head(features)
        return value


class RecurrentPPO(PPO):
    r"""PPO with memory: :math:`\pi(a_t | h_t)` and :math:`V(h_t)`, where :math:`h_t` has taken in the observations
    :math:`o_1 \dots o_t` of the episode.

    The losses are PPO's. A minibatch holds sequences of L steps, in the order of time; a sequence starts from the state
    in which its first step was acted, as it was then; the state is zero where an episode begins; and gradients go back
    through all steps of the sequence (truncated backpropagation through time). So the first ratio of a block is 1.

    Sources: Hausknecht and Stone, "Deep Recurrent Q-Learning for Partially Observable MDPs" (2015), section 4;
    Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning" (R2D2), section 3, on stored
    states; Huang et al., "The 37 Implementation Details of PPO", the five details for LSTM. The preset `sb3` is that of
    RecurrentPPO in sb3-contrib.
    """

    name = "recurrent_ppo"
    teams = Teams(trains=True)
    Config: ClassVar[type[RecurrentPPOConfig]] = RecurrentPPOConfig
    row_separable = False
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "sb3": {
            "num_envs": 8,
            "horizon": 128,
            "minibatches": 8,
            "schedule": "constant",
            "value_clip": None,
            "value_coefficient": 1.0,
            "normalize_observations": False,
            "normalize_rewards": False,
            "memory_width": 256,
        },
    }
    config: RecurrentPPOConfig

    def build(self) -> None:
        """Actor and critic, each a recurrent unit and a perceptron that reads its state."""
        c = self.config
        self.build_actor()
        unit: Gates | None = None
        if c.critic_memory == "own":
            unit = UNITS[c.memory]()
            unit.make_gates(self.features, c.memory_width)
            unit.make_orthogonal()
        inputs = self.features if c.critic_memory == "none" else c.memory_width
        head = Value(inputs, c.hidden, "orthogonal", activation=c.activation)
        head_gain(head.mlp, 1.0)
        value: Any = RecurrentValue(unit, head)
        self.value = value

    def build_actor(self) -> None:
        """A head of the memory's state."""
        c = self.config
        passed = self.spec.action_dim if self.spec.masked else 0  # the mask, which the head obeys
        head = self.head_of(c.memory_width + passed)
        actor: Any = ACTORS[c.memory](head, self.features, c.memory_width, passed)
        actor.make_orthogonal()
        self.actor = actor

    @property
    def unit(self) -> GatedActor:
        """The actor, as the recurrent unit that it is."""
        actor: Any = self.actor
        return actor

    @property
    def critics_unit(self) -> Gates | None:
        """The recurrent unit that is the critic's own; None where it has none."""
        value: Any = self.value
        unit: Gates | None = value.memory
        return unit

    @property
    def distribution(self) -> DistributionActor:
        """The head that reads the actor's memory."""
        head: Any = self.unit.inner
        return head

    @property
    def explore_dim(self) -> int:
        """Standard normal numbers per row that `decide` reads."""
        return self.distribution.held_dim

    # -- acting ------------------------------------------------------------------------------------------

    def begin(self, rows: int) -> Memory:
        """Zero states: (rows, R) of the actor, and of the critic where it has its own."""
        given = next(self.unit.parameters())
        own = self.critics_unit
        widths = {ACTOR: self.unit.state_width} | ({} if own is None else {CRITIC: own.state_width})
        return {name: given.new_zeros((rows, width)) for name, width in widths.items()}

    def decide(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, SampleAux, Memory]:
        """As `OnPolicyAgent.decide`; the critic's state takes in the observation too."""
        after = {ACTOR: self.unit.cell(observations, memory[ACTOR])}
        if (own := self.critics_unit) is not None:
            after[CRITIC] = own.cell(observations, memory[CRITIC])
        read = self.unit.head_inputs(self.unit.output(after[ACTOR]), observations)
        actions, kept = self.distribution.sample(read, noise)
        return actions, kept, after

    # -- a block, whose states before each step are known: step by step, all at once -----------------------

    def acted(self, block: Mapping[str, Tensor]) -> Batch:
        """As `OnPolicyAgent.acted`, with the states before each step and where episodes begin."""
        held = {name: value for name, value in block.items() if name.startswith(MEMORY) or name == BEGINS}
        return super().acted(block) | held

    def log_prob(self, block: Mapping[str, Tensor]) -> Tensor:
        """(T, N) log-densities of a block's actions under the policy as it is, at the states in which it acted."""
        kept, head = kept_of(block), self.distribution

        def of_rows(observations: Tensor, state: Tensor, actions: Tensor, *more: Tensor) -> Tensor:
            read = self._read_after(observations, state)
            return head.log_density(read, actions, dict(zip(kept, more, strict=True)))

        return in_parts(of_rows, block["observations"], block[f"{MEMORY}{ACTOR}"], block["actions"], *kept.values())

    def block_behaviour(self, block: Mapping[str, Tensor]) -> Tensor:
        """(T, N, H) as `OnPolicyAgent.block_behaviour`."""
        head = self.distribution

        def of_rows(observations: Tensor, state: Tensor) -> Tensor:
            return head.to_rows(head(self._read_after(observations, state)))

        return in_parts(of_rows, block["observations"], block[f"{MEMORY}{ACTOR}"])

    def _read_after(self, observations: Tensor, state: Tensor) -> Tensor:
        """What the head reads at (B, O) observations, from (B, R) states before them."""
        return self.unit.head_inputs(self.unit.output(self.unit.cell(observations, state)), observations)

    def block_values(self, block: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(T, N) values in a block, and of what followed: by the state after the step, which takes that in too."""
        unit, name = self._critics_memory()
        if unit is None:
            return super().block_values(block)

        def both(observations: Tensor, following: Tensor, state: Tensor) -> Tensor:
            after = unit.cell(observations, state)
            return torch.stack([self.value(unit.output(s)) for s in (after, unit.cell(following, after))], -1)

        found = in_parts(both, block["observations"], block["next_observations"], block[f"{MEMORY}{name}"])
        return found[..., 0], found[..., 1]

    def _critics_memory(self) -> tuple[Gates | None, str]:
        """The unit whose state the critic reads, None where it reads observations, and the name of its state."""
        if self.config.critic_memory == "shared":
            return self.unit, ACTOR
        return self.critics_unit, CRITIC

    # -- a minibatch, whose sequences are gone through from their first states ------------------------------

    def evaluate(self, batch: Mapping[str, Tensor]) -> Evaluation:
        """What the policy as it is says of the actions of B rows, sequences of L one after another."""
        read = self.unit.head_inputs(self._along(batch, self.unit, ACTOR), batch["observations"])
        return self.distribution.evaluate(read, batch["actions"], kept_of(batch))

    def evaluate_value(self, batch: Mapping[str, Tensor]) -> Tensor:
        """(B,) values of B rows, sequences of L one after another."""
        unit, name = self._critics_memory()
        read = batch["observations"] if unit is None else self._along(batch, unit, name)
        return self.value(read if name == CRITIC else read.detach())

    def _along(self, batch: Mapping[str, Tensor], unit: Gates, name: str) -> Tensor:
        """(B, W) what is read of a unit's state at each row."""
        observations, state, begins = (
            batch[key].unflatten(0, (-1, self.config.sequence_steps))
            for key in ("observations", f"{MEMORY}{name}", BEGINS)
        )
        return unit.unrolled(observations, state[:, 0], begins).flatten(0, 1)
