"""Whatever a user names is an environment: ids, classes, functions, vector environments, MJCF files, with arguments."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from tests.envs import own_environments as own

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.envs import make, make_vec
from surefoot.envs.acting.first_look import FirstLook, far_outside
from surefoot.envs.make import split_options, with_options
from surefoot.envs.training import make_training
from surefoot.envs.vector import describe
from surefoot.evaluation.rollout import evaluate

OWN = "tests.envs.own_environments"
CART = """
<mujoco><worldbody><body><joint name="slide" type="slide" axis="1 0 0"/><geom size="0.1" mass="1"/></body></worldbody>
<actuator><motor joint="slide" ctrlrange="-1 1" ctrllimited="true"/></actuator></mujoco>
"""


class Resting:
    """A policy that does nothing."""

    def begin(self, rows: int) -> Any:
        return {}

    def act(self, observations: Any, memory: Any) -> Any:
        return observations[:, :1] * 0, memory

    def observe_outcome(self, memory: Any, *said: Any) -> Any:
        return memory


def lengths(name: str) -> list[int]:
    (found,) = evaluate([Resting()], name, 4, num_envs=2)  # type: ignore[list-item]
    return [int(one) for one in found.lengths]


@pytest.mark.parametrize(
    ("name", "steps", "reward", "limit"),
    [
        (f"{OWN}:Own", 20, 1.0, None),
        (f"{OWN}:Own?gain=2.5&length=4", 4, 2.5, None),
        (f"{OWN}:Own?max_episode_steps=3", 3, 1.0, 3),
        (f"{OWN}:make_one?gain=3", 20, 3.0, None),
        (f"{OWN}:OwnOne-v0", 7, 1.0, 7),
        (f"{OWN}:OwnOne-v0?max_episode_steps=9&gain=2", 9, 2.0, 9),
    ],
)
def test_a_class_a_function_and_an_id_of_a_module_take_arguments(
    name: str, steps: int, reward: float, limit: int | None
) -> None:
    (found,) = evaluate([Resting()], name, 3, num_envs=2)  # type: ignore[list-item]
    assert found.lengths.tolist() == [steps] * 3
    np.testing.assert_allclose(found.returns, steps * reward)
    assert describe(name).max_episode_steps == limit
    assert make_training(name, 3).num_envs == 3


def test_a_vector_environment_of_any_mode_is_stepped_whole_and_its_inserted_rows_count_in_no_episode() -> None:
    # row 1 begins its first episode at step 1; the rows that gymnasium's default mode inserts are no steps
    assert lengths(f"{OWN}:OwnRows") == [5, 4, 5, 5]
    assert lengths(f"{OWN}:make_rows?length=3") == [3, 2, 3, 3]
    assert lengths(f"{OWN}:OwnRows-v0") == [6, 5, 6, 6]
    assert lengths(f"{OWN}:OwnRows-v0?max_episode_steps=4") == [4, 3, 4, 4]
    assert make_training(f"{OWN}:OwnRows-v0", 64).env.env.num_envs == 64  # type: ignore[attr-defined]


def test_a_system_in_python_is_one_vector_environment() -> None:
    from tests.envs import python_twins

    from surefoot.envs.native import NativeVectorEnv

    name = python_twins.pendulum().register()
    assert isinstance(make_training(name, 64, threads=1), NativeVectorEnv)
    assert make.only_here(name) == "is registered in this process alone"
    assert make_vec(f"{name}?max_episode_steps=9", 2).max_episode_steps == 9


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{OWN}:Own?gian=2", "takes no argument 'gian' .*did you mean 'gain'"),
        (f"{OWN}:OwnRows-v0?lenght=2", "takes no argument 'lenght' .*did you mean 'length'"),
        (f"{OWN}:Onw", "has Own"),
        (f"{OWN}:OBSERVATIONS", "OBSERVATIONS is a Box"),
        (f"{OWN}:make_nothing", "gave a int; it must return a gymnasium.Env"),
        (f"{OWN}:Own?gain", "'gain' is no argument"),
        (f"{OWN}:Own?max_episode_steps=0", "max_episode_steps=0 .*whole number"),
        ("here:Nothing", "was an object of the python that trained"),
        ("nowhere.xml?reward=a:b", "no such file"),
    ],
)
def test_what_can_t_be_made_is_named_with_what_there_is(name: str, words: str) -> None:
    with pytest.raises((ConfigError, EnvironmentMismatchError), match=words):
        make_vec(name, 2)


def test_a_name_says_its_arguments_and_gives_them_back() -> None:
    options = {"text": "a&b=c?%", "number": 2.5, "flag": True, "none": None, "digits": "12", "many": [1, "x y"]}
    name = with_options("my:make?number=1&other=3", options)
    assert split_options(name) == ("my:make", {**options, "other": 3})
    assert with_options(name, {}) == name
    with pytest.raises(ConfigError, match="gain is <object"):
        with_options("my:make", {"gain": object()})


def test_what_is_given_as_an_object_has_a_name_by_which_others_find_it() -> None:
    assert make.name_for(own.Own) == f"{OWN}:Own"
    assert make.name_for(own.make_rows) == f"{OWN}:make_rows"
    here = make.name_for(lambda: own.Own(gain=2.0))
    assert make.only_here(here) is not None
    assert make.only_here(f"{OWN}:Own") is None
    assert make.only_here("Pendulum-v1") is None
    np.testing.assert_allclose(evaluate([Resting()], here, 2)[0].returns, 40.0)  # type: ignore[list-item]
    instance = own.Own(length=3)
    copied = make_vec(make.name_for(instance), 2)
    copied.reset(seed=0)
    copied.step(np.zeros((2, 1), np.float32))
    assert not hasattr(instance, "steps")  # copies were stepped
    with pytest.raises(ConfigError, match="has 2 rows, and 3 are needed"):
        make_vec(make.name_for(own.OwnRows(2)), 3)
    assert lengths(make.name_for(own.OwnRows(3))) == [5, 4, 5, 5]  # two of its rows are used


def test_an_mjcf_file_with_functions_is_an_environment(tmp_path: pathlib.Path) -> None:
    (tmp_path / "cart.xml").write_text(CART)
    base = str(tmp_path / "cart.xml")
    with pytest.raises(ConfigError, match=r"cart.xml needs a reward.*def reward\(sim, actions\)"):
        make_vec(base, 1)
    with pytest.raises(ConfigError, match=r"reward=.*takes other arguments than \(sim, actions\)"):
        make_vec(f"{base}?reward={OWN}:fallen", 1)
    with pytest.raises(ConfigError, match="takes no argument 'rewrad'"):
        make_vec(f"{base}?rewrad={OWN}:reward", 1)
    options = {"reward": own.reward, "termination": own.fallen, "cost": own.fast, "frame_skip": 50}
    name = with_options(base, {**options, "max_episode_steps": 12})
    env: Any = make_vec(name, 2)
    assert (env.max_episode_steps, env.single_observation_space.shape) == (12, (2,))
    env.reset(seed=0)
    # mass 1 pushed by 1 for 50 steps of 2 ms: v = 0.1 after the first step, 0.2 after the second; x > 0.5 after ten
    push = np.ones((2, 1), np.float32)
    _, rewards, ended, _, info = env.step(push)
    np.testing.assert_allclose(rewards, 10.1, atol=1e-6)
    _, rewards, ended, _, info = env.step(push)
    np.testing.assert_allclose((rewards[0], info["cost"][0]), (10.2, 1.0), atol=1e-6)
    steps = 2
    while not ended[0]:
        _, _, ended, _, _ = env.step(push)
        steps += 1
    assert steps == 10  # x = t^2 / 2, with semi-implicit steps: 0.5 * 1.0 * 1.002 at t = 1
    assert make_training(name, 2, gap="noise1").num_envs == 2


def test_numbers_far_outside_of_the_declared_box_are_named_once() -> None:
    low, high = np.array([-1.0, 0.0, -np.inf]), np.array([1.0, np.inf, np.inf])
    assert far_outside(np.array([[1.5, 5.0, 1e9]]), low, high) is None
    assert far_outside(np.array([[0, 0, 0], [0, -3, 0]]), low, high) == "[1] is -3, declared within 0 to inf"
    look = FirstLook("mine", own.OBSERVATIONS)
    for _ in range(3):
        look.take(np.array([[0.0, 40.0]], np.float32), np.zeros(1))
    (said,) = look.notes()
    assert "mine: its observations[1] is 40, declared within -1 to 1" in said
    assert look.notes() == []
