"""`surefoot label`, `algo=preferences` and `reward=RUN` one after another, and what is refused."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from small_runs import TINY, small_dataset

from surefoot import data
from surefoot.cli import main
from surefoot.core.base.errors import ConfigError
from surefoot.play.label import by_person, label
from surefoot.runs.inputs import inputs_of, training_environment
from surefoot.runs.plan import Plan


def test_labels_make_a_reward_and_the_reward_makes_a_policy(
    tmp_path: pathlib.Path, in_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    source, labels, run = (str(tmp_path / name) for name in ("d.hdf5", "l.npz", "reward"))
    data.save(small_dataset(), source)
    assert main(["label", source, "-o", labels, "--pairs", "30", "--horizon", "5", "--by", "rewards", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pairs"] == 30
    small = ["algo.hidden=[8]", "steps=20", "seeds=1", "device=cpu"]
    line = ["train", "algo=preferences", f"dataset={source}", f"algo.labels={labels}", "algo.horizon=5", *small]
    assert main([*line, f"out={run}"]) == 0
    said = capsys.readouterr()
    assert "held-out comparisons: " in said.out + said.err
    assert f"reward={run}" in said.out
    rewarded = str(tmp_path / "rewarded.hdf5")
    assert main(["datasets", "convert", source, rewarded, "--reward", run]) == 0
    found = data.load(rewarded)
    assert np.abs(found.rewards).max() <= 1
    assert found.attributes["rewards"] == run
    np.testing.assert_array_equal(found.terminations, small_dataset().terminations)
    policy = ["train", "--quiet", "algo=iql", f"dataset={source}", f"reward={run}", "seeds=1", *TINY]
    assert main([*policy, f"out={tmp_path / 'iql'}"]) == 0
    capsys.readouterr()
    assert main([*line, f"out={tmp_path / 'again'}", f"reward={tmp_path / 'iql'}"]) == 2
    assert "is a run of iql; train one with algo=classifier or algo=preferences" in capsys.readouterr().err
    acting = Plan(algorithm="sac", config={}, environment="native/pendulum", reward=run)
    from surefoot.online import SAC

    with pytest.raises(ConfigError, match="rewards from preferences are given to datasets alone"):
        training_environment(acting, SAC(inputs_of(acting, None, lambda event: None).spec))


def test_a_person_is_asked_until_the_answer_is_one(tmp_path: pathlib.Path) -> None:
    typed, said = iter(["1", "3", "0", "s", "2", "q"]), []
    answer = by_person(small_dataset(), said.append, lambda question: next(typed))
    found = label(small_dataset(), tmp_path / "l.npz", answer, pairs=9, horizon=3)
    assert found == {"pairs": 3, "skipped": 1, "equal": 1}
    written = np.load(tmp_path / "l.npz")
    assert written["preferred"].tolist() == [[1.0], [0.5], [0.0]]
    assert written["first"].shape == (3, 3, 3)
    assert written["second_actions"].shape == (3, 3, 1)
    assert "'3' is none of 1, 2, 0, s and q" in said
    assert said[0].startswith("pair 1, stretch 1: episode ")


def test_labels_that_can_t_be_made_are_refused(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(tmp_path / "d.hdf5")
    data.save(small_dataset(), source)
    (tmp_path / "there.npz").write_bytes(b"")
    for words, sentence in (
        (["-o", "l.csv"], "labels are written as .npz"),
        (["-o", str(tmp_path / "there.npz")], "exists already"),
        (["-o", str(tmp_path / "l.npz"), "--pairs", "0"], "pairs is 0"),
        (["-o", str(tmp_path / "l.npz"), "--horizon", "1000"], "no episode has 1000 steps in a row"),
        (["-o", str(tmp_path / "l.npz"), "--by", "nowhere:function"], "nowhere"),
    ):
        assert main(["label", source, "--by", "rewards", *words]) == 2
        assert sentence in capsys.readouterr().err
    with pytest.raises(ConfigError, match="no pair was answered"):
        label(small_dataset(), tmp_path / "l.npz", lambda *pair: None, pairs=2, horizon=3)
    assert not (tmp_path / "l.npz").exists()
