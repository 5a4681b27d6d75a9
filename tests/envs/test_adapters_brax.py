"""brax and playground environments keep the contract: a fake of their wrappers here, themselves where installed."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from typing import Any

import numpy as np
import pytest
import torch
from counting import transitions

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, MissingExtraError
from surefoot.envs.adapters import from_brax

needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
needs_heavy = pytest.mark.skipif(
    os.environ.get("SUREFOOT_HEAVY_SIMULATORS") != "1",
    reason="compiles for minutes; set SUREFOOT_HEAVY_SIMULATORS=1 where brax and playground are installed",
)
needs_brax = pytest.mark.skipif(importlib.util.find_spec("brax") is None, reason="brax is not installed")


@dataclasses.dataclass
class State:
    """What brax's and playground's functions pass around, in numpy."""

    count: Any
    obs: Any
    reward: Any
    done: Any
    info: dict[str, Any]


class AutoResetWrapper:
    """In numpy, what brax's `AutoResetWrapper(EpisodeWrapper(VmapWrapper(env)))` does at an episode's end.

    Row r starts from 10 r, counts up by 1 and terminates at 10 r + 5 (row 0) or is truncated after 3 steps (row 1).
    """

    observation_size, action_size, limit = 1, 2, np.array([100, 3])

    def reset(self, keys: Any) -> State:
        count = 10.0 * np.asarray(keys, np.float32)
        zeros = np.zeros(2, np.float32)
        return State(count, count[:, None].copy(), zeros, zeros, {"first": count, "steps": zeros, "truncation": zeros})

    def step(self, state: State, action: Any) -> State:
        first = state.info["first"]
        steps = np.where(state.done > 0, 0, state.info["steps"]) + 1
        count = state.count + 1
        fell = count >= first + 5
        late = steps >= self.limit
        info = {"first": first, "steps": steps, "truncation": (late & ~fell).astype(np.float32)}
        info["margin"] = first + 2.5 - count
        done = fell | late
        begun = np.where(done, first, count)
        return State(begun, begun[:, None].copy(), count, done.astype(np.float32), info)


def wrapped(tensors: Any = "torch") -> Any:
    return from_brax(AutoResetWrapper(), 2, tensors=tensors, keys=np.asarray, jit=False)


@pytest.mark.parametrize("tensors", ["numpy", "torch"])
def test_a_wrapped_environment_returns_to_its_first_state_and_its_final_observation_is_lost(tensors: Any) -> None:
    env = wrapped(tensors)
    assert not env.exact_final_obs
    actions: Any = torch.zeros(2, 2) if tensors == "torch" else np.zeros((2, 2), np.float32)
    observations, _ = env.reset(seed=0)
    assert observations.tolist() == [[0], [10]]
    steps = [env.step(actions) for _ in range(6)]
    assert [step[0][:, 0].tolist() for step in steps] == [[1, 11], [2, 12], [3, 10], [4, 11], [0, 12], [1, 10]]
    assert [step[1].tolist() for step in steps][2] == [3, 13]
    assert [step[2].tolist() for step in steps] == [[False, False]] * 4 + [[True, False], [False, False]]
    assert [step[3][1].tolist() for step in steps] == [False, False, True, False, False, True]
    assert steps[2][4]["final_obs"].tolist() == [[3], [12]]  # the observation before the last action
    assert steps[4][4]["final_obs"].tolist() == [[4], [12]]
    assert steps[4][4]["cost"].tolist() == [1, 0]


def test_what_a_wrapped_environment_can_t_do_is_refused() -> None:
    with pytest.raises(EnvironmentMismatchError, match="without its wrappers"):
        wrapped().reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(EnvironmentMismatchError, match="reset first"):
        wrapped().step(torch.zeros(2, 2))
    with pytest.raises(ConfigError, match="leave episode_length out"):
        from_brax(AutoResetWrapper(), 2, episode_length=5, keys=np.asarray, jit=False)


def test_a_bare_environment_needs_a_time_limit_and_no_other_wrapper() -> None:
    class Bare:
        observation_size, action_size = {"state": (3,), "privileged_state": (4,)}, 1

    class VmapWrapper:
        def __init__(self) -> None:
            self.env = Bare()

    with pytest.raises(ConfigError, match="episode_length is None"):
        from_brax(Bare(), 2)
    with pytest.raises(EnvironmentMismatchError, match="VmapWrapper"):
        from_brax(VmapWrapper(), 2, episode_length=5)
    with pytest.raises(ConfigError, match="did you mean 'privileged_state'"):
        from_brax(Bare(), 2, episode_length=5, group="privileged")


def test_without_jax_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingExtraError, match="'jax'"):
        from_brax(AutoResetWrapper(), 2)


def jax_counting() -> Any:
    """`counting.Counting` as a bare jax environment; `row` and `episode` come from the keys drawn for each reset."""
    import jax
    from brax.envs.base import State as BraxState

    class Counting:
        observation_size, action_size = 3, 2

        def _state(self, count: Any, kind: Any, row: Any) -> Any:
            numbers = jax.numpy.stack([count, kind, row])
            ended = (count >= 3 + row) & (kind < 0.5)
            info = {"margin": 1.5 - count}
            return BraxState(None, numbers, 10 * count + row, ended.astype(jax.numpy.float32), {}, info)

        def reset(self, key: Any) -> Any:
            return self._state(jax.numpy.zeros(()), jax.random.uniform(key), jax.numpy.zeros(()))

        def step(self, state: Any, action: Any) -> Any:
            after = self._state(state.obs[0] + 1, state.obs[1], state.obs[2])
            return after.replace(info={**state.info, **after.info})  # wrappers keep their entries there

    return Counting()


@needs_brax
@pytest.mark.parametrize("tensors", ["numpy", "torch"])
def test_a_bare_environment_is_limited_and_reset_to_fresh_draws_with_exact_final_observations(tensors: Any) -> None:
    env = from_brax(jax_counting(), 3, episode_length=4, tensors=tensors)
    assert env.exact_final_obs
    for found in transitions(env, 40):
        assert len(found) == 40
        kinds = []
        for count, after, kind, reward, terminated, truncated, cost, margin in found:
            assert after == count + 1
            assert (reward, margin, cost) == (10 * after, 1.5 - after, float(after >= 2))
            assert terminated == float(kind < 0.5 and after == 3)
            assert truncated == float(kind >= 0.5 and after == 4)
            kinds += [kind] if count == 0 else []
        assert len(set(kinds)) == len(kinds) > 8  # every episode another draw


@needs_brax
def test_a_row_s_episodes_follow_from_its_own_seed_and_a_mask_leaves_the_others_alone() -> None:
    env = from_brax(jax_counting(), 2, episode_length=4)
    first, _ = env.reset(seed=[7, 8])
    second, _ = env.reset(seed=[9, 8])
    assert first[1, 1] == second[1, 1]
    assert first[0, 1] != second[0, 1]
    stepped = env.step(torch.zeros(2, 2))[0].clone()
    observations, _ = env.reset(options={"reset_mask": np.array([True, False])})
    assert observations[0, 0] == 0
    assert torch.equal(observations[1], stepped[1])


@needs_brax
def test_brax_s_own_wrappers_behave_as_the_fake_does() -> None:
    from brax.envs.wrappers import training

    bare = jax_counting()
    bare.unwrapped = bare
    env = from_brax(training.wrap(bare, episode_length=4), 2)
    observations, _ = env.reset(seed=3)
    first = torch.as_tensor(observations).clone()
    limits, ends = torch.zeros(2), 0
    for step in range(12):
        before = torch.as_tensor(observations).clone()
        observations, _, terminations, truncations, info = env.step(torch.zeros(2, 2))
        ended = torch.as_tensor(terminations) | torch.as_tensor(truncations)
        assert torch.equal(torch.as_tensor(observations)[ended], first[ended])  # the first state again
        assert torch.equal(info["final_obs"][ended], before[ended])
        assert (torch.as_tensor(terminations)[ended] == (first[ended, 1] < 0.5)).all()
        ends += int(ended.sum())
        limits = before[:, 0]
        assert step < 12
    assert ends >= 6
    assert limits.max() <= 3


@needs_brax
def test_brax_s_own_environment_counts_its_steps_behind_the_contract() -> None:
    from brax import envs

    env = from_brax(envs.get_environment("fast"), 4, episode_length=8)
    env.reset(seed=0)
    ends = [step for step in range(16) if env.step(torch.zeros(4, 1))[3].all()]
    assert ends == [7, 15]


@needs_heavy
@pytest.mark.parametrize("library", ["brax", "playground"])
def test_a_robot_of_each_library_runs_behind_the_contract(library: str) -> None:
    if library == "brax":
        from brax import envs

        source = envs.get_environment("inverted_pendulum", backend="generalized")
    else:
        from mujoco_playground import registry

        source = registry.load("CartpoleBalance")
    env = from_brax(source, 4, episode_length=8)
    observations, _ = env.reset(seed=0)
    truncated = 0
    for _ in range(16):
        observations, rewards, _, truncations, _ = env.step(torch.zeros(4, 1))
        truncated += int(truncations.sum())
        assert torch.isfinite(torch.as_tensor(observations)).all()
        assert torch.as_tensor(rewards).shape == (4,)
    assert truncated == 8


@needs_jax
def test_tensors_and_arrays_of_jax_share_memory() -> None:
    import jax

    from surefoot.envs.adapters.dlpack import from_torch, to_torch

    array = jax.numpy.arange(4.0)
    assert to_torch(array).data_ptr() == array.unsafe_buffer_pointer()
    tensor = torch.arange(16.0)
    assert from_torch(tensor, like=array).tolist() == list(range(16))
    assert to_torch(np.arange(3)).tolist() == [0, 1, 2]
    assert to_torch(tensor) is tensor
