"""Whittle's indices against closed forms, the exact joint optimum, and sets found by an integer program."""

from __future__ import annotations

import itertools
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from surefoot.cli import main
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.evaluation.restless import RestlessBandit, load_bandit, policies, simulate, solve, values_of
from surefoot.evaluation.whittle import whittle_index

FIRST = np.array([[[0.9, 0.1], [0.6, 0.4]], [[0.3, 0.7], [0.2, 0.8]]])
SECOND = np.array([[[0.95, 0.05], [0.3, 0.7]], [[0.5, 0.5], [0.1, 0.9]]])
GOOD = np.array([[0.0, 1.0], [0.0, 1.0]])


def two_arms(budget: int = 1, **changed: Any) -> RestlessBandit:
    given: dict[str, Any] = {
        "transitions": np.stack([FIRST, SECOND]),
        "rewards": np.stack([GOOD, GOOD]),
        "discount": 0.9,
        "matrix": np.ones((1, 2)),
        "bounds": np.array([float(budget)]),
        "start": np.zeros(2, int),
    }
    return RestlessBandit(**{**given, **changed})


@pytest.mark.parametrize(
    ("arm", "discount", "expected"),
    [
        (FIRST, 0.9, (0.7397260, 0.3956044)),
        (FIRST, 0.5, (0.3529412, 0.2105263)),
        (SECOND, 0.9, (0.9759036, 0.2812500)),
    ],
)
def test_indices_of_two_state_arms_are_those_of_the_closed_form(
    arm: np.ndarray, discount: float, expected: tuple[float, float]
) -> None:
    found = whittle_index(arm, GOOD, discount)
    assert found.values.tolist() == pytest.approx(expected, abs=5e-8)
    assert found.indexable


def test_without_a_future_the_index_is_what_acting_earns_more() -> None:
    found = whittle_index(FIRST, np.array([[0.0, 1.0], [0.3, 0.9]]), 0.0)
    assert found.values.tolist() == pytest.approx([0.3, -0.1])


def test_an_arm_that_is_not_indexable_is_reported() -> None:
    """Of random arms of three states that hardly ever mix some rest, act and rest again as the subsidy grows."""
    generator = np.random.default_rng(0)
    kinds = [
        whittle_index(generator.dirichlet(np.full(3, 0.1), (2, 3)), generator.normal(size=(2, 3)), 0.99).indexable
        for _ in range(60)
    ]
    assert 0 < kinds.count(False) < 30


def test_the_joint_optimum_of_two_arms_is_the_index_policy() -> None:
    bandit = two_arms()
    solved = solve(bandit)
    assert solved is not None
    expected = np.array([[10.03557, 12.02228], [11.36418, 13.12781]])
    assert solved.values == pytest.approx(expected, abs=1e-5)
    moves = [np.kron(FIRST[0], SECOND[1])[:1], np.kron(FIRST[1], SECOND[0])[1:2]]  # act on the second, on the first
    moves += [np.kron(FIRST[0], SECOND[1])[2:3], np.kron(FIRST[1], SECOND[0])[3:]]
    by_hand = np.linalg.solve(np.eye(4) - 0.9 * np.concatenate(moves), [0, 1, 1, 2])
    assert solved.values.reshape(-1) == pytest.approx(by_hand, abs=1e-8)
    acted = solved.sets[solved.policy]
    assert acted[:, 0].tolist() == [[False, True]] * 2  # the second arm is in its bad state
    assert acted[:, 1].tolist() == [[True, False]] * 2
    compared = policies(bandit, bandit.indices())
    assert values_of(bandit, solved, compared["index"]) == pytest.approx(expected, abs=1e-5)
    assert (values_of(bandit, solved, compared["rest"]) < expected - 1).all()


def test_simulated_returns_are_those_of_the_joint_values() -> None:
    bandit = two_arms()
    found = simulate(bandit, policies(bandit, bandit.indices())["index"], 400, 150, seed=1)
    assert found.low < 10.03557 < found.high
    assert found.high - found.low < 0.6


def test_coupling_rules_other_than_a_budget_are_kept() -> None:
    """Three arms, the first and second of which share a tool: with a budget of 2, never both."""
    rule = np.array([[1.0, 1, 1], [1, 1, 0]])
    bandit = two_arms(
        transitions=np.stack([FIRST, SECOND, FIRST]), rewards=np.stack([GOOD] * 3), matrix=rule,
        bounds=np.array([2.0, 1.0]), start=np.zeros(3, int),
    )  # fmt: skip
    sets = bandit.feasible()
    assert sets is not None
    assert [one.tolist() for one in sets] == [
        list(one) for one in itertools.product((False, True), repeat=3) if not (one[0] and one[1])
    ]
    solved = solve(bandit)
    assert solved is not None
    assert solved.sets[solved.policy[0, 0, 0]].tolist() == [False, True, True]


def test_the_integer_program_finds_the_set_that_enumeration_finds(capfd: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(0)
    arms = 9
    for _ in range(10):
        bandit = two_arms(
            transitions=np.stack([FIRST] * arms), rewards=np.stack([GOOD] * arms), start=np.zeros(arms, int),
            matrix=generator.uniform(0, 1, (3, arms)), bounds=generator.uniform(1, 3, 3),
        )  # fmt: skip
        scores = generator.normal(size=arms)
        sets = bandit.feasible()
        assert sets is not None
        by_program, by_hand = bandit.best_set(scores), bandit.best_set(scores, sets)
        assert scores @ by_program == pytest.approx(scores @ by_hand, abs=1e-7)
    assert bandit.feasible(most=100) is None
    assert capfd.readouterr().out == ""  # HiGHS has lines of its own


def test_the_command_reads_a_file_and_refuses_a_wrong_one(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "arms.npz"
    tables: dict[str, Any] = {"transitions": np.stack([FIRST, SECOND]), "rewards": np.array([[0.0, 1], [0, 1]])}
    np.savez(path, **tables, discount=0.9, budget=1)
    assert main(["restless", str(path), "--episodes", "20", "--steps", "30", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["indices"][1] == pytest.approx([0.9759036, 0.28125], abs=5e-8)
    assert found["exact"]["optimum"] == pytest.approx(10.03557, abs=5e-6)
    assert (found["acts_on"], found["not_indexable"]) == ([1], [])
    assert set(found["simulated"]) == {"index", "myopic", "rest"}
    assert main(["restless", str(path), "--budget", "2", "--episodes", "5"]) == 0
    assert "at the start   acts on 0, 1" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="budget is -1"):
        load_bandit(path, budget=-1)
    for changed, sentence in (
        ({"transitions": 2 * tables["transitions"]}, "arm 0: transitions of action 0 in state 0 add up to 2"),
        ({"rewards": np.zeros((3, 2))}, r"transitions have shape (2, 2, 2, 2) and rewards (3, 2, 2)"),
        ({"matrix": np.ones((1, 2))}, "matrix and bounds belong together"),
        ({"matrix": np.ones((1, 3)), "bounds": np.ones(1)}, "matrix has shape (1, 3) and bounds (1,)"),
        ({"discount": 1.0}, "discount is 1"),
        ({"start": np.array([0, 5])}, "start must be 2 states, 0 to 1"),
    ):
        np.savez(tmp_path / "wrong.npz", **{**tables, "budget": 1, **changed})
        assert main(["restless", str(tmp_path / "wrong.npz")]) == 2
        assert sentence in capsys.readouterr().err
    np.savez(tmp_path / "wrong.npz", **tables)
    assert main(["restless", str(tmp_path / "wrong.npz")]) == 2
    assert "has neither a budget nor a matrix" in capsys.readouterr().err
    with pytest.raises(DataError, match="no set of arms satisfies the constraints"):
        two_arms(bounds=np.array([-1.0])).feasible()
