"""Reward machines: their files, their tables, the values of their states."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.envs.objectives.ltlf import objective
from surefoot.envs.objectives.machine import Machine, machine_of, read_machine
from surefoot.envs.objectives.wrapper import potentials

ERRAND: dict[str, Any] = {
    "start": "none",
    "accepting": ["done"],
    "propositions": ["coffee", "mail", "office"],
    "transitions": [
        {"from": "none", "when": "coffee & !mail", "to": "coffee"},
        {"from": "none", "when": "mail & !coffee", "to": "mail"},
        {"from": "coffee", "when": "mail", "to": "both"},
        {"from": "mail", "when": "coffee", "to": "both"},
        {"from": "both", "when": "office", "to": "done", "reward": 1},
    ],
}
"""Coffee and mail in any order, then to the office."""
MOVES = [("none", "coffee", "coffee"), ("none", "mail", "mail"), ("coffee", "mail", "both"), ("mail", "coffee", "both")]


def changed(**fields: Any) -> dict[str, Any]:
    return {**copy.deepcopy(ERRAND), **fields}


def shaped(machine: Machine, phi: Any, before: str, true: list[str]) -> float:
    """The shaped reward of a move, by its definition."""
    u, letter = machine.states.index(before), machine.letter(true)
    after = machine.following[u, letter]
    return float(machine.rewards[u, letter] + 0.9 * phi[after] - phi[u])


def test_a_machine_moves_by_guards_and_stays_elsewhere() -> None:
    machine = machine_of(ERRAND)
    assert machine.states == ("none", "coffee", "mail", "both", "done")
    assert (machine.live, machine.start, machine.has_costs) == (4, 0, False)
    for before, true, after in MOVES:
        assert machine.following[machine.states.index(before), machine.letter([true])] == machine.states.index(after)
    assert machine.following[0, machine.letter(["coffee", "mail"])] == 0  # no transition
    assert machine.rewards[3, machine.letter(["office", "mail"])] == 1
    assert machine.following[4].tolist() == [4] * 8  # nothing leaves an end
    assert machine.progress().tolist() == pytest.approx([0, 1 / 3, 1 / 3, 2 / 3, 1])  # type: ignore[union-attr]
    one_hot = machine.one_hot(np.array([0, 3, 4]))
    assert one_hot.tolist() == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]


def test_letters_without_a_transition_end_episodes_where_that_is_said() -> None:
    """The rule of the code of Toro Icarte et al., which ours has as an option."""
    machine = machine_of(changed(otherwise="end"))
    over = machine.following[0, machine.letter([])]
    assert over >= machine.live
    assert machine.rewards[0, machine.letter([])] == 0
    assert not machine.accepting[over]


def test_values_of_states_are_those_of_the_errand() -> None:
    machine = machine_of(ERRAND)
    assert machine.values(0.9).tolist() == pytest.approx([0.81, 0.9, 0.9, 1, 0])


@pytest.mark.parametrize(
    ("kind", "waiting", "moving", "last"),
    [("value", [-0.081, -0.09, -0.09, -0.1], 0, 0), ("negative_value", [0.081, 0.09, 0.09, 0.1], 0, 2)],
)
def test_both_shapings_pay_what_is_published(kind: str, waiting: list[float], moving: float, last: float) -> None:
    machine = machine_of(ERRAND)
    phi = potentials(machine, kind, 0.9)
    waits = [shaped(machine, phi, state, []) for state in ("none", "coffee", "mail", "both")]
    assert waits == pytest.approx(waiting)
    assert [shaped(machine, phi, before, [true]) for before, true, _ in MOVES] == pytest.approx([moving] * 4)
    assert shaped(machine, phi, "both", ["office"]) == pytest.approx(last)


def test_plans_on_the_machine_take_one_proposition_at_a_time_where_that_leads_to_the_end() -> None:
    """Else F(a & F b), which a letter of both satisfies at once, would have one value before and after a."""
    assert objective("F(a & F b)").values(0.9).tolist() == pytest.approx([0.9, 1, 0])
    assert objective("F(a & b)").values(0.9).tolist() == pytest.approx([1, 0])
    assert objective("F(a & F b)").progress().tolist() == [0, 0.5, 1]  # type: ignore[union-attr]
    assert objective("F a & G !b").progress().tolist() == [0, 1, 0]  # type: ignore[union-attr]


def test_values_converge_where_a_machine_pays_for_ever() -> None:
    forever = {"start": "u", "transitions": [{"from": "u", "when": "a", "to": "u", "reward": 2}]}
    assert machine_of(forever).values(0.95)[0] == pytest.approx(2 / 0.05)
    with pytest.raises(ConfigError, match="discount"):
        machine_of(forever).values(1.0)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"start": "done"}, "the start, 'done', ends the episode"),
        ({"transitions": []}, "transitions"),
        ({"ending": []}, "not known"),
        ({"accepting": ["don"]}, "did you mean|done"),
        ({"propositions": ["coffee", "mail"]}, "'office', which is not among the propositions"),
        ({"propositions": ["coffee", "mail", "office", "F"]}, "can't name a proposition"),
        ({"otherwise": "reset"}, "otherwise"),
        (
            {"transitions": [{"from": "none", "when": "F coffee", "to": "done"}]},
            r"transitions\[0\].when.*operator of time",
        ),
        ({"transitions": [{"from": "none", "when": "coffee", "to": "done", "cost": -1}]}, "cost"),
        ({"transitions": [{"from": "none", "when": "coffee", "to": "done", "reward": float("nan")}]}, "reward"),
        ({"transitions": [*ERRAND["transitions"], {"from": "done", "when": "mail", "to": "none"}]}, "leaves 'done'"),
    ],
)
def test_what_is_no_machine_is_refused_by_its_field(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        machine_of(changed(**fields), "errand.json")


def test_two_transitions_for_one_letter_are_refused_with_both_and_the_letter() -> None:
    twice = [*ERRAND["transitions"], {"from": "none", "when": "coffee", "to": "both"}]
    with pytest.raises(
        ConfigError, match=r"transitions\[0\] and transitions\[5\] both leave 'none' where coffee holds"
    ):
        machine_of(changed(transitions=twice))


def test_files_are_read_and_never_executed(tmp_path: Path) -> None:
    path = tmp_path / "errand.json"
    path.write_text(json.dumps(ERRAND))
    assert read_machine(path) == ERRAND
    with pytest.raises(CheckpointError, match="no such file"):
        read_machine(tmp_path / "none.json")
    path.write_text("{'start': __import__('os')}")
    with pytest.raises(CheckpointError, match="JSON"):
        read_machine(path)
    code = changed(transitions=[{"from": "none", "when": "__import__('os').system('true')", "to": "done"}])
    path.write_text(json.dumps(code))
    with pytest.raises(ConfigError, match=r"errand\.json: transitions\[0\]\.when.*character 12"):
        read_machine(path)
