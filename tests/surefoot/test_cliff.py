"""`surefoot cliff`: of a table, of a run's critics, and by training again on perturbed rewards."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from small_runs import TINY

from surefoot.cli import main


@pytest.fixture
def table(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "table.npz"
    np.savez(path, transitions=np.array([[1, 1], [-1, -1]]), rewards=np.array([[0.0, 1.0], [0.0, 1e-3]]), discount=0.9)
    return str(path)


def test_a_table_is_certified(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cliff", table, "--noise", "0.01", "--retrain", "20", "--temperature", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gaps"] == pytest.approx([1.0, 1e-3])
    assert found["certified_radius"] == pytest.approx(5e-5)
    assert found["share_within_noise"] == 0.5
    assert found["soft_limit"] == pytest.approx(0.1)
    assert 0.1 < found["changed"]["mean"] < 0.4  # one state of two, half of the time
    assert main(["cliff", table]) == 0
    assert "certified radius" in capsys.readouterr().out


@pytest.fixture(scope="module")
def iql(tmp_path_factory: pytest.TempPathFactory, dataset_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("runs") / "iql"
    line = ["train", "--quiet", "algo=iql", f"dataset={dataset_path}", "seeds=[0,5]", f"out={folder}", *TINY]
    assert main(line) == 0
    return folder


def test_a_run_s_critics_are_looked_at_and_trained_again(
    iql: pathlib.Path, tmp_path: pathlib.Path, in_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cliff", str(iql), "--states", "50", "--noise", "0.2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["states"], found["discount"], found["retrained"]) == (50, 0.99, None)
    assert set(found["seeds"]) == {"0", "5"}
    assert found["distance_between_seeds"] > 0
    line = ["cliff", str(iql), "--retrain", "1", "-o", str(tmp_path / "again"), "-q"]
    assert main([*line, "--json"]) == 0
    moved = json.loads(capsys.readouterr().out)["retrained"]
    assert len(moved["returns"]) == 2
    assert moved["policy_distance"]["mean"] > 0
    stored = pathlib.Path(moved["runs"][0])
    written = (stored / "summary.json").stat().st_mtime_ns
    assert main(line) == 0
    assert "retrained on 1 perturbed reward" in capsys.readouterr().out
    assert (stored / "summary.json").stat().st_mtime_ns == written  # used again


def test_what_has_no_gaps_is_refused_in_a_sentence(
    iql: pathlib.Path, finished_run: pathlib.Path, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for line, sentence in (
        ([str(finished_run)], "bc learns no critic"),
        ([str(iql), "--dataset", "native/cartpole-swingup-mixed"], "name data of the same task"),
        ([str(iql), "--discount", "0.9"], "--discount is of a table"),
        ([table, "--states", "5"], "--states is of a run's critics"),
        ([str(iql), "-o", "x"], "-o is of the runs that --retrain trains"),
        ([str(iql), "--noise", "-1"], "noise is -1"),
        ([str(iql), "--retrain", "0"], "--retrain is 0"),
        (["nowhere.npz"], "there is no such file"),
    ):
        assert main(["cliff", *line]) == 2
        assert sentence in capsys.readouterr().err
