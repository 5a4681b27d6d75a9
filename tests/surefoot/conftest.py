"""One small finished run for all tests of the command line."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import pytest

from surefoot.cli import main
from surefoot.data import Dataset, save
from surefoot.generate import generate

TINY = ["steps=20", "episodes=2", "evaluate_every=20", "evaluate_episodes=1", "batch_size=8", "algo.hidden=[8,8]"]
"""Overrides of a run that takes no time."""


def small_dataset(seed: int = 0) -> Dataset:
    """Two episodes of the embedded task."""
    return generate("pendulum-swingup", seed, transitions=400)


@pytest.fixture(scope="session")
def dataset_path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A dataset whose name is a trap for Hydra's grammar, with one action above Pendulum's bound."""
    path = tmp_path_factory.mktemp("data") / "pendulum (a=1, b).hdf5"
    dataset = small_dataset()
    actions = dataset.actions.copy()
    actions[3] = np.float32(2.5)
    save(dataset.replace(actions=actions), path)
    return path


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, dataset_path: pathlib.Path) -> pathlib.Path:
    """The folder of a run that the command line trained, seeds 0 and 5."""
    base = tmp_path_factory.mktemp("runs")
    os.environ.setdefault("SUREFOOT_CACHE", str(base / "cache"))
    folder = base / "bc run"
    code = main(["train", "--quiet", "algo=bc", f"dataset={dataset_path}", "seeds=[0,5]", f"out={folder}", *TINY])
    assert code == 0
    return folder
