"""A planner in a world as a policy: `evaluate` runs it, and `select_action` can be asked of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from surefoot.core.actors.memory import Memory, in_rows
from surefoot.core.base.actions import to_bounds
from surefoot.core.base.errors import ConfigError
from surefoot.core.policy.control_loop import ControlLoop
from surefoot.envs.interface import Array
from surefoot.world_models.dynamics import Dynamics, check_costs
from surefoot.world_models.futures import Objective, check_futures, shares
from surefoot.world_models.planners.base import DRAWS, Planner


def as_they_are(observations: Tensor) -> Tensor:
    """The states of a model of observations."""
    return observations


class PlannerPolicy(ControlLoop):
    """Plans anew at each step and takes the plan's first action; the plan, a step on, is its memory."""

    needs_outcomes = False
    discrete = False
    has_memory = True

    def __init__(
        self,
        planner: Planner,
        dynamics: Dynamics,
        low: Tensor | Array,
        high: Tensor | Array,
        objective: Objective = Objective(),  # noqa: B008  # it is frozen
        states_of: Callable[[Tensor], Tensor] | None = None,
        observation_dim: int | None = None,
    ) -> None:
        """Take the parts.

        Args:
            planner: how.
            dynamics: where it looks ahead.
            low: (A,) of the environment's actions.
            high: (A,).
            objective: what for.
            states_of: (B, O) observations -> (B, S) states; by default the world's own, else as they are.
            observation_dim: O; by default the world's own, else S.

        Raises:
            ConfigError: a limit on costs in a world without any; futures that are all the same, or a risk of one; fewer
                futures than members, where they keep theirs; bounds of another number of actions.
        """
        check_costs(dynamics, objective.cost_limit)
        check_futures(dynamics, objective)
        shares(dynamics, objective)
        self.planner, self.dynamics, self.objective = planner, dynamics, objective
        self.low, self.high = (torch.as_tensor(bound).float() for bound in (low, high))
        if not self.low.shape == self.high.shape == (dynamics.action_dim,):
            raise ConfigError(
                f"low and high are of shapes {tuple(self.low.shape)} and {tuple(self.high.shape)}; a world of "
                f"{dynamics.action_dim} actions needs ({dynamics.action_dim},) each"
            )
        own: Callable[[Tensor], Tensor] = getattr(dynamics, "states_of", as_they_are)
        self._states_of = own if states_of is None else states_of
        width: int = getattr(dynamics, "observation_dim", dynamics.state_dim)
        self._width = width if observation_dim is None else observation_dim
        self.plans = 0
        self.reset()

    @property
    def observation_dim(self) -> int:
        """O."""
        return self._width

    @property
    def action_dim(self) -> int:
        """A."""
        return len(self.low)

    def begin(self, rows: int, seed: int = 0) -> Memory:
        """The memory of `rows` rows at the first step of an episode."""
        return self.planner.begin(rows, self.action_dim, seed)

    @torch.no_grad()
    def act(self, observations: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """(B, A) actions in the environment's units for (B, O) observations, and the new memory."""
        plan, memory = self.planner.plan(self.dynamics, self._states_of(observations), memory, self.objective)
        self.plans += len(plan)
        return to_bounds(plan[:, 0].float(), self.low, self.high), memory

    def observe_outcome(self, memory: Memory, rewards: Tensor, costs: Tensor, ended: Tensor) -> Memory:
        """The memory with no plan in the rows that ended; their random numbers continue."""
        fresh = self.planner.begin(1, self.action_dim)
        return in_rows(memory, {name: value for name, value in fresh.items() if name != DRAWS}, ended)
