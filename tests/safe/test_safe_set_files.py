"""Safe sets as files: what was saved comes back, and what is damaged or forged is refused in one sentence."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.base.errors import CheckpointError
from surefoot.safe.reachability import files
from surefoot.safe.reachability.grid import Axis, Grid, GridValue
from surefoot.safe.reachability.solver import Solution

GRID = Grid((Axis("x", -1.0, 1.0, 5), Axis("angle", 0.0, 6.0, 4, periodic=True)))


def saved(path: pathlib.Path, change: dict[str, Any] | None = None, **arrays: Any) -> pathlib.Path:
    """A small safe set, with changes to its description or its arrays."""
    values = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(5, 4)
    facts: dict[str, Any] = {"discount": 1.0, "sweeps": 3, "change": 0.0, "converged": True, "seconds": 0.1}
    files.save(Solution(value=GridValue(GRID, values), h=values - 1, **facts), path, {"environment": "native/x"})
    with np.load(path) as held:
        parts = dict(held)
    described = {**json.loads(str(parts["description"])), **(change or {})}
    np.savez_compressed(path, **{**parts, "description": np.array(json.dumps(described)), **arrays})
    return path


def test_what_was_saved_comes_back(tmp_path: pathlib.Path) -> None:
    solution, about = files.load(saved(tmp_path / "a.npz"))
    assert solution.grid == GRID
    assert about == {"environment": "native/x"}
    assert solution.values[4, 3] == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": "surefoot-safe-set-2"}, "written as 'surefoot-safe-set-2', and .* reads 'surefoot-safe-set-1'"),
        ({"sign": "value >= 0"}, "is written as 'value >= 0'"),
        ({"axes": []}, "axes has 0 entries"),
        ({"axes": [3]}, r"axes\[0\] is 3, must be an object"),
        ({"axes": [{"name": "x", "low": 0, "high": 1, "points": 2**40}]}, r"axes\[0\].points is .* from 2 to 1048576"),
        ({"axes": [{"name": "x", "low": 1, "high": 0, "points": 5}]}, "low must be below high"),
        ({"axes": [{"name": "x", "low": 0, "high": 1, "points": 5}]}, r"'value' is float64 of \(5, 4\)"),
        ({"discount": "1"}, "discount is '1', must be a finite number from 0 to 1"),
        ({"converged": "yes"}, "converged is 'yes', must be true or false"),
        ({"sweeps": 1.5}, "sweeps is 1.5, must be a whole number"),
        ({"about": []}, r"about is \[\], must be an object"),
    ],
)
def test_a_description_that_says_something_else_is_refused(
    tmp_path: pathlib.Path, change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        files.load(saved(tmp_path / "a.npz", change))


def test_values_that_are_not_finite_or_of_another_kind_are_refused_by_name(tmp_path: pathlib.Path) -> None:
    for name, value, sentence in (
        ("value", np.full((5, 4), np.nan), r"'value' holds nan at \[0, 0\]"),
        ("h", np.full((5, 4), -np.inf), "'h' holds -inf"),
        ("value", np.zeros((5, 4), int), "'value' is int64"),
        ("h", np.array([{}], dtype=object), "'h' holds python objects"),
        ("description", np.array("[1, 2"), "not readable as JSON"),
        ("description", np.array("[]"), "must be an object"),
    ):
        with pytest.raises(CheckpointError, match=sentence):
            files.load(saved(tmp_path / "a.npz", **{name: value}))
    with pytest.raises(CheckpointError, match="there is no such file"):
        files.load(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", value=np.zeros(3))
    with pytest.raises(CheckpointError, match="not a safe set, it has no 'h'"):
        files.load(tmp_path / "c.npz")


def test_each_flipped_bit_is_refused_or_changes_nothing(tmp_path: pathlib.Path) -> None:
    content = saved(tmp_path / "a.npz").read_bytes()
    values = files.load(tmp_path / "a.npz")[0].values
    refused = places = 0
    for place in range(0, len(content), 3):
        places += 1
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        (tmp_path / "b.npz").write_bytes(damaged)
        try:
            read = files.load(tmp_path / "b.npz")[0].values
        except CheckpointError as error:
            refused += "b.npz" in str(error) and "\n" not in str(error)
        else:
            refused += torch.equal(read, values)
    assert refused == places
