"""`surefoot results --group-by`: tables and figures of a sweep, as files and on the terminal."""

from __future__ import annotations

import csv
import io
import json
import pathlib
import re
import shlex
import shutil
import sys

import numpy as np
import pytest

from surefoot.cli import main
from surefoot.cli import results as command
from surefoot.core.base.files import write_json
from surefoot.evaluation import Episodes, hierarchical_interval
from surefoot.evaluation.group_figures import KINDS
from surefoot.evaluation.group_tables import METRICS
from surefoot.evaluation.tabular import FORMATS
from surefoot.runs.plan import Plan

Capture = pytest.CaptureFixture[str]
ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = ("iql", "td3bc", "bc")
TASKS = ("native/pendulum-mixed", "native/quadrotor-2d-mixed")


def episodes(algorithm: str, task: str, seed: int) -> np.ndarray:
    """Returns of the last policy's episodes."""
    generator = np.random.default_rng((NAMES.index(algorithm), TASKS.index(task), seed))
    return generator.normal(10 * NAMES.index(algorithm) + 100 * TASKS.index(task), 1.0, 5)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A sweep of 12 runs: three algorithms, two datasets, two seeds, a run each."""
    made = tmp_path_factory.mktemp("paper") / "sweep"
    every = [(name, task, seed) for name in NAMES for task in TASKS for seed in (0, 1)]
    for number, (name, task, seed) in enumerate(every):
        folder = made / f"{number:02}-{name}"
        (folder / f"seeds/{seed}").mkdir(parents=True)
        environment = task.removesuffix("-mixed")
        options = {"hidden": [8]}
        plan = Plan(algorithm=name, config=options, dataset=task, environment=environment, steps=100, seeds=(seed,))
        write_json(folder / "config.json", {"format": 1, "plan": plan.to_json(), "spec": {}, "dataset": None})
        returns = episodes(name, task, seed)
        interval = hierarchical_interval([returns]).to_json()
        write_json(folder / "summary.json", {
            "format": 1, "algorithm": name, "dataset": task, "environment": environment, "steps": 100, "seeds": [seed],
            "episodes": 5, "per_seed_returns": [float(returns.mean())], "returns": interval, "normalized": None,
            "behaviour": None, "cost": None, "updates_per_second": 1.0 + number, "versions": {}, "date": "",
        })  # fmt: skip
        found = Episodes(returns, np.ones(5, np.int64))
        write_json(folder / f"seeds/{seed}/result.json", {"evaluation": found.to_json()})
        values = {step: {"return_mean": float(step), "returns": [step - 1.0, step + 1.0]} for step in (50, 100)}
        lines = [{"seed": seed, "step": step, "kind": "eval", "values": one} for step, one in values.items()]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made


@pytest.fixture
def paper(swept: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder to write into, in which the sweep is `sweep`."""
    (tmp_path / "sweep").symlink_to(swept)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_sweep_ends_as_a_latex_table_and_a_pdf_figure_by_two_commands(paper: pathlib.Path, capsys: Capture) -> None:
    assert main(["results", "sweep/", "--group-by", "task,algorithm", "--pivot", "-o", "table.tex"]) == 0
    assert main(["results", "sweep/", "--group-by", "task,algorithm", "-o", "figure.pdf"]) == 0
    table = (paper / "table.tex").read_text(encoding="utf-8")
    assert r"task & iql & td3bc & bc \\" in table
    assert table.count(r"\mathbf") >= 2  # the best of each of the two rows
    mean = np.mean([episodes("bc", TASKS[0], seed).mean() for seed in (0, 1)])
    assert rf"$\mathbf{{{mean:.1f}}}$" in table
    assert (paper / "figure.pdf").read_bytes().startswith(b"%PDF")
    shown = capsys.readouterr().out
    assert "caption: Mean return of evaluations during training; bands: 95 % intervals over 2 seeds" in shown
    assert "table: table.tex" in shown


def shown_commands() -> list[str]:
    text = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    return re.findall(r"^surefoot (results sweep/ [^#\n]*)", text, re.MULTILINE)


@pytest.mark.parametrize("line", shown_commands())
def test_the_commands_of_the_page_do_what_it_says(line: str, paper: pathlib.Path, capsys: Capture) -> None:
    arguments = shlex.split(line)
    if "cost" in arguments:
        assert main(arguments) == 2  # this sweep has no costs
        assert "they have return" in capsys.readouterr().err
        return
    if "algorithm,algo.expectile,task" in arguments:
        arguments[arguments.index("algorithm,algo.expectile,task")] = "algorithm,algo.hidden,task"
    assert main(arguments) == 0
    if "-o" in arguments:
        assert (paper / arguments[arguments.index("-o") + 1]).stat().st_size > 0


def test_one_table_has_the_same_numbers_in_every_format(paper: pathlib.Path, capsys: Capture) -> None:
    asked = ["results", "sweep/", "--group-by", "algorithm,task"]
    wanted = hierarchical_interval([episodes("iql", TASKS[0], seed) for seed in (0, 1)])
    assert main([*asked, "--format", "csv"]) == 0
    row = next(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert (row["algorithm"], row["task"], row["runs"], row["seeds"], row["episodes"]) == (
        "iql",
        TASKS[0],
        "2",
        "2",
        "5",
    )
    assert float(row["return_mean"]) == pytest.approx(wanted.estimate)
    assert float(row["return_low"]) == pytest.approx(wanted.low)
    assert row["interval_over"] == "seeds and initial states"
    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["table"][0]["return"]["high"] == pytest.approx(wanted.high)
    text = f"[{wanted.low:.1f}, {wanted.high:.1f}]"
    for form in ("text", "markdown", "latex"):
        assert main([*asked, "--format", form]) == 0
        assert text in capsys.readouterr().out
    for ending in (".csv", ".md", ".tex", ".txt"):
        assert main([*asked, "-o", f"t{ending}", "-q"]) == 0
        assert f"{wanted.estimate:.1f}" in (paper / f"t{ending}").read_text(encoding="utf-8")
    assert not list(paper.glob("t-runs*"))


def test_a_terminal_shows_the_table_within_its_width(
    paper: pathlib.Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True, raising=False)
    assert main(["results", "sweep/", "--group-by", "algorithm,task", "--pivot"]) == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    table = shown[: shown.index("*: the highest")]
    assert max(map(len, table.splitlines())) <= 80
    assert table.count("quadrotor-2d") >= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "x.xlsx"], "give .csv, .jsonl, .parquet; or .csv, .md, .tex"),
        (["-o", "x.jsonl", "--group-by", "algorithm"], "of all numbers, without --group-by"),
        (["--group-by", "algoritm"], "did you mean 'algorithm'"),
        (["--group-by", "algorithm", "--pivot"], "others down"),
        (["--metric", "cost"], "--metric is of --pivot and of a figure"),
        (["--width", "column"], "--width is of a figure"),
        (["--figure", "curves", "--group-by", "task"], "--figure is of a figure"),
        (["-o", "x.pdf", "--width", "wide"], "give column, page, or inches from 1.5 to 40"),
        (["-o", "x.pdf", "--width", "nan"], "give column, page, or inches"),
        (["-o", "x.pdf", "--format", "csv"], "--format is of a table"),
        (["-o", "x.pdf", "--metric", "success"], "they have return"),
        (["--group-by", "task", "--episodes"], "--episodes is of the table of all numbers"),
    ],
)
def test_what_does_not_go_together_is_refused_and_nothing_is_written(
    arguments: list[str], said: str, paper: pathlib.Path, capsys: Capture
) -> None:
    assert main(["results", "sweep/", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in paper.iterdir()] == ["sweep"]


def test_a_copied_run_is_told_and_changes_no_number(
    swept: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    first = next(swept.glob("*-iql"))
    for name in ("one", "copy"):
        shutil.copytree(first, tmp_path / name)
    assert main(["results", str(tmp_path), "--group-by", "algorithm", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["runs"] == 1
    assert told["table"][0]["interval_over"] == "episodes of one seed"
    assert told["copies"] == {str(tmp_path / "one"): str(tmp_path / "copy")}
    page = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "copy"), str(tmp_path / "one"), "-o", str(page)]) == 0
    assert "is a copy of the run" in capsys.readouterr().err


def test_the_command_lines_choices_are_those_of_the_library() -> None:
    assert set(command.METRICS) == set(METRICS)
    assert set(command.FORMATS) == set(FORMATS)
    assert KINDS == ("curves", "scores")
