"""Success: what the environment says of it at an episode's last step, and the share with its interval."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from lucky_env import LENGTH

from surefoot.envs.acting import make_vec
from surefoot.evaluation import Episodes, RandomPolicy, evaluate, says_success, success_rate
from surefoot.evaluation.certificates import certificate


@pytest.mark.parametrize(("key", "as_number"), [("success", False), ("success", True), ("is_success", True)])
def test_success_is_that_of_the_last_step_of_each_episode_and_of_no_other(key: str, as_number: bool) -> None:
    policy = RandomPolicy(np.float32([-1]), np.float32([1]))
    found = evaluate(
        [policy, policy], "lucky_env:SurefootLucky-v0", 13, num_envs=4, env_kwargs={"key": key, "as_number": as_number}
    )
    for episodes in found:
        assert episodes.successes is not None
        np.testing.assert_array_equal(episodes.successes, episodes.returns)  # the reward is the luck of the last step
        assert 0 < episodes.successes.sum() < 13
        again = Episodes.from_json(json.loads(json.dumps(episodes.to_json())))
        np.testing.assert_array_equal(again.successes, episodes.successes)


def test_an_environment_that_says_nothing_of_success_has_no_rate() -> None:
    policy = RandomPolicy(np.float32([-1]), np.float32([1]))
    found = evaluate([policy], "lucky_env:SurefootLucky-v0", 3, env_kwargs={"key": ""})
    assert found[0].successes is None
    assert success_rate(found) is None


@pytest.mark.parametrize(
    ("env_id", "told"),
    [("native/pendulum", False), ("CartPole-v1", False), ("lucky_env:SurefootLucky-v0", True)],
)
def test_one_episode_tells_whether_success_is_told(env_id: str, told: bool) -> None:
    assert says_success(env_id) is told


def _solved(*values: float) -> Episodes:
    return Episodes(np.zeros(len(values)), np.ones(len(values), np.int64), successes=np.array(values, np.float64))


def test_where_all_episodes_are_solved_the_interval_is_the_exact_binomial_one() -> None:
    interval = success_rate([_solved(*[1.0] * 50)])
    assert interval is not None
    assert (interval.estimate, interval.high) == (1.0, 1.0)
    assert interval.low == pytest.approx(0.025 ** (1 / 50))  # Clopper and Pearson's closed form for n of n
    assert certificate(50, 50).low == interval.low


def test_seeds_that_differ_widen_the_interval_and_it_stays_between_0_and_1() -> None:
    alike = success_rate([_solved(*[1.0, 0.0] * 25) for _ in range(3)])
    differing = success_rate([_solved(*[0.0] * 50), _solved(*[1.0, 0.0] * 25), _solved(*[1.0] * 50)])
    assert alike is not None
    assert differing is not None
    assert alike.estimate == differing.estimate == 0.5
    assert (differing.low, differing.high) == (0.0, 1.0)
    assert 0.3 < alike.low < 0.5 < alike.high < 0.7
    one = success_rate([_solved(1.0)])
    assert one is not None
    assert not math.isnan(one.low)


def test_one_seed_without_success_leaves_the_run_without_a_rate() -> None:
    silent = Episodes(np.zeros(2), np.ones(2, np.int64))
    assert success_rate([_solved(1.0, 0.0), silent]) is None


def test_rows_stay_apart_where_episodes_end_at_different_steps() -> None:
    vector = make_vec("lucky_env:SurefootLucky-v0", 3)
    vector.reset(seed=[1, 2, 3])
    lucky = [env.unwrapped.luck for env in vector.envs]  # type: ignore[attr-defined]
    vector.active[0] = False
    for _ in range(LENGTH):
        *_, info = vector.step(np.zeros((3, 1), np.float32))
    assert info["_success"].tolist() == [False, True, True]
    assert info["success"].tolist()[1:] == lucky[1:]
    vector.close()
