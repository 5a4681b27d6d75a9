"""The two-step game of QMIX: what the first agent does first decides which of two games both play."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import gymnasium
import numpy as np

from surefoot.envs.agents import Outcome, Scene, Teams
from surefoot.envs.interface import Array

GAMES = np.array([[[7.0, 7.0], [7.0, 7.0]], [[0.0, 1.0], [1.0, 8.0]]])
"""Game, choice of the first agent, choice of the second -> what the team earns."""


class TwoStep(Teams):
    """Two agents, two choices, two steps; both observe which of three states they are in, one-hot.

    In the first state the first agent's choice leads to the second or third, and no one earns anything; there both
    earn what `GAMES` has for their choices, and the episode terminates. The best return is 8; a value that is a sum of
    one of each agent fits the second game by -1.5, 2.5, 2.5, 6.5, and so prefers the 7 of the first.

    Args:
        num_teams: games side by side.

    Source: Rashid et al., "QMIX" (2018), section 5 and table 1.
    """

    restorable = True

    def __init__(self, num_teams: int = 1) -> None:
        super().__init__(
            ("first", "second"), num_teams, 3, gymnasium.spaces.Discrete(2), state_dim=3, max_episode_steps=2
        )
        self.states = np.zeros(num_teams, np.int64)

    def begin(self, teams: Array, seeds: Sequence[int | None]) -> Scene:
        """As `Teams.begin`."""
        self.states[teams] = 0
        return self._scene(teams)

    def move(self, teams: Array, actions: Array) -> Outcome:
        """As `Teams.move`."""
        before = self.states[teams]
        earned = np.where(before > 0, GAMES[np.maximum(before - 1, 0), actions[:, 0], actions[:, 1]], 0.0)
        over = before > 0
        self.states[teams] = np.where(over, before, 1 + actions[:, 0])
        both = np.repeat(over[:, None], 2, 1)
        return Outcome(self._scene(teams), np.repeat(earned[:, None], 2, 1), both, np.zeros_like(both))

    def _scene(self, teams: Array) -> Scene:
        state = np.eye(3, dtype=np.float32)[self.states[teams]]
        return Scene(np.repeat(state[:, None], 2, 1), np.ones((len(teams), 2), np.bool_), state)

    def get_state(self) -> dict[str, Array]:
        """As `Teams.get_state`."""
        return {"states": self.states.copy()}

    def set_state(self, state: Mapping[str, Array]) -> None:
        """As `Teams.set_state`."""
        self.states = np.array(state["states"])
