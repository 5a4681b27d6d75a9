"""Velocity limits, dynamics gaps, domain parameters and the user's own MJCF."""

from __future__ import annotations

import pathlib
import runpy
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError
from surefoot.envs import make_vec
from surefoot.envs.mujoco import VELOCITY_LIMITS, MujocoVectorEnv, make
from surefoot.envs.mujoco.gaps import GAPS
from surefoot.envs.training import gaps_of, make_training
from surefoot.evaluation.rollout import RandomPolicy, evaluate

pytest.importorskip("mujoco.batch", reason="needs MuJoCo 3.17")

PENDULUM = """
<mujoco><option timestep="0.01"/><worldbody><body name="pole">
<joint name="hinge" type="hinge" axis="0 1 0" damping="0.1"/><geom name="rod" type="capsule" size="0.05 0.5"
fromto="0 0 0 0 0 -1"/><site name="tip" pos="0 0 -1"/></body></worldbody>
<actuator><motor joint="hinge" gear="30" ctrlrange="-2 2" ctrllimited="true"/></actuator></mujoco>
"""


def test_the_thresholds_are_safety_gymnasium_s() -> None:
    assert VELOCITY_LIMITS == {
        "HalfCheetah": 3.2096,
        "Hopper": 0.7402,
        "Walker2d": 2.3415,
        "Swimmer": 0.2282,
        "Ant": 2.6222,
        "Humanoid": 1.4149,
    }


@pytest.mark.parametrize("name", list(VELOCITY_LIMITS))
@pytest.mark.parametrize("gap", [None, "gravity2+friction0.3+wind+noise1"])
def test_single_and_batched_velocity_environments_are_bit_for_bit_the_same(name: str, gap: str | None) -> None:
    env_id = f"surefoot/{name}Velocity-v5"
    if gap is not None and name == "Swimmer":  # in a plane, without contacts
        gap = "wind+noise1"
    batched = gymnasium.make_vec(env_id, num_envs=2, gap=gap, velocity_limit=-0.1)
    singles = [gymnasium.make(env_id, gap=gap, velocity_limit=-0.1) for _ in range(2)]
    observations, _ = batched.reset(seed=4)
    running = [True, True]
    for row, env in enumerate(singles):
        np.testing.assert_array_equal(observations[row], env.reset(seed=4 + row)[0])
    generator, costs = np.random.default_rng(0), 0.0
    space: Any = batched.single_action_space
    for _ in range(25):
        actions = generator.uniform(space.low, space.high, (2, *space.shape)).astype(np.float32)
        observations, rewards, terminations, _, info = batched.step(actions)
        for row, env in enumerate(singles):
            if not running[row]:
                continue
            observation, reward, terminated, _, single = env.step(actions[row])
            assert (rewards[row], terminations[row]) == (reward, terminated)
            assert (info["cost"][row], info["margin"][row]) == (single["cost"], single["margin"])
            assert info["cost"][row] == float(single["margin"] < 0)
            costs += single["cost"]
            running[row] = not terminated
            if running[row]:
                np.testing.assert_array_equal(observations[row], observation)
    assert costs > 0


def test_costs_are_those_recorded_in_the_shared_dataset(shared_data: pathlib.Path) -> None:
    with h5py.File(shared_data / "halfcheetah-v5-velocity-cost.hdf5") as file:
        first = int(file.attrs["seed_first_episode"])
        episode = next(k for k in range(20) if 50 < file["costs"][1000 * k : 1000 * k + 300].sum() < 250)
        rows = slice(1000 * episode, 1000 * episode + 300)
        actions, costs, rewards = (file[key][rows] for key in ("actions", "costs", "rewards"))
    env = make_vec("surefoot/HalfCheetahVelocity-v5", 1)
    env.reset(seed=[first + episode])
    for action, cost, reward in zip(actions, costs, rewards, strict=True):
        _, got, _, _, info = env.step(action[None])
        assert info["cost"][0] == cost
        np.testing.assert_allclose(got[0], reward, rtol=1e-6, atol=1e-6)


def test_evaluation_adds_the_costs_of_velocity_environments() -> None:
    policy = RandomPolicy(-np.ones(3, np.float32), np.ones(3, np.float32))
    (found,) = evaluate([policy], "surefoot/HopperVelocity-v5", 4, num_envs=2, env_kwargs={"velocity_limit": -100.0})
    assert found.costs is not None
    np.testing.assert_array_equal(found.costs, found.lengths)  # every step is faster than -100 m/s
    (found,) = evaluate([policy], "surefoot/HopperVelocity-v5", 4, num_envs=2, env_kwargs={"velocity_limit": 100.0})
    assert found.costs is not None
    assert found.costs.sum() == 0


def test_each_simulation_has_its_own_gap() -> None:
    env = make(4, task="HalfCheetah", gap=[None, "gravity2", "friction0.3", "wind"])
    plain = make(4, task="HalfCheetah")
    np.testing.assert_array_equal(env.reset(seed=[1] * 4)[0], plain.reset(seed=[1] * 4)[0])
    actions = np.tile(np.random.default_rng(0).uniform(-1, 1, 6).astype(np.float32), (4, 1))
    for _ in range(30):
        observations = env.step(actions)[0]
        expected = plain.step(actions)[0]
    np.testing.assert_array_equal(observations[0], expected[0])
    for row in (1, 2, 3):
        assert np.abs(observations[row] - expected[row]).max() > 1e-3
    np.testing.assert_allclose(env.domain["opt.gravity"][:, 2], [-9.81, -19.62, -9.81, -9.81])
    np.testing.assert_allclose(env.domain["geom_friction"][2], 0.3 * env.model.geom_friction)


def test_twice_the_gravity_falls_twice_as_fast() -> None:
    env = make(2, task="HalfCheetah", gap=[None, "gravity2"])
    env.reset(seed=0)
    env.sim.qpos[:], env.sim.qvel[:] = 0.0, 0.0
    env.sim.qpos[:, 1] = 3.0  # high above the floor
    env.step(np.zeros((2, 6), np.float32))
    falls = 3.0 - env.sim.qpos[:, 1]
    np.testing.assert_allclose(falls[1] / falls[0], 2.0, rtol=1e-6)
    np.testing.assert_allclose(falls[0], 9.81 * 0.01**2 * 15, rtol=1e-6)  # 5 semi-implicit steps: 1+2+3+4+5


@pytest.mark.parametrize(
    ("gap", "words"),
    [("gravty2", "gravity2"), ("gravity", "gravity2"), ("noise-1", "noise1"), (["wind"], "1 names for 2")],
)
def test_an_unknown_gap_is_refused(gap: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(2, task="Hopper", gap=gap)


def test_domain_parameters_out_of_range_are_refused_and_derived_constants_follow() -> None:
    env = make(2, task="Hopper")
    masses = env.domain["body_mass"]
    masses[1] *= 2
    env.domain["body_mass"] = masses
    subtree = env.batch.expanded("body_subtreemass")
    np.testing.assert_allclose(subtree[1], 2 * subtree[0])
    with pytest.raises(ConfigError, match="simulation 1"):
        env.domain["body_mass"] = masses * np.array([[1], [-1]])
    with pytest.raises(ConfigError, match="finite"):
        env.domain["opt.gravity"] = np.nan
    with pytest.raises(ConfigError, match="don't fit"):
        env.domain["opt.gravity"] = np.zeros(5)
    with pytest.raises(ConfigError, match="'geom_friction'"):
        env.domain["geom_frition"] = 1
    with pytest.raises(ConfigError, match="length of a step"):
        env.domain["opt.timestep"] = 0.1


def test_any_mjcf_runs_with_plain_functions() -> None:
    env = MujocoVectorEnv(
        PENDULUM,
        3,
        observation=lambda sim: np.concatenate([np.sin(sim.qpos), np.cos(sim.qpos), sim.qvel], axis=1),
        reward=lambda sim, actions: -(sim.qpos[:, 0] ** 2) - 0.1 * (actions**2).sum(axis=1),
        terminated=lambda sim: np.abs(sim.qpos[:, 0]) > 1.0,
        margin=lambda sim: 0.5 - np.abs(sim.site_xpos[:, 0, 0]),
        initial=lambda model, generator: (generator.uniform(-0.1, 0.1, model.nq), np.zeros(model.nv)),
        reads=("site_xpos",),
        frame_skip=2,
        episode=200,
    )
    assert env.dt == 0.02
    assert env.max_episode_steps == 200
    observations, _ = env.reset(seed=0)
    np.testing.assert_allclose(observations[:, 0] ** 2 + observations[:, 1] ** 2, 1.0)
    ends, costly = 0, 0
    for _ in range(150):
        _, _, terminations, _, info = env.step(np.full((3, 1), 2.0))
        np.testing.assert_array_equal(info["cost"], info["margin"] < 0)
        ends += terminations.sum()
        costly += info["cost"].sum()
    assert ends > 0
    assert costly > 0


def test_the_pendulum_of_the_user_swings_with_its_period() -> None:
    env = MujocoVectorEnv(PENDULUM, 1, observation=lambda sim: sim.qpos.copy(), initial=lambda m, g: ([0.05], [0.0]))
    env.domain["dof_damping"] = 0.0
    env.reset()
    angles = np.array([env.step(np.zeros((1, 1)))[0][0, 0] for _ in range(600)])
    crossings = np.flatnonzero(np.diff(np.sign(angles)) != 0)
    period = 2 * 0.01 * np.diff(crossings).mean()
    length = 2 / 3  # of the mathematical pendulum of a thin rod of 1 m; the capsule's ends change it by under 1 %
    np.testing.assert_allclose(period, 2 * np.pi * np.sqrt(length / 9.81), rtol=0.02)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs observation="),
        ({"observation": lambda sim: sim.qpos[0]}, r"observation= gave an array of shape \(1,\)"),
        ({"observation": lambda sim: sim.qpos, "rewards": 1}, "rewards"),
        ({"observation": lambda sim: sim.qpos, "reads": ("xposs",)}, "xposs"),
    ],
)
def test_mistakes_in_the_user_s_functions_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MujocoVectorEnv(PENDULUM, 2, **options)


def test_a_field_that_was_not_declared_and_a_broken_mjcf_say_what_to_do() -> None:
    with pytest.raises(AttributeError, match=r"'xpos'.*reads="):
        MujocoVectorEnv(PENDULUM, 2, observation=lambda sim: sim.xpos[:, 1])
    with pytest.raises(ConfigError, match="can't compile the MJCF text"):
        MujocoVectorEnv("<mujoco><nonsense/></mujoco>", 1, observation=lambda sim: sim.qpos)
    with pytest.raises(ConfigError, match=r"no MJCF file nowhere\.xml"):
        MujocoVectorEnv("nowhere.xml", 1, observation=lambda sim: sim.qpos)


def test_gymnasium_finds_the_ids_by_the_name_of_our_package() -> None:
    env = gymnasium.make_vec("surefoot:surefoot/SwimmerVelocity-v5", num_envs=3)
    assert isinstance(env, MujocoVectorEnv)
    assert env.reset(seed=0)[0].shape == (3, 8)
    assert env.max_episode_steps == 1000


def test_a_limit_on_a_task_without_velocity_is_refused() -> None:
    with pytest.raises(ConfigError, match="velocity_limit"):
        gymnasium.make("surefoot/Reacher-v5", velocity_limit=1.0)
    with pytest.raises(ConfigError, match="velocity_limit"):
        gymnasium.make_vec("surefoot/Reacher-v5", num_envs=2, velocity_limit=1.0)


def test_the_example_of_the_docs_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(pathlib.Path(__file__).parents[2] / "examples" / "mujoco_vector.py"), run_name="__main__")
    assert "mujoco" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("env_id", "without"),
    [
        ("HalfCheetah-v5", set()),
        ("Swimmer-v5", {"gravity2", "friction0.3"}),
        ("Pusher-v5", {"gravity2"}),
        ("InvertedPendulum-v5", {"friction0.3"}),
    ],
)
def test_a_gap_that_would_change_nothing_is_refused_and_not_listed(env_id: str, without: set[str]) -> None:
    assert set(gaps_of(env_id)) == set(GAPS) - without
    for gap in without:
        with pytest.raises(ConfigError, match=r"gap: the model has no .* that acts, so this would change nothing"):
            make_training(env_id, 2, gap=gap)


def test_only_mujoco_tasks_list_mujocos_gaps() -> None:
    assert gaps_of("CartPole-v1") == gaps_of("native/pendulum") == {}
