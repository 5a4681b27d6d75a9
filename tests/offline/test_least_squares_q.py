"""Least-squares fitted Q on problems whose values are known."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused

from surefoot.core.base.errors import DataError
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import discounted_returns
from surefoot.offline.evaluation.least_squares_q import LEAST_EPISODES, LeastSquaresJudge, LeastSquaresQConfig, thinned

LOW, HIGH = np.array([-1.0]), np.array([1.0])


def dataset(
    observations: np.ndarray, actions: np.ndarray, rewards: np.ndarray, following: np.ndarray, length: int, ends: bool
) -> Dataset:
    """Episodes of `length` steps that end by themselves, or are cut off."""
    count = len(rewards)
    last = np.arange(count) % length == length - 1
    return Dataset(
        observations=observations.astype(np.float32).reshape(count, -1),
        actions=actions.astype(np.float32).reshape(count, -1),
        rewards=rewards.astype(np.float32),
        next_observations=following.astype(np.float32).reshape(count, -1),
        terminations=last & ends,
        truncations=last & (not ends),
        episode_ids=np.arange(count) // length,
        valid=np.ones(count, bool),
    )


def tabular(count: int = 600) -> Dataset:
    """State 0, then 1, then the end; reward a in state 0 and 2 a in state 1; actions -1 or 1."""
    observations = np.tile([[1.0, 0.0], [0.0, 1.0]], (count, 1))
    actions = np.random.default_rng(0).choice([-1.0, 1.0], 2 * count)
    rewards = actions * np.tile([1.0, 2.0], count)
    return dataset(observations, actions, rewards, np.roll(observations, -1, 0), 2, ends=True)


@pytest.mark.parametrize("action", [1.0, -1.0])
def test_a_tabular_policys_value_is_found_and_not_the_datas(action: float) -> None:
    data = tabular()
    judge = LeastSquaresJudge(data, LOW, HIGH, config=LeastSquaresQConfig(discount=0.9, features=64, ridge=1e-6))
    critics = judge.fit(np.full_like(data.actions, action))
    values = critics.value(np.full((600, 1), action))
    assert values.shape == (24,)
    assert values.mean() == pytest.approx(action * (1 + 0.9 * 2), abs=1e-2)
    at_one = critics.values(np.array([[0.0, 1.0]]), np.array([[-action]]))
    assert at_one.mean() == pytest.approx(-2 * action, abs=1e-2), "Q of the action that the policy would not take"


def test_the_datas_own_value_is_the_mean_of_their_returns() -> None:
    data = tabular()
    judge = LeastSquaresJudge(data, LOW, HIGH, config=LeastSquaresQConfig(discount=0.9, features=64, ridge=1e-6))
    told = judge.sampled(discounted_returns(data, 0.9))
    found = judge.data().value(data.actions[data.episode_starts[:-1]])
    assert np.abs(found - told).max() < 0.1
    assert np.corrcoef(found, told)[0, 1] > 0.9, "the members' luck is that of their resamples"


def test_linear_gains_are_ranked_as_the_quadratic_regulator_ranks_them() -> None:
    # x' = 0.9 x + 0.5 a + 0.1 noise, r = -(x^2 + 0.1 a^2), discount 0.95, x0 uniform; a = -k x is worth
    # -0.523333 (1 + 0.1 k^2) / (1 - 0.95 (0.9 - 0.5 k)^2).
    generator, episodes, length = np.random.default_rng(0), 150, 20
    x, rows = generator.uniform(-1, 1, episodes), []
    for _ in range(length):
        a = -0.5 * x + 0.5 * generator.standard_normal(episodes)
        y = 0.9 * x + 0.5 * a + 0.1 * generator.standard_normal(episodes)
        rows.append((x, a, -(x**2 + 0.1 * a**2), y))
        x = y
    x, a, r, y = (np.stack(column, 1).reshape(-1) for column in zip(*rows, strict=True))
    data = dataset(x, a, r, y, length, ends=False)
    low, high = np.array([-4.0]), np.array([4.0])
    judge = LeastSquaresJudge(data, low, high, config=LeastSquaresQConfig(discount=0.95, features=200, ridge=1e-5))
    gains = np.array([-0.1, 0.2, 0.8, 1.34427, 1.8])
    truth = -0.523333 * (1 + 0.1 * gains**2) / (1 - 0.95 * (0.9 - 0.5 * gains) ** 2)
    found = np.array([judge.fit(-k * data.next_observations).value(-k * judge.firsts).mean() for k in gains])
    assert np.argsort(found).tolist() == np.argsort(truth).tolist()
    assert np.abs(found[1:] / truth[1:] - 1).max() < 0.15


def test_values_over_noise_are_the_mean_of_values_of_noisy_actions() -> None:
    drawn = np.random.default_rng(0)
    seen, actions = drawn.uniform(-1, 1, (400, 2)), drawn.uniform(-5, 5, (400, 1))
    data = dataset(seen, actions, -(actions[:, 0] ** 2), seen, 10, ends=True)
    config = LeastSquaresQConfig(discount=0.0, features=64)
    critics = LeastSquaresJudge(data, np.array([-5.0]), np.array([5.0]), config=config).fit(data.actions)
    here, action, noise = seen[:1], np.array([[0.5]]), np.array([0.25])  # bounds are 3.6 deviations away
    several = action + 5 * noise * drawn.standard_normal((40_000, 1))
    expected = critics.values(here.repeat(len(several), 0), several).mean(1)
    found, alone = (critics.values(here, action, n)[:, 0] for n in (noise, None))
    assert np.abs(alone - expected).min() > 0.5, "the square of the noise is 1.6"
    np.testing.assert_allclose(found, expected, atol=0.05)
    np.testing.assert_allclose(critics.values(here, action, np.zeros(1))[:, 0], alone, rtol=1e-12)


def test_large_data_are_thinned_to_whole_episodes_and_images_are_refused() -> None:
    data = tabular()
    some = thinned(data, 101, seed=0)
    assert len(some) == 100
    assert len(some.episode_lengths) == 50
    assert thinned(data, 5_000, seed=0) is data
    assert len(thinned(data, 3, seed=0).episode_lengths) == LEAST_EPISODES, "however long the episodes are"
    frames = {"observations/image": np.zeros((len(data), 3, 4, 4), np.uint8)}
    seen = data.replace(observations=np.zeros((len(data), 0), np.float32), extras=frames)
    with pytest.raises(DataError, match="learns from one vector"):
        LeastSquaresJudge(seen, LOW, HIGH)
    with refused("discount", "range"):
        LeastSquaresQConfig(discount=1.0)
