"""A run whose encoder started from a file needs that file to start, and never again; encoders frozen as drawn."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.base.errors import CheckpointError
from surefoot.core.nn.resnet import ResNetTrunk
from surefoot.data.arrays import from_arrays
from surefoot.data.dataset import Dataset
from surefoot.runs.algorithms import ALGORITHMS
from surefoot.runs.extend import extend
from surefoot.runs.plan import Plan
from surefoot.runs.run import load_agent
from surefoot.runs.start import train
from surefoot.runs.warm_start import start_notes

ROWS = 12


def pictures() -> Dataset:
    """Two episodes of noise and a number."""
    drawn, ends = np.random.default_rng(0), np.arange(ROWS) % 6 == 5
    seen: Any = {
        "camera": drawn.integers(0, 256, (ROWS, 64, 64, 3), dtype=np.uint8),
        "state": drawn.normal(size=(ROWS, 1)).astype(np.float32),
    }
    actions = drawn.uniform(-1, 1, (ROWS, 1)).astype(np.float32)
    return from_arrays(seen, actions, np.zeros(ROWS, np.float32), ends & False, ends)


def plan_of(**options: Any) -> Plan:
    config = dataclasses.asdict(ALGORITHMS["bc"].configure(hidden=(8,), **options))
    return Plan(algorithm="bc", config=config, dataset="<memory>", steps=2, batch_size=4, seeds=(0,), evaluate_every=2)


@pytest.mark.usefixtures("in_process")
def test_a_run_s_file_of_weights_is_needed_to_start_it_alone(tmp_path: pathlib.Path) -> None:
    path, data = tmp_path / "weights.pth", pictures()
    torch.save(ResNetTrunk(3, torch.nn.BatchNorm2d).state_dict(), path)
    plan = plan_of(encoder="resnet18", encoder_weights=str(path), encoder_trains=False)
    run = train(plan, tmp_path / "run", dataset=data)
    path.unlink()
    before: Any = load_agent(run)
    assert before.encoder.name == "resnet18_folded"
    extend(run.folder, steps=4)
    after: Any = load_agent(run)
    frozen = before.encoder.state_dict()
    assert all(torch.equal(value, frozen[name]) for name, value in after.encoder.state_dict().items())
    follower = plan_of(encoder="resnet18_folded", encoder_trains=False)
    follower = dataclasses.replace(follower, init=str(run.folder))
    agent: Any = follower.agent(run.spec)
    assert "encoder" in start_notes(agent, follower)[0]
    assert all(torch.equal(value, frozen[name]) for name, value in agent.encoder.state_dict().items())
    with pytest.raises(CheckpointError, match=r"weights\.pth"):
        train(plan, tmp_path / "anew", dataset=data)
    assert not (tmp_path / "anew").exists()


def test_a_note_says_that_an_encoder_stays_as_it_was_drawn() -> None:
    data = pictures()
    for options, reported in (({"encoder_trains": False}, 1), ({}, 0)):
        plan = plan_of(encoder="small", **options)
        notes = start_notes(plan.agent(data), plan)
        assert sum("stays as it was drawn, at random" in note for note in notes) == reported
