"""GORP: sequences of choices, each judged by random actions behind it; a baseline that needs a simulator alone."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.memory import DRAWS, Memory
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import option
from surefoot.world_models.dynamics import Dynamics
from surefoot.world_models.futures import Objective, score
from surefoot.world_models.planners.base import PLAN, BasePlanner, counted_on, sampled, shifted
from surefoot.world_models.planners.choices import drawn_choices, grid_of_choices

MOST_SEQUENCES = 100_000
"""Of a plan."""
CANDIDATES_AT_ONCE = 4096
"""Trajectories whose actions are held in memory, of all rows together, at least one sequence's."""


@dataclasses.dataclass(frozen=True)
class GORP(BasePlanner):
    """Greedy over random policy (Laidlaw, Russell and Dragan, NeurIPS 2023), planned anew from each state.

    All sequences of `depth` choices are tried `samples` times with uniformly random choices behind them, up to
    `horizon`; the first choice of the sequence with the best mean is taken, among equal ones a random one. In a world
    without chance that is the paper's algorithm, which fixes one action after another, where `horizon` reaches the end
    of the episode. Actions are `bins` values in each dimension.
    """

    name: ClassVar[str] = "gorp"
    horizon: int = option(30, "steps looked ahead", range=">= 1")
    depth: int = option(1, "choices that are tried in all sequences, k of the paper", range=">= 1")
    samples: int = option(32, "random continuations of each sequence, m of the paper", range=">= 1")
    bins: int = option(3, "values of each action dimension", range=">= 2")

    def plan(
        self,
        dynamics: Dynamics,
        states: Tensor,
        memory: Memory,
        objective: Objective = Objective(),  # noqa: B008  # it is frozen
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Memory]:
        """As `Planner.plan`; `noise` is of `samples` candidates and of one more, which decides between ties.

        Sequences share their continuations (common random numbers). Behind the first `depth` actions of what is given
        the plan is that of the sequence's first continuation.

        Raises:
            ConfigError: too many choices or sequences, or a limit on costs.
        """
        if objective.cost_limit is not None:
            raise ConfigError("gorp keeps no cost limit: it judges sequences by their mean return; leave the limit out")
        choices = grid_of_choices(dynamics.action_dim, self.bins).to(states)
        depth = min(self.depth, self.horizon)
        if len(choices) ** depth > MOST_SEQUENCES:
            raise ConfigError(
                f"{len(choices)} choices and depth {self.depth} make {len(choices) ** depth:,} sequences, more than "
                f"{MOST_SEQUENCES:,}: lower depth or bins",
                field="depth",
                code="range",
            )
        draws, last = memory[DRAWS], memory[PLAN].to(states.dtype)
        white = sampled(noise, draws, 0, self.samples + 1, last)
        behind = drawn_choices(white[:, : self.samples], self.bins)  # (B, m, H, A)
        number = torch.arange(len(choices), device=states.device)
        sequences = choices[torch.cartesian_prod(*[number] * depth).reshape(-1, depth)]  # (N, k, A)
        rows = len(states)
        portion = max(1, CANDIDATES_AT_ONCE // (rows * self.samples))
        means = []
        for part in sequences.split(portion):
            fixed = part[None, :, None].expand(rows, -1, self.samples, -1, -1)
            free = behind[:, None, :, depth:].expand(-1, len(part), -1, -1, -1)
            candidates = torch.cat([fixed, free], -2).reshape(rows, -1, *behind.shape[2:])
            values = score(dynamics, states, candidates, draws, objective).values
            means.append(values.reshape(rows, len(part), self.samples).mean(-1))
        mean = torch.cat(means, 1).nan_to_num(-torch.inf, neginf=-torch.inf)  # (B, N)
        best = mean >= mean.amax(1, keepdim=True)
        order = white[:, self.samples].reshape(rows, -1)
        chosen = _tie_broken(best, order)
        plan = torch.cat([sequences[chosen], behind[:, 0, depth:]], 1)
        return plan, {PLAN: shifted(plan), DRAWS: counted_on(draws)}


def _tie_broken(best: Tensor, order: Tensor) -> Tensor:
    """(B,) one of the true entries of (B, N), by the first of (B, K) standard normal numbers, each equally likely."""
    place = (torch.special.ndtr(order[:, :1]) * best.sum(1, keepdim=True)).floor().long()
    place = torch.minimum(place, best.sum(1, keepdim=True) - 1)
    return ((best.long().cumsum(1) - 1 == place) & best).long().argmax(1)
