"""The point maze of MBRCSL: no recorded episode takes the short way to the goal, but parts of two of them do.

    ######      S start, G goal, both with uniform noise of 0.25 on each axis; one unit a cell.
    #AS###      Half of the data go S-M and stay at M; the others S-A-B-G, and then stay at G or act at random.
    #BM.G#      Straight on, S-M-G, goes no one.
    ######

The simulator is gymnasium-robotics' PointMaze. Source: Zhou, Zhu, Zhou, Ren, Gao, Zhou, Zhang and Fazel, "Free from
Bellman Completeness: Trajectory Stitching via Model-based Return-conditioned Supervised Learning" (ICLR 2024), section
5.1 and its published code's settings of maze, controller and data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from surefoot.envs.suites.names import PointMazeName, parse
from surefoot.envs.suites.registration import package, quiet

Array = np.ndarray[Any, Any]
Cell = tuple[int, int]

STEPS = 200
"""Of every episode: reaching the goal ends none."""
START, A, B, M, GOAL = (1, 2), (1, 1), (2, 1), (2, 2), (2, 4)
MAZE: list[list[Any]] = [[1, 1, 1, 1, 1, 1], [1, 0, "r", 1, 1, 1], [1, 0, 0, 0, "g", 1], [1, 1, 1, 1, 1, 1]]
"""As gymnasium-robotics writes it: 1 a wall, r where episodes begin, g the goal."""
NOISE = 0.25
GAIN, WAYPOINT, WAYPOINT_NOISE = 10.0, 0.1, 0.2
REACHED, SLOW = 0.5, 0.5
"""Distance and speed on each axis at which the next of an episode's aims is taken up."""
SWEEPS, DISCOUNT = 50, 0.99
MOVES = ((0, 1), (0, -1), (-1, 0), (1, 0))
"""Of (row, column); of equally short ways the one whose move stands first is taken."""
ROUTES: dict[str, tuple[Cell, ...]] = {"dead end": (M,), "detour": (A, B, GOAL), "detour, then random": (A, B, GOAL)}
"""Kind of episode -> the cells that it aims at, one after another."""
PATTERN = 20
"""Episodes after which kinds repeat."""


class PointMaze(gymnasium.Wrapper[Any, Any, Any, Any]):
    """(x, y, vx, vy) in, force on both axes in [-1, 1], reward exp(-distance to the goal), no termination.

    The goal's noise is not observed, as in the source. `success` in a step's info: within 0.45 of the goal.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation["observation"], info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's, but for its ends."""
        observation, reward, _, truncated, info = self.env.step(action)
        return observation["observation"], float(reward), False, truncated, info


def make(name: str = "pointmaze/stitch-v0", **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """The maze, without a time limit.

    Raises:
        ConfigError: the name is not understood.
        MissingExtraError: gymnasium-robotics is not installed.
    """
    asked = parse(name)
    assert isinstance(asked, PointMazeName)
    package("gymnasium_robotics", name)
    spec = gymnasium.spec(asked.gym_id)
    with quiet():
        creator: Any = gymnasium.envs.registration.load_env_creator(str(spec.entry_point))
        env = creator(**{**spec.kwargs, "maze_map": MAZE, "continuing_task": False, **kwargs})
    return PointMaze(env)


def centre(cell: Cell) -> Array:
    """(2,) x and y of a cell's centre."""
    return np.array([cell[1] + 0.5 - len(MAZE[0]) / 2, len(MAZE) / 2 - cell[0] - 0.5])


def cell_of(place: Array) -> Cell:
    """The cell that (2,) x and y lie in."""
    return int(np.floor(len(MAZE) / 2 - place[1])), int(np.floor(place[0] + len(MAZE[0]) / 2))


def way(start: Cell, goal: Cell) -> dict[Cell, Cell]:
    """Cell -> the next one on a shortest way, by Q-iteration over the free cells."""
    free = [(i, j) for i, row in enumerate(MAZE) for j, mark in enumerate(row) if mark != 1]

    def after(cell: Cell, move: Cell) -> Cell:
        moved = (cell[0] + move[0], cell[1] + move[1])
        return moved if moved in free else cell

    values = dict.fromkeys(free, 0.0)
    ahead: dict[Cell, list[float]] = {}
    for _ in range(SWEEPS):
        ahead = {c: [float(after(c, m) == goal) + DISCOUNT * values[after(c, m)] for m in MOVES] for c in free}
        values = {cell: max(found) for cell, found in ahead.items()}
    path: dict[Cell, Cell] = {}
    while start != goal:
        path[start] = after(start, MOVES[int(np.argmax(ahead[start]))])
        start = path[start]
    return path


class Controller:
    """Goes from one aim to the next: proportional to the way left to a waypoint, damped by the speed, clipped."""

    def __init__(self, route: Sequence[Cell], numbers: np.random.Generator) -> None:
        """Aim at cells, each with noise of its own."""
        self.numbers = numbers
        self.aims = [(cell, centre(cell) + numbers.uniform(-NOISE, NOISE, 2)) for cell in route]
        self.done = False  # the last aim has been reached
        self._path: dict[Cell, Cell] | None = None

    def _plan(self, place: Array) -> None:
        cell, here = self.aims[0][0], cell_of(place)
        self._path = way(here, cell)
        self._towards(self._path.get(here, cell), 0.0)

    def _towards(self, cell: Cell, noise: float) -> None:
        last, aim = self.aims[0]
        self.cell = cell
        self.waypoint = aim if cell == last else centre(cell) - self.numbers.uniform(0, noise, 2)

    def act(self, observation: Array) -> Array:
        """(2,) force in [-1, 1]."""
        place, speed = observation[:2], observation[2:]
        near = np.linalg.norm(self.aims[0][1] - place) <= REACHED
        if near and len(self.aims) == 1:
            self.done = True
        elif near and np.abs(speed).max() <= SLOW:
            self.aims.pop(0)
            self._path = None
        if self._path is None:
            self._plan(place)
        assert self._path is not None
        if self.cell != self.aims[0][0] and np.linalg.norm(self.waypoint - place) <= WAYPOINT:
            self._towards(self._path[self.cell], WAYPOINT_NOISE)
        return np.clip(GAIN * (self.waypoint - place) - speed, -1, 1)


def kind_of(number: int, share: int) -> str:
    """What the episode of a number does, where `share` % take the detour, half of them with a random end."""
    of_each = share * PATTERN // 200
    place = number % PATTERN
    if place < PATTERN - 2 * of_each:
        return "dead end"
    return "detour" if place < PATTERN - of_each else "detour, then random"


def ordered(episodes: int, share: int) -> list[int]:
    """The numbers of the first `episodes`, those of one kind after another, as in the source's data."""
    kinds = list(ROUTES)
    return sorted(range(episodes), key=lambda number: kinds.index(kind_of(number, share)))


class Recorder:
    """Episodes of one share of detours: what `collect.recorder_of` gives for `pointmaze/stitch`."""

    def __init__(self, name: PointMazeName) -> None:
        self.env, self.share = make(name.text), name.detours

    def __call__(self, seed: int, number: int) -> dict[str, Array]:
        """The 200 steps of an episode; columns as of `collect.episode`."""
        numbers, kind = np.random.default_rng(seed), kind_of(number, self.share)
        controller = Controller(ROUTES[kind], numbers)
        observation, _ = self.env.reset(seed=seed)
        observations, actions, rewards = [observation], [], []
        for _ in range(STEPS):
            action = controller.act(observation)
            if controller.done and kind.endswith("random"):
                action = numbers.uniform(-1, 1, 2)
            actions.append(action.astype(np.float32))
            observation, reward, *_ = self.env.step(actions[-1])
            observations.append(observation)
            rewards.append(reward)
        return {
            "observations": np.array(observations, np.float32),
            "actions": np.array(actions),
            "rewards": np.array(rewards, np.float32),
            "terminations": np.zeros(STEPS, bool),
            "truncations": np.arange(STEPS) == STEPS - 1,
        }
