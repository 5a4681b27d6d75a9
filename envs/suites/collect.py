"""One recorded episode of a benchmark's scripted behaviours, the same whoever records it and when.

The behaviours are those of the benchmarks' own oracles; how they are driven follows Park, Frans, Eysenbach and Levine,
"OGBench" (2024), appendix on datasets. The published files were recorded without a seed, so these are new draws of the
same process, not the same numbers.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import ConfigError, SimulatorError, nearest
from surefoot.envs.suites.names import BASES, OGBENCH, OCBenchName, OGBenchName, PointMazeName, parse
from surefoot.envs.suites.ocbench import make as make_ocbench
from surefoot.envs.suites.ogbench import make as make_ogbench
from surefoot.envs.suites.randomness import global_numbers, seeded
from surefoot.envs.suites.registration import quiet
from surefoot.envs.suites.stitch import Recorder

Array = np.ndarray[Any, Any]
Rows = dict[str, Array]

STEPS = 1000
"""Transitions of an episode of OGBench."""
STACKING = {"single": (0.0, 0.0), "double": (0.0, 0.25), "triple": (0.05, 0.35), "quadruple": (0.1, 0.5)}
"""Cubes -> range of an episode's probability that a cube is to be put on another."""
PLAY_NOISE, PLAY_SMOOTHING, SEGMENT = 0.1, 0.5, 0.4
NOISY_SPREAD, NOISY_WEIGHTS = 0.1, np.array([1.0, 1.0, 1.0, 3.0, 10.0])
RANDOM_ACTIONS = {"cube": 0.1, "scene": 0.1, "puzzle": 0.2}
"""Probability of a uniform action in noisy data."""
MAZE_NOISE = 0.5
MOST_ATTEMPTS = 100
"""Episodes in which a cube was lost that are recorded anew before something must be wrong."""


def episode(name: str, seed: int, number: int) -> Rows:
    """Record one episode; it follows from the arguments alone.

    Args:
        name: of a dataset, as `ogbench/scene-play` or `ocbench/block-lite`.
        seed: of the whole dataset.
        number: of the episode in it.

    Returns:
        `observations` (T + 1, O) float32, the last one after the last action; `actions` (T, A) float32; `rewards` (T,)
        float32, 0 in OGBench, whose data have no task; `terminations` and `truncations` (T,) bool; and of OGBench the
        simulator's states before each action: `qpos`, `qvel` float32, and `button_states` int64 of scenes and puzzles.

    Raises:
        ConfigError: no behaviour of that name can be recorded.
        MissingExtraError: the benchmark's package is not installed.
    """
    recorder = recorder_of(name)
    for attempt in range(MOST_ATTEMPTS):
        drawn = np.random.SeedSequence((seed, number, attempt)).generate_state(2)
        with global_numbers(seeded(int(drawn[0]))), quiet():
            rows = recorder(int(drawn[1]), number)
        if rows is not None:
            return rows
    raise SimulatorError(f"{name}: {MOST_ATTEMPTS} attempts at episode {number} all lost the cube")


@functools.lru_cache(maxsize=1)
def recorder_of(name: str) -> Callable[[int, int], Rows | None]:
    """Records an episode from a seed and its number, and gives None where it has to be recorded anew."""
    check_recordable(name)
    asked = parse(name)
    if isinstance(asked, OCBenchName):
        return _Demonstrations(asked)
    if isinstance(asked, PointMazeName):
        return Recorder(asked)
    return _Maze(asked) if asked.facts.maze else _Play(asked)


def check_recordable(name: str) -> None:
    """Refuse names of which no data can be recorded.

    Raises:
        ConfigError: names those that can.
    """
    asked = parse(name)
    if not isinstance(asked, OGBenchName):
        return
    if asked.task is not None:
        raise ConfigError(
            f"{name!r} names a task, and data are recorded without one: record {asked.dataset or OGBENCH + asked.base} "
            f"and name the task when you train, as in env={asked.text}"
        )
    if asked.behaviour not in asked.facts.collected:
        names = [f"{OGBENCH}{base}-{kind}" for base, facts in BASES.items() for kind in facts.collected]
        raise ConfigError(f"no scripted behaviour records {name!r}: {nearest(name, names)}")


class _Recording:
    """Rows of an episode as they come."""

    def __init__(self, first: Any) -> None:
        self.rows: dict[str, list[Any]] = {"observations": [np.asarray(first, np.float32)]}

    def add(self, observation: Any, **columns: Any) -> None:
        self.rows["observations"].append(np.asarray(observation, np.float32))
        for key, value in columns.items():
            self.rows.setdefault(key, []).append(value)

    def arrays(self, **kinds: Any) -> Rows:
        given = {"observations": np.float32, "actions": np.float32, "qpos": np.float32, "qvel": np.float32, **kinds}
        return {key: np.asarray(value, given.get(key)) for key, value in self.rows.items()}

    def without_task(self) -> Rows:
        """With the columns that data without a task have nothing to say in."""
        rows = self.arrays(button_states=np.int64)
        count = len(rows["actions"])
        rows |= {"rewards": np.zeros(count, np.float32), "terminations": np.zeros(count, bool)}
        rows["truncations"] = np.arange(count) == count - 1
        return rows


class _Play:
    """An arm that pursues one random sub-task after the other: along noisy plans (play), or by feedback (noisy)."""

    def __init__(self, name: OGBenchName) -> None:
        self.kind, _, self.size = name.base.partition("-")
        self.noisy = name.behaviour == "noisy"
        self.env = make_ogbench(f"{OGBENCH}{name.base}-v0", mode="data_collection", terminate_at_goal=False)
        things = {"cube": ("cube",), "puzzle": ("button",), "scene": ("cube", "button", "drawer", "window")}[self.kind]
        self.oracles = {thing: self._oracle(thing) for thing in things}

    def _oracle(self, thing: str) -> Any:
        way = "markov" if self.noisy else "plan"
        module = importlib.import_module(f"ogbench.manipspace.oracles.{way}.{thing}_{way}")
        options: dict[str, Any] = {"gripper_always_closed": True} if self.kind == "puzzle" else {}
        if not self.noisy:
            options |= {"segment_dt": SEGMENT, "noise": PLAY_NOISE, "noise_smoothing": PLAY_SMOOTHING}
        return getattr(module, f"{thing.capitalize()}{way.capitalize()}Oracle")(env=self.env, **options)

    def __call__(self, seed: int, number: int = 0) -> Rows | None:
        inner: Any = self.env.unwrapped
        self.env.action_space.seed(seed)
        observation, info = self.env.reset(seed=seed)
        low, high = STACKING.get(self.size, (0.5, 0.5))
        stacking = np.random.uniform(low, high)  # noqa: NPY002  the oracles draw from the same numbers
        spread = np.random.uniform(0, NOISY_SPREAD)  # noqa: NPY002
        recording = _Recording(observation)
        oracle = self._next(observation, info)
        for _ in range(STEPS):
            action = self._action(oracle, observation, info, spread)
            observation, _, _, _, info = self.env.step(action)
            states = {"qpos": info["prev_qpos"], "qvel": info["prev_qvel"]}
            if "prev_button_states" in info:
                states["button_states"] = info["prev_button_states"]
            recording.add(observation, actions=action, **states)
            if oracle.done:
                oracle = self._next(*inner.set_new_target(p_stack=stacking))
        return None if self.kind == "scene" and self._lost(inner) else recording.without_task()

    def _next(self, observation: Any, info: dict[str, Any]) -> Any:
        """The oracle of the sub-task that is to be done now."""
        oracle = self.oracles[info["privileged/target_task"]]
        oracle.reset(observation, info)
        return oracle

    def _action(self, oracle: Any, observation: Any, info: dict[str, Any], spread: float) -> Array:
        if self.noisy and np.random.uniform() < RANDOM_ACTIONS[self.kind]:  # noqa: NPY002
            action = self.env.action_space.sample()
        else:
            action = oracle.select_action(observation, info)
            if self.noisy:
                action = action + np.random.normal(0, spread * NOISY_WEIGHTS)  # noqa: NPY002
        return np.clip(action, -1, 1).astype(np.float32)

    def _lost(self, inner: Any) -> bool:
        """Whether the cube lies where the arm can't get it back: beyond the edge, or beside the drawer."""
        _, y, z = inner._data.joint("object_joint_0").qpos[:3]
        return bool(y >= 0.29 or (y <= -0.3 and not 0.06 <= z <= 0.08))


class _Maze:
    """A point that goes to one random place after the other along shortest paths, with noise."""

    def __init__(self, name: OGBenchName) -> None:
        self.env = make_ogbench(f"{OGBENCH}{name.base}-v0", terminate_at_goal=False)
        inner: Any = self.env.unwrapped
        free = np.asarray(inner.maze_map) == 0
        self.cells = [(int(i), int(j)) for i, j in np.argwhere(free)]
        self.places = [(i, j) for i, j in self.cells if not _corridor(free, i, j)]

    def __call__(self, seed: int, number: int = 0) -> Rows:
        inner: Any = self.env.unwrapped
        start = self.cells[np.random.randint(len(self.cells))]  # noqa: NPY002
        task = {"init_ij": start, "goal_ij": self._place()}
        inner.action_space.seed(seed)
        # not through our wrapper, which would seed the numbers that this episode is drawn from
        observation, _ = inner.reset(seed=seed, options={"task_info": task})
        recording = _Recording(observation)
        for _ in range(STEPS):
            here = inner.get_xy()
            towards = inner.get_oracle_subgoal(here, inner.cur_goal_xy)[0] - here
            direction = towards / (np.linalg.norm(towards) + 1e-6)
            noise = np.random.normal(0, MAZE_NOISE, direction.shape)  # noqa: NPY002
            action = np.clip(direction + noise, -1, 1).astype(np.float32)
            observation, _, _, _, info = inner.step(action)
            recording.add(observation, actions=action, qpos=info["prev_qpos"], qvel=info["prev_qvel"])
            if info["success"]:
                inner.set_goal(goal_xy=inner.add_noise(inner.ij_to_xy(self._place())))
        return recording.without_task()

    def _place(self) -> tuple[int, int]:
        return self.places[np.random.randint(len(self.places))]  # noqa: NPY002


def _corridor(free: Array, i: int, j: int) -> bool:
    """Whether one only passes through a cell, straight: no goal is there."""
    up, down, left, right = free[i - 1, j], free[i + 1, j], free[i, j - 1], free[i, j + 1]
    return bool((up and down and not left and not right) or (left and right and not up and not down))


class _Demonstrations:
    """OCBench's controllers, which err now and then as people do, until the task is solved or time is up."""

    def __init__(self, name: OCBenchName) -> None:
        self.env = make_ocbench(name.text)
        self.limit = int(gymnasium.spec(name.gym_id).max_episode_steps or 0)
        module = importlib.import_module(f"ocbench.oracles.controllers.{name.family}")
        self.controller = getattr(module, f"{name.family.capitalize()}Controller")(self.env)

    def __call__(self, seed: int, number: int = 0) -> Rows:
        observation, info = self.env.reset(seed=seed)
        self.controller.reset(observation, info)
        recording = _Recording(observation)
        for step in range(self.limit):
            action = np.clip(self.controller.select_action(observation, info), -1, 1).astype(np.float32)
            observation, reward, terminated, _, info = self.env.step(action)
            cut = step == self.limit - 1 and not terminated
            recording.add(observation, actions=action, rewards=reward, terminations=terminated, truncations=cut)
            if terminated:
                break
        return recording.arrays(rewards=np.float32, terminations=bool, truncations=bool)
