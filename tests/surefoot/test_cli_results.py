"""`surefoot evaluate | report | export | algorithms` and the progress lines."""

from __future__ import annotations

import csv
import json
import pathlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from rich.console import Console

import surefoot
from surefoot.cli import main
from surefoot.cli.support.progress import Watcher, duration
from surefoot.core.base.spec import Array, Spec
from surefoot.core.policy.policy import Policy
from surefoot.runs.algorithms import ALGORITHMS

Capture = pytest.CaptureFixture[str]


def test_evaluate_gives_a_row_with_an_interval_and_every_episode(finished_run: pathlib.Path, capsys: Capture) -> None:
    assert main(["evaluate", str(finished_run), "--episodes", "3", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (row,) = shown["rows"]
    assert (row["algorithm"], row["seeds"], row["episodes"]) == ("bc", 2, 3)
    returns = [shown["episodes"][seed]["returns"] for seed in ("0", "5")]
    assert row["returns"]["mean"] == pytest.approx(np.mean(returns))
    assert row["returns"]["low"] < row["returns"]["mean"] < row["returns"]["high"]


def test_evaluate_at_several_frequencies(finished_run: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture) -> None:
    asked = ["evaluate", str(finished_run), "--decision-steps", "1,4", "--episodes", "2"]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["decision_steps"] for one in found["frequencies"]] == [1, 4]
    returns = [one["return"]["mean"] for one in found["frequencies"]]
    assert found["average"]["mean"] == pytest.approx(sum(returns) / 2)
    assert main([*asked, "--curve", str(tmp_path / "curve.svg")]) == 0
    assert "mean return over 1 to 4 steps per decision" in capsys.readouterr().out
    assert (tmp_path / "curve.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (["--decision-steps", "2,1"], "that increase"),
        (["--decision-steps", "1,two"], "whole numbers"),
        (["--decision-steps", "1,2", "--until", "0.1"], "--until does not go with"),
        (["--decision-steps", "1,2", "--curve", "a.gif"], "no kind of figure"),
        (["--curve", "a.svg"], "--curve is of --decision-steps"),
        (["--vary", "mass=1:2", "--decision-steps", "1,2"], "--decision-steps does not go with --vary"),
    ],
)
def test_evaluate_refuses_what_makes_no_sense_at_frequencies(
    finished_run: pathlib.Path, more: list[str], what: str, capsys: Capture
) -> None:
    assert main(["evaluate", str(finished_run), *more]) == 2
    assert what in capsys.readouterr().err


def test_evaluate_prints_the_mean_of_each_seed(finished_run: pathlib.Path, capsys: Capture) -> None:
    assert main(["evaluate", str(finished_run), "--episodes", "2"]) == 0
    text = capsys.readouterr().out
    assert "return [95 %]" in text
    assert "seed 5: mean return" in text


def test_evaluate_takes_a_policy_file_as_it_takes_the_run(
    finished_run: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    file = tmp_path / "alone.safetensors"
    assert main(["export", str(finished_run), "-o", str(file), "--policy-seed", "5"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(finished_run), "--episodes", "3", "--json"]) == 0
    of_run = json.loads(capsys.readouterr().out)
    arguments = ["evaluate", str(file), "--env", of_run["rows"][0]["environment"], "--episodes", "3"]
    assert main([*arguments, "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["episodes"]["0"] == of_run["episodes"]["5"]
    assert (alone["rows"][0]["algorithm"], alone["rows"][0]["steps"]) == ("alone.safetensors", None)
    assert main(arguments) == 0
    assert "alone.safetensors: mean return" in capsys.readouterr().out
    assert main(["evaluate", str(file)]) == 2
    assert "say where it acts with --env" in capsys.readouterr().err


def stepped(policy: Policy) -> Callable[[np.ndarray], np.ndarray]:
    """A policy as a function, which no native loop knows."""
    return lambda observations: policy.act(torch.from_numpy(observations), policy.begin(len(observations)))[0].numpy()


def test_evaluate_varies_the_constants_and_names_the_worst_variant(finished_run: pathlib.Path, capsys: Capture) -> None:
    from surefoot.envs.episodes import episode_seeds, run_episodes
    from surefoot.runs.run import Run

    arguments = ["evaluate", str(finished_run), "--vary", "mass=0.5:2,gravity=8:30", "--variants", "3"]
    assert main([*arguments, "--episodes", "2", "--share", "0.5", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    seeds, scores = episode_seeds(2, 0, 2), np.zeros((2, 3))
    for s, policy in enumerate(Run.open(finished_run).policies().values()):
        for m, (mass, gravity) in enumerate(zip(*(shown["variants"][n] for n in ("mass", "gravity")), strict=True)):
            rows = {"mass": np.full(2, mass), "gravity": np.full(2, gravity)}
            by_steps = run_episodes(stepped(policy), "native/pendulum", seeds, parameters=rows)
            scores[s, m] = by_steps.returns.mean()
    assert np.array(shown["scores"]) == pytest.approx(scores, rel=1e-3)
    assert shown["worst_variant"] == scores.mean(axis=0).argmin()
    assert shown["worst"]["mean"] == pytest.approx(scores.min(axis=1).mean(), rel=1e-3)
    ordered = np.sort(scores, axis=1)
    assert shown["cvar"]["mean"] == pytest.approx(((ordered[:, 0] + ordered[:, 1] / 2) / 1.5).mean(), rel=1e-3)
    assert main(["evaluate", str(finished_run), "--vary", "mass=2:1"]) == 2
    assert "within [0.01, 100]" in capsys.readouterr().err
    assert main([*arguments, "--cost-limit", "5"]) == 2
    assert "--cost-limit does not go with --vary" in capsys.readouterr().err
    assert main(["evaluate", str(finished_run), "--variants", "3"]) == 2
    assert "is of --vary" in capsys.readouterr().err


def test_evaluate_until_stops_once_the_mean_is_known(
    finished_run: pathlib.Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surefoot.evaluation.until.FIRST_BATCH", 4)
    arguments = ["evaluate", str(finished_run), "--until", "60", "--range=-2000,0", "--env", "Pendulum-v1"]
    assert main([*arguments, "--episodes", "6", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    count = shown["rows"][0]["episodes"]
    assert count == 6  # two batches, and not enough
    returns = np.array([shown["episodes"][seed]["returns"] for seed in ("0", "5")])
    assert returns.shape == (2, count)
    assert shown["until"]["mean"] == pytest.approx(returns.clip(-2000, 0).mean())
    assert shown["until"]["reached"] is False
    row = shown["rows"][0]
    assert row["returns"]["mean"] == pytest.approx(returns.mean())
    assert (row["returns"]["low"], row["returns"]["high"], row["smoothness"]["action_change"]["high"]) == (None,) * 3
    assert main([*arguments, "--episodes", "6"]) == 0
    assert "not known to +-60 yet (--until) after the 6 episodes" in capsys.readouterr().out
    assert main([*arguments[:3], "1e4", *arguments[4:], "--episodes", "6"]) == 0
    assert "yet (--until)" not in capsys.readouterr().out
    assert main(["evaluate", str(finished_run), "--episodes", str(count), "--env", "Pendulum-v1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"]["5"]["returns"] == returns[1].tolist()  # as in one go


@pytest.mark.parametrize("ending", [".pt2", ".safetensors"])
def test_an_exported_policy_acts_as_the_runs_policy(
    finished_run: pathlib.Path, tmp_path: pathlib.Path, ending: str
) -> None:
    path = tmp_path / f"policy{ending}"
    assert main(["export", str(finished_run), "-o", str(path), "--policy-seed", "5"]) == 0
    observations = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    wanted = surefoot.load_policy(finished_run, 5)(observations)
    if ending == ".pt2":
        found = torch.export.load(path).module()(observations)
    else:
        found = surefoot.load_policy(path)(observations)
    torch.testing.assert_close(found, wanted)
    assert not torch.allclose(wanted, surefoot.load_policy(finished_run, 0)(observations))


def test_export_tells_the_inputs_of_a_policy_that_sees(tmp_path: pathlib.Path, capsys: Capture) -> None:
    arrays = {"camera": Array((3, 40, 40), "uint8"), "velocity": Array((2,))}
    agent = surefoot.offline.BC(Spec(arrays, 1, (-1.0,), (1.0,)), encoder="small", hidden=(8,))
    agent.policy().save(tmp_path / "policy.safetensors")
    assert main(["export", str(tmp_path / "policy.safetensors"), "-o", str(tmp_path / "policy.pt2")]) == 0
    told = "camera (batch, 3, 40, 40), uint8, velocity (batch, 2) -> actions (batch, 1), float32"
    assert told in capsys.readouterr().out


def test_the_report_is_one_html_file_and_its_table_is_printed(
    finished_run: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    page = tmp_path / "report.html"
    assert main(["report", str(finished_run), "-o", str(page), "--json"]) == 0
    assert [row["algorithm"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["behaviour", "bc"]
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_report_of_everything_leaves_out_what_is_not_finished_and_says_so(
    finished_run: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    (tmp_path / "runs" / "sweep").mkdir(parents=True)
    (tmp_path / "runs" / "sweep" / "00-bc").symlink_to(finished_run)
    begun = tmp_path / "runs" / "started"
    begun.mkdir()
    (begun / "config.json").write_bytes((finished_run / "config.json").read_bytes())
    (tmp_path / "runs" / "notes.txt").write_text("mine")
    page, table = tmp_path / "report.html", tmp_path / "table.csv"
    given = sorted(map(str, (tmp_path / "runs").iterdir()))
    assert main(["report", *given, "-o", str(page), "--csv", str(table)]) == 0
    said = capsys.readouterr().err
    assert "started is not finished: surefoot watch" in said
    assert "notes.txt is a file" in said
    (header, behaviour, run) = list(csv.reader(table.open()))
    row = dict(zip(header, run, strict=True))
    summary = json.loads((finished_run / "summary.json").read_text())
    assert float(row["returns_low"]) == summary["returns"]["low"]
    assert (row["label"], row["options"]) == ("bc (hidden=[8,8])", '{"hidden": [8, 8]}')
    assert dict(zip(header, behaviour, strict=True))["seeds"] == ""
    assert main(["report", str(begun), "-o", str(page)]) == 2


def test_algorithms_and_their_options_are_listed(capsys: Capture) -> None:
    assert main(["algorithms", "--json"]) == 0
    assert {row["name"] for row in json.loads(capsys.readouterr().out)} == {*ALGORITHMS, "auto"}
    assert {"bc", "iql", "riql", "td3bc", "cql", "ppo", "sac", "wsrl", "h2o"} <= set(ALGORITHMS)
    assert main(["algorithms", "riql"]) == 0
    text = capsys.readouterr().out
    assert "algo.quantile" in text
    assert "algo.preset=shared: the defaults" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "unknown command 'trian': did you mean 'train'"),
        (["evaluate"], "the following arguments are required: RUN"),
        (["evaluate", "nowhere"], "nowhere: not a run folder"),
        (["evaluate", "RUN", "--episodes", "0"], "episodes is 0"),
        (["evaluate", "RUN", "--until", "0.1", "--episodes", "5"], "nothing of success"),
        (["evaluate", "RUN", "--until", "0"], "must be above 0"),
        (["evaluate", "RUN", "--range", "0,1"], "--range is of --until"),
        (["evaluate", "RUN", "--until", "1", "--range", "2,1"], "must be above the first"),
        (["evaluate", "RUN", "--vary", "mass=1:2", "--cost-limit", "5"], "--cost-limit does not go with --vary"),
        (["evaluate", "RUN", "--vary", "mass=1:2", "--seed", "-1"], "seed of the episodes is -1; it must be 0 or more"),
        (["watch", "RUN", "--seed", "-1", "-o", "episodes.html"], "seed of the episodes is -1; it must be 0 or more"),
        (["watch", "RUN", "--curves", "--policy-seed", "5"], "--policy-seed is of the episodes of one complete run"),
        (["evaluate", "RUN", "--env", "Pendulm-v1"], "unknown environment"),
        (["evaluate", "RUN", "--env", "MountainCarContinuous-v0"], "don't fit"),
        (["export", "RUN", "-o", "policy.bin"], "exported to .onnx, .pt2, .hpp (C++) or .safetensors"),
        (["export", "RUN", "-o", "policy.pt2", "--policy-seed", "3"], "has no seed 3; it has [0, 5]"),
        (["export", "RUN", "-o", "policy.pt2", "--sampling"], "deterministic"),
        (["report", "nowhere"], "nowhere is not a run folder"),
        (["algorithms", "iq"], "did you mean 'iql'"),
    ],
)
def test_bad_commands_end_with_code_2_and_one_sentence(
    arguments: list[str],
    message: str,
    finished_run: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([str(finished_run) if argument == "RUN" else argument for argument in arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("surefoot: error: ")
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_printed(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"surefoot {surefoot.__version__}"


def events() -> list[dict[str, object]]:
    plan = {"algorithm": "iql", "dataset": "d", "environment": None, "seeds": [0], "steps": 100}
    progress = {"kind": "progress", "seed": 0, "steps": 100, "rate": 50.0}
    return [
        {"kind": "start", "plan": plan, "device": "cpu"},
        {"kind": "ready", "seeds": [0], "step": 0},
        {"kind": "note", "text": "3 rows [odd]"},
        {**progress, "step": 10},
        {**progress, "step": 20},
        {"kind": "eval", "seed": 0, "step": 50, "return_mean": -12.5},
        {"kind": "done", "seed": 0},
        {"kind": "something new"},
    ]


def test_progress_is_lines_where_there_is_no_terminal(tmp_path: pathlib.Path) -> None:
    with open(tmp_path / "log", "w", encoding="utf-8") as file, Watcher(Console(file=file, width=200)) as watch:
        for event in events():
            watch(event)
    text = (tmp_path / "log").read_text(encoding="utf-8")
    assert "note: 3 rows [odd]" in text
    assert "seed 0: begins\n" in text
    assert "seed 0: step 10 of 100\n" in text  # the first rate is that of a start
    assert "step 20 of 100" not in text  # so soon after the line before
    assert "seed 0: step 50, return -12.5" in text
    assert "\x1b" not in text


def test_evaluations_show_the_cost_beside_the_return_and_its_limit(tmp_path: pathlib.Path) -> None:
    plan = {"algorithm": "ppo_lag", "dataset": None, "environment": "e", "seeds": [0], "steps": 100}
    scored = {"kind": "eval", "seed": 0, "step": 50, "return_mean": -12.5, "cost_mean": 1030.25, "success_mean": 0.5}
    for bars, config, wanted in (
        (False, {"cost_limit": 25.0}, "step 50, return -12.5, cost 1,030.2 (limit 25), success 50 %"),
        (False, {"cost_limit": None}, "step 50, return -12.5, cost 1,030.2, success 50 %"),
        (True, {"cost_limit": 25.0}, "return -12.5, cost 1,030.2 (limit 25), success 50 %"),
    ):
        with (
            open(tmp_path / "log", "w", encoding="utf-8") as file,
            Watcher(Console(file=file, width=200, force_terminal=bars), bars=bars) as watch,
        ):
            for event in ({"kind": "start", "plan": {**plan, "config": config}, "device": "cpu"}, scored):
                watch(event)
        assert wanted in (tmp_path / "log").read_text(encoding="utf-8")


def test_time_left_is_told_by_the_steps_that_follow_the_first_and_the_warm_up(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def at(seconds: float, step: int, rate: float, warming_up: bool = False) -> dict[str, object]:
        clock[0] = 100.0 + seconds
        return {"kind": "progress", "seed": 0, "step": step, "steps": 100, "rate": rate, "warming_up": warming_up}

    with open(tmp_path / "log", "w", encoding="utf-8") as file, Watcher(Console(file=file, width=200)) as watch:
        watch(at(0, 10, 9000.0, True))
        watch(at(20, 20, 0.5))  # the first steps after it take long, and say nothing of the others
        watch(at(24, 40, 5.0))
        watch(at(34, 90, 5.0))
        watch(at(50, 95, 0.0))
        watch(at(62, 96, 0.2512))
    text = (tmp_path / "log").read_text(encoding="utf-8")
    assert "seed 0: step 10 of 100, 9,000 steps/s, warming up\n" in text
    assert "seed 0: step 20 of 100\n" in text
    assert "seed 0: step 40 of 100, 5 steps/s, 0:12 left\n" in text
    assert "seed 0: step 90 of 100, 5 steps/s, 0:02 left\n" in text
    assert "seed 0: step 95 of 100, 0:0" in text  # none is counted yet, which is no rate of 0
    assert "seed 0: step 96 of 100, 0.25 steps/s, " in text


def test_progress_is_a_bar_with_rate_eta_and_return_on_a_terminal(tmp_path: pathlib.Path) -> None:
    with open(tmp_path / "log", "w", encoding="utf-8") as file:
        watch = Watcher(Console(file=file, width=140, force_terminal=True))
        with watch:
            for event in events():
                watch(event)
    text = (tmp_path / "log").read_text(encoding="utf-8")
    assert all(piece in text for piece in ("seed 0", "20/100", "50 steps/s", "return -12.5"))


def test_a_quiet_watcher_shows_nothing(tmp_path: pathlib.Path) -> None:
    with open(tmp_path / "log", "w", encoding="utf-8") as file, Watcher(Console(file=file), quiet=True) as watch:
        for event in events():
            watch(event)
    assert (tmp_path / "log").read_text(encoding="utf-8") == ""


def test_durations_read_as_clocks() -> None:
    assert (duration(0.4), duration(62.4), duration(3723)) == ("0:00", "1:02", "1:02:03")


def test_tensorboard_gets_the_numbers_of_each_seed(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from surefoot.runs.loggers import make_logger

    listener = make_logger("tensorboard", tmp_path)
    for event in events():
        listener(event)
    stored = EventAccumulator(str(tmp_path / "tensorboard" / "seed0")).Reload()
    assert [(point.step, point.value) for point in stored.Scalars("eval/return_mean")] == [(50, -12.5)]
    assert [point.step for point in stored.Scalars("progress/rate")] == [10, 20]
    line = {"seed": 0, "step": 20, "kind": "train", "values": {"value_loss": 0.25}}  # after a checkpoint at step 10
    again = make_logger("tensorboard", tmp_path, resumed=True)
    again({"kind": "metrics", "seed": 0, "step": 20, "line": line})
    again({"kind": "done", "seed": 0})
    stored = EventAccumulator(str(tmp_path / "tensorboard" / "seed0")).Reload()
    assert [(point.step, point.value) for point in stored.Scalars("train/value_loss")] == [(20, 0.25)]
    assert [point.step for point in stored.Scalars("progress/rate")] == [10]


def test_a_logger_that_is_not_installed_is_told_before_training(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from surefoot.core.base.errors import MissingExtraError
    from surefoot.runs.loggers import make_logger

    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"logger=wandb needs the package 'wandb'.*surefoot\[wandb\]"):
        make_logger("wandb", tmp_path)
