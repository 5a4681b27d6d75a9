"""Pictures held once: next pictures by number, batches as those of columns that hold each twice."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.data import load, save
from surefoot.data.dataset import Dataset
from surefoot.data.frames import OWN, next_rows
from surefoot.data.pack import pack
from surefoot.data.report import info
from surefoot.data.store import Store, learnable, store_from_dataset

LENGTHS = (3, 2, 5, 1)
KEYS = ("observations", "actions", "rewards", "next_observations", "terminations")


def camera(last_known: bool = True, size: int = 8, seed: int = 0) -> dict[str, np.ndarray]:
    """Pictures of episodes of `LENGTHS` and what followed each, which is unknown of the last where it is not known."""
    source = np.random.default_rng(seed)
    now, after = [], []
    for length in LENGTHS:
        frames = source.integers(0, 256, (length + 1, size, size, 3), dtype=np.uint8)
        now.append(frames[:-1])
        after.append(frames[1:] if last_known else np.concatenate([frames[1:-1], frames[-2:-1]]))
    return {"observations/camera": np.concatenate(now), "next_observations/camera": np.concatenate(after)}


def dataset(last_known: bool = True, **changes: Any) -> Dataset:
    source, rows = np.random.default_rng(1), sum(LENGTHS)
    ends = np.zeros(rows, bool)
    ends[np.cumsum(LENGTHS) - 1] = True
    state = {f"{name}/state": source.normal(size=(rows, 2)).astype(np.float32) for name in KEYS if "observ" in name}
    columns: dict[str, Any] = {
        "observations": np.zeros((rows, 0), np.float32),
        "actions": source.uniform(-1, 1, (rows, 1)).astype(np.float32),
        "rewards": source.normal(size=rows).astype(np.float32),
        "next_observations": np.zeros((rows, 0), np.float32),
        "terminations": np.zeros(rows, bool),
        "truncations": ends,
        "episode_ids": np.repeat(np.arange(len(LENGTHS)), LENGTHS),
        "valid": np.ones(rows, bool),
        "next_known": None if last_known else ~ends,
        "extras": camera(last_known) | state,
        "name": "seen",
    }
    return Dataset(**{**columns, **changes})


def written_out(data: Dataset) -> Store:
    """A store with a column of pictures for each step and another for what followed it."""
    rows = np.flatnonzero(learnable(data, KEYS))
    plain = {key: getattr(data, key) for key in ("actions", "rewards", "terminations")}
    return Store.pack(plain | dict(data.extras), rows=rows)


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(wanted)
    for key, value in wanted.items():
        assert found[key].dtype == value.dtype, key
        assert torch.equal(found[key], value), key


def test_next_pictures_are_the_rows_that_follow_and_the_last_ones_are_their_own() -> None:
    known, unknown = camera(), camera(last_known=False)
    args = ("observations/camera", "next_observations/camera")
    assert next_rows(*(known[key] for key in args)).tolist() == [1, 2, OWN, 4, OWN, 6, 7, 8, 9, OWN, OWN]
    assert next_rows(*(unknown[key] for key in args)).tolist() == [1, 2, 2, 4, 4, 6, 7, 8, 9, 9, 10]


@pytest.mark.parametrize("most", [1, 500, 1 << 20])
def test_next_rows_do_not_depend_on_how_many_are_compared_at_once(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = camera()
    wanted = next_rows(pictures["observations/camera"], pictures["next_observations/camera"])
    monkeypatch.setattr("surefoot.data.frames.COMPARED_BYTES", most)
    found = next_rows(pictures["observations/camera"], pictures["next_observations/camera"])
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("last_known", [True, False])
@pytest.mark.parametrize("shape", [(7,), (2, 5), (0,)])
def test_batches_equal_those_of_pictures_written_out(last_known: bool, shape: tuple[int, ...]) -> None:
    data = dataset(last_known)
    store, wanted = store_from_dataset(data, KEYS), written_out(data)
    assert len(store) == len(wanted)
    indices = torch.from_numpy(np.random.default_rng(2).integers(0, len(store), shape))
    assert_same(store.gather(indices), wanted.gather(indices))
    assert_same(store.split(store.gather_groups(indices)), wanted.gather(indices))
    room = store.workspace(shape)
    assert_same(store.gather(indices, room), wanted.gather(indices))
    for key in wanted.keys:
        assert torch.equal(store[key], wanted[key]), key


def test_pictures_that_do_not_follow_each_other_are_given_as_they_are() -> None:
    data = dataset()
    strange = np.random.default_rng(3).integers(0, 256, (len(data), 8, 8, 3), dtype=np.uint8)
    data = data.replace(extras={**data.extras, "next_observations/camera": strange})
    indices = torch.arange(len(data))
    assert_same(store_from_dataset(data, KEYS).gather(indices), written_out(data).gather(indices))


def test_pictures_of_a_dataset_are_not_copied_and_those_that_follow_neither() -> None:
    data = dataset()
    frames = store_from_dataset(data, KEYS).frames
    now, after = frames["observations/camera"], frames["next_observations/camera"]
    assert now.pictures.data_ptr() == after.pictures.data_ptr() == data.extras["observations/camera"].ctypes.data
    assert len(after.further) == len(LENGTHS)
    assert store_from_dataset(data, KEYS[:3]).frames["observations/camera"].further.nbytes == 0


def test_a_store_counts_each_picture_once() -> None:
    def data(size: int) -> Dataset:
        return dataset(extras=camera(size=size))

    one = 16 * 16 * 3 - 8 * 8 * 3
    sizes = [store_from_dataset(data(size), KEYS).nbytes for size in (8, 16)]
    assert sizes[1] - sizes[0] == (sum(LENGTHS) + len(LENGTHS)) * one


def test_read_only_pictures_are_shared_without_a_copy_or_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    data = dataset()
    pictures = data.extras["observations/camera"]
    pictures.flags.writeable = False
    store = store_from_dataset(data, KEYS)
    assert store.frames["observations/camera"].pictures.data_ptr() == pictures.ctypes.data
    assert not len(recwarn)


def test_a_store_on_disk_gives_the_same_batches_from_its_mapped_pictures(tmp_path: pathlib.Path) -> None:
    data = dataset()
    save(data, tmp_path / "seen.hdf5")
    pack([str(tmp_path / "seen.hdf5")], tmp_path / "seen.store")
    found = load(str(tmp_path / "seen.store"))
    store, wanted = store_from_dataset(found, KEYS), written_out(data)
    pictures = found.extras["observations/camera"]
    assert isinstance(pictures, np.memmap)
    assert store.frames["observations/camera"].pictures.data_ptr() == pictures.ctypes.data
    indices = torch.tensor([9, 0, 2, 10, 4, 2])
    assert_same(store.gather(indices), wanted.gather(indices))
    again = store_from_dataset(load(str(tmp_path / "seen.store")), KEYS)  # numbers are found where they were put
    assert_same(again.gather(indices), wanted.gather(indices))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_gives_the_same_batches() -> None:
    data = dataset()
    store, indices = store_from_dataset(data, KEYS, "cuda"), torch.tensor([9, 0, 2, 10, 4, 2])
    found = {key: value.cpu() for key, value in store.gather(indices.cuda()).items()}
    assert_same(found, written_out(data).gather(indices))


@pytest.mark.parametrize(("last_known", "frames"), [(True, 11 + 4), (False, 11)])
def test_info_counts_each_picture_of_a_camera_once(last_known: bool, frames: int) -> None:
    facts = info(dataset(last_known))
    assert facts["frames"] == {"camera": frames}
    assert facts["frames_mb"] == pytest.approx({"camera": frames * 8 * 8 * 3 / 1e6})


def test_info_of_vectors_has_no_frames() -> None:
    plain = dataset(
        extras={}, observations=np.zeros((11, 2), np.float32), next_observations=np.zeros((11, 2), np.float32)
    )
    assert not info(plain)["frames"]
