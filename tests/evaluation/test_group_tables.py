"""Tables of pooled runs: what is a group, what its numbers are, and which entry is best."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError
from surefoot.evaluation import Episodes, hierarchical_interval
from surefoot.evaluation.group_figures import figure_of
from surefoot.evaluation.group_tables import METRICS, group, long_table, parse_keys, pivot_table
from surefoot.evaluation.results import Results, collect
from surefoot.evaluation.tabular import Estimate, Tabular, to_json

MakeRun = Callable[..., pathlib.Path]


def made(make_run: MakeRun, name: str, options: dict[str, Any] | None = None, **changes: Any) -> pathlib.Path:
    """A run folder with these options of its algorithm."""
    folder = make_run(name, **{"returns": None, "normalized": None, **changes})
    (folder / "config.json").write_text(json.dumps({"plan": {"config": options or {}, "batch_size": 256}}))
    return folder


def one_seed(make_run: MakeRun, name: str, seed: int, score: float, **changes: Any) -> pathlib.Path:
    return made(make_run, name, seeds=[seed], per_seed_returns=[score], **changes)


def cells(table: Tabular, column: str) -> list[Any]:
    return [row[column] for row in to_json(table)]


def sweep(make_run: MakeRun) -> None:
    """iql: 1, 2, 3 on a and 10, 20, 30 on b; bc: 0, 0.5, 1 and 100, 101, 102; a run a seed."""
    scores = {
        "iql": {"a": (1.0, 2.0, 3.0), "b": (10.0, 20.0, 30.0)},
        "bc": {"a": (0.0, 0.5, 1.0), "b": (100, 101, 102)},
    }
    for algorithm, tasks in scores.items():
        for task, values in tasks.items():
            for seed, value in enumerate(values):
                one_seed(make_run, f"{algorithm}-{task}-{seed}", seed, float(value), algorithm=algorithm, dataset=task)


def test_runs_that_agree_in_the_keys_are_one_line(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    sweep(make_run)
    table = long_table(collect([tmp_path]), ("algorithm", "task"))
    assert cells(table, "algorithm") == ["bc", "bc", "iql", "iql"]
    assert cells(table, "task") == ["a", "b", "a", "b"]
    assert cells(table, "runs") == cells(table, "seeds") == [3] * 4
    assert cells(table, "episodes") == ["4"] * 4
    # Student's t of two degrees of freedom is 4.303; the standard error of 1, 2, 3 is 1 / sqrt(3)
    assert cells(table, "return")[2] == pytest.approx(
        {"mean": 2.0, "low": 2 - 4.3027 / 3**0.5, "high": 2 + 4.3027 / 3**0.5}, rel=1e-4
    )
    assert [one["mean"] for one in cells(table, "return")] == [0.5, 101.0, 2.0, 20.0]
    assert cells(table, "interval_over") == ["seeds alone"] * 4  # their episodes are not there
    assert {"cost", "success", "normalized", "tasks"} & {column.name for column in table.columns} == set()


def test_episodes_of_pooled_runs_make_the_interval_of_one_run_with_all_seeds(
    make_run: MakeRun, tmp_path: pathlib.Path
) -> None:
    returned = np.random.default_rng(0).normal(size=(2, 5)) + 10
    for seed, returns in enumerate(returned):
        folder = one_seed(make_run, f"r{seed}", seed, float(returns.mean()))
        (folder / f"seeds/{seed}").mkdir(parents=True)
        found = Episodes(returns, np.ones(5, np.int64))
        (folder / f"seeds/{seed}/result.json").write_text(json.dumps({"evaluation": found.to_json()}))
    table = long_table(collect([tmp_path]), ("algorithm",))
    wanted = hierarchical_interval(list(returned)).to_json()
    assert cells(table, "return") == [{key: wanted[key] for key in ("mean", "low", "high")}]
    assert cells(table, "interval_over") == ["seeds and initial states"]


def test_a_row_of_one_seed_says_that_its_interval_is_over_episodes(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    bounds = {"mean": 5.0, "low": 4.0, "high": 6.0, "method": "Student t over 4 episodes; one seed"}
    one_seed(make_run, "one", 0, 5.0, returns=bounds, algorithm="bc")
    made(make_run, "three", per_seed_returns=[1.0, 2.0, 3.0], returns={"mean": 2.0, "low": -0.5, "high": 4.5})
    found = collect([tmp_path])
    table = long_table(found, ("algorithm",))
    assert cells(table, "interval_over") == ["episodes of one seed", "seeds and initial states"]
    assert any("says nothing of other training seeds" in note for note in table.notes)
    pivot = pivot_table(found, ("task", "algorithm"), ("algorithm",), METRICS["return"])
    assert [one.marks for one in pivot.rows[0][1:] if isinstance(one, Estimate)] == ["†", ""]
    assert any(note.startswith("† One training seed") for note in pivot.notes)


def test_intervals_end_at_the_returns_bounds(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    for seed, value in enumerate((0.0, 1.0, 1.0)):
        one_seed(make_run, f"r{seed}", seed, value, return_bounds=[0.0, 1.0])
    (found,) = cells(long_table(collect([tmp_path]), ("algorithm",)), "return")
    assert found == {"mean": pytest.approx(2 / 3), "low": 0.0, "high": 1.0}  # 0.667 +- 4.303 / 3


def test_copies_and_seeds_that_several_runs_hold_count_once(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    for seed, value in enumerate((1.0, 2.0)):
        one_seed(make_run, f"r{seed}", seed, value)
    shutil.copytree(tmp_path / "r0", tmp_path / "r0-copy")
    one_seed(make_run, "trained-again", 1, 50.0)
    found = collect([tmp_path])
    assert found.copies == {str(tmp_path / "r0-copy"): str(tmp_path / "r0")}
    assert len(found.runs) == len(found.table) == 3
    table = long_table(found, ("algorithm",))
    assert cells(table, "return")[0]["mean"] == 1.5
    assert (cells(table, "runs"), cells(table, "seeds")) == ([2], [2])
    assert any("seed 1 occurs in" in hint and "counted once" in hint for hint in table.hints)


def test_options_of_the_algorithm_and_fields_of_the_plan_are_keys(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    for i, expectile in enumerate((0.9, 0.7, 0.9)):
        made(make_run, f"r{i}", {"expectile": expectile}, seeds=[3 * i, 3 * i + 1, 3 * i + 2])
    made(make_run, "bc", algorithm="bc")
    found = collect([tmp_path])
    assert [one.values for one in group(found, ("algo.expectile",))] == [(None,), (0.9,), (0.7,)]
    table = long_table(found, ("algorithm", "algo.expectile", "batch_size"))
    assert [row[:3] for row in table.rows] == [("bc", "-", "256"), ("iql", "0.9", "256"), ("iql", "0.7", "256")]
    only = collect([tmp_path / f"r{i}" for i in range(3)])
    assert [one.values for one in group(only, ("algo.expectile",))] == [(0.7,), (0.9,)]  # numbers in their order
    mixed = long_table(only, ("algorithm",))
    assert cells(mixed, "seeds") == [9]
    assert "iql: pools runs that differ in algo.expectile (0.9, 0.7): add algo.expectile to --group-by" in mixed.hints


def test_seeds_of_two_settings_that_are_pooled_both_count(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    for value in (1.0, 3.0):
        made(make_run, f"r{value}", {"expectile": value}, seeds=[0], per_seed_returns=[value])
    (found,) = cells(long_table(collect([tmp_path]), ("algorithm",)), "return")
    assert found["mean"] == 2.0


def test_tuning_seeds_are_a_line_of_their_own(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    for place, seeds in (("trials", [0, 1, 2]), ("test", [3, 4, 5])):
        (tmp_path / "study" / place).mkdir(parents=True)
        made(make_run, place, seeds=seeds).rename(tmp_path / "study" / place / "a")
    (tmp_path / "study" / "tune.json").write_text(json.dumps({"seeds": [0, 1, 2], "test_seeds": [3, 4, 5]}))
    table = long_table(collect([tmp_path]), ("algorithm",))
    assert [row[:2] for row in table.rows] == [("iql", "test"), ("iql", "tune")]


# -- several tasks -------------------------------------------------------------------------------------------


def normalised(make_run: MakeRun, name: str, returns: list[float], environment: str) -> None:
    dataset = f"native/{environment.partition('/')[2]}-mixed"
    made(make_run, name, seeds=list(range(len(returns))), per_seed_returns=returns, environment=environment,
         dataset=dataset, normalized={"mean": 1.0, "low": None, "high": None})  # fmt: skip


def test_scores_of_several_tasks_are_averaged_on_their_common_scale_alone(
    make_run: MakeRun, tmp_path: pathlib.Path
) -> None:
    from surefoot.data import normalized_score, reference_scores

    returns = {"native/pendulum": [-300.0, -200.0, -400.0], "native/cartpole-swingup": [100.0, 300.0, 200.0]}
    for i, (environment, values) in enumerate(returns.items()):
        normalised(make_run, f"r{i}", values, environment)
    table = long_table(collect([tmp_path]), ("algorithm",))
    scores = np.array([[float(normalized_score(one, reference_scores(env))) for one in values]  # type: ignore[arg-type]
                       for env, values in returns.items()])  # fmt: skip
    (found,), (middle,) = cells(table, "normalized"), cells(table, "iqm_normalized")
    assert found["mean"] == pytest.approx(scores.mean())
    assert scores.mean(axis=1).min() < found["low"] < found["mean"] < found["high"]
    assert middle["mean"] == pytest.approx(np.sort(scores.ravel())[1:5].mean())  # floor(6 / 4) = 1 dropped at each end
    assert (cells(table, "tasks"), cells(table, "seeds")) == ([2], [6])
    assert cells(table, "interval_over") == ["seeds and tasks"]
    assert "return" not in {column.name for column in table.columns}
    assert any(hint.startswith("return of several tasks have no scale") for hint in table.hints)


def test_tasks_with_other_numbers_of_seeds_have_a_mean_and_no_interval(
    make_run: MakeRun, tmp_path: pathlib.Path
) -> None:
    normalised(make_run, "a", [-300.0, -200.0], "native/pendulum")
    normalised(make_run, "b", [100.0], "native/cartpole-swingup")
    table = long_table(collect([tmp_path]), ("algorithm",))
    (found,) = cells(table, "normalized")
    assert (found["low"], found["high"]) == (None, None)
    assert any("1 to 2 seeds, so there is no interval" in hint for hint in table.hints)


# -- pivots --------------------------------------------------------------------------------------------------


def bounded(make_run: MakeRun, algorithm: str, mean: float, low: float, high: float, **changes: Any) -> None:
    bounds = {"mean": mean, "low": low, "high": high, "method": "Student t over 3 seeds"}
    made(make_run, algorithm, algorithm=algorithm, per_seed_returns=[mean] * 3, returns=bounds, **changes)


def bold(table: Tabular) -> list[str]:
    return [table.columns[i].text for row in table.rows for i, one in enumerate(row)
            if isinstance(one, Estimate) and one.bold]  # fmt: skip


def test_the_best_and_what_reaches_it_are_in_bold(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    bounded(make_run, "best", 10.0, 9.0, 11.0)
    bounded(make_run, "near", 8.0, 5.0, 10.0)  # its interval reaches 10
    bounded(make_run, "far", 9.0, 8.5, 9.5)
    table = pivot_table(collect([tmp_path]), ("task", "algorithm"), ("algorithm",), METRICS["return"])
    assert [column.text for column in table.columns] == ["task", "best", "far", "near"]
    assert bold(table) == ["best", "near"]
    assert table.notes[0].startswith("Bold: the highest mean of a row, and each whose 95 % interval reaches up to it.")


def test_of_costs_the_lowest_is_best(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    for name, mean, low in (("best", 1.0, 0.5), ("near", 3.0, 1.0), ("far", 3.0, 2.0)):
        cost = {"mean": mean, "low": low, "high": 2 * mean - low}
        made(make_run, name, algorithm=name, cost=cost, per_seed_costs=[mean] * 3)
    table = pivot_table(collect([tmp_path]), ("task", "algorithm"), ("algorithm",), METRICS["cost"])
    assert bold(table) == ["best", "near"]


def test_a_return_above_its_cost_limit_is_marked_and_never_best(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    def safety(mean: float) -> dict[str, Any]:
        known = {"episodes": 12, "percentile_95": 9.0, "largest": 9.0, "violated": 0.5, "per_step": None}
        return {**known, "mean": mean, "per_episode": None, "limit": 5.0, "normalized": mean / 5, "over_limit": 0.1}

    for name, mean, cost in (("reckless", 90.0, 7.0), ("careful", 50.0, 2.0)):
        bounded(make_run, name, mean, mean - 1, mean + 1, safety=safety(cost), per_seed_costs=[cost] * 3,
                cost={"mean": cost, "low": cost - 1, "high": cost + 1})  # fmt: skip
    found = collect([tmp_path])
    table = pivot_table(found, ("task", "algorithm"), ("algorithm",), METRICS["return"])
    assert bold(table) == ["careful"]
    assert [one.marks for one in table.rows[0] if isinstance(one, Estimate)] == ["", "§"]
    assert "§ Its mean cost is above its limit." in table.notes
    assert cells(long_table(found, ("algorithm",)), "cost_limit") == ["5", "5"]


def test_a_cell_that_was_never_trained_is_empty(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    sweep(make_run)
    for folder in tmp_path.glob("bc-a-*"):
        shutil.rmtree(folder)
    table = pivot_table(collect([tmp_path]), ("task", "algorithm"), ("algorithm",), METRICS["return"])
    assert [[one if isinstance(one, str | None) else one.mean for one in row] for row in table.rows] == [  # type: ignore[union-attr]
        ["b", 101.0, 20.0],
        ["a", None, 2.0],
    ]


@pytest.mark.parametrize(
    ("keys", "across", "metric", "said"),
    [
        (("algorithm",), ("algorithm",), "return", "others down"),
        (("algorithm", "task"), ("preset",), "return", "others down"),
        (("algorithm", "task"), ("task",), "success", "no group of these runs has it; they have return"),
        (("expectile", "task"), ("task",), "return", "did you mean 'algo.expectile'"),
    ],
)
def test_a_pivot_that_can_not_be_made_is_refused(
    keys: tuple[str, ...], across: tuple[str, ...], metric: str, said: str, make_run: MakeRun, tmp_path: pathlib.Path
) -> None:
    made(make_run, "r", {"expectile": 0.7})
    with pytest.raises(ConfigError, match=said):
        pivot_table(collect([tmp_path]), keys, across, METRICS[metric])


def test_keys_are_read_with_their_short_names() -> None:
    assert parse_keys(" algo, env,algo.expectile") == ("algorithm", "environment", "algo.expectile")
    for text, said in (("a,,b", "a key is empty"), ("algo,algorithm", "algorithm is given twice")):
        with pytest.raises(ConfigError, match=said):
            parse_keys(text)


# -- figures -------------------------------------------------------------------------------------------------


def figure(found: Results, metric: str = "return", kind: str | None = None, width: float = 3.25) -> Any:
    return figure_of(found, ("task", "algorithm"), METRICS[metric], kind, width)


def test_a_figure_has_a_panel_a_task_and_one_colour_an_algorithm(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    sweep(make_run)
    drawn, caption = figure(collect([tmp_path]))
    assert [axes.get_title("left") for axes in drawn.axes] == ["a", "b"]
    colours = [{line.get_label(): line.get_color() for line in axes.lines} for axes in drawn.axes]
    assert colours[0]["iql"] == colours[1]["iql"] != colours[0]["bc"]
    (line,) = [line for line in drawn.axes[0].lines if line.get_label() == "iql"]
    assert line.get_xdata().tolist() == [0, 5000]
    assert line.get_ydata().tolist() == [-999.0, -499.0]  # -1000 + step / 10 + seed over the seeds 0, 1, 2
    assert drawn.get_figwidth() == 3.25
    assert caption.startswith("Mean return of evaluations during training; bands: 95 % intervals over 3 seeds")


def test_scores_are_drawn_where_no_evaluation_was_logged(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    for seed in range(3):
        folder = one_seed(make_run, f"r{seed}", seed, 1.0 + seed)
        (folder / "metrics.jsonl").write_text("")
    drawn, caption = figure(collect([tmp_path]))
    bar, dot = drawn.axes[0].lines
    assert dot.get_xdata().tolist() == [2.0]
    assert bar.get_xdata().tolist() == pytest.approx([2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5], rel=1e-4)
    assert "of the last policies; bars: 95 % intervals over 3 seeds" in caption
    with pytest.raises(ConfigError, match="use --figure scores"):
        figure(collect([tmp_path]), kind="curves")
    with pytest.raises(ConfigError, match="no run has success of its last policies; they have return"):
        figure(collect([tmp_path]), "success")


def test_an_evaluation_that_is_not_finite_is_a_gap_in_the_curve(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    folder = made(make_run, "r", per_seed_returns=[1.0, 2.0, 3.0])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[0]["values"] = {"return_mean": float("nan"), "returns": [float("nan")] * 4}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn, _ = figure(collect([tmp_path]))
    (line,) = [line for line in drawn.axes[0].lines if line.get_label() == "iql"]
    assert np.isnan(line.get_ydata()).tolist() == [True, False]
    assert all(np.isfinite(drawn.axes[0].get_ylim()))


def test_runs_without_a_simulator_have_a_table_without_scores(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    folder = made(make_run, "r", environment=None, episodes=0, per_seed_returns=[])
    (folder / "metrics.jsonl").write_text("")
    found = collect([tmp_path])
    table = long_table(found, ("algorithm", "task"))
    assert [column.name for column in table.columns] == ["algorithm", "task", "runs", "seeds"]
    with pytest.raises(ConfigError, match="they were trained without a simulator"):
        pivot_table(found, ("task", "algorithm"), ("algorithm",), METRICS["return"])
    with pytest.raises(ConfigError, match="they have no scores"):
        figure(found)
