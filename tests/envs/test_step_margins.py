"""Margins of the velocity tasks, had from what a dataset keeps of a step."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from surefoot.data import load
from surefoot.envs.mujoco.step_margins import ALONG_X, step_margins, velocity_task
from surefoot.envs.vector import make_vec

FILES = ["halfcheetah-v5-velocity-cost", "halfcheetah-v5-mixed-sb3", "hopper-v5-mixed-sb3", "walker2d-v5-mixed-sb3"]


@pytest.mark.parametrize("file", FILES)
def test_every_stored_cost_is_reproduced(shared_data: pathlib.Path, file: str) -> None:
    dataset = load(shared_data / f"{file}.hdf5")
    task = velocity_task(dataset.env_id)
    assert task is not None
    assert dataset.costs is not None
    found = step_margins(task, dataset.rewards, dataset.actions, dataset.terminations)
    assert 0 < (dataset.costs > 0).sum() < len(dataset)
    np.testing.assert_array_equal(found < 0, dataset.costs > 0)


def test_forgetting_that_a_fall_pays_no_healthy_reward_is_seen(shared_data: pathlib.Path) -> None:
    dataset = load(shared_data / "hopper-v5-mixed-sb3.hdf5")
    slipped = step_margins("Hopper", dataset.rewards, dataset.actions, np.zeros(len(dataset), bool))
    assert dataset.costs is not None
    assert ((slipped < 0) != (dataset.costs > 0)).sum() > 100


@pytest.mark.parametrize("task", ALONG_X)
def test_margins_from_steps_are_those_that_the_environment_tells(task: str) -> None:
    env = make_vec(f"surefoot/{task}Velocity-v5", 4)
    env.reset(seed=3)
    generator = np.random.default_rng(0)
    told, rewards, taken, ended = [], [], [], []
    for _ in range(60):
        actions = generator.uniform(-1.3, 1.3, env.action_space.shape).astype(np.float32)
        _, reward, terminated, _, info = env.step(actions)
        told.append(info["margin"])
        rewards.append(np.asarray(reward, np.float32))
        taken.append(actions)
        ended.append(terminated)
    env.close()
    found = step_margins(task, *(np.concatenate(part) for part in (rewards, taken, ended)))
    np.testing.assert_allclose(found, np.concatenate(told), rtol=0, atol=2e-6)


def test_only_tasks_whose_limited_speed_is_rewarded_have_such_margins() -> None:
    assert velocity_task("HalfCheetah-v5") == velocity_task("surefoot/HalfCheetahVelocity-v5") == "HalfCheetah"
    assert velocity_task("Ant-v5") is velocity_task("surefoot/HumanoidVelocity-v5") is velocity_task(None) is None
    assert velocity_task("surefoot/Pendulum-v0") is None
