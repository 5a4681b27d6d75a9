"""A sweeper: two algorithms come to one table, one page of pictures, one CSV and a policy file."""

from __future__ import annotations

import csv
import pathlib

import numpy as np
import pytest

from surefoot import load_policy
from surefoot.cli import main
from surefoot.data import save
from surefoot.runs.embedded import generate

SMALL = ["steps=20", "episodes=2", "evaluate_every=10", "evaluate_episodes=1", "batch_size=8", "seeds=2"]


@pytest.mark.slow
def test_a_sweep_over_two_algorithms_comes_to_one_table_and_one_picture(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(generate("native/pendulum-mixed", transitions=400), tmp_path / "mine.hdf5")
    assert main(["train", "-q", "-m", "algo=bc,td3bc", "dataset=mine.hdf5", "out=sweep", *SMALL]) == 0
    folders = sorted(path.parent.name for path in pathlib.Path("sweep").glob("*/summary.json"))
    assert folders == ["00-bc-mine", "01-td3bc-mine"]
    capsys.readouterr()
    assert main(["report", "sweep", "-o", "report.html", "--csv", "table.csv"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in ("behaviour", "bc", "td3bc"))
    page = pathlib.Path("report.html").read_text(encoding="utf-8")
    assert "Probability of improvement" in page
    assert page.count("<svg") >= 3
    rows = list(csv.DictReader(pathlib.Path("table.csv").read_text().splitlines()))
    assert [row["algorithm"] for row in rows] == ["behaviour", "bc", "td3bc"]
    assert all(float(row["returns_low"]) < float(row["returns_mean"]) < float(row["returns_high"]) for row in rows)
    assert main(["export", "sweep/01-td3bc-mine", "-o", "policy.safetensors"]) == 0
    policy = load_policy("policy.safetensors")
    assert policy.select_action(np.zeros(policy.observation_dim, np.float32)).shape == (policy.action_dim,)
