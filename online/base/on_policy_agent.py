"""What on-policy agents have in common, beside what every `Agent` has: networks, samples, advantages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor, DistributionActor, Evaluation, SampleAux
from surefoot.core.actors.chunks import in_chunks
from surefoot.core.actors.heads import CategoricalActor, StateDependentActor, UnboundedGaussianActor
from surefoot.core.actors.masked_actors import MaskedCategoricalActor
from surefoot.core.actors.memory import Memory
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Agent, Batch, DatasetLike, Spec, require
from surefoot.core.engine.traits import Requires, Vision
from surefoot.core.losses.value_learning import gae, gae_off_policy
from surefoot.core.nn.networks import MLP, Value
from surefoot.core.policy.policy import Policy
from surefoot.online.base.on_policy_config import OnPolicyConfig

PART = 8192
"""Rows that a network is given at once on a CPU: their activations stay in the cache, and in the memory."""
BEHAVIOUR = "behaviour_log_prob"
"""Column of a block that an older policy took: its log-densities of the actions."""
HEADS = (UnboundedGaussianActor, StateDependentActor, CategoricalActor)
"""Heads that `build_actor` makes here; choices have no width, and take `initial_log_std` without a word."""
KEPT = "kept/"
"""What names of columns begin with that a head has kept of its actions."""
MEMORY = "memory/"
"""What names of columns begin with that hold what an agent remembered before the step."""
BEGINS = "begins"
"""Column of agents that remember: 1 at the first step of an episode, else 0."""


class OnPolicyAgent(Agent):
    """An agent that `OnPolicyLoop` trains: it learns from each block of its own steps, which is then discarded.

    Actions inside are samples as drawn, not clipped (one-hot rows of a discrete policy); what acts clips them.
    """

    config: OnPolicyConfig
    required_columns: ClassVar[tuple[str, ...]] = ()
    requires = Requires(discrete=True, online=True, data="refused")
    vision = Vision(fixed_views=True)
    corrects_staleness: ClassVar[bool] = False
    """Whether it learns from blocks that an older policy took: by `behaviour_log_prob` and `advantages`."""
    anneals: ClassVar[bool] = False
    """Whether its blocks say how much of the run is over: `progress`, in [0, 1)."""
    actor: DistributionActor
    """Of the algorithms here; one that asks no more than `sample` and `evaluate` of it takes any head. It plans a whole
    chunk, `decision_dim` numbers, where the config has one."""

    def __init__(self, problem: Spec | DatasetLike, config: Any = None, **options: Any) -> None:
        """As `Agent`, with the options that hold for every head; those that the head does not have are refused.

        Raises:
            ConfigError: as `Agent`; `exploration` or `initial_log_std` of a head that has noise of its own.
        """
        super().__init__(problem, config, **options)
        c, head = self.config, self.distribution
        instead = f"; leave it out, since the head of {self.name} explores by noise of its own"
        held = c.exploration == "gaussian" or isinstance(head, StateDependentActor)
        require(held, self.name, "exploration", c.exploration, f"gaussian{instead}")
        wide = c.initial_log_std == 0 or isinstance(head, HEADS)
        require(wide, self.name, "initial_log_std", c.initial_log_std, f"0{instead}")
        if c.observation_limit is not None and c.normalize_observations:  # raw ones are of no known size
            self.normalizer.limit = c.observation_limit

    def build(self) -> None:
        """Actor and critic apart.

        Source: Huang et al., "The 37 Implementation Details of PPO", details 2 and 13.
        """
        self.build_actor()
        c = self.config
        self.value = Value(self.features, c.hidden, "orthogonal", activation=c.activation)
        head_gain(self.value.mlp, 1.0)

    def build_actor(self) -> None:
        """An actor of what networks read as an observation."""
        self.actor = self.head_of(self.features)

    def head_of(self, inputs: int) -> DistributionActor:
        """A head of so many inputs, with orthogonal weights and a small last layer."""
        c, spec = self.config, self.spec
        alone = self.chunk == 1 or not (spec.discrete or self.required_columns)
        require(alone, self.name, "chunk", c.chunk, "1 where actions are choices, and beside rows of data")
        sizes = (inputs, self.decision_dim, c.hidden, "orthogonal")
        head: DistributionActor
        if spec.discrete:
            gaussian = c.exploration == "gaussian"
            require(gaussian, self.name, "exploration", c.exploration, "gaussian where actions are choices")
            kinds = MaskedCategoricalActor if spec.masked else CategoricalActor
            head = kinds(*sizes, activation=c.activation)
        else:
            kind = StateDependentActor if c.exploration == "state_dependent" else UnboundedGaussianActor
            options = {"activation": c.activation, "initial_log_std": c.initial_log_std}
            head = kind(*sizes, **options)  # type: ignore[arg-type]
        head_gain(head.mlp, 0.01)
        return head

    @property
    def distribution(self) -> Actor:
        """The head that gives the distribution of actions: the actor itself, or what is within one that remembers."""
        return self.actor

    def begin(self, rows: int) -> Memory:
        """What it remembers of `rows` rows at the first step of an episode, each (rows, ...); here nothing."""
        return {}

    def decide(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, SampleAux, Memory]:
        """As `sample`, at any step of an episode; and the memory after the step."""
        return *self.sample(observations, noise), memory

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, SampleAux]:
        """(B, A) actions as drawn and what is kept of them, for (B, O) observations and (B, held_dim) normal noise."""
        if len(observations) <= PART:
            return self.actor.sample(observations, noise)
        found = [self.actor.sample(o, z) for o, z in zip(_parts(observations), _parts(noise), strict=True)]
        if len(found) == 1:
            return found[0]
        actions, kept = zip(*found, strict=True)
        return torch.cat(actions), {name: torch.cat([one[name] for one in kept]) for name in kept[0]}

    def evaluate(self, batch: Mapping[str, Tensor]) -> Evaluation:
        """What the policy as it is says of the actions of (B, ...) rows."""
        return self.actor.evaluate(batch["observations"], batch["actions"], kept_of(batch))

    def evaluate_value(self, batch: Mapping[str, Tensor]) -> Tensor:
        """(B,) values of (B, ...) rows, with gradient."""
        value: Tensor = self.value(batch["observations"])
        return value

    def behaviour_log_prob(self, block: Mapping[str, Tensor]) -> Tensor:
        """(T, N) log-densities of a block's actions under the policy that acted: as it is now, or as the block says."""
        return block[BEHAVIOUR] if BEHAVIOUR in block else self.log_prob(block)

    def log_prob(self, block: Mapping[str, Tensor]) -> Tensor:
        """(T, N) log-densities of a block's actions under the policy as it is."""
        kept = kept_of(block)

        def of_rows(observations: Tensor, actions: Tensor, *more: Tensor) -> Tensor:
            return self.actor.log_density(observations, actions, dict(zip(kept, more, strict=True)))

        return in_parts(of_rows, block["observations"], block["actions"], *kept.values())

    def acted(self, block: Mapping[str, Tensor]) -> Batch:
        """Columns (T, N, ...) that every loss reads: observations, actions with what is kept of them, and the mask."""
        names = ("observations", "actions", "mask")
        return {name: value for name, value in block.items() if name in names or name.startswith(KEPT)}

    def values(self, observations: Tensor) -> Tensor:
        """(T, N) values of (T, N, O) observations."""
        return in_parts(self.value, observations)

    def behaviour(self, observations: Tensor) -> Tensor:
        """(T, N, H) the policy's distributions at (T, N, O) observations, as rows to be kept."""
        return in_parts(lambda part: self.actor.to_rows(self.actor(part)), observations)

    def block_behaviour(self, block: Mapping[str, Tensor]) -> Tensor:
        """(T, N, H) the policy's distributions in a block, as rows to be kept."""
        return self.behaviour(block["observations"])

    def advantages(self, block: Mapping[str, Tensor]) -> Batch:
        """Columns (T, N) of a block: values, advantages (generalised, eq. 16 of Schulman et al.) and returns.

        Of a block that an older policy took they are corrected by V-trace.
        """
        c, (values, following) = self.config, self.block_values(block)
        found = self.generalised(block, block["rewards"], values, following, c.discount, c.gae_lambda)
        return {"values": values, "advantages": found[0], "returns": found[1]}

    def block_values(self, block: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(T, N) values of a block's observations, and of those that followed them."""
        return self.values(block["observations"]), self.values(block["next_observations"])

    def generalised(
        self,
        block: Mapping[str, Tensor],
        earned: Tensor,
        values: Tensor,
        following: Tensor,
        discount: float,
        trace: float,
    ) -> tuple[Tensor, Tensor]:
        """(T, N) generalised advantages and returns of what each step of a block earned, rewards or costs.

        Args:
            block: its ends, its mask, and what the policy that took it gave, where that is an older one.
            earned: (T, N).
            values: (T, N) of its observations, and `following` of those after them.
            following: (T, N).
            discount: in [0, 1].
            trace: lambda in [0, 1].
        """
        ends = (block["terminations"], block["truncations"], discount, trace, block.get("mask"))
        if BEHAVIOUR in block:
            return gae_off_policy(self.log_prob(block) - block[BEHAVIOUR], earned, values, following, *ends)
        return gae(earned, values, following, *ends)

    def policy(self) -> Policy:
        """As `Agent.policy`; one that decides in chunks plays them from its memory, a step at a time."""
        actor = in_chunks(self.leaving_actor(), self.chunk, self.spec.action_dim)
        return Policy.of(actor, self.normalizer, self.action_low, self.action_high, self.encoder)

    @property
    def warm_up_blocks(self) -> int:
        """Blocks at first that only the critic learns from: `moving` is 0 in them, which losses multiply by."""
        return 0

    @property
    def explore_dim(self) -> int:
        """Standard normal numbers per row that `sample` reads."""
        return self.actor.held_dim

    def leaving_actor(self) -> Actor:
        """The head that policies are made of: what acts, without what only training needs."""
        return self.actor

    def column_noise(self) -> Mapping[str, Noise]:
        """Random numbers that `columns` reads of each row of a block, by name."""
        return {}

    def columns(self, block: Mapping[str, Tensor]) -> Batch:
        """What the losses read of a block of (T, N, ...) tensors: (T, N, ...) columns, without gradient.

        Args:
            block: observations and next_observations (normalised), actions and, named `kept/...`, what the head has
                kept of them; rewards (scaled), terminations, truncations; `costs` as they are where the agent has a
                `cost_window`; `mask` where some rows are no transitions; `progress` where the agent anneals; `moving`
                where it has `warm_up_blocks`; its `required_columns` of a dataset, each name behind `data_`, drawn anew
                for each block; and its `column_noise`.
        """
        raise TypeError(f"{type(self).__name__} must define columns")

    def stop_at(self, group: int) -> float | None:
        """The divergence that ends the epochs of a group of updates early, or that an adaptive rate aims at, or None.

        Args:
            group: 0, or more where rules on blocks part the updates.
        """
        return getattr(self.config, "target_kl", None)


def kept_of(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a head has kept of the actions of a batch or block, by the head's own names."""
    return {name.removeprefix(KEPT): value for name, value in batch.items() if name.startswith(KEPT)}


def in_parts(function: Callable[..., Tensor], *columns: Tensor) -> Tensor:
    """`function` of the rows of (T, N, ...) columns, some at a time on a CPU: (T, N, ...)."""
    rows = zip(*(_parts(column.flatten(0, 1)) for column in columns), strict=True)
    found = [function(*part) for part in rows]
    return (found[0] if len(found) == 1 else torch.cat(found)).unflatten(0, columns[0].shape[:2])


def _parts(rows: Tensor) -> Sequence[Tensor]:
    """Rows as a network is given them: some at a time on a CPU, all at once elsewhere."""
    return rows.split(PART) if rows.device.type == "cpu" else [rows]


@torch.no_grad()
def head_gain(network: MLP, gain: float) -> None:
    """Scale the last layer of a network with orthogonal weights (gain sqrt 2) to another gain."""
    network.weights[-1].mul_(gain / math.sqrt(2))
