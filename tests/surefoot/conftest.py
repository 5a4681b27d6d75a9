"""One small finished run for all tests of the command line."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy as np
import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_store_of_options() -> Iterator[None]:
    """Hydra copies its store for each command, which takes a quarter second with the options of all algorithms in it.

    A user's process has the options of the algorithms that it names alone. `load` copies what it gives, so that the
    store itself may be shared.
    """
    from hydra.core.config_store import ConfigStore

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigStore, "__deepcopy__", lambda store, memo: store, raising=False)
        yield


@pytest.fixture(scope="session")
def dataset_path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A dataset whose name is a trap for Hydra's grammar, with one action above Pendulum's bound."""
    from small_runs import small_dataset

    from surefoot.data import save

    path = tmp_path_factory.mktemp("data") / "pendulum (a=1, b).hdf5"
    dataset = small_dataset()
    actions = dataset.actions.copy()
    actions[3] = np.float32(2.5)
    save(dataset.replace(actions=actions), path)
    return path


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, dataset_path: pathlib.Path) -> pathlib.Path:
    """The folder of a run that the command line trained, seeds 0 and 5."""
    from small_runs import TINY

    from surefoot.cli import main

    folder = tmp_path_factory.mktemp("runs") / "bc run"
    assert main(["train", "--quiet", "algo=bc", f"dataset={dataset_path}", "seeds=[0,5]", f"out={folder}", *TINY]) == 0
    return folder


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs train in this process: a worker's start takes longer than all that a small run does."""
    from surefoot.runs.progress_events import Listener
    from surefoot.runs.run import Run
    from surefoot.runs.trainers.choose import seed_trainer

    def work(run: Run, groups: list[list[int]], tell: Listener, lock: int) -> None:
        for seeds in groups:
            for seed in seeds:
                run.seed_folder(seed).mkdir(parents=True, exist_ok=True)
            trainer = seed_trainer(run, seeds, tell)
            trainer.train()
            trainer.finish()

    monkeypatch.setattr("surefoot.runs.start.work", work)
