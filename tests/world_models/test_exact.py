"""Exact worlds: native rows against the twin and the environment itself, states from observations."""

from __future__ import annotations

import math

import pytest
import torch

from surefoot.core.base.errors import ConfigError
from surefoot.cuda_ext.rollout import rollout
from surefoot.envs.systems import SYSTEMS
from surefoot.world_models.dynamics import StepNoise
from surefoot.world_models.known.exact import NativeDynamics, Observed

ALIASES = sorted("native/" + name.replace("_", "-") for name in SYSTEMS)


@pytest.mark.parametrize("alias", ALIASES)
def test_a_world_is_what_its_environment_does(alias: str) -> None:
    world = NativeDynamics(alias)
    lived = rollout(world.system, random=True, num_envs=7, seeds=3, horizon=12, record=("actions", "rewards", "costs"))
    start = rollout(world.system, random=True, num_envs=7, seeds=3, horizon=1, record=("observations",))
    states = world.states_of(start.records["observations"][0])
    middle, half = (world.high + world.low) / 2, (world.high - world.low) / 2
    alive = torch.ones(7, dtype=torch.bool)
    for t in range(12):
        actions = (lived.records["actions"][t] - middle) / half
        found = world.step(states, actions.float(), StepNoise())
        alive = alive & (t < lived.lengths)
        torch.testing.assert_close(found.rewards[alive], lived.records["rewards"][t][alive], rtol=1e-3, atol=1e-3)
        assert (found.costs[alive] == lived.records["costs"][t][alive]).float().mean() > 0.8 or not alive.any()
        states = found.states


@pytest.mark.parametrize("alias", ALIASES)
def test_states_come_back_from_observations(alias: str) -> None:
    world = NativeDynamics(alias, backend="twin")
    generator = torch.Generator().manual_seed(0)
    table = world.parameters.expand(20, -1)
    states = world.system.reset(torch.rand(20, world.system.uniforms, generator=generator, dtype=torch.float64), table)
    actions = 2 * torch.rand(6, 20, world.action_dim, generator=generator, dtype=torch.float64) - 1
    seen = Observed(world)
    observations = world.observe(states)
    for t in range(6):
        torch.testing.assert_close(world.observe(world.states_of(observations)), observations, rtol=0, atol=1e-9)
        one, two = world.step(states, actions[t], StepNoise()), seen.step(observations, actions[t], StepNoise())
        torch.testing.assert_close(two.states, world.observe(one.states), rtol=0, atol=1e-9)
        torch.testing.assert_close(two.rewards, one.rewards, rtol=0, atol=1e-9)
        assert (two.ended == one.ended).all()
        states, observations = one.states, two.states


@pytest.mark.parametrize("alias", ["native/quadrotor-3d", "native/linear-quadratic", "native/cartpole-swingup"])
def test_native_rows_equal_the_twin_with_members_and_noise(alias: str) -> None:
    nominal = NativeDynamics(alias).nominal()
    names = [parameter.name for parameter in NativeDynamics(alias).system.parameters]
    table = nominal * torch.tensor([[1.0], [1.1], [0.9]])
    noise = next(k for k, name in enumerate(names) if name.endswith("_noise"))
    table[:, noise] = 0.05
    worlds = [NativeDynamics(alias, table, backend) for backend in ("native", "twin")]
    assert worlds[0].noise_dim == worlds[0].system.normals
    generator = torch.Generator().manual_seed(1)
    lead = (3, 2, 5)
    draws = torch.rand(30, worlds[0].system.uniforms, generator=generator)
    states = worlds[0].system.reset(draws.double(), nominal.expand(30, -1)).view(*lead, -1)
    actions = 2 * torch.rand(*lead, worlds[0].action_dim, generator=generator).double() - 1
    given = StepNoise(torch.arange(3)[:, None, None], torch.randn(3, 2, 1, worlds[0].noise_dim, generator=generator))
    one, two = (world.step(states, actions, given) for world in worlds)
    torch.testing.assert_close(one.states, two.states, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(one.rewards, two.rewards, rtol=1e-9, atol=1e-9)
    assert one.states.shape == (*lead, worlds[0].state_dim)
    assert (one.states[0] != worlds[0].step(states, actions, StepNoise()).states[0]).any()


def test_actions_are_clipped_and_wild_states_earn_no_number() -> None:
    world = NativeDynamics("native/cartpole-swingup")
    state = torch.tensor([[0.0, 0.0, math.pi, 0.0]])
    inside, outside = (world.step(state, torch.tensor([[u]]), StepNoise()) for u in (1.0, 3.0))
    assert (inside.states == outside.states).all()
    for wild in (math.nan, 1e7):
        found = world.step(torch.tensor([[0.0, wild, 0.0, 0.0]]), torch.zeros(1, 1), StepNoise())
        assert found.rewards.isnan().all()
        assert found.ended.all()


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="there is no system"):
        NativeDynamics("native/cartpole-swinup")
    with pytest.raises(ConfigError, match=r"parameters of native/pendulum have shape \(3,\)"):
        NativeDynamics("native/pendulum", torch.zeros(3))
    table = NativeDynamics("native/pendulum").nominal().repeat(2, 1)
    table[1, 0] = math.nan
    with pytest.raises(ConfigError, match="parameters of native/pendulum: gravity of member 1 is nan; give finite"):
        NativeDynamics("native/pendulum", table)
    with pytest.raises(ConfigError, match="backend is 'gpu'"):
        NativeDynamics("native/pendulum", backend="gpu")
