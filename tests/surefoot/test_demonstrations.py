"""Demonstrations of a scripted expert."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from surefoot.cli.main import main
from surefoot.core.base.errors import ConfigError
from surefoot.data import load
from surefoot.play.demonstrations import demonstrate

pytest.importorskip("mujoco")


def test_the_same_seed_gives_the_same_bits_and_each_episode_is_solved() -> None:
    one, same, other = (demonstrate("gantry-pick-sides-state", 6, seed) for seed in (3, 3, 4))
    assert (one.observations == same.observations).all()
    assert (one.actions == same.actions).all()
    assert one.observations.shape != other.observations.shape or (one.observations != other.observations).any()
    assert one.attributes["solved_episodes"] == 6
    assert (one.episode_returns == 1).all()
    assert (np.abs(one.actions) <= 1).all()


def test_both_handles_are_gripped() -> None:
    found = demonstrate("gantry-pick-sides-state", 12)
    last = found.episode_starts[1:] - 1
    beside = found.observations[last, 1] - found.observations[last, 12]  # the tip's y less the bar's
    assert (beside > 0.02).any()
    assert (beside < -0.02).any()


def test_the_command_writes_a_file_that_names_its_environment(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "demos.hdf5"
    command = ["datasets", "generate", "gantry-pick-state", "--episodes", "3", "-o", str(path)]
    assert main(command) == 0
    assert "3 episodes" in capsys.readouterr().out
    found = load(path)
    assert found.env_id == "surefoot/GantryPickState-v0"
    assert found.attributes["kind"] == "scripted expert"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--transitions", "5", "-o", "x.hdf5"], "--transitions"),
        ([], "add -o FILE"),
        (["--behaviour", "exprt", "-o", "x.hdf5"], "expert"),
        (["--episodes", "0", "-o", "x.hdf5"], "episodes is 0"),
    ],
)
def test_what_it_does_not_take_is_said(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["datasets", "generate", "gantry-pick-state", *arguments]) != 0
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_other_environments_have_no_expert() -> None:
    with pytest.raises(ConfigError, match="no scripted expert"):
        demonstrate("native/pendulum", 1)
