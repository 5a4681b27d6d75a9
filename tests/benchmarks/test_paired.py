"""What the page beside official code says of a cell: equal, explained, open, or not run."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from typing import Any

import numpy as np
import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
from pairs import PAIRS, page  # noqa: E402

TD3BC = PAIRS["td3bc"]


def curve(returns: list[float], q: float) -> dict[str, Any]:
    """A cell of two points."""
    points = [{"step": step, "returns": returns, "inner": {"q": q}} for step in (10, 20)]
    return {"points": points}


def both(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    """Cells of a curve, a seed after the other."""
    sides = {"ours": ours, "theirs": theirs}
    return {f"td3bc-curve-{side}-s{seed}": cell for side, cells in sides.items() for seed, cell in enumerate(cells)}


def test_curves_are_equal_where_the_interval_holds_0_and_inner_quantities_are_near() -> None:
    found = both([curve([10.0, 20.0, 30.0], 5.0)], [curve([12.0, 18.0, 27.0], 5.5)])
    word, text = page.stated("td3bc", TD3BC, "curves", found)
    # 20 and 19; variances 100 and 57 over 3 episodes: an error of 7.23, and 3.7 degrees of freedom (t = 2.86)
    assert word == "equal"
    assert text == "return 20, official 19, difference +1 [-20, +22]; 1 of 1 inner quantities equal"


def test_a_far_return_or_inner_quantity_is_open_without_a_cause_and_explained_with_one() -> None:
    far_return = both([curve([10.0, 11.0, 12.0], 5.0)], [curve([90.0, 91.0, 92.0], 5.0)])
    far_q = both([curve([10.0, 11.0, 12.0], 5.0)], [curve([10.0, 11.0, 12.0], 9.0)])
    known = dataclasses.replace(TD3BC, causes={"curves": "a cause"})
    for found in (far_return, far_q):
        assert page.stated("td3bc", TD3BC, "curves", found)[0] == page.OPEN
        word, text = page.stated("td3bc", known, "curves", found)
        assert word == "explained"
        assert text.endswith("Why: a cause")
    assert "not `q` 5 for 9" in page.stated("td3bc", TD3BC, "curves", far_q)[1]


def test_seeds_widen_the_interval_of_returns_and_of_inner_quantities() -> None:
    pair = dataclasses.replace(TD3BC, seeds=(0, 1))
    ours = [curve([10.0, 11.0, 12.0], 4.0), curve([80.0, 81.0, 82.0], 8.0)]
    theirs = [curve([90.0, 91.0, 92.0], 9.0), curve([30.0, 31.0, 32.0], 7.0)]
    word, _ = page.stated("td3bc", pair, "curves", both(ours, theirs))
    assert word == "equal"
    mean_ours, mean_theirs, text, same = page.of_inner(page.curve_cells("td3bc", pair, both(ours, theirs)))["q"]
    # difference of means -2; variances 8 and 2 over 2 seeds each: error sqrt(5), 1.47 degrees of freedom
    assert (mean_ours, mean_theirs, same) == (6.0, 8.0, True)
    assert text.startswith("-2 [-1")


def test_a_missing_side_is_not_run() -> None:
    one_side = {"td3bc-curve-ours-s0": curve([1.0, 2.0], 1.0)}
    word, text = page.stated("td3bc", TD3BC, "curves", one_side)
    assert word == "not run"
    assert "--only td3bc-curve" in text
    lines = page.curves_of("td3bc", TD3BC, one_side)
    assert any("not run" in line for line in lines)


def test_points_without_episodes_are_left_out_of_the_table_of_returns() -> None:
    cells = both([curve([1.0, 2.0], 1.0)], [curve([1.0, 2.0], 1.0)])
    for cell in cells.values():
        cell["points"][0] = {**cell["points"][0], "returns": []}
    assert "| updates | 20 |" in page.curves_of("td3bc", TD3BC, cells)


def test_every_comparison_that_a_pair_leaves_out_says_why() -> None:
    for name, pair in PAIRS.items():
        assert set(pair.left_out) <= set(page.QUESTIONS), name
        assert set(pair.causes) <= set(page.QUESTIONS), name
        assert all(pair.left_out.values()), name
        assert (BENCHMARKS / "peers" / pair.runner).is_file(), name


@pytest.mark.parametrize("side", page.SIDES)
def test_every_committed_curve_has_finite_inner_quantities(side: str) -> None:
    from cells import read_cells

    found = read_cells(BENCHMARKS / "results" / "paired.jsonl")
    cells = [cell for name, cell in found.items() if f"-curve-{side}-" in name]
    assert len(cells) >= 2
    for cell in cells:
        assert all(np.isfinite(list(point["inner"].values())).all() for point in cell["points"])
