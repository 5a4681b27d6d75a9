"""Six rooms with a coffee machine, a mail box, an office and plants: errands that are no function of where one stands.

    cd examples
    surefoot train algo=dqn env=rooms:Rooms 'objective=F(coffee & F office) & G !plant' labels=rooms:labels \
        algo.counterfactual=true shaping=value steps=12000 seeds=1 algo.hidden=[64] algo.discount=0.95

`python examples/rooms.py` prints the states of that errand's machine.

The errand is a formula; the agent sees beside its cell which part of it is done (docs/objectives.md). The floor has
9 x 6 cells, in rooms of 3 x 3 with a door in the middle of each wall between two of them:

    . . . | . . . | . . M      C coffee, M mail, O office, P plant, S the start
    . C . : . P . : . . .
    . . . | . . . | . P .
    --.-------.-------.--
    . . . | . . . | . . .
    . S . : . . . : . O .
    . . . | . P . | . . C
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

WIDTH, HEIGHT, ROOM = 9, 6, 3
START = (1, 4)
PLACES = {"coffee": [(1, 1), (8, 5)], "mail": [(8, 0)], "office": [(7, 4)], "plant": [(4, 1), (7, 2), (4, 5)]}
"""Proposition -> cells (column, row) in which it holds."""
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))
"""Up, right, down, left."""


def neighbor(cell: tuple[int, int], move: int) -> tuple[int, int]:
    """The cell that a move leads to: the same one where there is a wall."""
    to = (cell[0] + MOVES[move][0], cell[1] + MOVES[move][1])
    if not (0 <= to[0] < WIDTH and 0 <= to[1] < HEIGHT):
        return cell
    other_room = (to[0] // ROOM, to[1] // ROOM) != (cell[0] // ROOM, cell[1] // ROOM)
    along = cell[1] if to[0] != cell[0] else cell[0]
    return cell if other_room and along % ROOM != 1 else to


def labels(observations: np.ndarray, actions: np.ndarray, following: np.ndarray) -> dict[str, np.ndarray]:
    """What holds where N steps led to: (N, 54) observations, (N,) choices -> proposition -> (N,) bool."""
    cells = following.argmax(1)
    return {name: np.isin(cells, [x + WIDTH * y for x, y in places]) for name, places in PLACES.items()}


class Rooms(gymnasium.Env[np.ndarray, int]):
    """Walk from cell to cell; observed is the cell as a one-hot vector. There is no reward: an objective gives it.

    Args:
        max_episode_steps: moves of an episode.
    """

    def __init__(self, max_episode_steps: int = 100) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (WIDTH * HEIGHT,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))
        self.limit, self.cell, self.steps = max_episode_steps, START, 0

    def _observed(self) -> np.ndarray:
        found = np.zeros(WIDTH * HEIGHT, np.float32)
        found[self.cell[0] + WIDTH * self.cell[1]] = 1
        return found

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """To the start."""
        super().reset(seed=seed)
        self.cell, self.steps = START, 0
        return self._observed(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One move."""
        self.cell, self.steps = neighbor(self.cell, int(action)), self.steps + 1
        return self._observed(), 0.0, False, self.steps >= self.limit, {}


if __name__ == "__main__":
    from surefoot.envs.objectives import objective

    errand = objective("F(coffee & F office) & G !plant")
    for state, accepting in zip(errand.states, errand.accepting, strict=True):
        print(state, "(the errand is done)" if accepting else "")
