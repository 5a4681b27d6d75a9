"""The batched tasks against gymnasium's own classes."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, MissingExtraError
from surefoot.envs import PausingVectorEnv, describe, make_vec
from surefoot.envs.mujoco import TASKS, VELOCITY_LIMITS, MujocoVectorEnv, library, make
from surefoot.evaluation.rollout import RandomPolicy, evaluate

pytest.importorskip("mujoco.batch", reason="needs MuJoCo 3.17")


@pytest.fixture
def no_listener() -> Iterator[None]:
    """As before a package such as dm_control, which other tests import, has set a listener of its own."""
    import mujoco

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(None)
    yield
    mujoco.set_mju_user_warning(before)


def gymnasium_s(env_id: str, num_envs: int, **kwargs: Any) -> SyncVectorEnv:
    makers = [lambda: gymnasium.make(env_id, **kwargs)] * num_envs
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)


def random_actions(env: Any, generator: np.random.Generator) -> np.ndarray:
    space = env.single_action_space
    return generator.uniform(space.low, space.high, (env.num_envs, *space.shape)).astype(np.float32)


@pytest.mark.parametrize("name", list(TASKS))
def test_each_task_is_bit_for_bit_gymnasium_s_through_resets_and_time_limits(name: str) -> None:
    ours, theirs = make(3, task=name, max_episode_steps=40), gymnasium_s(f"{name}-v5", 3, max_episode_steps=40)
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.single_action_space == theirs.single_action_space
    observations, info = ours.reset(seed=7)
    expected, expected_info = theirs.reset(seed=7)
    np.testing.assert_array_equal(observations, expected)
    assert set(expected_info) == set(info)
    generator, ends = np.random.default_rng(0), 0
    for _ in range(90):
        actions = random_actions(ours, generator)
        *got, info = ours.step(actions)
        *wanted, expected_info = theirs.step(actions)
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
        ended = wanted[2] | wanted[3]
        ends += ended.sum()
        for row in np.flatnonzero(ended):
            np.testing.assert_array_equal(info["final_obs"][row], expected_info["final_obs"][row])
            for key, value in expected_info["final_info"].items():
                np.testing.assert_array_equal(info["final_info"][key][row], value[row], err_msg=key)
        for key in [key for key in expected_info if not key.startswith(("_", "final"))]:
            np.testing.assert_array_equal(info[key][~ended], expected_info[key][~ended], err_msg=key)
    assert ends >= 6


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("Hopper", {"terminate_when_unhealthy": False, "exclude_current_positions_from_observation": False}),
        ("Ant", {"include_cfrc_ext_in_observation": False, "main_body": "torso", "healthy_z_range": (0.5, 1.0)}),
        ("Humanoid", {"include_cinert_in_observation": False, "contact_cost_weight": 1e-3, "frame_skip": 2}),
        ("HalfCheetah", {"forward_reward_weight": 2.0, "ctrl_cost_weight": 0.5, "reset_noise_scale": 0.3}),
    ],
)
def test_gymnasium_s_own_keywords_mean_the_same(name: str, kwargs: dict[str, Any]) -> None:
    ours = make(2, task=name, **kwargs)
    theirs = gymnasium_s(f"{name}-v5", 2, **kwargs)
    np.testing.assert_array_equal(ours.reset(seed=1)[0], theirs.reset(seed=1)[0])
    generator = np.random.default_rng(0)
    for _ in range(30):
        actions = random_actions(ours, generator)
        for a, b in zip(ours.step(actions)[:4], theirs.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Ant-v5", "Reacher-v5"])
def test_evaluation_gives_the_scores_of_gymnasium_s_classes_bit_for_bit(
    env_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scores() -> list[dict[str, Any]]:
        low, high = (getattr(describe(env_id), f"action_{end}") for end in ("low", "high"))
        policies = [RandomPolicy(low, high, seed) for seed in (0, 1)]
        found = evaluate(policies, env_id, episodes=5, num_envs=2, env_kwargs={"max_episode_steps": 60})
        return [episodes.to_json() for episodes in found]

    assert isinstance(make_vec(env_id, 1), MujocoVectorEnv)
    new = scores()
    monkeypatch.setattr("surefoot.envs.vector.batched", lambda *_: None)
    assert isinstance(make_vec(env_id, 1), PausingVectorEnv)
    assert scores() == new


def test_arguments_that_ours_lacks_get_gymnasium_s_class() -> None:
    assert isinstance(make_vec("Hopper-v5", 1, render_mode="rgb_array"), PausingVectorEnv)
    assert isinstance(make_vec("Hopper-v5", 1, render_mode=None), MujocoVectorEnv)
    assert make_vec("Hopper-v5", 1, max_episode_steps=7).max_episode_steps == 7
    assert make_vec("Hopper-v5", 1).max_episode_steps == 1000


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    one, two = make(9, task="Ant", threads=1), make(9, task="Ant", threads=2)
    one.reset(seed=0), two.reset(seed=0)
    generator = np.random.default_rng(0)
    for _ in range(20):
        actions = random_actions(one, generator)
        for a, b in zip(one.step(actions)[:4], two.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_paused_row_stands_still_and_goes_on_as_if_nothing_had_been() -> None:
    paused, straight = make(3, task="Ant"), make(3, task="Ant")
    paused.reset(seed=2), straight.reset(seed=2)
    actions = random_actions(paused, np.random.default_rng(0))
    before = paused.step(actions)[0]
    straight.step(actions)
    paused.active[1] = False
    observations, rewards, _, _, info = paused.step(actions)
    np.testing.assert_array_equal(observations[1], before[1])
    assert rewards[1] == 0
    assert info["valid"].tolist() == [True, False, True]
    np.testing.assert_array_equal(observations[[0, 2]], straight.step(actions)[0][[0, 2]])
    paused.active[:] = [False, True, False]
    other, reward, *_ = paused.step(actions)
    for a, b in zip((other, reward), make_after(actions, 2), strict=True):
        np.testing.assert_array_equal(a[1], b[1])


def make_after(actions: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    env = make(3, task="Ant")
    env.reset(seed=2)
    for _ in range(steps):
        observations, rewards, *_ = env.step(actions)
    return observations, rewards


@pytest.mark.parametrize(("name", "gap"), [("Ant", None), ("Hopper", "noise1+gravity2"), ("Humanoid", None)])
def test_a_state_restored_in_a_fresh_environment_goes_on_to_the_same_bits(name: str, gap: str | None) -> None:
    env = make(3, task=name, gap=gap, max_episode_steps=30)
    env.reset(seed=3)
    generator = np.random.default_rng(0)
    actions = [random_actions(env, generator) for _ in range(60)]
    for t in range(20):
        env.step(actions[t])
    env.active[2] = False
    env.step(actions[20])
    state = env.get_state()
    again = make(3, task=name, gap=gap, max_episode_steps=30)
    again.set_state({key: value.copy() for key, value in state.items()})
    for t in range(21, 60):
        env.active[2] = again.active[2] = t > 25
        for a, b in zip(env.step(actions[t])[:4], again.step(actions[t])[:4], strict=True):
            np.testing.assert_array_equal(a, b)
    for key, value in env.get_state().items():
        np.testing.assert_array_equal(value, again.get_state()[key], err_msg=key)
    env.set_state(state)  # back in time in the same environment
    np.testing.assert_array_equal(env.get_state()["simulations"], state["simulations"])
    with pytest.raises(EnvironmentMismatchError, match="simulations"):
        make(2, task=name).set_state(state)


def test_a_reset_mask_resets_those_rows_only() -> None:
    env = make(3, task="Hopper")
    first, _ = env.reset(seed=0)
    moved = env.step(np.ones((3, 3), np.float32))[0]
    observations, _ = env.reset(seed=0, options={"reset_mask": np.array([True, False, False])})
    np.testing.assert_array_equal(observations[0], first[0])
    np.testing.assert_array_equal(observations[1:], moved[1:])
    with pytest.raises(ConfigError, match="reset_mask"):
        env.reset(options={"reset_mask": np.zeros(3, np.bool_)})


def test_next_seeds_decide_where_the_automatic_reset_begins() -> None:
    env = make(2, task="Hopper", max_episode_steps=1)
    env.reset(seed=0)
    env.next_seeds = [11, None]
    observations = env.step(np.zeros((2, 3), np.float32))[0]
    np.testing.assert_array_equal(observations[0], gymnasium.make("Hopper-v5").reset(seed=11)[0])


@pytest.mark.parametrize("poison", [np.nan, 1e12])
def test_a_diverged_simulation_ends_its_episode_and_is_counted(poison: float) -> None:
    env = make(3, task="HalfCheetah")
    before, _ = env.reset(seed=0)
    env.sim.qvel[1, 0] = poison
    with pytest.warns(RuntimeWarning, match="simulation 1 diverged"):
        observations, rewards, terminations, truncations, info = env.step(np.zeros((3, 6), np.float32))
    assert not terminations.any()
    assert truncations.tolist() == [False, True, False]
    assert info["diverged"].tolist() == [False, True, False]
    assert env.diverged_episodes == 1
    assert rewards[1] == 0
    np.testing.assert_array_equal(info["final_obs"][1], before[1])
    assert np.isfinite(observations).all()
    assert np.abs(observations).max() < 10
    assert not env.step(np.zeros((3, 6), np.float32))[4]["diverged"].any()
    env.sim.qvel[2, 0] = poison
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one warning is enough
        env.step(np.zeros((3, 6), np.float32))
    assert env.diverged_episodes == 2


def test_a_diverged_simulation_violates_its_constraint() -> None:
    slide = """<mujoco><option timestep="0.01"/><worldbody><body><joint name="j" type="slide" axis="1 0 0"/>
        <geom size="0.1" mass="1e-3"/></body></worldbody>
        <actuator><motor joint="j" gear="1e9" ctrllimited="true" ctrlrange="-1 1"/></actuator></mujoco>"""
    env = MujocoVectorEnv(
        slide,
        3,
        observation=lambda sim: np.concatenate([sim.qpos, sim.qvel], 1),
        margin=lambda sim: 1.0 - np.abs(sim.qpos[:, 0]),
        episode=50,
    )
    env.reset(seed=0)
    env.active[2] = False
    with pytest.warns(RuntimeWarning, match="simulation 0 diverged"):
        info = env.step(np.array([[1.0], [0.0], [0.0]], np.float32))[4]
    assert info["diverged"].tolist() == [True, False, False]
    assert info["cost"].tolist() == [1, 0, 0]
    assert info["margin"].tolist() == [-1e6, 1, 0]
    assert info["final_info"]["cost"][0] == 1


def test_torch_tensors_on_request() -> None:
    env, numpy_env = make(2, task="Hopper", tensors="torch"), make(2, task="Hopper")
    observations, _ = env.reset(seed=0)
    expected, _ = numpy_env.reset(seed=0)
    actions = torch.full((2, 3), 0.5)
    for _ in range(30):
        torch.testing.assert_close(observations, torch.from_numpy(expected).float(), rtol=0, atol=0)
        observations, rewards, terminations, _, info = env.step(actions)
        expected, *_ = numpy_env.step(actions.numpy())
    assert observations.dtype == rewards.dtype == torch.float32
    assert terminations.dtype == info["valid"].dtype == torch.bool
    assert env.single_observation_space.dtype == np.float32


def test_bad_actions_and_arguments_are_refused_in_words() -> None:
    env = make(2, task="Hopper")
    with pytest.raises(EnvironmentMismatchError, match=r"reset\(\)"):
        env.step(np.zeros((2, 3)))
    env.reset(seed=0)
    with pytest.raises(EnvironmentMismatchError, match=r"\(2, 4\).*\(2, 3\)"):
        env.step(np.zeros((2, 4)))
    with pytest.raises(EnvironmentMismatchError, match="environment 1 is not finite"):
        env.step(np.array([[0, 0, 0], [0, np.nan, 0]]))
    with pytest.raises(ConfigError, match="num_envs is 0"):
        make(0, task="Hopper")
    with pytest.raises(ConfigError, match="'healthy_reward'"):
        make(1, task="Hopper", healthy_rewrad=1)
    with pytest.raises(ConfigError, match="'Hopper'"):
        make(1, task="Hoper")
    with pytest.raises(ConfigError, match="tensors='jax'"):
        make(1, task="Hopper", tensors="jax")
    with pytest.raises(ConfigError, match="threads is 0"):
        make(1, task="Hopper", threads=0)
    with pytest.raises(ConfigError, match="max_episode_steps is 0"):
        make(1, task="Hopper", max_episode_steps=0)


def test_an_old_or_absent_mujoco_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import mujoco

    monkeypatch.setattr(mujoco, "__version__", "3.16.0")
    with pytest.raises(ConfigError, match=r"3\.17.*3\.16\.0.*surefoot\[mujoco\]"):
        make_vec("Hopper-v5", 1)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(MissingExtraError, match=r"surefoot\[mujoco\]"):
        make_vec("Hopper-v5", 1)


def test_mujoco_is_imported_when_an_environment_is_made_and_not_before() -> None:
    code = (
        "import sys, surefoot.envs.mujoco, surefoot.evaluation, gymnasium;"
        "assert 'surefoot/HopperVelocity-v5' in gymnasium.registry; assert 'mujoco' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_version_of_mujoco_is_in_the_environment_s_metadata() -> None:
    import mujoco

    assert make(1, task="Hopper").metadata["simulator"] == f"mujoco {mujoco.__version__}" == library.version()
    assert gymnasium.make("surefoot/Hopper-v5").metadata["simulator"] == library.version()
    assert describe("Hopper-v5").simulator == describe("surefoot/HopperVelocity-v5").simulator == library.version()
    assert describe("Pendulum-v1").simulator is None
    assert set(VELOCITY_LIMITS) < set(TASKS)


DEPRECATED = (
    "<mujoco><compiler settotalmass='14'/><worldbody><body><geom size='1' mass='1'/></body></worldbody></mujoco>"
)


def test_what_gymnasium_s_models_have_that_mujoco_will_give_up_is_neither_printed_nor_logged(
    capfd: pytest.CaptureFixture[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, no_listener: None
) -> None:
    import mujoco

    monkeypatch.chdir(tmp_path)
    describe("HalfCheetah-v5")
    make_vec("HalfCheetah-v5", 2).close()
    make_vec("surefoot/HalfCheetahVelocity-v5", 1).close()
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    assert mujoco.get_mju_user_warning() is None
    library.compile_model(DEPRECATED)  # a user's own model: the one who can fix it is warned
    assert mujoco.__version__ < "4" or "settotalmass" in "".join(capfd.readouterr())


def test_other_warnings_of_mujoco_are_passed_on_and_a_listener_of_the_user_s_is_left_alone(no_listener: None) -> None:
    import mujoco

    with pytest.warns(RuntimeWarning, match="MuJoCo: the floor is lava"), library.no_deprecations():
        mujoco.get_mju_user_warning()("the floor is lava")
    heard: list[str] = []
    mujoco.set_mju_user_warning(heard.append)
    try:
        with library.no_deprecations():
            mujoco.get_mju_user_warning()("settotalmass is deprecated")
    finally:
        mujoco.set_mju_user_warning(None)
    assert heard == ["settotalmass is deprecated"]
