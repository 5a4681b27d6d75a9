"""What a step earns: each function beside its environment, in an ensemble and in plans, and what is not known."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch
from capture_guard import CaptureGuard
from torch import Tensor

from surefoot.core.errors import ConfigError, EnvironmentMismatchError
from surefoot.envs.names import native_ids
from surefoot.envs.systems import system
from surefoot.world_models.dynamics import StepNoise
from surefoot.world_models.ensemble import GaussianEnsemble
from surefoot.world_models.exact import NativeDynamics
from surefoot.world_models.rewards import KNOWN, in_range, named, notes, reward_of

UNKNOWN = "native/bicycle"
"""Its observations don't tell how far along the road the car is."""


@pytest.mark.parametrize("name", [name for name in native_ids() if name != UNKNOWN])
def test_rewards_of_native_systems_are_the_systems_own(name: str) -> None:
    world, function, generator = NativeDynamics(name), reward_of(name), np.random.default_rng(1)
    assert function is not None
    assert reward_of(native_ids()[name]) is not None
    known = system(name)
    uniforms = torch.from_numpy(generator.random((64, known.uniforms)))
    states = known.reset(uniforms, known.default_parameters().double().expand(64, -1))
    pushed = torch.sign(torch.from_numpy(generator.uniform(-1, 1, (22, world.action_dim))))
    for _ in range(60):
        actions = torch.from_numpy(generator.uniform(-1, 1, (64, world.action_dim)))
        actions[::3] = pushed
        found = world.step(states, actions, StepNoise())
        finite = found.rewards.isfinite()
        given = function(world.observe(states), actions, world.observe(found.states))
        torch.testing.assert_close(given[finite], found.rewards[finite], rtol=1e-6, atol=1e-6)
        states = torch.where(found.ended[:, None], states[torch.randperm(64)], found.states)
    seen = world.observe(states).float()[:6].view(2, 3, -1)
    lead = function(seen[:1], actions.float()[:3], seen)
    assert lead.shape == (2, 3)
    assert lead.dtype == torch.float32


@pytest.mark.parametrize("name", [name for name in native_ids() if name != UNKNOWN])
def test_rewards_of_native_systems_copy_nothing_to_the_device_after_the_first_call(name: str) -> None:
    """A loss may ask for them in a captured step: RAMBO's adversary does."""
    known = system(name)
    wide = tuple([2.0 * bound for bound in side] for side in (known.action_low, known.action_high))
    function = in_range(reward_of(name), native_ids()[name], wide)
    assert function is not None
    seen, actions = (torch.empty(2, 4, len(names), device="meta") for names in (known.observations, known.actions))
    each = torch.func.vmap(function)
    each(seen, actions, seen)
    with CaptureGuard():
        assert each(seen, actions, seen).shape == (2, 4)


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "CartPole-v1"])
def test_rewards_are_the_environments_own_step_for_step(env_id: str) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    env, function = gymnasium.make(env_id), KNOWN[env_id]
    env.action_space.seed(0)
    before, _ = env.reset(seed=0)
    for _ in range(300):
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        given = np.atleast_1d(action) / (2.0 if env_id == "Pendulum-v1" else 1.0)
        now, act, following = (torch.from_numpy(np.asarray(x, np.float64)) for x in (before, given, after))
        assert float(function(now, act, following)) == pytest.approx(float(reward), abs=1e-4)
        before = env.reset()[0] if terminated or truncated else after
    env.close()


def test_an_ensemble_that_knows_rewards_gives_those_and_not_what_it_learned() -> None:
    model = GaussianEnsemble(2, 1, members=2, elites=2, hidden=(4,), decays=())
    states, actions = torch.randn(5, 2), torch.randn(5, 1)
    learned = model.step(states, actions, StepNoise())
    model.rewards_of = lambda now, act, after: 100 * now[..., 0] + 10 * act[..., 0] + after[..., 1]
    known = model.step(states, actions, StepNoise())
    assert torch.equal(known.states, learned.states)
    assert torch.equal(known.rewards, 100 * states[:, 0] + 10 * actions[:, 0] + known.states[:, 1])


def test_a_function_of_the_users_own_is_found_by_name_and_what_it_gives_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = types.ModuleType("own_rewards")
    own.sum = lambda now, act, after: now[..., 0] + act[..., 0] + after[..., 0]  # type: ignore[attr-defined]
    own.wide = lambda now, act, after: now  # type: ignore[attr-defined]
    own.number = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_rewards", own)

    def asked(word: str) -> Tensor:
        function = named(word, "Hopper-v5")
        assert function is not None
        return function(torch.tensor([[1.0, 5.0]]), torch.tensor([[2.0]]), torch.tensor([[3.0, 5.0]]))

    assert asked("own_rewards:sum").tolist() == [6.0]
    with pytest.raises(EnvironmentMismatchError, match=r"gave torch\.float32 \(1, 2\)"):
        asked("own_rewards:wide")
    for word in ("own_rewards:missing", "no_such_module:f", "own_rewards:number", "sometimes"):
        with pytest.raises(ConfigError, match="reward_function="):
            named(word, None)


def test_what_is_not_known_is_said() -> None:
    assert named("learned", "Pendulum-v1") is None
    assert named("auto", UNKNOWN) is None
    assert "the reward of Hopper-v5 is not known" in notes("auto", "Hopper-v5")[0]
    assert "the environment is not known" in notes("auto", None)[0]
    assert notes("learned", None) == notes("auto", "Pendulum-v1") == notes("auto", "native/pendulum") == []


@pytest.mark.parametrize("env_id", ["native/pendulum", "Pendulum-v1"])
def test_known_rewards_read_actions_in_the_range_that_the_model_was_learned_in(env_id: str) -> None:
    upright, push = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[1.0]])
    for bound in (1.0, 2.0, 4.0):  # N m that an action of 1 stands for; the environment has 2, and takes no more
        function = named("auto", env_id, ((-bound,), (bound,)))
        assert function is not None
        torque = min(bound, 2.0)
        assert float(function(upright, push, upright)) == pytest.approx(-0.001 * torque**2, rel=1e-4)
    assert named("auto", "CartPole-v1", ((-3.0,), (3.0,))) is KNOWN["CartPole-v1"]
