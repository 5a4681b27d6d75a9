"""The effective horizon of tables whose value is known, and players whose chance of success is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.finite_mdp import FiniteMDP
from surefoot.evaluation.horizon import effective_horizon, expected_return, gorp, sqirl


def chain(length: int) -> FiniteMDP:
    """Action 0 continues, and pays 1 at the end; action 1 goes to the start."""
    transitions = np.zeros((length, 2), int)
    transitions[:, 0] = [*range(1, length), -1]
    rewards = np.zeros((length, 2))
    rewards[-1, 0] = 1
    return FiniteMDP(transitions, rewards, horizon=length)


def trap() -> FiniteMDP:
    """Action 1 is safe and pays .1; action 0 leads to +1 or -2: random actions there lose .5."""
    return FiniteMDP(np.array([[1, -1], [-1, -1]]), np.array([[0, 0.1], [1, -2]]), horizon=2)


@pytest.mark.parametrize(
    ("length", "episodes", "horizon"),
    [(2, 67, 7.0661), (3, 160, 8.3219), (4, 355, 9.4717), (5, 767, 10.5831), (6, 1628, 11.6689)],
)
def test_a_chain_needs_exponentially_many_random_episodes(length: int, episodes: int, horizon: float) -> None:
    found = effective_horizon(chain(length))
    first = found.backups[0]
    assert (first.k, first.episodes, found.solved_by) == (1, episodes, 1)
    assert first.horizon == pytest.approx(horizon, abs=5e-5)
    assert found.horizon == length  # capped
    assert (found.optimum, found.random) == (1.0, 2.0**-length)


def test_a_trap_is_not_solved_by_the_values_of_random_actions() -> None:
    found = effective_horizon(trap())
    assert found.solved_by == 2
    assert found.horizon == 2


def test_actions_that_are_optimal_and_ahead_are_followed_too() -> None:
    """Both first actions are optimal; one leads to where random actions mislead: 1 or less, or .9 for sure."""
    transitions = np.array([[1, 2], [-1, -1], [3, -1], [-1, -1]])
    for other, solved_by in ((0.7, 2), (0.9, 1)):  # the mean of 1 and the other is below .9, or above
        rewards = np.array([[0, 0], [1, 1], [0, 0.9], [1, other]])
        assert effective_horizon(FiniteMDP(transitions, rewards, horizon=3)).solved_by == solved_by


def test_a_table_with_chance_is_solved_by_backups_and_has_no_bound() -> None:
    half = np.zeros((2, 2, 2))
    half[0, 0, 1] = 0.5
    found = effective_horizon(FiniteMDP(half, np.array([[0, 0.3], [1, 0]]), horizon=2))
    assert (found.solved_by, found.horizon, found.backups) == (2, None, ())  # .25 by random actions, .5 at best
    assert found.optimum == 0.5


def test_probabilities_of_0_and_1_are_no_chance() -> None:
    sure = np.zeros((3, 2, 3))
    for s in range(3):
        for a in range(2):
            if (following := chain(3).transitions[s, a]) >= 0:
                sure[s, a, following] = 1
    found = effective_horizon(FiniteMDP(sure, chain(3).rewards, horizon=3))
    assert found.backups == effective_horizon(chain(3)).backups


def test_gorps_first_action_is_wrong_as_often_as_is_calculated() -> None:
    """All four episodes behind action 0 miss with chance (1 - 1/4)^4; then both tie, and half of the ties are lost."""
    wrong = [gorp(chain(3), 1, 4, np.random.default_rng(trial)).policy[0, 0] for trial in range(1500)]
    expected = 0.75**4 / 2
    assert expected == pytest.approx(0.3164063 / 2, abs=1e-7)
    assert np.mean(wrong) == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / 1500))


def test_players_solve_what_enough_episodes_solve_and_count_their_steps() -> None:
    for player in (gorp, sqirl):
        assert player(chain(4), 1, 355, np.random.default_rng(0)).value == 1
        assert player(trap(), 2, 10, np.random.default_rng(0)).value == 1
        assert player(trap(), 1, 50, np.random.default_rng(0)).value == pytest.approx(0.1)
    found = gorp(trap(), 1, 10, np.random.default_rng(0))
    assert found.steps == 30  # from the start 10 of one step and 10 of two; the safe action then ended the episode


def test_sqirl_solves_a_table_with_chance_that_gorp_refuses() -> None:
    """Action 0 leads to a good or a bad state by a coin, where the right action differs; action 1 pays .6."""
    transitions = np.zeros((3, 2, 3))
    transitions[0, 0] = [0, 0.5, 0.5]
    rewards = np.array([[0, 0.6], [1, 0], [0, 1.0]])
    mdp = FiniteMDP(transitions, rewards, horizon=2)
    found = sqirl(mdp, 2, 200, np.random.default_rng(1))
    assert found.value == 1
    assert found.policy.tolist() == [[0, *found.policy[0, 1:]], [found.policy[1, 0], 0, 1]]
    assert sqirl(mdp, 1, 200, np.random.default_rng(1)).value == pytest.approx(0.6)
    with pytest.raises(DataError, match="action 0 of state 0 leads to one of several states"):
        gorp(mdp, 1, 10, np.random.default_rng(1))


def test_a_policy_s_return_is_its_rewards() -> None:
    assert expected_return(chain(3), np.zeros((3, 3), int)) == 1
    assert expected_return(chain(3), np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0]])) == 0


def test_numbers_out_of_range_are_refused() -> None:
    endless = FiniteMDP(chain(3).transitions, chain(3).rewards)
    with pytest.raises(ConfigError, match="the table has no horizon"):
        effective_horizon(endless)
    with pytest.raises(ConfigError, match="horizon is 0"):
        effective_horizon(endless, 0)
    with pytest.raises(ConfigError, match="k is 0"):
        sqirl(chain(3), 0, 1, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="make 1,048,576 sequences"):
        gorp(endless, 20, 1, np.random.default_rng(0), 30)
    with pytest.raises(DataError, match="tables with one first state"):
        effective_horizon(FiniteMDP(endless.transitions, endless.rewards, np.array([0.5, 0.5, 0])), 3)
