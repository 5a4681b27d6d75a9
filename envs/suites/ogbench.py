"""OGBench's environments: made by name, and the rewards that a task gives to recorded states.

Source: Park, Frans, Eysenbach and Levine, "OGBench: Benchmarking Offline Goal-Conditioned RL" (2024).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.envs.suites.names import OGBenchName, parse
from surefoot.envs.suites.randomness import OwnNumbers
from surefoot.envs.suites.registration import FixedSpaces, package, quiet

Array = np.ndarray[Any, Any]

FIRST_OBJECT = 14
"""Position in `qpos` behind the arm's and the gripper's joints."""
CUBE = 7
"""Numbers of a cube in `qpos`: where it is, and how it is turned."""
NEAR = 0.04
"""Metres within which a cube, drawer or window is where it should be."""


class Sparse(gymnasium.RewardWrapper[Any, Any]):
    """-1 for each step but a solved one, which has 0."""

    def reward(self, reward: Any) -> float:
        """Of the reward of a task, which is 0 exactly where it is solved."""
        return 0.0 if reward == 0 else -1.0


def make(name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """The environment of a name that begins with `ogbench/`, without a time limit; `reset(seed=)` repeats exactly.

    A task's `success`, reward and end are judged before the action, as OGBench does since 1.2, or after it for names
    with `post`.

    Raises:
        ConfigError: the name is not understood.
        MissingExtraError: ogbench is not installed.
    """
    asked = parse(name)
    assert isinstance(asked, OGBenchName)
    package("ogbench", name)
    spec = gymnasium.spec(asked.gym_id)
    arguments = {**spec.kwargs, **kwargs}
    if asked.task is not None:
        arguments["success_timing"] = "post" if asked.post else "pre"
    with quiet():
        creator: Any = gymnasium.envs.registration.load_env_creator(str(spec.entry_point))
        env = creator(**arguments)
    if asked.facts.maze:
        env = OwnNumbers(env, in_steps=asked.base.endswith("teleport"))
    elif asked.task is None and kwargs.get("mode") != "data_collection":
        env = OwnNumbers(env, in_steps=False)  # draws which task it is
    env = FixedSpaces(env)
    return Sparse(env) if asked.sparse else env


def solved_parts(name: OGBenchName, states: Mapping[str, Array]) -> Array:
    """Which sub-goals of a task each recorded state meets.

    Args:
        name: with a task.
        states: `qpos` (N, .) and, of scenes and puzzles, `button_states` (N, buttons), as `data.formats.ogbench` reads
            and `surefoot datasets generate` records them.

    Returns:
        (N, parts) bool.

    Raises:
        ConfigError: the name has no task.
        DataError: the states lack a column, or it has another width than the environment's.
        MissingExtraError: ogbench is not installed.
    """
    if name.task is None:
        raise ConfigError(f"{name.text} names no task; one is named as in ogbench/{name.base}-singletask-task1-v0")
    goal = _goal(name)
    needed = {"qpos": goal["nq"], **({"button_states": len(goal["buttons"])} if "buttons" in goal else {})}
    for key, width in needed.items():
        found = states[key].shape if key in states else None
        if found is None or len(found) != 2 or found[1] != width:
            raise DataError(
                f"{name.text}: rewards need {key!r} of {width} numbers a row, and the data have "
                f"{'none' if found is None else f'shape {found}'}; they were recorded elsewhere, or without states"
            )
    qpos = states["qpos"]
    if "xy" in goal:
        at = goal["at"]
        return np.asarray(np.linalg.norm(qpos[:, at : at + 2] - goal["xy"], axis=-1) <= goal["tolerance"])[:, None]
    parts = []
    for cube, place in enumerate(goal["cubes"]):
        first = FIRST_OBJECT + CUBE * cube
        parts.append(np.linalg.norm(place - qpos[:, first : first + 3], axis=-1) <= NEAR)
    parts += [states["button_states"][:, i] == state for i, state in enumerate(goal.get("buttons", ()))]
    for key, place in goal.get("slides", {}).items():
        parts.append(np.abs(qpos[:, key] - place) <= NEAR)
    return np.stack(parts, axis=-1)


def rewards_of(name: OGBenchName, states: Mapping[str, Array]) -> tuple[Array, Array]:
    """The reward of each recorded state, and whether it is solved: (N,) float32 and (N,) bool. Errors as above.

    The reward of a row is that of the state *before* its action, as in OGBench's own labels; so it is for names with
    `post` too, whose environment judges the state after the action (as in the experiments of FQL and Q-chunking).
    """
    met = solved_parts(name, states)
    solved: Array = np.asarray(met.all(axis=-1))
    rewards: Array = solved - 1.0 if name.sparse else met.sum(axis=-1) - met.shape[-1]
    return rewards.astype(np.float32), solved


@functools.cache
def _goal(name: OGBenchName) -> dict[str, Any]:
    """Where the task wants things to be, asked of the environment."""
    env = make(OGBenchName(name.base, None, name.task).text)
    env.reset(seed=0)
    inner: Any = env.unwrapped
    if name.facts.maze:
        ball = name.base.startswith("antsoccer")
        found = {"xy": np.array(inner.cur_goal_xy), "tolerance": inner._goal_tol}
        return {"nq": inner.model.nq, "at": 15 if ball else 0, **found}
    goal: dict[str, Any] = {"nq": inner.model.nq, "cubes": []}
    if not name.base.startswith("puzzle"):
        goal["cubes"] = inner._data.mocap_pos.copy()
    if hasattr(inner, "_target_button_states"):
        goal["buttons"] = inner._target_button_states.copy()
    if name.base == "scene":
        drawer = FIRST_OBJECT + CUBE * inner._num_cubes + inner._num_buttons
        goal["slides"] = {drawer: inner._target_drawer_pos, drawer + 1: inner._target_window_pos}
    return goal
