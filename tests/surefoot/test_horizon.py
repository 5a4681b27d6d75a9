"""`surefoot horizon`, and GORP as a planner."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from surefoot.cli import main


@pytest.fixture
def chain(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "chain.npz"
    transitions = np.array([[1, 0], [2, 0], [-1, 0]])
    np.savez(path, transitions=transitions, rewards=np.array([[0.0, 0], [0, 0], [1, 0]]))
    return str(path)


def test_a_table_is_measured_and_played(chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["horizon", chain, "--horizon", "3", "--play", "sqirl", "--episodes", "160", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["backups"][0]["episodes"] == 160
    assert (found["horizon"], found["played"]["solved"], found["played"]["k"]) == (3, 20, 1)
    line = ["horizon", chain, "--horizon", "3", "--play", "gorp", "--episodes", "20", "--trials", "5"]
    assert main(line) == 0
    said = capsys.readouterr().out
    assert "effective horizon  3.0000 of 3" in said
    assert "optimal in" in said


def test_what_can_t_be_measured_is_refused_in_a_sentence(chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    for line, sentence in (
        ([chain], "the table has no horizon"),
        ([chain, "--horizon", "3", "--k", "2"], "--k is of --play"),
        ([chain, "--horizon", "3", "--play", "gorp"], "--play needs --episodes M"),
        (["nowhere.npz"], "there is no such file"),
    ):
        assert main(["horizon", *line]) == 2
        assert sentence in capsys.readouterr().err


def test_gorp_plans_in_a_native_system(capsys: pytest.CaptureFixture[str]) -> None:
    line = "plan native/pendulum --planner gorp --horizon 8 --samples 8 --bins 3 --episodes 2 --envs 2 --json"
    assert main(line.split()) == 0
    assert json.loads(capsys.readouterr().out)["plans"] == 400
    assert main(["plan", "native/quadrotor-3d", "--planner", "gorp", "--bins", "9"]) == 2
    assert "9 values in each of 4 action dimensions make 6,561 choices" in capsys.readouterr().err
