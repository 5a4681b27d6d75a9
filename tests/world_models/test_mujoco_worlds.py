"""MuJoCo's tasks as exact worlds: what the environment itself does, and what is refused."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest
import torch

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.evaluation import evaluate
from surefoot.world_models.dynamics import StepNoise
from surefoot.world_models.known.exact import Observed
from surefoot.world_models.known.mujoco import HIDDEN, REFUSED, MujocoDynamics
from surefoot.world_models.planners import ICEM, PlannerPolicy

pytest.importorskip("mujoco")


@pytest.mark.parametrize("name", HIDDEN)
def test_a_step_from_an_observation_is_the_environments_own(name: str) -> None:
    environment, world = gymnasium.make(f"{name}-v5"), MujocoDynamics(f"{name}-v5")
    seen, generator, compared = Observed(world), np.random.default_rng(0), 0
    observation, _ = environment.reset(seed=0)
    for _ in range(60):
        action = generator.uniform(environment.action_space.low, environment.action_space.high).astype(np.float32)
        scaled = torch.from_numpy(action) / torch.from_numpy(environment.action_space.high)
        after, reward, terminated, _, _ = environment.step(action)
        before = torch.from_numpy(observation)
        if name not in ("Hopper", "Walker2d") or before[-world.velocities :].abs().max() < 10:
            found = seen.step(before.expand(2, -1), scaled.expand(2, -1).double(), StepNoise())
            np.testing.assert_allclose(found.states[1], after, rtol=0, atol=1e-6)
            assert found.rewards[1].item() == pytest.approx(float(reward), abs=1e-6)
            assert bool(found.ended[1]) == terminated
            compared += 1
        observation = environment.reset()[0] if terminated else after
    assert compared > 5


def test_a_row_at_the_velocity_bound_is_refused() -> None:
    world = MujocoDynamics("Hopper-v5")
    observations = torch.zeros(3, 11)
    observations[1, -2] = -10.0
    with pytest.raises(DataError, match="row 1: a velocity is 10 or more"):
        world.states_of(observations)
    assert MujocoDynamics("HalfCheetah-v5").states_of(torch.full((2, 17), 30.0)).shape == (2, 18)


def test_a_world_that_is_not_exact_is_refused_with_the_reason() -> None:
    for name, reason in REFUSED.items():
        with pytest.raises(ConfigError, match=reason):
            MujocoDynamics(f"{name}-v5")
    with pytest.raises(ConfigError, match="did you mean 'Hopper-v5'"):
        MujocoDynamics("Hopper-v4")


def test_states_that_are_no_numbers_have_no_reward_and_leave_the_others_alone() -> None:
    world = MujocoDynamics("InvertedPendulum-v5")
    states = torch.zeros(3, 4)
    states[1] = math.nan
    found = world.step(states, torch.zeros(3, 1), StepNoise())
    assert found.rewards.isnan().tolist() == [False, True, False]
    assert found.ended.tolist() == [False, True, False]


def test_a_planner_balances_the_pendulum() -> None:
    world = MujocoDynamics("InvertedPendulum-v5")
    policy = PlannerPolicy(ICEM(horizon=10, samples=16, iterations=2), world, world.low, world.high)
    found = evaluate([policy], "InvertedPendulum-v5", episodes=1, num_envs=1, env_kwargs={"max_episode_steps": 60})
    assert found[0].returns[0] == 60
