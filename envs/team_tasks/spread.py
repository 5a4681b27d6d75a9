"""Spread: agents in a plane that are to cover as many places, one each, without touching each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import gymnasium
import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.envs.agents import Outcome, Scene, Teams
from surefoot.envs.interface import Array

TIME_STEP, DAMPING, PUSH = 0.1, 0.25, 5.0
"""Seconds of a step, share of its velocity that an agent loses in one, and its acceleration by one push."""
DIAMETER = 0.3
"""Distance of two agents below which they touch."""
DIRECTIONS = np.array([[0.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])
"""Choice -> direction of the push: none, left, right, down, up."""


class Spread(Teams):
    """A agents and A places, drawn in [-1, 1]^2; all are earning the same.

    Each step an agent loses a share of its velocity and is pushed in the direction that it chooses. The team earns
    minus the sum over the places of the distance to the nearest agent, minus 1 for each pair that touches. An episode
    is cut after its last step. An agent observes its velocity and position, the places and the others from where it
    is; the state has all positions, velocities and places.

    It is batched numpy of the kind of PettingZoo's simple_spread, with its masses and time step, but agents do not push
    each other away, and their rewards are one.

    Args:
        num_teams: teams side by side.
        agents: A, at least 2.
        max_episode_steps: of an episode.

    Raises:
        ConfigError: fewer than two agents.
    """

    restorable = True

    def __init__(self, num_teams: int = 1, agents: int = 3, max_episode_steps: int = 25) -> None:
        if not isinstance(agents, int) or agents < 2:
            raise ConfigError(f"agents is {agents!r}: at least 2 spread")
        super().__init__(
            [f"agent_{i}" for i in range(agents)],
            num_teams,
            4 + 2 * agents + 2 * (agents - 1),
            gymnasium.spaces.Discrete(len(DIRECTIONS)),
            state_dim=6 * agents,
            max_episode_steps=max_episode_steps,
        )
        shape = (num_teams, agents, 2)
        self.positions, self.velocities, self.places = np.zeros((3, *shape))
        self.seeds = np.random.default_rng().integers(0, 2**31, num_teams)
        self.episodes = np.zeros(num_teams, np.int64)
        """Episodes of each team since its seed was given: with the seed, what its next one is drawn from."""
        numbers = np.arange(agents)
        self._others = np.stack([np.delete(numbers, i) for i in range(agents)])

    def begin(self, teams: Array, seeds: Sequence[int | None]) -> Scene:
        """As `Teams.begin`."""
        for team, seed in zip(teams.tolist(), seeds, strict=True):
            if seed is not None:
                self.seeds[team], self.episodes[team] = seed, 0
            source = np.random.default_rng((int(self.seeds[team]), int(self.episodes[team])))
            self.positions[team], self.places[team] = source.uniform(-1, 1, (2, self.agents, 2))
            self.episodes[team] += 1
        self.velocities[teams] = 0.0
        return self._scene(teams)

    def move(self, teams: Array, actions: Array) -> Outcome:
        """As `Teams.move`."""
        velocities = (1 - DAMPING) * self.velocities[teams] + PUSH * TIME_STEP * DIRECTIONS[actions]
        positions = self.positions[teams] + TIME_STEP * velocities
        self.velocities[teams], self.positions[teams] = velocities, positions
        far = np.linalg.norm(self.places[teams][:, :, None] - positions[:, None], axis=-1)
        between = np.linalg.norm(positions[:, :, None] - positions[:, None], axis=-1)
        touching = ((between < DIAMETER).sum((1, 2)) - self.agents) / 2
        earned = -far.min(2).sum(1) - touching
        shape = (len(teams), self.agents)
        never = np.zeros(shape, np.bool_)
        return Outcome(self._scene(teams), np.broadcast_to(earned[:, None], shape), never, never)

    def _scene(self, teams: Array) -> Scene:
        positions, velocities, places = self.positions[teams], self.velocities[teams], self.places[teams]
        count = len(teams)
        to_places = (places[:, None] - positions[:, :, None]).reshape(count, self.agents, -1)
        others = positions[:, self._others] - positions[:, :, None]
        parts = [velocities, positions, to_places, others.reshape(count, self.agents, -1)]
        state = np.concatenate([part.reshape(count, -1) for part in (positions, velocities, places)], -1)
        seen = np.concatenate(parts, -1).astype(np.float32)
        return Scene(seen, np.ones((count, self.agents), np.bool_), state.astype(np.float32))

    def get_state(self) -> dict[str, Array]:
        """As `Teams.get_state`."""
        names = ("positions", "velocities", "places", "seeds", "episodes")
        return {name: getattr(self, name).copy() for name in names}

    def set_state(self, state: Mapping[str, Array]) -> None:
        """As `Teams.set_state`."""
        for name, value in state.items():
            setattr(self, name, np.array(value))
