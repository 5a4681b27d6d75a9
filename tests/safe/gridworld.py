"""A grid above a cliff whose best safe policy a linear programme knows, as a vector environment with costs.

From the lower left corner to the lower right one. A step to the right pays 1 and one to the left takes 1, each step
takes `time` and the goal gives `prize`;
entering a cell of row i (0 the lowest) between the first and last columns costs cliff^i, so that each row higher is
slower and cheaper. With probability `slip` a step goes in one of the four directions at random; moves into a wall
stay. An episode ends at the goal, and after any other step with probability 1 - survival: so the plain sum over an
episode has a stationary solution.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.optimize
import scipy.stats
from gymnasium.spaces import Box, Discrete

from surefoot.envs.interface import VectorEnvironment

MOVES = ((1, 0), (-1, 0), (0, -1), (0, 1))  # up, down, left, right


@dataclasses.dataclass(frozen=True)
class Grid:
    """The problem as tables: states are cells, row by row from below."""

    size: int = 8
    slip: float = 0.1
    survival: float = 0.98
    time: float = 0.25
    prize: float = 2.0
    cliff: float = 0.5
    budget: float = 1.5

    @property
    def cells(self) -> int:
        return self.size**2

    @property
    def goal(self) -> int:
        return self.size - 1

    def transitions(self) -> np.ndarray:
        """(S, 4, S) probabilities of the cell that a step enters."""
        found = np.zeros((self.cells, 4, self.cells))
        for cell in range(self.cells):
            row, column = divmod(cell, self.size)
            entered = []
            for up, right in MOVES:
                r, c = row + up, column + right
                inside = 0 <= r < self.size and 0 <= c < self.size
                entered.append(r * self.size + c if inside else cell)
            for action in range(4):
                found[cell, action, entered[action]] += 1 - self.slip
                for where in entered:
                    found[cell, action, where] += self.slip / 4
        return found

    def entering(self) -> tuple[np.ndarray, np.ndarray]:
        """(S, S) reward of stepping from one cell to another, and (S,) cost of entering each cell."""
        cells = np.arange(self.cells)
        row, column = np.divmod(cells, self.size)
        costs = np.where((column > 0) & (column < self.size - 1), self.cliff**row, 0.0)
        return (column[None] - column[:, None]) + self.prize * (cells == self.goal) - self.time, costs

    def gains(self) -> np.ndarray:
        """(S, 4, 2) expected reward and cost of a step."""
        rewards, costs = self.entering()
        enters = self.transitions()
        return np.stack([(enters * rewards[:, None]).sum(2), enters @ costs], 2)

    def alive(self) -> np.ndarray:
        """(S, 4, S) probabilities that an episode continues in a cell."""
        found = self.survival * self.transitions()
        found[:, :, self.goal] = 0
        return found

    def value(self, policy: np.ndarray) -> tuple[float, float]:
        """Expected sums of rewards and costs of an episode under an (S, 4) policy, exactly."""
        visits = self.occupancy(policy)[:, None] * policy
        reward, cost = (visits[..., None] * self.gains()).sum((0, 1))
        return float(reward), float(cost)

    def occupancy(self, policy: np.ndarray) -> np.ndarray:
        """(S,) expected visits of each cell in an episode."""
        step = (policy[:, :, None] * self.alive()).sum(1)
        start = np.zeros(self.cells)
        start[0] = 1
        return np.linalg.solve(np.eye(self.cells) - step.T, start)

    def best(self, budget: float | None = None) -> tuple[float, float, float]:
        """Value, cost and multiplier of the best policy whose cost is within a budget, by linear programming."""
        gains = self.gains()
        flow = np.repeat(np.eye(self.cells), 4, 0).reshape(self.cells, 4, self.cells) - self.alive()
        start = np.zeros(self.cells)
        start[0] = 1
        found = scipy.optimize.linprog(
            -gains[..., 0].ravel(),
            A_ub=gains[..., 1].reshape(1, -1),
            b_ub=[self.budget if budget is None else budget],
            A_eq=flow.reshape(-1, self.cells).T,
            b_eq=start,
        )
        assert found.success, found.message
        visits = found.x.reshape(self.cells, 4)
        return -found.fun, float((visits * gains[..., 1]).sum()), float(-found.ineqlin.marginals[0])


class GridWorld(VectorEnvironment):
    """N copies of the grid; observations are one-hot cells."""

    def __init__(self, grid: Grid, num_envs: int) -> None:
        super().__init__(num_envs, Box(0, 1, (grid.cells,), np.float32), Discrete(4))
        self._tables(grid)

    def _tables(self, grid: Grid) -> None:
        self.grid = grid
        self._cumulative = grid.transitions().cumsum(2)
        self._rewards, self._costs = grid.entering()
        self._ones = np.eye(grid.cells, dtype=np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        given: Sequence[int] | int | None = seed
        self.source = np.random.default_rng(given)
        self.cells = np.zeros(self.num_envs, np.int64)
        return self._ones[self.cells], {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self.move(actions)

    def move(self, actions: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One of `MOVES` in each copy."""
        chances, lives = self.source.random((2, self.num_envs))
        entered = (chances[:, None] < self._cumulative[self.cells, actions]).argmax(1)
        ended = (entered == self.grid.goal) | (lives > self.grid.survival)
        rewards = self._rewards[self.cells, entered].astype(np.float32)
        info: dict[str, Any] = {"cost": self._costs[entered].astype(np.float32)}
        if ended.any():
            info |= {"final_obs": self._ones[entered], "_final_obs": ended}
        self.cells = np.where(ended, 0, entered)
        return self._ones[self.cells], rewards, ended, np.zeros(self.num_envs, bool), info


class SteeredGridWorld(GridWorld):
    """The same grid with actions in a square: (up, right), of which the larger part decides the move."""

    def __init__(self, grid: Grid, num_envs: int) -> None:
        VectorEnvironment.__init__(self, num_envs, Box(0, 1, (grid.cells,), np.float32), Box(-1, 1, (2,), np.float32))
        self._tables(grid)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        up, right = np.asarray(actions).T
        vertical = abs(up) > abs(right)
        return self.move(np.where(vertical, np.where(up > 0, 0, 1), np.where(right > 0, 3, 2)))


def move_chances(mean: np.ndarray, deviation: np.ndarray, points: int = 801) -> np.ndarray:
    """(S, 4) probabilities of the moves where (up, right) is tanh of (S, 2) normals: by integration over one part.

    tanh is odd and rises, so that it changes neither signs nor which part is the larger.
    """
    z = np.linspace(-8, 8, points)
    weights = scipy.stats.norm.pdf(z) * (z[1] - z[0])

    def beyond(part: int, sign: int) -> np.ndarray:
        """Probability that sign * this part is above the other's size."""
        size = abs(mean[:, 1 - part, None] + deviation[:, 1 - part, None] * z)
        return scipy.stats.norm.cdf((sign * mean[:, part, None] - size) / deviation[:, part, None]) @ weights

    found = np.stack([beyond(0, 1), beyond(0, -1), beyond(1, -1), beyond(1, 1)], 1)
    return found / found.sum(1, keepdims=True)


_SHARED: dict[str, Any] = {
    "num_envs": 64, "horizon": 32, "epochs": 4, "minibatches": 8, "discount": 1.0, "cost_discount": 1.0,
    "hidden": (64,), "normalize_observations": False, "normalize_rewards": False, "learning_rate": 5e-3,
}  # fmt: skip
_FIRST_ORDER = {**_SHARED, "schedule": "constant", "max_gradient_norm": 5.0, "entropy_coefficient": 0.01}
_LAGRANGE = {"standardize": "sum", "initial_multiplier": 1.0, "multiplier_rate": 0.02}
_PID = {"standardize": "sum", "multiplier": "paper", "gains": (0.3, 0.1, 0.0)}
OPTIONS: dict[str, dict[str, Any]] = {
    "ppo_lag": {**_FIRST_ORDER, **_LAGRANGE},
    "ppo_pid": {**_FIRST_ORDER, **_PID},
    "trpo_lag": {**_SHARED, **_LAGRANGE, "damping": 1e-3, "entropy_coefficient": 0.025, "multiplier_rate": 0.005},
    "trpo_pid": {**_SHARED, **_PID, "gains": (0.5, 0.1, 0.0), "damping": 1e-3, "entropy_coefficient": 0.02},
    "cpo": {**_SHARED, "damping": 1e-3},
    "focops": {**_FIRST_ORDER, **_PID, "gains": (0.5, 0.1, 0.0), "entropy_coefficient": 0.02},
    "cup": {**_FIRST_ORDER, **_PID, "standardize": "rewards", "gains": (0.5, 0.05, 0.0), "projection_weight": 3.0,
            "projection_kl": 0.02, "entropy_coefficient": 0.015},
}  # fmt: skip
"""Settings under which each algorithm is compared with the linear programme."""
STEERED: dict[str, Any] = {
    "num_envs": 16, "hidden": (64, 64), "initial_steps": 2048, "updates_per_step": 0.25, "discount": 1.0,
    "cost_discount": 1.0, "cost_window": 100, "multiplier_rate": 0.001, "initial_multiplier": 1.0,
    "learn_temperature": False, "temperature": 0.03, "actor_learning_rate": 1e-3, "critic_learning_rate": 1e-3,
    "cost_critics": 2, "replay_capacity": 50_000,
}  # fmt: skip
"""Of SAC-Lag, whose actions are no choices: on `SteeredGridWorld`."""
