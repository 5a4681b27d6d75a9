"""PPO whose policy and value are boosted trees: for observations that are tables, and policies that can be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.actor import Evaluation
from surefoot.core.actors.boosted_actor import BoostedActor
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Batch, Metrics, Rule, Update, require
from surefoot.core.engine.traits import Requires
from surefoot.core.nn.boosted import fit_tree
from surefoot.online.ppo import PPO, PPOConfig

OUTPUTS = "outputs"
"""Column of a minibatch: what the trees give, of which the loss is differentiated."""


@dataclasses.dataclass(frozen=True)
class PPOTreesConfig(PPOConfig):
    """Settings of PPO with trees."""

    capacity: int = option(
        4_000, "trees that there is room for: epochs x minibatches of each block are grown", range=">= 1"
    )
    depth: int = option(4, "questions of each tree", range="[1, 10]")
    bins: int = option(32, "thresholds that are tried for each number of the observation", range=">= 1")
    policy_rate: float = option(0.03, "step of a tree on the choices' scores", range=">= 0")
    value_rate: float = option(0.1, "step of a tree on the value", range=">= 0")
    num_envs: int = 8
    horizon: int | None = 128
    epochs: int = 4
    minibatches: int = 4
    value_clip: float | None = None
    value_coefficient: float = 1.0
    normalize_observations: bool = False
    normalize_rewards: bool = True

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        require(self.schedule != "adaptive", "ppo_trees", "schedule", self.schedule, "linear or constant")
        require(not self.separate_norms, "ppo_trees", "separate_norms", True, "false: trees have no norm")


class PPOTrees(PPO):
    r"""PPO's loss, by gradient boosting: each minibatch grows one tree for the policy's scores and the value.

    .. math:: F_k(s) = F_{k-1}(s) - \epsilon\, h_k(s), \quad h_k \text{ fitted to } n\, \partial L / \partial F(s_i)

    L is PPO's with the value's error, F the scores of the choices and the value. Trees are oblivious, so that
    prediction is a few comparisons and one look-up. The idea is that of Fuhrer et al., "Gradient Boosting
    Reinforcement Learning" (2024), whose trees also split categories by equality, and which clips gradients; it is of
    discrete actions here. Options of gradient steps, as `learning_rate`, and of networks have no effect.
    """

    name = "ppo_trees"
    Config: ClassVar[type[PPOTreesConfig]] = PPOTreesConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"default": {}}
    requires = Requires(discrete=True, continuous=False, masks=False, one_vector=True)
    corrects_staleness = False
    row_separable = False
    config: PPOTreesConfig
    actor: BoostedActor  # type: ignore[assignment]

    def build(self) -> None:
        """Trees of policy and value together."""
        self.actor = BoostedActor(self.features, self.spec.action_dim, self.config.capacity, self.config.depth)

    def value(self, observations: Tensor) -> Tensor:  # type: ignore[override]
        """(...) values, the trees' last output."""
        return self.actor.trees(observations)[..., -1]

    def require_room(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """Nothing, where there is room for a block's trees.

        Raises:
            ConfigError: there is none.
        """
        self.actor.trees.check_room(self.config.steps_per_block)
        return {}, {}

    def evaluate(self, batch: Mapping[str, Tensor]) -> Evaluation:
        """As `OnPolicyAgent.evaluate`, of given outputs where the minibatch has them."""
        if OUTPUTS not in batch:
            return super().evaluate(batch)
        return self.actor.of(self.actor.of_outputs(batch[OUTPUTS]), batch["actions"])

    def evaluate_value(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Likewise."""
        return batch[OUTPUTS][..., -1] if OUTPUTS in batch else super().evaluate_value(batch)

    def grow(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """One more tree, fitted to the gradients at the outputs."""
        c, seen = self.config, batch["observations"]
        with torch.enable_grad():
            outputs = self.actor.trees(seen).detach().requires_grad_()
            loss, metrics = self.loss({**batch, OUTPUTS: outputs}, noise)
            (gradients,) = torch.autograd.grad(loss, outputs)
        tree = fit_tree(seen, gradients * len(seen), c.depth, c.bins)
        rates = torch.full_like(outputs[0].detach(), c.policy_rate)
        rates[-1] = c.value_rate
        made = self.actor.trees.grown(tree, rates)
        shown = {name: value.detach().mean() for name, value in metrics.items()}
        shown["trees"] = made["count"].to(seen.dtype)
        return {f"actor.trees.{name}": value for name, value in made.items()}, shown

    def updates(self) -> list[Update | Rule]:
        """A tree for each minibatch, once it is known that there is room for those of a block."""
        return [Rule(self.require_room, on="block"), Rule(self.grow, ("actor",))]
