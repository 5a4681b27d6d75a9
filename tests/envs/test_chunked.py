"""`Chunked`: chunks stop where their episode ends, and what is given is what happened."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from counting import Counting

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.envs import make_vec
from surefoot.envs.adapters import adapt
from surefoot.envs.chunked import Chunked
from surefoot.envs.side_by_side import PausingVectorEnv


class Recording(Counting):
    """Counting, with the actions that it was given."""

    def __init__(self, row: int = 0, length: int = 3) -> None:
        super().__init__(row, length)
        self.given: list[tuple[int, int, float]] = []

    def step(self, action: Any) -> Any:
        self.given.append((self.episode, self.count, float(action[0])))
        return super().step(action)


def counting(rows: int, length: int = 3) -> tuple[Any, list[Recording]]:
    """Row r has episodes of length + r steps; even ones terminate, odd ones are truncated."""
    own = [Recording(row, length) for row in range(rows)]
    return adapt(PausingVectorEnv([lambda env=env: env for env in own])), own


def chunk_of(rows: int, *places: float) -> np.ndarray:
    """(rows, 2 C) actions whose first number is that of their place."""
    return np.tile(np.repeat(np.array(places, np.float32), 2), (rows, 1))


def test_a_chunk_stops_where_its_episode_ends_and_the_next_episode_begins_with_the_next_chunk() -> None:
    env, own = counting(2)  # episodes of 3 and of 4 steps
    chunked = Chunked(env, 2)
    chunked.reset(seed=0)
    first = chunked.step(chunk_of(2, 0.1, 0.2))
    np.testing.assert_allclose(first[1], [10 + 20, 10 + 20 + 2])
    assert first[4]["steps"].tolist() == [2, 2]
    assert not first[2].any()
    assert not first[3].any()
    assert "final_obs" not in first[4]
    observations, rewards, terminations, truncations, info = chunked.step(chunk_of(2, 0.3, 0.4))
    np.testing.assert_allclose(rewards, [30, 30 + 40 + 2])  # row 0 took one step, row 1 both
    assert info["steps"].tolist() == [1, 2]
    assert terminations.tolist() == [True, True]
    assert not truncations.any()
    np.testing.assert_array_equal(info["final_obs"], [[3, 0, 0], [4, 0, 1]])
    np.testing.assert_array_equal(observations, [[0, 1, 0], [0, 1, 1]])  # the first of the next episodes
    np.testing.assert_allclose(info["cost"], [1, 2])
    np.testing.assert_allclose(info["margin"], [-1.5, -2.5])
    np.testing.assert_allclose(info["count"], [3, 4])  # of each row's last step
    assert [one[:2] for one in own[0].given] == [(0, 0), (0, 1), (0, 2)]  # 0.4 was never played
    chunked.step(chunk_of(2, 0.5, 0.6))
    assert [one[:2] for one in own[0].given[3:]] == [(1, 0), (1, 1)]
    assert own[0].given[3][2] == pytest.approx(0.5)
    assert chunked.steps_taken.tolist() == [5, 6]


def test_a_time_limit_inside_a_chunk_truncates_with_its_own_last_observation() -> None:
    env, _ = counting(3)
    chunked = Chunked(env, 5)
    chunked.reset(seed=0)
    chunked.step(chunk_of(3, *[0.0] * 5))
    observations, rewards, terminations, truncations, info = chunked.step(chunk_of(3, *[0.0] * 5))  # odd episodes
    assert truncations.tolist() == [True, True, True]
    assert not terminations.any()
    assert info["steps"].tolist() == [3, 4, 5]
    np.testing.assert_array_equal(info["final_obs"], [[3, 1, 0], [4, 1, 1], [5, 1, 2]])
    np.testing.assert_array_equal(observations, [[0, 2, 0], [0, 2, 1], [0, 2, 2]])
    np.testing.assert_allclose(rewards, [60, 104, 160])


def test_where_all_rows_end_at_once_the_rest_of_the_chunk_is_played_by_none() -> None:
    own = [Recording(0, 2), Recording(0, 2)]
    chunked = Chunked(adapt(PausingVectorEnv([lambda env=env: env for env in own])), 6)
    chunked.reset(seed=0)
    chunked.step(chunk_of(2, *[0.0] * 6))
    assert [len(one.given) for one in own] == [2, 2]


def test_rewards_inside_a_chunk_are_discounted_where_it_is_asked_for() -> None:
    env, _ = counting(1, length=9)
    chunked = Chunked(env, 3, discount=0.5)
    chunked.reset(seed=0)
    np.testing.assert_allclose(chunked.step(chunk_of(1, 0, 0, 0))[1], [10 + 0.5 * 20 + 0.25 * 30])


def test_rows_paused_from_outside_are_not_stepped() -> None:
    env, own = counting(2, length=9)
    chunked = Chunked(env, 3)
    chunked.reset(seed=0)
    chunked.active[0] = False
    observations, rewards, _, _, info = chunked.step(chunk_of(2, 0, 0, 0))
    assert [len(one.given) for one in own] == [0, 3]
    assert info["valid"].tolist() == [False, True]
    assert info["steps"].tolist() == [0, 3]
    assert float(rewards[0]) == 0
    np.testing.assert_array_equal(observations[0], [0, 0, 0])


@pytest.mark.parametrize("env_id", ["native/point-maze", "native/pendulum", "Pendulum-v1"])
@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_chunks_are_the_same_steps_one_after_another(env_id: str, chunk: int) -> None:
    source = np.random.default_rng(0)
    plain, chunked = adapt(make_vec(env_id, 3)), Chunked(adapt(make_vec(env_id, 3)), chunk)
    before, _ = plain.reset(seed=[3, 4, 5])
    np.testing.assert_array_equal(chunked.reset(seed=[3, 4, 5])[0], before)
    for _ in range(12):
        actions = source.uniform(-1, 1, (3, chunk, *plain.single_action_space.shape)).astype(np.float32)
        found = chunked.step(actions.reshape(3, -1))
        rewards = np.zeros(3)
        for place in range(chunk):
            observations, reward, terminated, truncated, _ = plain.step(actions[:, place])
            rewards += reward
            assert not (terminated | truncated).any()
        np.testing.assert_array_equal(found[0], observations)
        np.testing.assert_allclose(found[1], rewards, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("env_id", ["native/point-maze", "native/cartpole-balance"])
def test_it_goes_on_from_its_state_bit_for_bit(env_id: str) -> None:
    source = np.random.default_rng(1)
    one, other = (Chunked(make_vec(env_id, 4), 5) for _ in range(2))
    one.reset(seed=1)
    other.reset(seed=2)
    width = one.single_action_space.shape[0]
    actions = source.uniform(-1, 1, (60, 4, width)).astype(np.float32) * one.single_action_space.high
    for chunk in actions[:30]:
        one.step(chunk)
    other.set_state(one.get_state())
    ends = 0
    for chunk in actions[30:]:
        mine, theirs = one.step(chunk), other.step(chunk)
        ends += int((mine[2] | mine[3]).sum())
        for a, b in zip(mine[:4], theirs[:4], strict=True):
            np.testing.assert_array_equal(a, b)
    assert ends > 0 or env_id == "native/point-maze"


def test_environments_that_can_not_pause_rows_are_refused_with_the_reason() -> None:
    env = adapt(gymnasium.make_vec("Pendulum-v1", 2, vectorization_mode="sync"))
    with pytest.raises(EnvironmentMismatchError, match=r"can't pause single rows.*algo\.chunk=1"):
        Chunked(env, 2)
    with pytest.raises(EnvironmentMismatchError, match="chunks are made of vectors"):
        Chunked(adapt(make_vec("CartPole-v1", 2)), 2)
    with pytest.raises(ConfigError, match="chunk is 0"):
        Chunked(make_vec("native/pendulum", 1), 0)


def test_an_environment_without_a_saved_state_has_none_in_chunks() -> None:
    assert not hasattr(Chunked(adapt(make_vec("Pendulum-v1", 1)), 2), "get_state")
    assert not hasattr(Chunked(make_vec("native/pendulum", 1), 2), "roll_out")
