"""Pictures held once: next pictures by number, batches as those of columns that hold each twice."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import h5py
import numpy as np
import pytest
import safetensors.numpy
import torch

from surefoot.core.base import checkpoint
from surefoot.core.base.errors import DataError
from surefoot.data import load, save
from surefoot.data.dataset import Dataset
from surefoot.data.pack import pack
from surefoot.data.pictures import OWN, Pictures, gathered, next_rows
from surefoot.data.report import info
from surefoot.data.store import Store, learnable, store_from_dataset
from surefoot.runs.run import read_columns, write_columns

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
    return Store.pack(plain | {key: np.asarray(value) for key, value in data.extras.items()}, rows=rows)


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
    monkeypatch.setattr("surefoot.data.pictures.COMPARED_BYTES", most)
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
    given = data.extras["observations/camera"].pictures
    assert now.pictures.data_ptr() == after.pictures.data_ptr() == given.ctypes.data
    assert len(after.further) == len(LENGTHS)


def test_a_store_counts_each_picture_once() -> None:
    def data(size: int) -> Dataset:
        return dataset(extras=camera(size=size))

    one = 16 * 16 * 3 - 8 * 8 * 3
    sizes = [store_from_dataset(data(size), KEYS).nbytes for size in (8, 16)]
    assert sizes[1] - sizes[0] == (sum(LENGTHS) + len(LENGTHS)) * one


def test_read_only_pictures_are_shared_without_a_copy_or_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    data = dataset()
    pictures = data.extras["observations/camera"].pictures
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
    pictures = found.extras["observations/camera"].pictures
    assert isinstance(pictures, np.memmap)
    assert store.frames["observations/camera"].pictures.data_ptr() == pictures.ctypes.data
    indices = torch.tensor([9, 0, 2, 10, 4, 2])
    assert_same(store.gather(indices), wanted.gather(indices))
    again = store_from_dataset(load(str(tmp_path / "seen.store")), KEYS)  # numbers are found where they were put
    assert_same(again.gather(indices), wanted.gather(indices))


def both_columns(data: Dataset, path: pathlib.Path) -> None:
    """A file as those were that hold a picture for each row and another for what followed it."""
    columns = {"actions": data.actions, "rewards": data.rewards, "terminals": data.terminations}
    columns |= {"timeouts": data.truncations, "next_known": data.transitions}
    columns |= {key: np.asarray(value) for key, value in data.extras.items()}
    if path.suffix == ".npz":
        np.savez_compressed(path, allow_pickle=False, **columns)
    elif path.suffix == ".hdf5":
        with h5py.File(path, "w") as file:
            for key, value in columns.items():
                file[key] = value
    else:
        parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
        from surefoot.data.formats.parquet import arrow_table

        parquet.write_table(arrow_table(columns, {}), path)


def assert_shows(found: Dataset, data: Dataset) -> None:
    """Both cameras hold each picture once, and show what those of `data` do."""
    own, following = (found.extras[f"{name}/camera"] for name in ("observations", "next_observations"))
    assert isinstance(own, Pictures)
    assert following.shares(own)
    assert len(own.pictures) + len(own.further) == info(data)["frames"]["camera"]
    for key, value in data.extras.items():
        np.testing.assert_array_equal(found.extras[key], value, err_msg=key)


@pytest.mark.parametrize("last_known", [True, False])
@pytest.mark.parametrize("ending", [".hdf5", ".npz", ".parquet"])
def test_files_hold_each_picture_once_and_those_that_hold_both_are_read(
    ending: str, last_known: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow", reason="needs pyarrow")
    monkeypatch.setattr("surefoot.data.formats.hdf5.COMPARED_BYTES", 3 * 8 * 8 * 3)
    data = dataset(last_known)
    save(data, tmp_path / f"new{ending}")
    both_columns(data, tmp_path / f"old{ending}")
    for name in ("new", "old"):
        assert_shows(load(tmp_path / f"{name}{ending}"), data)


def test_a_file_whose_numbers_name_pictures_that_are_not_there_is_refused(tmp_path: pathlib.Path) -> None:
    data = dataset()
    for numbers, why in (
        (np.arange(1, 12), r"row 10 names picture 11, and there are 11 and 0 further"),
        (np.full(11, -1), r"row 0 names picture -1, and"),
        (np.arange(5), r"has 5 rows"),
    ):
        columns = {key: np.asarray(value) for key, value in data.extras.items()}
        columns |= {"next_observations/camera": numbers, "actions": data.actions, "rewards": data.rewards}
        columns |= {"terminals": data.terminations, "timeouts": data.truncations}
        np.savez(tmp_path / "a.npz", allow_pickle=False, **columns)
        with pytest.raises(DataError, match=why):
            load(tmp_path / "a.npz")
    columns |= {"next_observations/camera": np.arange(11), "further_observations/camera": np.zeros((1, 4, 4), np.uint8)}
    np.savez(tmp_path / "a.npz", allow_pickle=False, **columns)
    with pytest.raises(DataError, match=r"'further_observations/camera' is uint8 of shape \(1, 4, 4\)"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize("last_known", [True, False])
def test_a_store_of_several_blocks_holds_each_picture_once(
    last_known: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[pack.__module__], "FEWEST_ROWS", 1)
    data = dataset(last_known)
    save(data, tmp_path / "seen.hdf5")
    packed = pack([tmp_path / "seen.hdf5", tmp_path / "seen.hdf5"], tmp_path / "seen.store", block_bytes=1)
    found = load(tmp_path / "seen.store")
    frames = info(data)["frames"]["camera"]
    assert info(found)["frames"]["camera"] == 2 * frames
    for key, value in data.extras.items():
        np.testing.assert_array_equal(found.extras[key], np.concatenate([value, value]), err_msg=key)
    one = sum(getattr(data, key).nbytes for key in ("actions", "rewards", "terminations", "truncations", "valid"))
    one += data.episode_ids.nbytes + 2 * data.extras["observations/state"].nbytes + 8 * len(data)
    one += 0 if last_known else len(data)
    assert packed.nbytes == 2 * (one + frames * 8 * 8 * 3)


def test_rows_and_episodes_are_taken_without_copies_of_pictures() -> None:
    data = dataset()
    pictures = data.extras["observations/camera"].pictures
    found = data.select_episodes(np.array([1, 2]))
    assert found.extras["next_observations/camera"].pictures is pictures
    for key, value in data.extras.items():
        np.testing.assert_array_equal(found.extras[key], np.asarray(value)[3:10], err_msg=key)
    few = gathered(found.select_episodes(np.array([0])).extras)
    assert len(few["observations/camera"].pictures) == 2
    assert len(few["observations/camera"].further) == 1
    for key in few:
        np.testing.assert_array_equal(few[key], np.asarray(data.extras[key])[3:5], err_msg=key)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("episodes", [[0, 1, 2, 3], [1, 2], [1]])
def test_a_run_has_each_picture_once_and_none_of_a_store(
    stored: bool, episodes: list[int], tmp_path: pathlib.Path
) -> None:
    data, path = dataset(), tmp_path / "dataset.safetensors"
    if stored:
        save(data, tmp_path / "seen.hdf5")
        pack([tmp_path / "seen.hdf5"], tmp_path / "seen.store")
        data = load(tmp_path / "seen.store")
    given = data if len(episodes) == 4 else data.select_episodes(np.array(episodes))
    write_columns(given, path)
    found = read_columns(path)
    for key, value in given.extras.items():
        np.testing.assert_array_equal(found.extras[key], value, err_msg=key)
    own = found.extras["observations/camera"]
    assert own.shares(found.extras["next_observations/camera"])
    if stored:
        assert not any("pictures" in key for key in safetensors.numpy.load_file(path))
    else:
        kept = {4: 15, 2: 15, 1: 3}[len(episodes)]
        assert len(own.pictures) + len(own.further) == kept


def test_a_run_that_was_begun_with_both_columns_goes_on(tmp_path: pathlib.Path) -> None:
    data, path = dataset(), tmp_path / "dataset.safetensors"
    write_columns(data, path)
    tensors, meta = checkpoint.load(path, kind="dataset")
    tensors = {key: value for key, value in tensors.items() if "camera" not in key}
    tensors |= {f"extras/{key}": torch.from_numpy(np.asarray(value)) for key, value in data.extras.items()}
    checkpoint.save(path, tensors, meta)
    assert_shows(read_columns(path), data)


def test_pictures_that_are_read_begin_with_a_cache_line(tmp_path: pathlib.Path) -> None:
    save(dataset(), tmp_path / "a.hdf5")
    assert load(tmp_path / "a.hdf5").extras["observations/camera"].pictures.ctypes.data % 64 == 0


def test_pictures_read_as_an_array_does() -> None:
    array = camera()["next_observations/camera"]
    column = dataset().extras["next_observations/camera"]
    assert (column.shape, column.ndim, column.dtype, len(column)) == (array.shape, 4, np.uint8, 11)
    for rows in (3, -1, slice(2, 7), slice(None), slice(0, 0), [4, 4, 0], np.arange(11) % 2 == 0, (slice(1, 3), 0, 2)):
        np.testing.assert_array_equal(column[rows], array[rows])
    with pytest.raises(IndexError):
        column[11]
    assert np.array(column, np.float32).dtype == np.float32


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
