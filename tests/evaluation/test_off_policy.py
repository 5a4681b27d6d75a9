"""Off-policy estimates on a chain whose values are known in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError
from surefoot.evaluation import off_policy
from surefoot.evaluation.selection import doubly_robust

# Two states, two actions, three steps. Reward 1 for action 1 in state 0 and 2 for action 0 in state 1; action 1 leads
# to state 1, action 0 to state 0. The behaviour takes action 1 with probability 0.4, the policy with 0.7.
BEHAVIOUR, POLICY, DISCOUNT, STEPS = np.array([0.6, 0.4]), np.array([0.3, 0.7]), 0.9, 3
REWARD = np.array([[0.0, 1.0], [2.0, 0.0]])


def exact() -> tuple[np.ndarray, np.ndarray]:
    """(T + 1, 2) V and (T, 2, 2) Q of the policy at each step."""
    v, q = np.zeros((STEPS + 1, 2)), np.zeros((STEPS, 2, 2))
    for t in range(STEPS - 1, -1, -1):
        q[t] = REWARD + DISCOUNT * v[t + 1][None, :]
        v[t] = q[t] @ POLICY
    return v, q


def everything() -> tuple[np.ndarray, ...]:
    """All eight episodes from state 0 with their probabilities under the behaviour, as ratios, rewards, V, Q, p."""
    v, q = exact()
    ratios, rewards, values, q_values = (np.zeros((8, STEPS)) for _ in range(4))
    chances = np.ones(8)
    for e in range(8):
        state = 0
        for t in range(STEPS):
            action = e >> t & 1
            ratios[e, t], rewards[e, t] = POLICY[action] / BEHAVIOUR[action], REWARD[state, action]
            values[e, t], q_values[e, t] = v[t, state], q[t, state, action]
            chances[e] *= BEHAVIOUR[action]
            state = action
    return ratios, rewards, values, q_values, chances


def repeated() -> tuple[np.ndarray, ...]:
    """1,000 episodes in which each of the eight is as frequent as the behaviour makes it: expectations are exact."""
    ratios, rewards, values, q_values, chances = everything()
    times = np.rint(chances * 1_000).astype(int)
    assert times.sum() == 1_000
    return tuple(np.repeat(part, times, 0) for part in (ratios, rewards, values, q_values))


@pytest.mark.parametrize("weighted", [False, True])
def test_all_estimates_give_the_value_where_each_episode_is_as_frequent_as_it_should_be(weighted: bool) -> None:
    truth = exact()[0][0, 0]
    assert truth == pytest.approx(0.7 + 0.9 * (0.3 * 0.7 + 0.7 * 0.6) + 0.81 * (0.3 * 0.7 + 0.7 * 0.6))
    ratios, rewards, values, q_values = repeated()
    mask = np.ones_like(rewards, bool)
    assert off_policy.importance_sampling(ratios, rewards, mask, DISCOUNT, weighted) == pytest.approx(truth)
    assert off_policy.per_decision(ratios, rewards, mask, DISCOUNT, weighted) == pytest.approx(truth)
    found = off_policy.doubly_robust_value(ratios, rewards, mask, values, q_values, DISCOUNT, weighted)
    assert found == pytest.approx(truth)
    behaviour = (DISCOUNT ** np.arange(3) * rewards).sum(1).mean()
    assert abs(behaviour - truth) > 0.1, "without weights it is the behaviour's value"


def test_doubly_robust_is_right_where_either_part_is() -> None:
    truth = exact()[0][0, 0]
    ratios, rewards, values, q_values = repeated()
    mask = np.ones_like(rewards, bool)
    wrong = np.random.default_rng(0)

    def value(**changed: np.ndarray) -> float:
        parts = {"ratios": ratios, "values": values, "q_values": q_values} | changed
        return off_policy.doubly_robust_value(rewards=rewards, mask=mask, discount=DISCOUNT, weighted=False, **parts)

    # A wrong model whose V is still its own Q under the policy, at each state and step: nothing is lost.
    table = wrong.normal(size=(STEPS, 2, 2))
    states = np.concatenate([np.zeros((len(rewards), 1), int), (ratios > 1).astype(int)[:, :-1]], 1)
    taken, steps = (ratios > 1).astype(int), np.arange(STEPS)
    model = {"values": (table @ POLICY)[steps, states], "q_values": table[steps, states, taken]}
    assert value(**model) == pytest.approx(truth)
    assert value(ratios=np.ones_like(ratios), **model) != pytest.approx(truth, abs=0.1), "both are wrong"
    # Ratios that are wrong beside an exact model: its temporal-difference errors have mean zero at each state and
    # action, here exactly zero, for transitions and rewards are not random.
    v = np.concatenate([values[:, 1:], np.zeros((len(values), 1))], 1)
    assert np.abs(rewards + DISCOUNT * v - q_values).max() < 1e-12
    anything = wrong.uniform(0.5, 2, ratios.shape)
    backwards = [doubly_robust(anything[e], rewards[e], values[e], q_values[e], DISCOUNT)[0] for e in range(8)]
    assert backwards == pytest.approx([truth] * 8)
    some = (anything[:8], rewards[:8], mask[:8], values[:8], q_values[:8])
    mine = off_policy.doubly_robust_value(*some, DISCOUNT, weighted=False)
    assert mine == pytest.approx(truth), "the same as the recursion"


def test_episodes_of_different_length_and_effective_episodes() -> None:
    rewards, mask = off_policy.padded(np.array([1.0, 1, 1, 5]), np.array([0, 3, 4]))
    assert mask.tolist() == [[True, True, True], [True, False, False]]
    ones = np.ones_like(rewards)
    assert off_policy.importance_sampling(ones, rewards, mask, 0.5) == pytest.approx((1.75 + 5) / 2)
    assert off_policy.per_decision(ones, rewards, mask, 0.5) == pytest.approx((1.75 + 5) / 2)
    assert off_policy.effective_episodes(ones, mask) == 2
    uneven = np.where(np.arange(2)[:, None] == 0, 1.0, 1e-9) * ones
    assert off_policy.effective_episodes(uneven, mask) == pytest.approx(1)
    with pytest.raises(ConfigError, match="of one shape"):
        off_policy.log_products(ones, mask[:, :2])
    with pytest.raises(ConfigError, match="finite"):
        off_policy.log_products(np.where(mask, np.nan, 1.0), mask)
    with pytest.raises(ConfigError, match="at least 0"):
        off_policy.log_products(-ones, mask)


def test_ratios_of_long_episodes_leave_what_a_float_holds_and_the_estimates_stay() -> None:
    """A thousand steps at a ratio of e^2, or of e^-2: the ratio of a whole episode is e^2000, or e^-2000."""
    rewards = np.stack([np.full(1_000, 1.0), np.full(1_000, 2.0)])
    mask, zeros = np.ones_like(rewards, bool), np.zeros_like(rewards)
    for log_ratio in (2.0, -2.0):
        same = np.full_like(rewards, np.exp(log_ratio))
        assert off_policy.importance_sampling(same, rewards, mask, 1.0) == pytest.approx(1_500)
        assert off_policy.per_decision(same, rewards, mask, 1.0) == pytest.approx(1_500)
        assert off_policy.doubly_robust_value(same, rewards, mask, zeros, zeros, 1.0) == pytest.approx(1_500)
        assert off_policy.effective_episodes(same, mask) == pytest.approx(2)
        favoured = same * np.exp([[0.0], [0.01]])  # e^10 after all steps
        assert off_policy.importance_sampling(favoured, rewards, mask, 1.0) == pytest.approx(2_000, rel=1e-4)
        assert off_policy.effective_episodes(favoured, mask) == pytest.approx(1, rel=1e-3)
    assert np.isfinite(off_policy.per_decision(same, rewards, mask, 1.0, weighted=False))
    assert np.isfinite(off_policy.per_decision(1 / same, rewards, mask, 0.1, weighted=False))
    never = off_policy.effective_episodes(zeros, mask), off_policy.importance_sampling(zeros, rewards, mask, 1.0)
    assert never == (0, 0), "a policy that never does what was recorded"
