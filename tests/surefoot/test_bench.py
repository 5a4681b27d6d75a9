"""Suites: what they fix, what their leaderboard says, and what it refuses."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest

from surefoot.cli import main
from surefoot.studies import leaderboard

SUITE = """\
version: 3
what: nothing
seeds: [1000, 1001, 1002, 1003]
run: {steps: 4, episodes: 2, evaluate_every: 4, evaluate_episodes: 1, batch_size: 8}
tasks:
  swing: {dataset: "'PATH'"}
algorithms: [bc]
"""
LONGER = """\
  longer: {dataset: "'PATH'", steps: 6}
"""


@pytest.fixture
def suite(tmp_path: pathlib.Path, dataset_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(SUITE.replace("PATH", str(dataset_path)))
    return "tiny.yaml"


def board(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (pathlib.Path(folder) / "leaderboard.jsonl").read_text().splitlines()]


def test_what_goes_on_after_ctrl_c_is_the_whole_suite(suite: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupt(*unused: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("surefoot.runs.start.work", interrupt)
    assert main(["bench", "run", suite, "--entry", "own", "algo=bc", "-q"]) == 130
    said = capsys.readouterr().err
    assert said.endswith(f"interrupted; resume with: surefoot bench run {suite} --entry own algo=bc -q\n")


@pytest.mark.usefixtures("in_process")
def test_a_suite_is_trained_once_and_an_entry_of_ones_own_joins_its_leaderboard(suite: str, capsys: Any) -> None:
    assert main(["bench", suite, "-q"]) == 0  # short for bench run
    (first,) = board("runs/bench-tiny-v3")
    assert (first["entry"], first["seeds"], first["split"], first["rank"]) == (
        "bc", [1000, 1001, 1002, 1003], "test", [1, 1],
    )  # fmt: skip
    assert len(first["dataset_sha256"]) == 64
    assert first["mean"] == pytest.approx(np.mean(first["scores"]))
    said = json.loads(next(pathlib.Path("runs/bench-tiny-v3").glob("entries/bc/*/summary.json")).read_text())["returns"]
    assert {bound: first[bound] for bound in ("mean", "low", "high")}.items() <= said.items()
    assert main(["bench", "run", suite, "algo=bc", "algo.learning_rate=0.1", "--entry", "fast", "--json", "-q"]) == 0
    both = board("runs/bench-tiny-v3")
    assert {line["entry"] for line in both} == {"bc", "fast"}
    kept = next(line for line in both if line["entry"] == "bc")
    assert {**kept, "verdicts": {}, "rank": [1, 1]} == first, "a finished entry is not trained again"
    assert next(line["options"]["learning_rate"] for line in both if line["entry"] == "fast") == 0.1
    capsys.readouterr()
    assert main(["bench", "run", suite, "algo=bc", "--entry", "fast", "-q"]) == 2
    assert "an entry of this name is there" in capsys.readouterr().err
    assert main(["bench", "run", suite, "algo=bc", "steps=9"]) == 2
    assert "the suite fixes everything but" in capsys.readouterr().err


@pytest.mark.usefixtures("in_process")
def test_a_task_may_have_steps_of_its_own(suite: str, dataset_path: pathlib.Path) -> None:
    path = pathlib.Path(suite)
    path.write_text(path.read_text().replace("algorithms:", LONGER.replace("PATH", str(dataset_path)) + "algorithms:"))
    assert main(["bench", suite, "-q"]) == 0
    assert {line["task"]: line["steps"] for line in board("runs/bench-tiny-v3")} == {"swing": 4, "longer": 6}


def test_data_that_are_not_there_are_refused_before_a_folder_is_begun(suite: str, capsys: Any) -> None:
    path = pathlib.Path(suite)
    path.write_text(path.read_text().replace("algorithms:", LONGER.replace("PATH", "gone.hdf5") + "algorithms:"))
    assert main(["bench", suite, "-q"]) == 2
    assert "gone.hdf5: no such file" in capsys.readouterr().err
    assert not pathlib.Path("runs").exists()


def entry(name: str, scores: list[float]) -> dict[str, Any]:
    return {"entry": name, "scores": scores}


def test_ranks_are_ranges_of_what_the_seeds_separate() -> None:
    lines = [entry("low", [0.0, 1, 2, 3, 4]), entry("mid", [9.0, 10, 11, 12, 13]), entry("near", [9.5, 10, 11, 12, 13])]
    leaderboard.rank(lines)
    assert [line["rank"] for line in lines] == [[3, 3], [1, 2], [1, 2]]
    assert lines[0]["verdicts"] == {"mid": "smaller", "near": "smaller"}
    few = [entry("a", [0.0, 1, 2]), entry("b", [10.0, 11, 12])]
    leaderboard.rank(few)
    assert few[0]["verdicts"] == {"b": "undecidable"}
    assert few[0]["rank"] == [1, 2]


@pytest.mark.parametrize("seeds", [10, 11])
def test_entries_are_separated_at_the_level_that_a_pair_of_many_has(
    seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaderboard, "LEVEL", 0.05 / math.comb(46, 2))  # what each pair of 46 entries has
    lines = [entry("low", [float(s) for s in range(seeds)]), entry("high", [20.0 + s for s in range(seeds)])]
    leaderboard.rank(lines)
    assert [line["rank"] for line in lines] == [[2, 2], [1, 1]]


def test_options_that_were_tuned_on_the_suites_seeds_are_refused(suite: str, tmp_path: pathlib.Path) -> None:
    from surefoot.core.base.errors import ConfigError

    found = leaderboard.suite(suite)
    leaderboard.refuse_tuned_on(found, tmp_path, (0, 1, 2))
    with pytest.raises(ConfigError, match=r"tuned on seeds \[1001\], which tiny-v3 tests on"):
        leaderboard.refuse_tuned_on(found, tmp_path, (0, 1001))


def test_a_study_that_was_tuned_with_more_than_options_gives_no_entry(suite: str, tmp_path: pathlib.Path) -> None:
    from surefoot.cli import bench
    from surefoot.core.base.errors import ConfigError
    from surefoot.core.base.files import write_json
    from surefoot.studies.tune import RESULT, TUNING, Tuning

    space = {"algo.temperature": {"low": 1.0, "high": 3.0}}
    write_json(tmp_path / RESULT, {"incumbent": {"algo.temperature": 3.0}, "budget": {"runs": 4}})
    for more, fine in (([], True), (["preset=antmaze"], False), (["batch_size=64"], False)):
        tuning = Tuning(("algo=iql", *more), space, 3, (0,), (1, 2, 3, 4))
        write_json(tmp_path / TUNING, tuning.to_json())
        if fine:
            assert bench._incumbent(leaderboard.suite(suite), tmp_path) == (["algo=iql", "algo.temperature=3.0"], 4)
        else:
            with pytest.raises(ConfigError, match=f"was tuned with {more[0]}, which an entry does not take over"):
                bench._incumbent(leaderboard.suite(suite), tmp_path)


def test_a_damaged_study_gives_no_entry_and_is_named(suite: str, tmp_path: pathlib.Path) -> None:
    from surefoot.cli import bench
    from surefoot.core.base.errors import SurefootError
    from surefoot.core.base.files import write_json
    from surefoot.studies.tune import RESULT, TUNING, Tuning

    told = Tuning(("algo=iql",), {"algo.temperature": {"low": 1.0, "high": 3.0}}, 3, (0,), (1, 2, 3, 4)).to_json()
    sound = {"incumbent": {"algo.temperature": 3.0}, "budget": {"runs": 4}}
    for study, result, words in (
        (told, {**sound, "incumbent": 0.5}, f"{RESULT}: incumbent is 0.5, must be an object"),
        ({**told, "overrides": ["x"]}, sound, f"{TUNING}: 'x' is not of the form name=value"),
    ):
        write_json(tmp_path / TUNING, study)
        write_json(tmp_path / RESULT, result)
        with pytest.raises(SurefootError, match=words):
            bench._incumbent(leaderboard.suite(suite), tmp_path)


def test_the_suites_of_the_library_can_be_read_and_their_runs_composed() -> None:
    from surefoot.cli.support import config

    for name in leaderboard.names():
        found = leaderboard.suite(name)
        for task in found.tasks:
            request = config.compose([*found.overrides(task), f"algo={found.algorithms[0]}"])
            assert request.fields["seeds"] == found.seeds


def test_a_file_that_is_no_suite_is_named(tmp_path: pathlib.Path, capsys: Any) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(SUITE.replace("version: 3", "version: -1"))
    assert main(["bench", str(path)]) == 2
    assert "odd.yaml" in (said := capsys.readouterr().err)
    assert "version" in said
    path.write_text(SUITE.replace("steps:", "stepz:"))
    assert main(["bench", str(path), "-o", str(tmp_path / "out")]) == 2
    assert "odd-v3, task" in (said := capsys.readouterr().err)
    assert "unknown option 'stepz': did you mean 'steps'" in said
    assert not (tmp_path / "out").exists()
    for words in (["run", "offline-smal"], ["offline-smal"]):
        assert main(["bench", *words]) == 2
        assert "did you mean 'offline-small'" in capsys.readouterr().err


def test_a_suite_whose_run_or_tasks_are_no_mappings_is_refused_in_a_sentence(
    tmp_path: pathlib.Path, capsys: Any
) -> None:
    path = tmp_path / "odd.yaml"
    tasks = SUITE[SUITE.index("tasks:") : SUITE.index("algorithms:")]
    for text, said in (
        (SUITE.replace("run: {steps: 4, episodes: 2, evaluate_every: 4, evaluate_episodes: 1, batch_size: 8}", "run:"),
         "odd.yaml: run: give fields of all runs"),
        (SUITE.replace(tasks, "tasks: [native/pendulum-mixed]\n"), "odd.yaml: tasks: name at least one"),
    ):  # fmt: skip
        path.write_text(text)
        assert main(["bench", str(path), "-o", str(tmp_path / "out")]) == 2
        assert said in capsys.readouterr().err


def test_a_suites_null_and_flags_are_typed_as_the_command_line_has_them(tmp_path: pathlib.Path) -> None:
    from surefoot.cli.support import config

    path = tmp_path / "mine.yaml"
    path.write_text(SUITE.replace("'PATH'", "native/pendulum-mixed").replace("{steps: 4", "{gap: null, strict: true"))
    request = config.compose([*leaderboard.suite(str(path)).overrides("swing"), "algo=bc"])
    assert request.fields["gap"] is None
    assert request.fields["strict"] is True
