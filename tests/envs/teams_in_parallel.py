"""Parallel environments in PettingZoo's interface, written here, whose numbers are known by hand."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Walkers:
    """Two agents on a line: each step moves an agent by its action - 1; `left` earns its place, `right` twice its own.

    `right` observes two numbers, `left` one; an episode has 4 steps, and `right` may leave after 2.
    """

    possible_agents = ("left", "right")

    def __init__(self, leaves: bool = False, choices: int = 3) -> None:
        self.leaves, self.choices = leaves, choices
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return gymnasium.spaces.Box(-100, 100, (1 if agent == "left" else 2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return gymnasium.spaces.Discrete(3 if agent == "left" else self.choices)

    def state(self) -> Any:
        return np.array([self.place["left"], self.place["right"], self.time], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.time = list(self.possible_agents), 0
        start = 0.0 if seed is None else float(seed % 7)
        self.place = dict.fromkeys(self.agents, start)
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        assert set(actions) == set(self.agents)
        self.time += 1
        there = list(self.agents)
        for agent in there:
            self.place[agent] += actions[agent] - 1
        seen = {agent: value for agent, value in self._seen().items() if agent in there}
        rewards = {agent: self.place[agent] * (1 if agent == "left" else 2) for agent in there}
        truncations = dict.fromkeys(there, self.time >= 4)
        terminations = {agent: self.leaves and agent == "right" and self.time == 2 for agent in there}
        self.agents = [agent for agent in there if not (terminations[agent] or truncations[agent])]
        return seen, rewards, terminations, truncations, {agent: {} for agent in there}

    def _seen(self) -> dict[str, Any]:
        left = np.array([self.place["left"]], np.float32)
        return {"left": left, "right": np.array([self.place["right"], self.time], np.float32)}

    def close(self) -> None:
        pass


class Alone:
    """One environment of gymnasium's as that of a single agent."""

    possible_agents = ("only",)

    def __init__(self, env_id: str) -> None:
        self.env = gymnasium.make(env_id)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return self.env.observation_space

    def action_space(self, agent: str) -> Any:
        return self.env.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = ["only"]
        observation, info = self.env.reset(seed=seed)
        return {"only": observation}, {"only": info}

    def step(self, actions: dict[str, Any]) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(actions["only"])
        self.agents = [] if terminated or truncated else self.agents
        return tuple({"only": value} for value in (observation, reward, terminated, truncated, info))

    def close(self) -> None:
        self.env.close()


def alone(env_id: str = "CartPole-v1") -> Alone:
    return Alone(env_id)


def parallel_env(may_leave: bool = False, choices: int = 3) -> Walkers:
    return Walkers(may_leave, choices)


class Leaving(Walkers):
    """An agent leaves without a word beforehand."""

    def __init__(self) -> None:
        super().__init__(leaves=True)


def leaving() -> Leaving:
    return Leaving()


def nothing() -> object:
    return object()


def of_teams(num_teams: int) -> object:
    return num_teams
