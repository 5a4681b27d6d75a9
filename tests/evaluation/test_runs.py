from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Callable

import pytest

from surefoot.core.base import schema
from surefoot.core.base.errors import CheckpointError
from surefoot.evaluation import RunData, load_runs
from surefoot.evaluation.curves import grouped, side_by_side

MakeRun = Callable[..., pathlib.Path]


def test_a_run_folder_is_read_back(make_run: MakeRun) -> None:
    run = RunData.load(make_run("first"))
    assert (run.name, run.algorithm, run.environment, run.seeds) == ("first", "iql", "Pendulum-v1", (0, 1, 2))
    assert run.per_seed_returns == (-150.0, -160.0, -170.0)
    assert run.returns is not None
    assert run.returns["mean"] == -160.0
    assert run.config == {"algo": {"expectile": 0.7}}
    assert len(run.metrics) == 7


def test_the_learning_curve_averages_the_seeds_and_has_their_interval(make_run: MakeRun) -> None:
    first, last = RunData.load(make_run()).learning_curve()
    assert (first.step, last.step) == (0, 5000)
    assert (first.mean, last.mean) == pytest.approx((-999.0, -499.0))
    # seed means differ by 1: t(2, .975) / sqrt(3) = 2.4841
    assert last.high - last.mean == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)


def test_steps_that_only_some_seeds_have_reached_are_left_out(make_run: MakeRun) -> None:
    folder = make_run()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"seed": 0, "step": 9000, "kind": "eval", "values": {"return_mean": 1.0}}) + "\n")
    assert [point.step for point in RunData.load(folder).learning_curve()] == [0, 5000]


def test_a_line_written_again_after_a_resume_counts_once(make_run: MakeRun) -> None:
    folder = make_run()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"seed": 0, "step": 100, "kind": "train", "values": {"value_loss": 7.0}}) + "\n")
    lines = [line for line in RunData.load(folder).metrics if line["kind"] == "train"]
    assert [line["values"]["value_loss"] for line in lines] == [7.0]


@pytest.mark.parametrize("value", ["1" + "0" * 400, "NaN", "-Infinity", "null", '"much"'])
def test_metrics_that_no_float_holds_are_no_points_of_a_curve(make_run: MakeRun, value: str) -> None:
    folder = make_run()
    line = json.dumps({"seed": 0, "step": 100, "kind": "train", "values": {"odd": 7, "value_loss": 2.0}})
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(line.replace("7", value) + "\n")
    found = RunData.load(folder).training_curves()
    assert "odd" not in found
    assert (100, 2.0) in found["value_loss"]


def test_a_run_without_simulator_has_no_returns_and_no_curve(make_run: MakeRun) -> None:
    folder = make_run(environment=None, per_seed_returns=None, returns=None, episodes=None)
    (folder / "metrics.jsonl").write_text("")
    run = RunData.load(folder)
    assert run.environment is None
    assert run.returns is None
    assert run.learning_curve() == []


def test_folders_that_are_not_finished_runs_are_refused_by_name(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    whole = make_run("whole")
    with pytest.raises(CheckpointError, match=r"absent is not a run folder"):
        load_runs([whole, tmp_path / "absent"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"empty has no summary.json"):
        load_runs([whole, tmp_path / "empty"])


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("summary.json", '{"algorithm": "iql", "data', "summary.json"),
        ("summary.json", "[1, 2]", "must be an object"),
        ("summary.json", "{}", "no key 'algorithm'"),
        ("config.json", None, "config.json"),
        ("metrics.jsonl", None, "metrics.jsonl is missing"),
        ("metrics.jsonl", '{"seed": 0, "step": 1, "kind": "train", "values": {}}\n{"seed": 0, "st', "line 2"),
        ("metrics.jsonl", '{"seed": 0}\n', "line 1"),
        ("metrics.jsonl", "\x00\x01", "line 1"),
    ],
)
def test_half_written_files_are_refused(make_run: MakeRun, file: str, content: str | None, words: str) -> None:
    folder = make_run()
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(CheckpointError, match=words):
        RunData.load(folder)


def test_metrics_that_would_fill_the_memory_are_refused_as_a_whole(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run()
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines('{"seed": 0, "step": 1, "kind": "train", "values": {}}\n' for _ in range(1000))
    RunData.load(folder)
    monkeypatch.setattr(schema, "MOST_MEMORY", 100_000)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: the values of its JSON would take"):
        RunData.load(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": "many"}, "steps is 'many', must be a whole number"),
        ({"seeds": 3}, "seeds is 3, must be a list"),
        ({"seeds": [0, None]}, r"seeds\[1\] is None, must be a whole number"),
        ({"returns": 1.0}, "returns is 1.0, must be an object"),
        ({"returns": {"mean": "x", "low": 0, "high": 0}}, r"returns\.mean is 'x', must be a finite number"),
        (
            {"returns": {"mean": 0, "low": 0, "high": 0, "method": [float("inf")]}},
            r"returns\.method\[0\] is inf, must be a finite number",
        ),
        ({"versions": 1}, "versions is 1, must be an object"),
        ({"versions": {"torch": 2}}, r"versions\.torch is 2, must be a text"),
        ({"algorithm": "i\x1b]0;ql"}, r"algorithm is 'i\\x1b\]0;ql', must be a text without control characters"),
        (
            {"behaviour": {"mean": 1, "low": 0, "high": 2, "normalized": [1]}},
            r"behaviour\.normalized is \[1\], must be",
        ),
        ({"behaviour": {"mean": 1, "low": 0, "high": 2, "episodes": "all"}}, r"behaviour\.episodes is 'all', must be"),
        ({"smoothness": {"action_change": None}}, "smoothness has no key 'jacobian'"),
        ({"safety": {"mean": 1.0}}, "safety has no key 'episodes'"),
        ({"updates_per_second": -1}, "updates_per_second is -1, must be"),
    ],
)
def test_values_of_the_wrong_kind_are_refused(make_run: MakeRun, changes: dict[str, object], words: str) -> None:
    with pytest.raises(CheckpointError, match=rf"summary\.json: {words}"):
        RunData.load(make_run(**changes))


def test_evaluations_of_seeds_that_count_steps_of_their_own_stand_beside_each_other(make_run: MakeRun) -> None:
    folder = make_run(seeds=[0, 1], per_seed_returns=[1.0, 2.0])
    steps = {0: (610, 1026, 1632, 2034), 1: (606, 1014, 1614, 2010)}
    lines = [
        {"seed": seed, "step": step, "kind": "eval", "values": {"return_mean": 10.0 * k + seed}}
        for seed, own in steps.items()
        for k, step in enumerate(own)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    points = RunData.load(folder).learning_curve()
    assert [(point.step, point.mean) for point in points] == [(608, 0.5), (1020, 10.5), (1623, 20.5), (2022, 30.5)]


def test_what_is_too_far_apart_does_not_stand_beside_each_other() -> None:
    assert side_by_side({0: {100: "a", 200: "b"}, 1: {160: "c", 195: "d"}}) == [(198, ["b", "d"])]
    assert side_by_side({0: {100: "a", 200: "b"}, 1: {100: "c", 210: "d"}}) == [(100, ["a", "c"])]  # shared ones alone
    assert side_by_side({0: {100: "a"}, 1: {900: "b"}}) == side_by_side({}) == []


def test_metrics_are_means_of_the_seeds_that_have_them_or_of_what_stands_side_by_side() -> None:
    assert grouped({0: {100: 1, 200: 2}, 1: {100: 3}}) == [(100, [1, 3]), (200, [2])]
    assert grouped({0: {100: 1, 200: 2}, 1: {104: 3, 206: 4}}) == [(102, [1, 3]), (203, [2, 4])]
    assert grouped({}) == []


def test_scores_and_costs_of_different_numbers_of_seeds_are_refused(make_run: MakeRun) -> None:
    folder = make_run(seeds=[0, 1], per_seed_returns=[1.0, 2.0], per_seed_costs=[0.0])
    with pytest.raises(CheckpointError, match=r"summary\.json: holds .*'per_seed_costs': 1.*must be one a seed"):
        RunData.load(folder)
