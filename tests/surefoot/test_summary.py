"""What a finished run says of itself: the interval of an estimate."""

from __future__ import annotations

import math
import pathlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from surefoot.evaluation import RunData, Safety, hierarchical_interval
from surefoot.evaluation.estimates import estimate_lines
from surefoot.runs import summary
from surefoot.runs.embedded import generate
from surefoot.runs.summary import possible_returns


def test_an_estimates_interval_holds_nothing_that_rewards_in_the_data_can_not_come_to() -> None:
    found = [np.array([-6.0, -5.0]), np.array([-9.0, -8.0])]
    for rewards, low, high in (([-1.0, -0.25], -100, 0), ([-1.0, 2.0], -100, 200), ([0.5, 1.0], -9, 100)):
        assert possible_returns(np.array(rewards), found) == pytest.approx((low, high))
    assert possible_returns(np.array([-1.0]), [np.array([3.0])])[1] == 3  # an estimate of its own is not hidden
    assert hierarchical_interval(found).high > 0  # Student's t over two seeds
    assert hierarchical_interval(found, bounds=possible_returns(np.array([-1.0]), found)).high == 0


def test_an_estimate_whose_whole_interval_lies_above_the_data_is_not_to_be_relied_on() -> None:
    data: dict[str, Any] = {"mean": -90.0, "best": -20.0, "discount": 0.99, "past_time_limits": True}

    def said(low: float, **changed: Any) -> str:
        estimate = {"mean": low + 1, "low": low, "high": low + 2, "drift": 0.0}
        run = RunData("run", "bc", "line", None, 1, (0,), 0, fitted_q=estimate, data_discounted_return=data | changed)
        return "\n".join(estimate_lines(run))

    assert "its whole interval lies above the best return in the data: not supported, do not rely on it" in said(-19.0)
    assert "after few steps it still stands near its start, 0" in said(-19.0)
    assert "near its start" not in said(30.0, best=20.0)
    assert "lies above" not in said(-21.0)
    assert "(discount 0.99)" in said(-21.0)
    cut = said(-19.0, past_time_limits=False)
    assert "(discount 0.99; the data's is cut off at time limits, the policy's runs on past them)" in cut
    assert "lies above" not in cut  # unlike quantities


def test_estimates_of_seeds_that_still_move_apart_are_not_converged(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"mean": -90.0, "best": -20.0, "discount": 0.99, "past_time_limits": True}
    monkeypatch.setattr(summary, "data_return", lambda *unused: own)
    results = [{"fitted_q": [-60.0, -50.0], "fitted_q_drift": drift} for drift in (30.0, -30.0, 6.0, -6.0)]
    found: dict[str, Any] = {"seeds": [0, 1, 2, 3]}
    data = generate("native/pendulum-mixed", transitions=600)
    run: Any = SimpleNamespace(plan=SimpleNamespace(algorithm="iql"), spec=None)  # the spec is data_return's
    summary._without_simulator(found, results, data, run)
    assert found["fitted_q"]["drift"] == 18
    run = RunData("run", "bc", "line", None, 1, (0, 1, 2, 3), 0, fitted_q=found["fitted_q"], data_discounted_return=own)
    said = (
        "that of a seed still moved by 18.0 on average in the last fifth of its steps: not converged, do not rely on it"
    )
    assert estimate_lines(run)[-1].strip() == said


@pytest.mark.parametrize("limit", [None, 25.0])
def test_the_curves_of_a_run_with_a_limit_have_its_costs_beside_the_returns(
    limit: float | None, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    values = {"return_mean": -3.0, "returns": [-4.0, -2.0], "cost_mean": 1.0, "costs": [0.0, 2.0]}
    lines = tuple({"seed": 0, "step": step, "kind": "eval", "values": values} for step in (5, 10))
    costs = Safety(2, 1.0, 2.0, 2.0, 0.5, None, None, limit, None if limit is None else 0.04)
    bounds = {"mean": -3.5, "low": None, "high": None}
    run = RunData("r", "ppo_lag", None, "native/pendulum", 10, (0,), 2, (-3.5,), bounds, safety=costs, metrics=lines)
    monkeypatch.setattr(RunData, "load", classmethod(lambda cls, folder: run))
    drawn: list[Any] = []
    monkeypatch.setattr("surefoot.evaluation.plots.save_png", lambda figure, path: drawn.append(figure))
    summary.draw_curves([SimpleNamespace(folder="r")], tmp_path / "curves.png")  # type: ignore[list-item]
    returns, *beside = drawn[0].axes
    (final,) = [line for line in returns.lines if line.get_marker() == "D" and len(line.get_xdata()) == 1]
    assert final.get_ydata()[0] == -3.5
    assert len(beside) == (0 if limit is None else 1)
    for axes in beside:
        (line,) = [line for line in axes.lines if line.get_label() == "cost limit 25"]
        assert set(line.get_ydata()) == {25.0}
        assert axes.get_ylim()[1] > 25


def test_a_finished_run_keeps_the_bounds_that_its_environment_declares(finished_run: pathlib.Path) -> None:
    run = RunData.load(finished_run)
    assert run.environment == "native/pendulum"
    assert (run.return_bounds, run.bounds) == ((None, 0.0), (-math.inf, 0.0))
    assert run.returns is not None
    assert run.returns["high"] <= 0
