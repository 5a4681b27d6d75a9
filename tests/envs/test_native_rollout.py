"""Rollouts of policies in native systems: equal to stepping, equal without the native module, and mistakes given."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from policies_for_native import policy_for

from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.base.errors import CheckpointError, ConfigError, DeviceError, EnvironmentMismatchError
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.envs import episodes, native_policy, rollout
from surefoot.envs.episodes import episode_seeds, run_episodes
from surefoot.envs.systems import SYSTEMS, system
from surefoot.evaluation import evaluate

KINDS = ("deterministic", "gaussian", "tanh_gaussian")


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_native_loop_gives_what_stepping_with_the_torch_policy_gives(name: str) -> None:
    known = system(name)
    for kind in KINDS[:: 1 if name == "pendulum" else 3]:
        policy, seeds = policy_for(known, kind), episode_seeds(0, 0, 40)
        inside = run_episodes(policy, known.alias, seeds, steps=25)
        outside = episodes._stepped(policy, known.alias, seeds, 25, None)
        scale = max(1.0, float(np.abs(outside.returns).max()))
        np.testing.assert_allclose(inside.returns, outside.returns, atol=2e-4 * scale)
        np.testing.assert_array_equal(inside.lengths, outside.lengths)
        assert inside.costs is not None
        assert outside.costs is not None
        assert np.abs(inside.costs - outside.costs).sum() <= 1  # one margin may lie at the rounding
        assert inside.steps == inside.lengths.sum() <= 40 * 25


def test_layer_norms_with_another_epsilon_act_as_in_torch() -> None:
    known, seeds, given = system("pendulum"), episode_seeds(0, 0, 40), {"layer_norm": True}
    small, usual = (TanhGaussianActor(3, 1, (16, 16), norm_epsilon=epsilon, **given) for epsilon in (0.1, 1e-5))
    usual.load_state_dict(small.state_dict())
    bounds = torch.tensor([-2.0]), torch.tensor([2.0])
    policy, other = (Policy.of(actor, Normalizer(3), *bounds) for actor in (small, usual))
    inside = run_episodes(policy, known.alias, seeds, steps=25).returns
    outside, with_torchs = (episodes._stepped(one, known.alias, seeds, 25, None).returns for one in (policy, other))
    np.testing.assert_allclose(inside, outside, atol=1e-5 * np.abs(outside).max())
    assert np.abs(with_torchs - outside).max() > 1e-3 * np.abs(outside).max()


def test_evaluation_gives_the_same_episodes_for_the_same_seeds() -> None:
    known = system("cartpole_swingup")
    policy = policy_for(known)
    (evaluated,) = evaluate([policy], "native/cartpole-swingup", episodes=7, seed=3, num_envs=3)
    seeds = [int(np.random.SeedSequence((3, e)).generate_state(1)[0]) for e in range(7)]
    found = run_episodes(policy, known.gym_id, np.array(seeds))
    np.testing.assert_allclose(found.returns, evaluated.returns, rtol=1e-3)
    np.testing.assert_array_equal(found.lengths, evaluated.lengths)
    np.testing.assert_allclose(found.costs, evaluated.costs, atol=1)


def test_episodes_are_the_same_however_they_are_batched() -> None:
    policy = policy_for(system("dubins_obstacles"))
    whole = run_episodes(policy, "native/dubins-obstacles", episode_seeds(5, 0, 60), threads=2)
    parts = [run_episodes(policy, "native/dubins-obstacles", episode_seeds(5, a, 20), threads=1) for a in (0, 20, 40)]
    joined = episodes.EpisodeBatch.join(parts)
    for name in ("returns", "lengths", "costs", "margins", "terminated"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))
    assert joined.violations == whole.violations


def test_without_the_native_module_torch_gives_the_same_and_one_line_says_so() -> None:
    script = (
        "import sys; sys.path.insert(0, 'tests/envs')\n"
        "from policies_for_native import policy_for\n"
        "from surefoot.envs.episodes import episode_seeds, run_episodes\n"
        "from surefoot.envs.systems import system\n"
        "policy = policy_for(system('pendulum'))\n"
        "for _ in range(2): found = run_episodes(policy, 'native/pendulum', episode_seeds(0, 0, 4), steps=20)\n"
        "print(found.returns.tolist())\n"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    environment = {**os.environ, "SUREFOOT_NATIVE": "0"}
    done = subprocess.run([sys.executable, "-c", script], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("surefoot: no native module (SUREFOOT_NATIVE=0 is set)")
    here = run_episodes(policy_for(system("pendulum")), "native/pendulum", episode_seeds(0, 0, 4), steps=20)
    np.testing.assert_allclose(np.array(eval(done.stdout)), here.returns, rtol=1e-4)


def test_records_are_the_trajectories() -> None:
    found = rollout("random", "native/pendulum", envs=5, steps=30, record=["observations", "actions", "rewards"])
    assert {name: tuple(value.shape) for name, value in found.records.items()} == {
        "observations": (30, 5, 3),
        "actions": (30, 5, 1),
        "rewards": (30, 5),
    }
    np.testing.assert_allclose(found.records["rewards"].sum(0), found.returns, rtol=1e-4)
    again = rollout(found.records["actions"], "native/pendulum", seeds=0)
    np.testing.assert_allclose(again.returns, found.returns, rtol=1e-4)


def test_gaps_and_parameters_change_a_rollout() -> None:
    plain, heavy = (rollout("random", "native/pendulum", envs=3, gap=gap) for gap in (None, "gravity2"))
    named = rollout("random", "native/pendulum", envs=3, parameters={"gravity": 20.0})
    each = rollout("random", "native/pendulum", envs=3, parameters={"gravity": [10.0, 20.0, 20.0]})
    assert not torch.equal(plain.returns, heavy.returns)
    assert torch.equal(named.returns, heavy.returns)
    np.testing.assert_allclose(each.returns[0], plain.returns[0], rtol=1e-2)
    np.testing.assert_allclose(each.returns[1:], heavy.returns[1:], rtol=1e-2)


def test_a_sampling_policy_draws_its_actions() -> None:
    policy = policy_for(system("pendulum"), "tanh_gaussian")
    mean, sampled = (rollout(policy, "native/pendulum", envs=4, sampling=sampling) for sampling in (False, True))
    again = rollout(policy, "native/pendulum", envs=4, sampling=True, threads=1)
    assert not torch.equal(mean.returns, sampled.returns)
    assert torch.equal(sampled.returns, again.returns)


def test_diverged_episodes_are_counted() -> None:
    zero = torch.zeros(40, 6, 2)
    found = rollout(zero, "native/linear-quadratic", parameters={"state_scale": [2.0] * 3 + [1.0] * 3})
    assert found.diverged.tolist() == [True] * 3 + [False] * 3


def test_a_numpy_number_is_a_base_seed_too() -> None:
    for more in ({}, {"parameters": {"gravity": [9.0] * 4}}):
        one, other = (rollout("random", "native/pendulum", envs=4, steps=9, seeds=s, **more) for s in (3, np.int64(3)))
        assert torch.equal(one.returns, other.returns)


def broken(policy: Policy) -> Policy:
    policy.actor.mlp.weights[1].data[0, 0] = float("nan")
    return policy


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"env": "native/pendulm"}, ConfigError, "did you mean 'native/pendulum'"),
        ({"env": "native/quadrotor-2d"}, EnvironmentMismatchError, "3 observations and 1 actions.* 6 and 2"),
        ({"envs": 0}, ConfigError, "envs is 0"),
        ({"steps": 0}, ConfigError, "steps 0"),
        ({"envs": None}, ConfigError, "num_envs"),
        ({"carry": object()}, ConfigError, "native/pendulum: carry continues rollouts of episodes='many'"),
        ({"gap": "wnd"}, ConfigError, "did you mean 'wind'"),
        ({"parameters": {"mass": 0.0}}, ConfigError, r"mass is 0; it must lie in \[0.01, 100\]"),
        ({"record": ["reward"]}, ConfigError, "did you mean 'rewards'"),
        ({"record": ["observations"], "envs": 10**9}, ConfigError, r"needs 2\.4e\+03 GB"),
        ({"policy": torch.zeros(3, 5, 2)}, EnvironmentMismatchError, r"\(steps, environments, 1\)"),
        ({"policy": torch.full((3, 5, 1), float("nan"))}, EnvironmentMismatchError, "NaN"),
    ],
)
def test_mistakes_are_told_in_one_sentence(arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
    policy = policy_for(system("pendulum"))
    with pytest.raises(kind, match=words) as caught:
        rollout(**{"policy": policy, "env": "native/pendulum", "envs": 5, **arguments})
    assert "\n" not in str(caught.value)


def test_weights_that_are_no_numbers_are_named() -> None:
    with pytest.raises(CheckpointError, match=r"actor\.mlp\.weights\.1 holds NaN"):
        native_policy(broken(policy_for(system("pendulum"))))


def test_a_policy_of_another_environment_is_refused_before_anything_runs() -> None:
    with pytest.raises(EnvironmentMismatchError, match=r"6 numbers.*3 numbers"):
        run_episodes(policy_for(system("pendulum")), "native/quadrotor-2d", episode_seeds(0, 0, 4))
    with pytest.raises(ConfigError, match="0 environments"):
        run_episodes(policy_for(system("pendulum")), "native/pendulum", np.zeros(0, np.int64))


def test_a_gpu_that_would_not_be_used_is_refused() -> None:
    policy = policy_for(system("pendulum"))
    policy.normalizer.limit = 5.0  # which the native loop does not know
    with pytest.raises(DeviceError, match="use device cpu or auto"):
        run_episodes(policy, "native/pendulum", episode_seeds(0, 0, 4), device="cuda")
