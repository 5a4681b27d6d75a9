"""stable-baselines3 trains on ours, and its environments keep our contract."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from counting import Counting, expected, transitions
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from surefoot.core.base.errors import EnvironmentMismatchError, MissingExtraError
from surefoot.envs.adapters import adapt, from_sb3, to_sb3

MAKERS = [lambda: Counting(0), lambda: Counting(1)]
ACTIONS = np.zeros((2, 2), np.float32)


class FakeVecEnv:
    """What `VecEnv` does at an episode's end: reset in the step, one flag, the final observation in the infos."""

    num_envs, render_mode = 2, None
    observation_space, action_space = Counting().observation_space, Counting().action_space

    def __init__(self) -> None:
        self.envs, self.first_seed = [make() for make in MAKERS], None

    def seed(self, seed: int) -> None:
        self.first_seed = seed

    def reset(self) -> Any:
        seed, self.first_seed = self.first_seed, None
        return np.stack([e.reset(seed=None if seed is None else seed + i)[0] for i, e in enumerate(self.envs)])

    def step(self, actions: Any) -> Any:
        observations, rewards, dones, infos = [], [], [], []
        for env, action in zip(self.envs, actions, strict=True):
            observation, reward, terminated, truncated, info = env.step(action)
            info["TimeLimit.truncated"] = truncated and not terminated
            if terminated or truncated:
                info["terminal_observation"] = observation
                observation = env.reset()[0]
            observations.append(observation)
            rewards.append(np.float32(reward))
            dones.append(terminated or truncated)
            infos.append(info)
        return np.stack(observations), np.array(rewards), np.array(dones), infos

    def close(self) -> None: ...


@pytest.mark.parametrize("tensors", ["numpy", "torch"])
def test_their_merged_flag_and_terminal_observation_come_apart_again(tensors: Any) -> None:
    assert transitions(from_sb3(FakeVecEnv(), tensors), 20) == [expected(0, 20), expected(1, 20)]


def test_what_a_vec_env_can_t_do_is_refused_in_words() -> None:
    env = from_sb3(FakeVecEnv())
    with pytest.raises(EnvironmentMismatchError, match="can't reset some rows"):
        env.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(EnvironmentMismatchError, match="give an int"):
        env.reset(seed=[1, 2])
    source = FakeVecEnv()
    source.observation_space = gymnasium.spaces.Discrete(3)  # type: ignore[assignment]
    with pytest.raises(EnvironmentMismatchError, match="Box"):
        from_sb3(source)


def test_without_stable_baselines3_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.vec_env", None)
    with pytest.raises(MissingExtraError, match="stable-baselines3"):
        to_sb3(adapt(MAKERS))


def test_rows_that_are_no_transitions_are_not_given_to_an_algorithm_that_can_t_skip_them() -> None:
    source = SyncVectorEnv(MAKERS, autoreset_mode=AutoresetMode.NEXT_STEP)
    with pytest.raises(EnvironmentMismatchError, match="would learn from it"):
        to_sb3(adapt(source))


@pytest.mark.parametrize("tensors", ["numpy", "torch"])
def test_ours_seen_as_theirs_and_back_gives_the_same_transitions(tensors: Any) -> None:
    pytest.importorskip("stable_baselines3")
    assert transitions(from_sb3(to_sb3(adapt(MAKERS, tensors=tensors))), 20) == [expected(0, 20), expected(1, 20)]


def test_ours_gives_what_their_own_dummy_vec_env_gives() -> None:
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    ours, theirs = to_sb3(adapt(MAKERS)), vec_env.DummyVecEnv(MAKERS)
    ours.seed(0)
    theirs.seed(0)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    for _ in range(12):
        a, b = ours.step(ACTIONS), theirs.step(ACTIONS)
        for left, right in zip(a[:3], b[:3], strict=True):
            np.testing.assert_array_equal(left, right)
        for left, right in zip(a[3], b[3], strict=True):
            assert left["TimeLimit.truncated"] == right["TimeLimit.truncated"]
            assert left["cost"] == right["cost"]
            assert ("terminal_observation" in left) == ("terminal_observation" in right)
            np.testing.assert_array_equal(left.get("terminal_observation"), right.get("terminal_observation"))


def test_their_monitor_and_ppo_run_on_ours() -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    env = vec_env.VecMonitor(to_sb3(adapt([lambda: gymnasium.make("Pendulum-v1")] * 4)))
    model = sb3.PPO("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=1, seed=0, device="cpu").learn(1024)
    assert model.num_timesteps == 1024
    assert len(model.ep_info_buffer) == 4  # 256 steps of 4 rows, episodes of 200
    assert all(episode["l"] == 200 for episode in model.ep_info_buffer)


def test_their_calls_on_rows_reach_ours_for_all_rows_only() -> None:
    pytest.importorskip("stable_baselines3")
    env = to_sb3(adapt(MAKERS))
    assert env.get_attr("num_envs", indices=[1]) == [2]
    env.set_attr("label", "blue")
    assert env.get_attr("label") == ["blue", "blue"]
    with pytest.raises(EnvironmentMismatchError, match="all rows at once"):
        env.set_attr("label", "red", indices=0)
    assert env.env_method("_valid", {}) is not None
    assert env.env_is_wrapped(gymnasium.Wrapper) == [False, False]


def test_their_infos_say_whether_an_episode_succeeded() -> None:
    pytest.importorskip("stable_baselines3")

    class Solving(Counting):
        def step(self, action: Any) -> Any:
            *found, info = super().step(action)
            return *found, {**info, "success": found[2]}

    env = to_sb3(adapt([lambda: Solving(0), lambda: Solving(1)]))
    env.reset()
    infos = [env.step(ACTIONS)[3] for _ in range(4)]
    assert [[row["is_success"] for row in step] for step in infos] == [[False] * 2] * 2 + [[True, False], [False, True]]


def test_what_their_infos_say_of_success_is_read_where_they_say_it() -> None:
    class Solving(FakeVecEnv):
        def step(self, actions: Any) -> Any:
            *found, dones, infos = super().step(actions)
            for done, info, solved in zip(dones, infos, (True, False), strict=True):
                info |= {"is_success": solved} if done else {}
            return *found, dones, infos

    env = from_sb3(Solving())
    env.reset()
    steps = [env.step(ACTIONS)[4] for _ in range(4)]
    assert not any("is_success" in info for info in steps[:2])
    assert [info["_is_success"].tolist() for info in steps[2:]] == [[True, False], [False, True]]
    assert [info["is_success"].tolist() for info in steps[2:]] == [[True, False], [False, False]]
    assert steps[2]["infos"][0]["is_success"] is True
