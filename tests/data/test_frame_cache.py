"""The cache of frames: scaled once, mapped, resumed, refused where it was changed or scaled by another rule."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.base.errors import CheckpointError, ConfigError, DataError, EnvironmentMismatchError
from surefoot.core.policy.policy import Policy
from surefoot.data import frame_cache, load, save
from surefoot.data.dataset import Dataset
from surefoot.data.frame_cache import cached, opened, place_of
from surefoot.data.report import info
from surefoot.data.store import store_from_dataset
from surefoot.offline import BC
from surefoot.runs.run import read_columns, write_columns

ROWS = 6


def seen(size: int = 8) -> Dataset:
    """Two episodes of three rows, what followed the last of each known; two cameras and a state."""
    source = np.random.default_rng(0)
    extras: dict[str, Any] = {}
    for key in ("top", "wrist"):
        frames = source.integers(0, 256, (2, 4, size, size, 3), dtype=np.uint8)
        extras[f"observations/{key}"] = frames[:, :-1].reshape(ROWS, size, size, 3)
        extras[f"next_observations/{key}"] = frames[:, 1:].reshape(ROWS, size, size, 3)
    states = source.normal(size=(2, 4, 2)).astype(np.float32)
    extras["observations/state"] = states[:, :-1].reshape(ROWS, 2)
    extras["next_observations/state"] = states[:, 1:].reshape(ROWS, 2)
    ends = np.arange(ROWS) % 3 == 2
    nothing = np.zeros((ROWS, 0), np.float32)
    return Dataset(
        nothing, source.uniform(-1, 1, (ROWS, 1)).astype(np.float32), np.ones(ROWS, np.float32), nothing,
        np.zeros(ROWS, bool), ends, np.repeat([0, 1], 3), np.ones(ROWS, bool), extras=extras, name="seen",
    )  # fmt: skip


def halved(pictures: Any) -> np.ndarray:
    """The mean of each 2 x 2 pixels, by hand; pillow rounds it twice, along rows and columns."""
    wide = np.asarray(pictures).astype(np.float64)
    n, h, w, c = wide.shape
    return wide.reshape(n, h // 2, 2, w // 2, 2, c).mean((2, 4))


@pytest.fixture
def file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path / "cache"))
    save(seen(), tmp_path / "seen.hdf5")
    return tmp_path / "seen.hdf5"


def test_pictures_are_scaled_once_and_mapped(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, data = load(file, image_size=4, cameras=["top"]), seen()
    assert set(found.arrays) == {"top", "state"}
    own, following = (found.extras[f"{which}observations/top"] for which in ("", "next_"))
    assert isinstance(own.pictures, np.memmap)
    assert len(own.pictures) == ROWS + 2
    for column, key in ((own, "observations/top"), (following, "next_observations/top")):
        assert np.abs(np.asarray(column) - halved(data.extras[key])).max() <= 1
    monkeypatch.setattr("surefoot.data.cameras.scaled", None)  # none is scaled again, nor looked at
    (place,) = (file.parent / "cache" / "frames").iterdir()
    assert place_of(opened(place)) is not None
    assert not (opened(place) != own.pictures).any()


def test_batches_are_those_of_scaled_pictures(file: pathlib.Path) -> None:
    found = load(file, image_size=[4, 2])
    store = store_from_dataset(found, ("observations", "next_observations", "actions"))
    batch = store.gather(torch.arange(len(store)))
    assert batch["observations/wrist"].shape == (ROWS, 4, 2, 3)
    for key in ("observations/wrist", "next_observations/wrist"):
        np.testing.assert_array_equal(batch[key].numpy(), found.extras[key])


def test_a_run_names_the_cache_and_goes_on_without_the_data(file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    found, path = load(file, image_size=4), tmp_path / "dataset.safetensors"
    write_columns(found, path)
    assert path.stat().st_size < 4000
    back = read_columns(path)
    for key, value in found.extras.items():
        np.testing.assert_array_equal(back.extras[key], value, err_msg=key)
    shutil.rmtree(tmp_path / "cache" / "frames")
    with pytest.raises(CheckpointError, match=r"names the cache of frames .*not there"):
        read_columns(path)


def counting(pictures: np.ndarray, given: list[int], stop: int | None = None) -> Any:
    def each() -> Iterator[np.ndarray]:
        for number, one in enumerate(pictures):
            if number == stop:
                raise KeyboardInterrupt
            given.append(number)
            yield one

    return each


def test_what_was_stopped_goes_on_behind_what_is_safe(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_cache, "BLOCK_BYTES", 2 * 48)
    pictures, done = np.random.default_rng(0).integers(0, 256, (7, 4, 4, 3), dtype=np.uint8), []
    with pytest.raises(KeyboardInterrupt):
        cached("a", "digest", "top", 7, None, counting(pictures, [], stop=5), tmp_path)
    assert [path.name[0] for path in tmp_path.iterdir()] == ["."]  # nothing that could be taken for a cache
    (journal,) = tmp_path.glob(".*/journal.json")
    assert json.loads(journal.read_text())["frames"] == 4
    torn = journal.with_name("frames.bin")
    torn.write_bytes(torn.read_bytes() + b"torn")
    found = cached("a", "digest", "top", 7, None, counting(pictures, []), tmp_path, lambda n, m: done.append((n, m)))
    np.testing.assert_array_equal(found, pictures)
    assert done == [(6, 7), (7, 7)]
    given: list[int] = []
    np.testing.assert_array_equal(cached("a", "digest", "top", 7, None, counting(pictures, given), tmp_path), pictures)
    assert not given


def test_a_disk_that_is_too_small_or_full_is_said(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = np.zeros((7, 4, 4, 3), np.uint8)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 300 + frame_cache.SPARE))
    with pytest.raises(DataError, match=r"take 0\.00 GB of disk in .*SUREFOOT_CACHE"):
        cached("a", "digest", "top", 7, None, counting(pictures, []), tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(frame_cache, "BLOCK_BYTES", 48)
    written = []

    def full(handle: int) -> None:
        written.append(handle)
        if len(written) > 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(frame_cache.os, "fsync", full)
    with pytest.raises(DataError, match=r"can't be kept in .*the disk is full.*continues behind it"):
        cached("a", "digest", "top", 7, None, counting(pictures, []), tmp_path)
    monkeypatch.undo()
    np.testing.assert_array_equal(cached("a", "digest", "top", 7, None, counting(pictures, []), tmp_path), pictures)


def test_a_cache_of_another_rule_or_content_is_refused(tmp_path: pathlib.Path) -> None:
    cached("a", "digest", "top", 7, None, counting(np.zeros((7, 4, 4, 3), np.uint8), []), tmp_path)
    (place,) = tmp_path.iterdir()
    index = json.loads((place / "index.json").read_text())
    (place / "index.json").write_text(json.dumps(index | {"rule": "linear"}))
    with pytest.raises(DataError, match=r"scaled by the rule 'linear', and this version's is 'box'"):
        opened(place)
    (place / "index.json").write_text(json.dumps(index))
    content = bytearray((place / "frames.bin").read_bytes())
    content[5] ^= 1
    (place / "frames.bin").write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"is not what was written: damaged"):
        opened(place)


@pytest.mark.parametrize(("frames", "why"), [(6, "one too many"), (8, "has 7 pictures of 'top' for 8 steps")])
def test_pictures_must_be_as_many_as_steps(frames: int, why: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(DataError, match=why):
        cached("a", "d", "top", frames, None, counting(np.zeros((7, 4, 4, 3), np.uint8), []), tmp_path)


def test_cameras_and_sizes_that_are_not_there_are_refused(file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"has no camera 'tops': .*'top'"):
        load(file, cameras=["tops"])
    for size in (0, 1.5, [1, 2, 3], "96", True):
        with pytest.raises(ConfigError, match="must be a number of pixels"):
            load(file, image_size=size)
    plain = seen().replace(
        extras={}, observations=np.ones((ROWS, 2), np.float32), next_observations=np.ones((ROWS, 2), np.float32)
    )
    save(plain, tmp_path / "plain.hdf5")
    with pytest.raises(ConfigError, match="has no pictures: leave out image_size and cameras"):
        load(tmp_path / "plain.hdf5", image_size=8)


def test_cameras_of_a_lerobot_folder_are_read_where_they_are_asked_for(
    file: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    data = load(file)
    state = {key: data.extras[key] for key in data.extras if "state" in key}
    kept = {**state, **{key: data.extras[key] for key in data.extras if "state" not in key}}
    save(data.replace(extras=kept), tmp_path / "folder", layout="lerobot")
    alone = load(tmp_path / "folder")
    assert set(alone.arrays) == {"observations"}
    assert set(info(alone)["cameras"]) == {"top", "wrist"}
    assert info(alone)["cameras"]["top"].startswith("6 of [8, 8, 3]: 0.00 GB")
    found = load(tmp_path / "folder", image_size=4, cameras=["wrist"])
    assert set(found.arrays) == {"wrist", "state"}
    assert (
        np.abs(np.asarray(found.extras["observations/wrist"]) - halved(seen().extras["observations/wrist"])).max() <= 1
    )
    assert (
        found.transitions.tolist() == [True, True, False] * 2
    )  # what followed an episode's last step is in no picture
    assert found.extras["next_observations/wrist"].numbers.tolist() == [1, 2, 2, 4, 5, 5]
    np.testing.assert_array_equal(found.extras["observations/state"], seen().extras["observations/state"])


def test_a_policy_takes_pictures_of_the_cameras_own_size_and_scales_them_by_the_rule_of_its_data(
    file: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    save(seen(72), tmp_path / "large.hdf5")
    data = load(tmp_path / "large.hdf5", image_size=36, cameras=["top"])
    agent = BC(data, encoder="small", encoder_features=4, hidden=(8,))
    agent.policy().save(tmp_path / "policy.safetensors")
    policy = Policy.load(tmp_path / "policy.safetensors")
    state = np.zeros(2, np.float32)
    large = np.asarray(seen(72).extras["observations/top"])[2]
    own = policy.select_action({"top": large, "state": state})
    np.testing.assert_array_equal(
        own, policy.select_action({"top": data.extras["observations/top"][2], "state": state})
    )
    assert policy.arrays["top"].scaled == "box"
    with pytest.raises(EnvironmentMismatchError, match=r"top is float32"):
        policy.select_action({"top": large.astype(np.float32), "state": state})
    plain = BC(
        load(tmp_path / "large.hdf5", cameras=["top"]), encoder="small", encoder_features=4, hidden=(8,)
    ).policy()
    with pytest.raises(EnvironmentMismatchError, match=r"top is uint8 of shape \(36, 36, 3\)"):
        plain.select_action({"top": large[:36, :36], "state": state})
