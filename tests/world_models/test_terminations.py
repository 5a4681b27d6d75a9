"""Where episodes end: by the bounds of each id, beside the environments themselves, against mistakes seen elsewhere."""

from __future__ import annotations

import math
import sys
import types

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.envs.names import native_ids
from surefoot.envs.systems import system
from surefoot.world_models.dynamics import StepNoise
from surefoot.world_models.known.exact import NativeDynamics
from surefoot.world_models.known.terminations import KNOWN, named, notes, termination_of


def ends(env_id: str, *values: float, width: int = 11) -> bool:
    """Whether an observation that begins with these values, then zeros, is an end."""
    row = torch.zeros(width)
    row[: len(values)] = torch.tensor(values)
    function = termination_of(env_id)
    assert function is not None
    return bool(function(row))


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_a_hopper_falls_at_its_bounds_on_either_side(version: int) -> None:
    env_id = f"Hopper-v{version}"
    assert not ends(env_id, 1.25, 0.0)
    assert ends(env_id, 0.7)
    assert ends(env_id, 1.25, 0.2)
    assert ends(env_id, 1.25, -0.2)
    assert ends(env_id, 1.25, 0, 0, 0, 0, 100.0)
    assert ends(env_id, 1.25, 0, 0, 0, 0, -100.0)  # abs(obs[1:] < 100) would miss it
    assert not ends(env_id, 150.0)  # the height itself has no upper bound
    for number in (math.nan, math.inf, -math.inf):
        assert ends(env_id, number)
        assert ends(env_id, 1.25, 0.0, 0.0, number)


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_walkers_and_cheetahs_have_no_bound_of_a_hundred(version: int) -> None:
    assert not ends(f"HalfCheetah-v{version}", 200.0, -300.0, math.nan, width=17)
    walker = f"Walker2d-v{version}"
    assert not ends(walker, 1.25, 0.5, 0, 0, 0, 0, 0, 0, 500.0, width=17)
    assert [ends(walker, h, a, width=17) for h, a in ((0.8, 0), (2.0, 0), (1.2, 1.0), (1.2, -1.0))] == [True] * 4
    assert ends(walker, math.nan, width=17)


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_an_ant_falls_outside_of_a_closed_range(version: int) -> None:
    ant = f"Ant-v{version}"
    assert [ends(ant, h, width=27) for h in (0.2, 1.0, 0.19, 1.01)] == [False, False, True, True]
    assert ends(ant, 0.5, 0, math.inf, width=27)


def test_humanoids_bounds_are_open_from_version_3_on() -> None:
    assert [ends("Humanoid-v2", h, width=376) for h in (1.0, 2.0, 0.99, 2.01)] == [False, False, True, True]
    for version in (3, 4, 5):
        assert [ends(f"Humanoid-v{version}", h, width=376) for h in (1.0, 2.0, 1.4)] == [True, True, False]


def test_poles_fall() -> None:
    assert [ends("InvertedPendulum-v5", 0.0, a, width=4) for a in (0.2, -0.2, 0.201, math.nan)] == [
        False,
        False,
        True,
        True,
    ]
    assert [ends("CartPole-v1", x, 0, a, width=4) for x, a in ((2.4, 0), (-2.41, 0), (0, 0.2), (0, -0.22))] == [
        False, True, False, True,
    ]  # fmt: skip


def test_ids_are_compared_whole() -> None:
    assert termination_of("QuantHopper-v5") is None
    assert termination_of("Ant-v9") is None
    assert termination_of("antmaze-umaze-v2") is None
    assert termination_of("MyMerchant-v4") is None
    assert termination_of(None) is None


@pytest.mark.parametrize(
    "env_id",
    [
        "Hopper-v4", "Hopper-v5", "Walker2d-v4", "Walker2d-v5", "HalfCheetah-v5", "Ant-v4", "Ant-v5", "Humanoid-v5",
        "InvertedPendulum-v5", "InvertedDoublePendulum-v4", "InvertedDoublePendulum-v5", "Swimmer-v5", "CartPole-v1",
        "Pendulum-v1", "MountainCarContinuous-v0",
    ],
)  # fmt: skip
def test_ends_are_the_environments_own_step_for_step(env_id: str) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    pytest.importorskip("mujoco")
    env, function, generator = gymnasium.make(env_id), KNOWN[env_id], np.random.default_rng(0)
    env.action_space.seed(0)
    met = [0, 0]
    env.reset(seed=0)
    for _ in range(400):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert bool(function(torch.from_numpy(np.asarray(observation, np.float64)))) is bool(terminated)
        met[int(terminated)] += 1
        if terminated or truncated:
            env.reset(seed=int(generator.integers(1 << 30)))
    assert met[0]
    endless = ("HalfCheetah", "Swimmer", "Pendulum", "MountainCar")
    assert bool(met[1]) is not env_id.startswith(endless)
    env.close()


@pytest.mark.parametrize("name", list(native_ids()))
def test_ends_of_native_systems_are_the_systems_own(name: str) -> None:
    world = NativeDynamics(name)
    function, generator = termination_of(name), np.random.default_rng(1)
    assert function is not None
    assert termination_of(native_ids()[name]) is not None
    known = system(name)
    uniforms = torch.from_numpy(generator.random((64, known.uniforms)))
    states = known.reset(uniforms, known.default_parameters().double().expand(64, -1))
    ended = 0
    pushed = torch.sign(torch.from_numpy(generator.uniform(-1, 1, (22, world.action_dim))))
    for _ in range(120):
        actions = torch.from_numpy(generator.uniform(-1, 1, (64, world.action_dim)))
        actions[::3] = pushed  # some go one way until they fall
        found = world.step(states, actions, StepNoise())
        finite = found.rewards.isfinite()
        expected = function(world.observe(found.states))
        assert torch.equal(expected[finite], found.ended[finite])
        ended += int(found.ended.sum())
        states = torch.where(found.ended[:, None], states[torch.randperm(64)], found.states)
    assert (ended > 0) or name not in ("native/cartpole-balance", "native/quadrotor-2d", "native/cartpole-swingup")


def test_a_function_of_the_users_own_is_found_by_name_and_what_it_gives_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = types.ModuleType("own_ends")
    own.low = lambda following: following[..., 0] < 0  # type: ignore[attr-defined]
    own.floats = lambda following: following[..., 0]  # type: ignore[attr-defined]
    own.number = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_ends", own)

    def asked(word: str) -> Tensor:
        function = named(word, "Hopper-v5")
        assert function is not None
        return function(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))

    assert asked("own_ends:low").tolist() == [True, False]
    with pytest.raises(EnvironmentMismatchError, match=r"gave torch\.float32"):
        asked("own_ends:floats")
    for word in ("own_ends:missing", "no_such_module:f", "own_ends:number", "sometimes"):
        with pytest.raises(ConfigError, match="termination="):
            named(word, None)


def test_what_is_not_known_is_said() -> None:
    assert named("none", "Hopper-v5") is None
    assert named("auto", "My-v0") is None
    assert "My-v0" in notes("auto", "My-v0")[0]
    assert "nothing terminates in the model" in notes("auto", None)[0]
    assert notes("none", None) == notes("auto", "Hopper-v5") == notes("auto", "native/pendulum") == []
