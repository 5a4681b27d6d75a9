"""Small problems as tables: their file, what is refused, and optimal values against closed forms."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from surefoot.core.base.errors import DataError
from surefoot.core.base.finite_mdp import FiniteMDP, load_mdp, optimal_values, policy_values, softmax_policy


def chain() -> FiniteMDP:
    """Three states in a row; action 0 continues and ends with 1 behind the last, action 1 goes to the start."""
    return FiniteMDP(np.array([[1, 0], [2, 0], [-1, 0]]), np.array([[0.0, 0], [0, 0], [1, 0]]))


def test_values_of_a_chain_are_powers_of_the_discount() -> None:
    values = optimal_values(chain(), 0.5)
    assert values.tolist() == pytest.approx(np.array([[0.25, 0.125], [0.5, 0.125], [1, 0.125]]))
    always_on = np.array([[1.0, 0]] * 3)
    assert policy_values(chain(), always_on, 0.5).tolist() == pytest.approx([0.25, 0.5, 1])


def test_probabilities_give_what_states_give() -> None:
    sure = chain()
    spread = np.zeros((3, 2, 3))
    for s in range(3):
        for a in range(2):
            if sure.transitions[s, a] >= 0:
                spread[s, a, sure.transitions[s, a]] = 1
    same = FiniteMDP(spread, sure.rewards)
    assert np.array_equal(same.as_deterministic().transitions, sure.transitions)
    assert optimal_values(same, 0.9) == pytest.approx(optimal_values(sure, 0.9))
    random = np.full((3, 2), 0.5)
    assert policy_values(same, random, 0.9) == pytest.approx(policy_values(sure, random, 0.9))


def test_soft_values_of_a_bandit_are_a_log_sum() -> None:
    arms = FiniteMDP(np.full((1, 2), -1), np.array([[0.3, 0.1]]))
    looped = FiniteMDP(np.zeros((1, 2), int), np.array([[0.3, 0.1]]))
    soft = 0.5 * np.log(np.exp(0.3 / 0.5) + np.exp(0.1 / 0.5))
    assert optimal_values(arms, 0.9, 0.5) == pytest.approx(np.array([[0.3, 0.1]]))
    assert optimal_values(looped, 0.9, 0.5) == pytest.approx(np.array([[0.3, 0.1]]) + 0.9 * soft / 0.1, rel=1e-9)
    assert softmax_policy(np.array([[0.3, 0.1]]), 0.5)[0, 0] == pytest.approx(1 / (1 + np.exp(-0.4)))


def test_what_can_be_reached_is_what_some_action_leads_to() -> None:
    mdp = FiniteMDP(np.array([[1, -1], [0, 1], [0, 0]]), np.zeros((3, 2)))
    assert mdp.reachable().tolist() == [True, True, False]
    assert mdp.reachable(np.array([[False, True]] * 3)).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"rewards": np.zeros(3)}, r"rewards have shape \(3,\)"),
        ({"rewards": np.array([[0.0, np.nan]] * 3)}, r"rewards\[0, 1\] is nan"),
        ({"transitions": np.array([[1, 0], [3, 0], [0, 0]])}, r"transitions\[1, 0\] is 3; it must be a state, 0 to 2"),
        ({"transitions": np.zeros((3, 2))}, "transitions are float64"),
        ({"transitions": np.full((3, 2, 3), 0.5)}, r"transitions\[0, 0\] adds up to 1.5"),
        ({"start": np.array([0.5, 0, 0])}, "start has shape .* adds up to 0.5"),
        ({"discount": 1.5}, "discount is 1.5"),
        ({"horizon": 0}, "horizon is 0"),
    ],
)
def test_wrong_tables_are_refused_with_their_place(
    changed: dict[str, Any], sentence: str, tmp_path: pathlib.Path
) -> None:
    given = {"transitions": chain().transitions, "rewards": chain().rewards, **changed}
    with pytest.raises(DataError, match=sentence):
        FiniteMDP(**given)
    np.savez(tmp_path / "t.npz", **given)
    with pytest.raises(DataError, match=rf"t\.npz: .*{sentence}"):
        load_mdp(tmp_path / "t.npz")


def test_a_file_gives_the_table_that_was_written(tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "t.npz", transitions=chain().transitions, rewards=chain().rewards, start=2, horizon=4)
    found = load_mdp(tmp_path / "t.npz")
    assert found.first.tolist() == [0, 0, 1]
    assert (found.horizon, found.discount) == (4, None)
    with pytest.raises(DataError, match="there is no such file"):
        load_mdp(tmp_path / "u.npz")
    np.savez(tmp_path / "u.npz", rewards=np.zeros((1, 1)))
    with pytest.raises(DataError, match="has no 'transitions', it holds rewards"):
        load_mdp(tmp_path / "u.npz")
    np.savez(tmp_path / "u.npz", transitions=chain().transitions, rewards=chain().rewards, start=7)
    with pytest.raises(DataError, match="start is 7"):
        load_mdp(tmp_path / "u.npz")


def test_an_endless_table_without_discount_has_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surefoot.core.base.finite_mdp.MOST_SWEEPS", 100)
    with pytest.raises(DataError, match="have not converged after 100 sweeps at a discount of 1"):
        optimal_values(FiniteMDP(np.zeros((1, 1), int), np.ones((1, 1))), 1.0)
