"""Runs on a store on disk: the numbers of the same file in memory, nothing of the data copied into the run."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import small_dataset

from surefoot.cli import main
from surefoot.core.base import checkpoint
from surefoot.core.base.errors import CheckpointError, SurefootError
from surefoot.data import Dataset, load, pack, save
from surefoot.runs import run as runs
from surefoot.runs.run import Run, read_columns, write_columns

TRAIN = [
    "train",
    "--quiet",
    "algo=iql",
    "env=none",
    "steps=20",
    "seeds=[0]",
    "batch_size=8",
    "algo.hidden=[8,8]",
    "algo.rewards=none",
]


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    save(small_dataset(), tmp_path / "small.npz")
    return tmp_path / "small.npz"


@pytest.fixture
def store(file: pathlib.Path) -> pathlib.Path:
    pack([file], file.with_name("small.store"))
    return file.with_name("small.store")


def weights(folder: pathlib.Path) -> dict[str, torch.Tensor]:
    return checkpoint.load(Run.open(folder).checkpoint_path(0))[0]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in one.items())


@pytest.mark.usefixtures("in_process")
def test_a_run_on_a_store_has_the_numbers_of_the_file_and_so_has_one_that_shares_what_it_prepares(
    store: pathlib.Path, file: pathlib.Path, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    assert main([*TRAIN, f"dataset={file}", f"out={tmp_path / 'memory'}"]) == 0
    assert main([*TRAIN, f"dataset={store}", f"out={tmp_path / 'disk'}"]) == 0
    monkeypatch.setattr(runs, "SHARED_FROM", 0)
    assert main([*TRAIN, f"dataset={file}", f"out={tmp_path / 'shared'}"]) == 0
    first = weights(tmp_path / "memory")
    assert equal(first, weights(tmp_path / "disk"))
    assert equal(first, weights(tmp_path / "shared"))
    assert list((store / "prepared").glob("*.bin"))
    assert not (tmp_path / "shared" / "prepared").exists()


def arrays_of(dataset: Dataset) -> dict[str, Any]:
    return runs._columns(dataset)


def test_the_columns_of_a_store_are_named_and_not_written(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    data = load(store)
    rewards = np.arange(len(data), dtype=np.float32)
    for given in (data, data.replace(rewards=rewards, extras={"mark": rewards * 2})):
        write_columns(given, tmp_path / "dataset.safetensors")
        found = read_columns(tmp_path / "dataset.safetensors")
        own = sum(value.nbytes for key, value in arrays_of(given).items() if key not in arrays_of(data))
        own += 0 if given is data else rewards.nbytes
        assert (tmp_path / "dataset.safetensors").stat().st_size < own + 4000
        assert arrays_of(found).keys() == arrays_of(given).keys()
        for key, value in arrays_of(given).items():
            np.testing.assert_array_equal(arrays_of(found)[key], value)
    shutil.move(store, tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"names the store .*small\.store, which is not there; put it back"):
        read_columns(tmp_path / "dataset.safetensors")
    pack([tmp_path / "elsewhere"], store)
    header = json.loads((store / "store.json").read_text())
    assert header["sha256"] != data.sha256  # it was made of something else, and says so
    with pytest.raises(CheckpointError, match=r"small\.store: is not the store that the run began with"):
        read_columns(tmp_path / "dataset.safetensors")


@pytest.mark.usefixtures("in_process")
def test_a_run_does_not_go_on_with_a_store_that_was_altered(
    store: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*unused: object) -> None:
        raise SurefootError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("surefoot.runs.trainers.trainer.SeedTrainer.finish", full)
        assert main([*TRAIN, f"dataset={store}", f"out={tmp_path / 'run'}"]) == 2
    with open(store / "0.bin", "rb+") as column:
        column.write(b"other")
    capsys.readouterr()
    assert main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "small.store/0.bin: the column 'observations' does not fit its checksum" in capsys.readouterr().err


def test_the_command_packs_says_what_it_takes_and_refuses(
    file: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made.store"
    assert main(["datasets", "pack", str(file), str(file), "-o", str(made), "--json"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["rows"], told["sha256"]) == (800, load(made).sha256)
    assert "is read into memory whole: its format has no rows that can be read by themselves" in err
    assert main(["datasets", "verify", str(made)]) == 0
    assert main(["datasets", "info", str(made)]) == 0
    assert "transitions          800" in " ".join(capsys.readouterr().out.split("\n"))
    assert main(["datasets", "pack", str(file), "-o", str(made)]) == 2
    assert "made.store: exists already" in capsys.readouterr().err
    assert main(["datasets", "pack", str(tmp_path / "smal.npz"), "-o", str(tmp_path / "x")]) == 2
    assert "smal.npz: no such file; did you mean 'small.npz'?" in capsys.readouterr().err
