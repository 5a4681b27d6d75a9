"""Native systems as gymnasium's users meet them: ids, autoreset, seeds, pausing, state, parameters."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.envs import describe, make_vec
from surefoot.envs.names import gymnasium_id, native_ids, short_name
from surefoot.envs.native import NativeVectorEnv
from surefoot.envs.native_single import NativeEnv
from surefoot.envs.systems import SYSTEMS

SWING_UP = "surefoot/CartPoleSwingUp-v0"


def actions_for(env: Any, seed: int = 0) -> Any:
    """An endless row of random actions."""
    generator = np.random.default_rng(seed)
    low, high = env.single_action_space.low, env.single_action_space.high
    while True:
        yield generator.uniform(low, high, (env.num_envs, len(low))).astype(np.float32)


@pytest.mark.parametrize("first", ["import gymnasium, surefoot", "import surefoot, gymnasium", "import gymnasium"])
def test_gymnasium_makes_them_once_surefoot_is_imported_or_where_the_id_says_so(first: str) -> None:
    module = "" if "surefoot" in first else "surefoot:"
    script = (
        f"import sys\n{first}\n"
        "assert 'torch' not in sys.modules, 'importing must not import torch'\n"
        f"env = gymnasium.make_vec({module + SWING_UP!r}, num_envs=8)\n"
        "print(env.reset(seed=0)[0].shape, type(env).__name__)\n"
        f"print(gymnasium.make('{module}surefoot/Pendulum-v0').reset(seed=0)[0].shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "(8, 5) NativeVectorEnv\n(3,)\n"), done.stderr


def test_no_code_of_ours_runs_when_python_starts() -> None:
    script = "import sys; print([name for name in sys.modules if 'surefoot' in name])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_the_names_read_from_the_files_are_those_of_the_systems() -> None:
    assert dict(native_ids()) == {known().alias: known.gym_id for known in SYSTEMS.values()}
    assert gymnasium_id("native/quadrotor-2d") == "surefoot/Quadrotor2D-v0"
    assert gymnasium_id("Pendulum-v1") == "Pendulum-v1"
    with pytest.raises(ConfigError, match="did you mean 'native/quadrotor-2d'"):
        make_vec("native/quadrotr-2d", 1)


def test_the_command_lines_name_and_the_gymnasium_id_are_the_same_environment() -> None:
    described = describe("native/quadrotor-2d")
    assert (described.observation_dim, described.action_dim, described.max_episode_steps) == (6, 2, 300)
    assert type(make_vec("native/quadrotor-2d", 2)) is type(make_vec("surefoot/Quadrotor2D-v0", 2)) is NativeVectorEnv


def test_episodes_end_and_begin_in_the_same_step() -> None:
    env = NativeVectorEnv("pendulum", 3, max_episode_steps=5)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    env.reset(seed=[1, 2, 3])
    actions = actions_for(env)
    for _ in range(4):
        _, _, _, truncations, info = env.step(next(actions))
        assert not truncations.any()
        assert "final_obs" not in info
    observations, _, terminations, truncations, info = env.step(next(actions))
    assert truncations.all()
    assert not terminations.any()
    assert info["_final_obs"].all()
    assert not np.isclose(info["final_obs"], observations).all(1).any()
    assert (np.abs(observations[:, 2]) <= 1).all()  # a fresh start: |velocity| <= 1


def test_the_cost_is_one_where_the_margin_is_negative_also_at_an_episodes_end() -> None:
    env = NativeVectorEnv("quadrotor-2d", 64)
    env.reset(seed=0)
    actions, ended, unsafe = actions_for(env), 0, 0
    for _ in range(60):
        _, _, terminations, _, info = env.step(next(actions))
        np.testing.assert_array_equal(info["cost"], info["margin"] < 0)
        ended += int(terminations.sum())
        unsafe += int(info["cost"][terminations].sum())
        if terminations.any():
            np.testing.assert_array_equal(info["final_info"]["cost"], info["cost"])
    assert ended == unsafe > 50  # every crash is outside the safe box, and costs


def test_a_rows_future_depends_on_its_seed_alone() -> None:
    many, few = NativeVectorEnv("reacher", 40), NativeVectorEnv("reacher", 2)
    first, _ = many.reset(seed=100)
    alone, _ = few.reset(seed=117)
    np.testing.assert_array_equal(first[17:19], alone)
    actions = actions_for(many)
    for _ in range(150):  # past a time limit
        given = next(actions)
        a, b = many.step(given), few.step(given[17:19])
        for x, y in zip(a[:4], b[:4], strict=True):
            np.testing.assert_array_equal(x[17:19], y)


def test_the_single_environment_is_a_row_of_the_vector() -> None:
    rows, single = NativeVectorEnv("dubins-obstacles", 2), gymnasium.make("surefoot/DubinsObstacles-v0")
    np.testing.assert_array_equal(rows.reset(seed=[5, 6])[0][0], single.reset(seed=5)[0])
    actions = actions_for(rows)
    for _ in range(60):
        given = next(actions)
        observations, rewards, _, _, info = rows.step(given)
        observation, reward, terminated, truncated, own = single.step(given[0])
        np.testing.assert_allclose(observation, observations[0], rtol=1e-4, atol=1e-5)
        found = (reward, own["cost"], own["margin"])
        np.testing.assert_allclose(found, (rewards[0], info["cost"][0], info["margin"][0]), rtol=1e-4, atol=1e-5)
        assert not terminated
        assert not truncated


def test_the_single_environment_truncates_by_itself_and_passes_gymnasiums_checker() -> None:
    from gymnasium.utils.env_checker import check_env

    env = NativeEnv("pendulum", max_episode_steps=3)
    check_env(env, skip_render_check=True)
    env.reset(seed=0)
    assert [env.step(env.action_space.sample())[3] for _ in range(3)] == [False, False, True]


def test_a_paused_row_stands_still_and_takes_its_next_seed_at_the_next_end() -> None:
    env, other = NativeVectorEnv("pendulum", 3, max_episode_steps=4), NativeVectorEnv("pendulum", 1)
    before, _ = env.reset(seed=[1, 2, 3])
    env.active[1] = False
    env.next_seeds[0] = 77
    actions = actions_for(env)
    for _ in range(4):
        observations, rewards, _, truncations, info = env.step(next(actions))
        np.testing.assert_array_equal(observations[1], before[1])
        np.testing.assert_array_equal(info["valid"], [True, False, True])
        assert (rewards[1], info["cost"][1], info["margin"][1]) == (0, 0, 0)
    np.testing.assert_array_equal(truncations, [True, False, True])
    np.testing.assert_array_equal(observations[0], other.reset(seed=77)[0][0])
    env.active[1] = True
    for _ in range(4):
        *_, truncations, _ = env.step(next(actions))
    np.testing.assert_array_equal(truncations, [True, True, True])  # the paused row had its four steps yet to make


def test_a_masked_reset_begins_the_chosen_rows_only() -> None:
    env = NativeVectorEnv("cartpole-balance", 3)
    env.reset(seed=0)
    after, *_ = env.step(np.ones((3, 1), np.float32))
    reset, _ = env.reset(seed=[9, 9, 9], options={"reset_mask": np.array([True, False, False])})
    np.testing.assert_array_equal(reset[1:], after[1:])
    assert not np.array_equal(reset[0], after[0])
    again, _ = env.reset(seed=[9, None, 9])
    np.testing.assert_array_equal(again[0], again[2])
    assert not np.array_equal(again[1], reset[1])  # its own next episode
    with pytest.raises(ConfigError, match="2 seeds were given for 3"):
        env.reset(seed=[1, 2])


def test_a_stored_state_goes_on_to_the_same_bits() -> None:
    env = NativeVectorEnv("quadrotor-2d", 16, gap=["wind", None] * 8, parameters={"action_noise": 0.02})
    env.reset(seed=3)
    actions = list(zip(range(80), actions_for(env), strict=False))
    for _, given in actions[:30]:
        env.step(given)
    stored = env.get_state()
    first = [env.step(given)[:4] for _, given in actions[30:]]
    fresh = NativeVectorEnv("quadrotor-2d", 16)
    fresh.set_state(stored)
    again = [fresh.step(given)[:4] for _, given in actions[30:]]
    for a, b in zip(first, again, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    with pytest.raises(EnvironmentMismatchError, match="'states' is"):
        NativeVectorEnv("quadrotor-2d", 3).set_state(stored)


def test_planners_set_the_state_and_see_it() -> None:
    env = NativeVectorEnv("pendulum", 2)
    env.reset(seed=0)
    env.state = np.array([[np.pi, 0.0], [0.0, 1.0]], np.float32)
    np.testing.assert_allclose(env.observations, [[-1, 0, 0], [1, 0, 1]], atol=1e-6)
    np.testing.assert_allclose(env.state, [[np.pi, 0.0], [0.0, 1.0]], rtol=1e-6)
    with pytest.raises(EnvironmentMismatchError, match=r"shape \(1, 2\)"):
        env.state = np.zeros((1, 2))


def test_domain_parameters_differ_from_row_to_row() -> None:
    env = NativeVectorEnv("pendulum", 3, gap=[None, "gravity2", "gravity2"], parameters={"mass": [1.0, 1.0, 4.0]})
    np.testing.assert_array_equal(env.parameters["gravity"], [10, 20, 20])
    env.reset(seed=0)
    env.state = np.array([[np.pi / 2, 0.0]] * 3, np.float32)
    env.step(np.ones((3, 1), np.float32))
    # w' = 1.5 g / l sin(th) + 3 u / (m l^2), one step of 0.05 s
    np.testing.assert_allclose(env.state[:, 1], 0.05 * np.array([15 + 3, 30 + 3, 30 + 0.75]), rtol=1e-5)
    env.set_parameters(gravity=0.0)
    np.testing.assert_array_equal(env.parameters["gravity"], [0, 0, 0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_envs": 0}, "num_envs is 0"),
        ({"gap": "gravty2"}, "gravity2"),
        ({"gap": ["wind"]}, "lists 1 presets for 2"),
        ({"parameters": {"gravty": 1.0}}, "did you mean 'gravity'"),
        ({"parameters": {"mass": -1.0}}, r"mass is -1; it must lie in \[0.01, 100\] kg"),
        ({"parameters": {"mass": [1.0, float("nan")]}}, "mass is nan"),
        ({"parameters": {"mass": [1.0, 1.0, 1.0]}}, r"shape \(3,\)"),
        ({"max_episode_steps": 0}, "max_episode_steps is 0"),
        ({"tensors": "jax"}, "tensors='jax'"),
        ({"no_such": 1}, "takes no argument 'no_such'"),
        ({"system": "pendulm"}, "native/pendulum"),
    ],
)
def test_mistakes_are_told_in_one_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        NativeVectorEnv(**{"system": "pendulum", "num_envs": 2, **options})
    assert "\n" not in str(caught.value)


def test_bad_actions_are_refused_before_anything_moves() -> None:
    env = NativeVectorEnv("pendulum", 2)
    observations, _ = env.reset(seed=0)
    with pytest.raises(EnvironmentMismatchError, match=r"shape \(2, 2\)"):
        env.step(np.zeros((2, 2), np.float32))
    with pytest.raises(EnvironmentMismatchError, match="environment 1 is not finite"):
        env.step(np.array([[0.0], [np.nan]], np.float32))
    np.testing.assert_array_equal(env.observations, observations)


def test_tensors_are_given_and_taken() -> None:
    numbers, tensors = NativeVectorEnv("pendulum", 4), NativeVectorEnv("pendulum", 4, tensors="torch")
    first, second = numbers.reset(seed=1)[0], tensors.reset(seed=1)[0]
    assert isinstance(second, torch.Tensor)
    np.testing.assert_array_equal(first, second.numpy())
    given = torch.tensor([[1.0], [-1.0], [0.5], [9.0]])
    a, b = numbers.step(given.numpy()), tensors.step(given)
    for x, y in zip(a[:4], b[:4], strict=True):
        assert isinstance(y, torch.Tensor)
        np.testing.assert_array_equal(x, y.numpy())
    assert isinstance(b[4]["margin"], torch.Tensor)


def test_a_diverged_state_ends_its_episode_and_is_counted() -> None:
    env = NativeVectorEnv("linear-quadratic", 4, parameters={"state_scale": [2.0, 2.0, 1.0, 1.0]})
    env.reset(seed=0)
    for _ in range(30):  # 2^30 > 1e6
        observations, rewards, terminations, truncations, info = env.step(np.zeros((4, 2), np.float32))
        assert np.isfinite(observations).all()
        if info["diverged"].any():
            break
    assert 1 <= env.diverged_episodes == int(info["diverged"].sum())
    assert not info["diverged"][2:].any()
    assert truncations[info["diverged"]].all()
    assert not terminations.any()
    assert (rewards[info["diverged"]] == 0).all()
    assert (info["cost"][info["diverged"]] == 1).all()


@pytest.mark.parametrize("env_id", ["native/quadrotor-2d", "native/quadrotor_2d", "surefoot/Quadrotor2D-v0"])
def test_both_names_of_a_system_have_one_short_name(env_id: str) -> None:
    assert short_name(env_id) == "native/quadrotor-2d"


@pytest.mark.parametrize("env_id", ["native/pendulum-pixels", "native/pendulum_pixels", "surefoot/PendulumPixels-v0"])
def test_both_names_of_a_camera_environment_have_one_short_name(env_id: str) -> None:
    assert short_name(env_id) == "native/pendulum-pixels"


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "my_robots:My_Robot-v0", "native/no-such_system"])
def test_other_environments_keep_their_names(env_id: str) -> None:
    assert short_name(env_id) == env_id


def test_nothing_moves_before_the_first_reset_and_that_one_begins_all_rows() -> None:
    env = NativeVectorEnv("pendulum", 3)
    with pytest.raises(EnvironmentMismatchError, match="step was called before the first reset: call reset first"):
        env.step(np.zeros((3, 1), np.float32))
    with pytest.raises(EnvironmentMismatchError, match="roll_out was called before the first reset"):
        env.roll_out([], 5)
    observations, _ = env.reset(seed=4, options={"reset_mask": np.array([True, False, False])})
    np.testing.assert_array_equal(observations, NativeVectorEnv("pendulum", 3).reset(seed=4)[0])
    again, _ = env.reset(seed=9, options={"reset_mask": np.array([True, False, False])})
    np.testing.assert_array_equal(again[1:], observations[1:])
    assert (again[0] != observations[0]).any()
    env = NativeVectorEnv("pendulum", 3)
    observations, _ = env.reset(seed=[4, None, None])
    assert len(np.unique(observations[:, 2])) == 3  # rows without a seed share none
    fresh = NativeVectorEnv("pendulum", 3)
    fresh.set_state(env.get_state())
    np.testing.assert_array_equal(
        fresh.step(np.zeros((3, 1), np.float32))[0], env.step(np.zeros((3, 1), np.float32))[0]
    )


def test_what_diverged_on_a_gpu_is_counted_once_the_environments_are_used_on_the_cpu() -> None:
    env = NativeVectorEnv("pendulum", 2)
    env.reset(seed=0)
    env._away, env._diverged_away = env._simulator.state, torch.tensor(3)
    assert env.get_state()["diverged_episodes"] == env.diverged_episodes == 3
    env.reset(seed=0)
    assert env.diverged_episodes == 3
