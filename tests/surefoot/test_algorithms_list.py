"""`surefoot algorithms`: what each algorithm needs and takes, by the declarations that training checks too."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from surefoot.cli.main import main
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import Array, Spec
from surefoot.runs.algorithms import ALGORITHMS, FAMILIES, check_parts

Capture = pytest.CaptureFixture[str]


def listed(capsys: Capture, *options: str) -> list[dict[str, Any]]:
    assert main(["algorithms", "--json", *options]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


def names(capsys: Capture, *options: str) -> set[str]:
    return {row["name"] for row in listed(capsys, *options)}


def test_the_list_has_the_algorithms_of_each_family_in_100_columns(capsys: Capture) -> None:
    rows = listed(capsys)
    for family, agents in FAMILIES.items():
        assert [row["name"] for row in rows if row["family"] == family] == sorted(agents)
    assert main(["algorithms"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split() for line in lines if line.startswith("dqn ")] == [
        ["dqn", "online", "environment", "data,", "pictures,", "masks", "discrete"]
    ]


def test_filters_leave_those_that_have_all_of_their_words(capsys: Capture) -> None:
    assert names(capsys, "--needs", "run") == {"wsrl"}
    assert names(capsys, "--takes", "discrete", "--without", "environment") == {
        "bc", "classifier", "discrete_cql", "preferences",
    }  # fmt: skip
    assert names(capsys, "--family", "safe") == set(FAMILIES["safe"])
    assert names(capsys, "--needs", "data,costs") == {
        "bc_safe", "bcq_lag", "bear_lag", "cdt", "coptidice", "cpq", "fisor",
    }  # fmt: skip
    assert names(capsys, "--needs", "costs") == set(FAMILIES["safe"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--family", "save"], "did you mean 'safe'"),
        (["--needs", "dta"], "did you mean 'data'"),
        (["--takes", "pixels"], "--takes pixels: "),
        (["--needs", "run", "--family", "safe"], "no algorithm is like that"),
        (["iql", "--family", "safe"], "--family filters the list"),
    ],
)
def test_a_bad_filter_is_refused(arguments: list[str], message: str, capsys: Capture) -> None:
    assert main(["algorithms", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - set(FAMILIES["streaming"])))
def test_an_algorithm_takes_the_actions_and_pictures_that_its_declaration_says_and_refuses_others(name: str) -> None:
    """Networks are built without memory; streams, which fill theirs with numbers, have tests of their own."""
    kind, vector = ALGORITHMS[name], {"observations": Array((5,))}
    image = {"image": Array((64, 64, 3), "uint8")}
    needs = kind.needs()
    bounds = ((-1.0, -1.0), (1.0, 1.0))
    problems = {
        "discrete": Spec.of_choices(vector, 3),
        "continuous": Spec(vector, 2, *bounds),
        "pictures": Spec(image, 2, *bounds) if kind.requires.continuous else Spec.of_choices(image, 3),
    }
    for what, problem in problems.items():
        with torch.device("meta"):
            if what in needs.taken:
                kind(problem)
            else:
                with pytest.raises(ConfigError, match=r"learns from one vector|learns (continuous|discrete) actions"):
                    kind(problem)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_parts_that_are_needed_are_asked_for_and_others_can_be_left_out(name: str) -> None:
    kind = ALGORITHMS[name]
    parts = {"data": "a dataset", "environment": "native/pendulum"}
    for part in set(parts) & set(kind.needs().needed):
        given = {one: text if one != part and one in kind.needs().taken else None for one, text in parts.items()}
        with pytest.raises(ConfigError, match=f"name an? {'dataset' if part == 'data' else part}"):
            check_parts(kind, {}, given["data"], given["environment"])
    needed = {part: value if part in kind.needs().needed else None for part, value in parts.items()}
    check_parts(kind, {}, needed["data"], needed["environment"])
