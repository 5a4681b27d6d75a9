from __future__ import annotations

import importlib.util
import pathlib
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, MissingExtraError
from surefoot.core.base.spec import Array as NamedArray
from surefoot.data.formats import minari
from surefoot.envs import action_bounds, check_spaces, describe, make_vec
from surefoot.envs import vector as vector_module


class Counter(gymnasium.Env):
    """Observes how many steps have gone by and ends after `length`; its spaces are arguments."""

    def __init__(self, length: int = 3, action: Any = None, observation: Any = None, broken: bool = False) -> None:
        if broken:
            raise RuntimeError("no such robot")
        self.length = length
        self.action_space = action or spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.observation_space = observation or spaces.Box(0.0, 100.0, (2,), np.float32)

    def _observe(self) -> Any:
        if isinstance(self.observation_space, spaces.Dict):
            return {key: np.full(1, ord(key[0]), np.float32) for key in self.observation_space}
        return np.array([self.count, self.start], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.start = 0, self.np_random.integers(100)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._observe(), 1.0, self.count == self.length, False, {"cost": float(self.count)}


gymnasium.register("SurefootCounter-v0", entry_point=Counter, max_episode_steps=50)


def test_the_vector_interface_resets_in_the_same_step_and_keeps_the_final_observation() -> None:
    env = make_vec("SurefootCounter-v0", 2)
    assert env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    env.reset(seed=[1, 2])
    for _ in range(2):
        env.step(np.zeros((2, 1), np.float32))
    observations, rewards, terminations, _, info = env.step(np.zeros((2, 1), np.float32))
    assert terminations.all()
    np.testing.assert_array_equal(rewards, [1, 1])
    np.testing.assert_array_equal(observations[:, 0], [0, 0])
    assert [row[0] for row in info["final_obs"]] == [3, 3]
    np.testing.assert_array_equal(info["cost"], [3, 3])
    assert info["valid"].all()


def test_it_gives_the_same_numbers_as_gymnasium_s_own_vector_environment() -> None:
    ours = make_vec("Pendulum-v1", 3)
    theirs = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make("Pendulum-v1")] * 3, autoreset_mode=AutoresetMode.SAME_STEP
    )
    np.testing.assert_array_equal(ours.reset(seed=[3, 4, 5])[0], theirs.reset(seed=[3, 4, 5])[0])
    generator = np.random.default_rng(0)
    for _ in range(410):  # past two time limits
        actions = generator.uniform(-2, 2, (3, 1)).astype(np.float32)
        for a, b in zip(ours.step(actions)[:4], theirs.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_paused_row_stands_still_and_the_others_go_on() -> None:
    env = make_vec("SurefootCounter-v0", 3)
    env.reset(seed=0)
    env.active[1] = False
    for _ in range(2):
        observations, rewards, _, _, info = env.step(np.zeros((3, 1), np.float32))
    np.testing.assert_array_equal(observations[:, 0], [2, 0, 2])
    np.testing.assert_array_equal(rewards, [1, 0, 1])
    np.testing.assert_array_equal(info["valid"], [True, False, True])
    env.reset(seed=0)
    assert env.active.all()


def test_a_module_of_the_user_s_is_imported_and_its_environment_found(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_robots.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        "gymnasium.register('MyRobot-v0', entry_point=PendulumEnv, max_episode_steps=7)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert describe("my_robots:MyRobot-v0").max_episode_steps == 7
    assert make_vec("my_robots:MyRobot-v0", 2).reset(seed=0)[0].shape == (2, 3)
    gymnasium.registry.pop("MyRobot-v0")
    sys.modules.pop("my_robots")


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("Pendulm-v1", "Pendulum-v1"),
        ("Pendulum-v9", "Pendulum-v1"),
        ("nowhere/Robot-v0", "package:Id"),
        ("Pendulum-v0", "Pendulum-v1"),
        ("two words", "Malformed"),
        ("no_such_module:Robot-v0", "'no_such_module'.*on PYTHONPATH$"),
        ("native:quadrotor_2d", "without a module it is native/quadrotor-2d$"),
        ("gym:Pendulum-v1", "'gym'.*without a module it is Pendulum-v1$"),
        ("quadrotor", "native/quadrotor-[23]d"),
        ("cartpole-v1", "CartPole-v1"),
    ],
)
def test_an_unknown_id_is_refused_with_what_to_write_instead(env_id: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        make_vec(env_id, 1)
    assert repr(env_id) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_absent_mujoco_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mujoco" else found(name))
    error = gymnasium.error.DependencyNotInstalled("MuJoCo is not installed, run `pip install ...`")
    monkeypatch.setattr(gymnasium, "make", lambda *_, **__: (_ for _ in ()).throw(error))
    with pytest.raises(MissingExtraError, match=r"surefoot\[mujoco\]"):
        make_vec("Hopper-v4", 1)


def test_an_environment_that_fails_to_start_is_named_with_its_own_reason() -> None:
    with pytest.raises(EnvironmentMismatchError, match=r"SurefootCounter-v0.*no such robot.*broken"):
        make_vec("SurefootCounter-v0", 1, broken=True)
    with pytest.raises(ConfigError, match="Pendulum-v1 takes no argument 'no_such_argument'"):
        make_vec("Pendulum-v1", 1, no_such_argument=1)
    with pytest.raises(ConfigError, match="num_envs is 0"):
        make_vec("Pendulum-v1", 0)


def test_spaces_that_do_not_fit_are_refused_with_both_shapes() -> None:
    check_spaces("Pendulum-v1", 3, 1)
    check_spaces(make_vec("Pendulum-v1", 2), 3, 1)
    check_spaces(gymnasium.make("Pendulum-v1"), 3, 1)
    with pytest.raises(EnvironmentMismatchError, match=r"observations.*3 numbers.*11 numbers"):
        check_spaces("Pendulum-v1", 11, 1)
    for keys in (("front", "state", "wrist"), ("state", "wrist", "front")):  # a log may name them in another order
        arrays = {key: NamedArray((11,)) if key == "state" else NamedArray((64, 64, 3), "uint8") for key in keys}
        check_spaces("gantry-pick", arrays, 4)
    with pytest.raises(EnvironmentMismatchError, match=r"actions.*1 numbers.*4 numbers"):
        check_spaces("Pendulum-v1", 3, 4)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"action": spaces.Discrete(3)}, "discrete"),
        ({"action": spaces.Box(-np.inf, np.inf, (1,))}, "no finite bounds"),
        ({"action": spaces.Box(-1, 1, (2, 2))}, "one-dimensional Box"),
        ({"observation": spaces.Box(-np.inf, np.inf, (8, 8, 3), np.float32)}, "images"),
        ({"observation": spaces.Discrete(3)}, "read vectors|reads vectors"),
    ],
)
def test_spaces_that_are_not_bounded_vectors_are_refused(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvironmentMismatchError, match=words):
        describe("SurefootCounter-v0", **kwargs)


def test_action_bounds_are_the_environment_s_own() -> None:
    low, high = action_bounds("Pendulum-v1")
    np.testing.assert_array_equal(low, np.float32([-2]))
    np.testing.assert_array_equal(high, np.float32([2]))
    assert low.dtype == high.dtype == np.float32


def test_goal_observations_are_flattened_in_the_order_of_the_minari_loader() -> None:
    assert vector_module.GOAL_KEYS == minari.GOAL_KEYS
    part = spaces.Box(-1000, 1000, (1,), np.float32)
    goal = spaces.Dict({"achieved_goal": part, "desired_goal": part, "observation": part})
    env = make_vec("SurefootCounter-v0", 2, observation=goal, length=1)
    expected = [[ord("o"), ord("a"), ord("d")]] * 2
    np.testing.assert_array_equal(env.reset(seed=0)[0], expected)
    info = env.step(np.zeros((2, 1), np.float32))[4]
    np.testing.assert_array_equal(np.stack(info["final_obs"]), expected)
    other = spaces.Dict({"velocity": part, "angle": part})
    env = make_vec("SurefootCounter-v0", 1, observation=other)
    np.testing.assert_array_equal(env.reset(seed=0)[0], [[ord("a"), ord("v")]])
