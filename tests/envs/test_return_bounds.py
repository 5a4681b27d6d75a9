"""What environments declare of an episode's return, against whole episodes and rewards by hand."""

from __future__ import annotations

import functools
import math

import gymnasium
import numpy as np
import pytest

from surefoot.cuda_ext.system import Behaviour
from surefoot.envs.episodes import episode_seeds, run_episodes
from surefoot.envs.return_bounds import UNKNOWN, return_bounds
from surefoot.envs.systems import SYSTEMS, system


class Declared(gymnasium.Env[np.ndarray, np.ndarray]):
    reward_range = (-2.0, 1.0)


class Odd(gymnasium.Env[np.ndarray, np.ndarray]):
    reward_range = "from 0 to 1"


@pytest.mark.parametrize(
    ("env_id", "bounds"),
    [
        ("native/pendulum", (-math.inf, 0.0)),
        ("surefoot/Pendulum-v0", (-math.inf, 0.0)),
        ("native/pendulum-pixels", (-math.inf, 0.0)),
        ("native/cartpole-balance", (1.0, 500.0)),  # 1 a step, and an episode has a first one
        ("native/cartpole-balance?max_episode_steps=20", (1.0, 20.0)),
        ("native/point-maze", (0.0, 200.0)),
        ("native/acrobot", (-500.0, 0.0)),
        ("native/bicycle", UNKNOWN),
        ("CartPole-v1", (1.0, 500.0)),
        ("MountainCar-v0", (-200.0, -1.0)),
        ("Ant-v5", UNKNOWN),
        ("nowhere:make", UNKNOWN),
    ],
)
def test_bounds_are_those_of_a_step_times_the_steps(env_id: str, bounds: tuple[float, float]) -> None:
    assert return_bounds(env_id) == bounds


def test_a_class_of_ones_own_declares_its_reward_range() -> None:
    for name, kind in (("bounds/Declared-v0", Declared), ("bounds/Odd-v0", Odd)):
        gymnasium.register(name, entry_point=kind, max_episode_steps=10)
    try:
        assert return_bounds("bounds/Declared-v0") == (-20.0, 10.0)
        assert return_bounds("bounds/Odd-v0") == UNKNOWN
        assert return_bounds(f"{__name__}:Declared?max_episode_steps=3") == (-6.0, 3.0)
        assert return_bounds(f"{__name__}:Declared") == UNKNOWN  # an episode of any length
        assert return_bounds(f"{__name__}:Absent") == return_bounds("absent:Declared") == UNKNOWN
    finally:
        for name in ("bounds/Declared-v0", "bounds/Odd-v0"):
            del gymnasium.registry[name]


def _acted(behaviour: Behaviour, generator: np.random.Generator, observations: np.ndarray) -> np.ndarray:
    return behaviour(observations, generator).astype(np.float32)


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_episodes_of_every_native_system_keep_to_what_it_declares(name: str) -> None:
    known = system(name)
    for behaviour in ("random", "expert"):
        generator = np.random.default_rng(0)
        act = functools.partial(_acted, known.behaviours[behaviour], generator)
        found = run_episodes(act, known.alias, episode_seeds(0, 0, 4))
        low, high = return_bounds(known.alias)
        slack = 1e-4 * max(1.0, float(np.abs(found.returns).max()))
        assert low - slack <= found.returns.min() <= found.returns.max() <= high + slack


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_units_and_goals_fit_the_states_and_actions(name: str) -> None:
    known = system(name)
    assert len(known.state_units) in (0, len(known.states))
    assert len(known.action_units) in (0, len(known.actions))
    if known.goal is not None:
        assert set(known.goal.place) <= set(known.states)
        names = {parameter.name for parameter in known.parameters}
        assert {said for said in known.goal.place.values() if isinstance(said, str)} <= names
