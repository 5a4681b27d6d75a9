"""Datasets with an objective: their rows, counterfactual ones, the command, and training from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surefoot import data
from surefoot.cli.main import main
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data import Dataset, validate
from surefoot.data.arrays import from_arrays
from surefoot.envs.objectives.named import named, objective_in
from surefoot.runs.objective_data import for_environment, stated_in, with_objective

TEXT = "F(far & F home) & G !left"
STATED = stated_in(named("none", TEXT, "walks:labels"))
EPISODES = ([0, 1, 2, 1, 0, -1], [0, -0.5, -1.5, 0, 2], [0, 2, 3, 3])
"""Positions: there and back, and on; a violation, and on; cut off far away."""


def walked(**changes: Any) -> Dataset:
    here = np.concatenate([one[:-1] for one in EPISODES]).astype(np.float32)
    there = np.concatenate([one[1:] for one in EPISODES]).astype(np.float32)
    last = np.cumsum([len(one) - 1 for one in EPISODES]) - 1
    truncations = np.zeros(len(here), bool)
    truncations[last] = True
    made = from_arrays(
        observations=here[:, None],
        actions=(there - here)[:, None],
        rewards=there,
        next_observations=there[:, None],
        terminations=np.zeros(len(here), bool),
        truncations=truncations,
        name="walked",
        env_id="walks:Walk",
    )
    return made.replace(**changes)


def test_rows_are_as_they_would_have_been_recorded() -> None:
    made = with_objective(walked(), STATED)
    assert made.observations[:, 0].tolist() == [0, 1, 2, 1, 0, -0.5, 0, 2, 3]  # what follows an end is dropped
    assert made.observations[:, 1:].argmax(1).tolist() == [0, 0, 1, 1, 0, 0, 0, 1, 1]
    assert made.next_observations[3].tolist() == [0, 0, 0]
    assert made.rewards.tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert made.costs is not None
    assert made.costs.tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0]
    assert np.flatnonzero(made.terminations).tolist() == [3, 5]
    assert np.flatnonzero(made.truncations).tolist() == [8]
    assert made.episode_ids.tolist() == [0] * 4 + [1] * 2 + [2] * 3
    assert objective_in(made.env_id) is not None
    assert made.env_id == named("walks:Walk", TEXT, "walks:labels")


def test_counterfactual_rows_have_each_step_once_from_each_state() -> None:
    source = walked()
    made = with_objective(source, STATED, counterfactual=True)
    validate(made)
    real = with_objective(source, STATED)
    assert np.array_equal(made.observations[:4], real.observations[:4])
    assert len(made) == 2 * len(source)
    rows = {tuple(row) for row in np.concatenate([made.observations, made.actions, made.next_observations[:, :1]], 1)}
    steps = {tuple(row) for row in np.concatenate([source.observations, source.actions, source.next_observations], 1)}
    assert rows == {(x, *one, a, y) for x, a, y in steps for one in ((1, 0), (0, 1))}
    back = (made.observations[:, 2] == 1) & (made.observations[:, 0] > 0) & (made.next_observations[:, 0] <= 0)
    assert back.any()
    assert (made.rewards == (back & (made.next_observations[:, 0] >= -1))).all()
    same = made.episode_ids[1:] == made.episode_ids[:-1]
    assert np.array_equal(made.next_observations[:-1][same], made.observations[1:][same])


def test_a_runs_data_get_its_objective_unless_they_have_it() -> None:
    name = named("walks:Walk", TEXT, "walks:labels")
    made, notes = for_environment(walked(), name)
    assert "9 of 12 rows are left, 2 of them terminate" in notes[0]
    assert for_environment(made, name) == (made, [])
    other = named("walks:Walk", "F far", "walks:labels")
    with pytest.raises(ConfigError, match="was made for the objective"):
        for_environment(made, other)


@pytest.mark.parametrize(
    ("changes", "text", "says"),
    [
        ({"observations": np.zeros((12, 0), np.float32)}, TEXT, "one vector"),
        ({"attributes": {"rewards": "none: the log has none"}}, "G !left", "has no rewards"),
        ({"attributes": {"objective": "formula=F a"}}, TEXT, "already"),
    ],
)
def test_data_that_can_not_have_one_are_refused(changes: dict[str, Any], text: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        with_objective(walked(**changes), stated_in(named("none", text, "walks:labels")))


def test_the_command_writes_what_training_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, made = tmp_path / "walked.hdf5", tmp_path / "made.hdf5"
    data.save(walked(), source)
    given = [str(source), "--objective", TEXT, "--labels", "walks:labels"]
    assert main(["datasets", "objective", *given, "--counterfactual", "-o", str(made)]) == 0
    assert "24 transitions" in capsys.readouterr().out
    again = data.load(made)
    assert again.extras["objective"].shape == (24, 4)
    assert main(["datasets", "objective", *given, "-o", str(made)]) == 2  # it exists
    assert main(["datasets", "objective", str(made), *given[1:], "-o", str(tmp_path / "b.hdf5")]) == 2
    tiny = ["steps=20", "episodes=1", "evaluate_every=20", "evaluate_episodes=1", "batch_size=8", "seeds=1"]
    run = ["train", "algo=td3", f"dataset={made}", "env=walks:Walk", f"objective={TEXT}", "labels=walks:labels", *tiny]
    mixed = ["algo.hidden=[8,8]", "algo.counterfactual=true", "algo.offline_fraction=0.5", "algo.initial_steps=10"]
    assert main([*run, *mixed, f"out={tmp_path / 'run'}"]) == 0
