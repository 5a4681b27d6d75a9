"""How much a received archive may unpack to."""

from __future__ import annotations

import io
import pathlib
import tracemalloc
import types
import zipfile

import numpy as np
import pytest

from surefoot.core.base import unpacking
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.unpacking import (
    ALWAYS,
    EXPANSION,
    VARIABLE,
    Unpacked,
    check_free,
    memory_limit,
    read_npz,
    unpack_limit,
)


def everything(name: str) -> bool:
    return True


def bomb(path: pathlib.Path, megabytes: int) -> pathlib.Path:
    """Zeros, a thousandth of their size on disk."""
    np.savez_compressed(path, rewards=np.zeros(megabytes << 18, np.float32))
    return path


def test_a_file_may_unpack_to_a_multiple_of_its_size_that_a_variable_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    free = int(0.4 * unpacking.psutil.virtual_memory().available)
    assert unpack_limit(1000) == min(ALWAYS, free)
    assert abs(unpack_limit(5 << 20) - min(EXPANSION * (5 << 20), free)) < 1 << 30
    monkeypatch.setenv(VARIABLE, "1.5")
    assert unpack_limit(1 << 40) == 3 << 19
    for wrong in ("many", "-1", "nan", "inf", "0"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(ConfigError, match=f"{VARIABLE} is '{wrong}', must be a number of megabytes"):
            unpack_limit(1)


def test_a_bomb_is_refused_before_memory_is_taken_and_read_where_the_limit_is_raised(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bomb(tmp_path / "bomb.npz", 300)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=rf"bomb\.npz: unpacks to 3\d+ bytes, .*set {VARIABLE}=301"):
            read_npz(path, everything, DataError)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    monkeypatch.setenv(VARIABLE, "301")
    assert len(read_npz(path, everything, DataError)[0]["rewards"]) == 300 << 18
    assert read_npz(path, lambda name: False, DataError) == ({}, ["rewards"])


def test_small_types_count_as_the_numbers_that_they_become(tmp_path: pathlib.Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", rewards=np.zeros(100 << 20, np.int8))
    with pytest.raises(DataError, match=r"unpacks to 419430400 bytes"):
        read_npz(tmp_path / "a.npz", everything, DataError)


def test_pictures_count_as_bytes_and_against_the_free_memory_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    path = tmp_path / "a.npz"
    np.savez_compressed(path, frames=np.zeros((300, 1 << 10, 1 << 10), np.uint8), rewards=np.zeros(300, np.float32))
    assert EXPANSION * path.stat().st_size < ALWAYS < 300 << 20
    assert read_npz(path, everything, DataError)[0]["frames"].nbytes == 300 << 20
    monkeypatch.setattr(unpacking.psutil, "virtual_memory", lambda: types.SimpleNamespace(available=750 << 20))
    assert memory_limit() == 300 << 20
    with pytest.raises(DataError, match=r"its pictures and numbers unpack to 314572928 bytes, more than the 314572800"):
        read_npz(path, everything, DataError)


def test_a_picture_may_have_64_mib_and_no_byte_more() -> None:
    unpacked = Unpacked("a", 1, DataError)
    unpacked.add("frames", (1, 1 << 13, 1 << 13), np.uint8)
    assert unpacked.pictures == 1 << 26
    with pytest.raises(
        DataError, match=r"^a: 'frames' has pictures of shape \(8193, 8192\), 67117056 bytes each, more"
    ):
        unpacked.add("frames", (1, (1 << 13) + 1, 1 << 13), np.uint8)


@pytest.mark.parametrize(
    ("shape", "dtype", "as_is", "needed"),
    [
        ((10, 3), np.uint8, False, 120),
        ((10, 3), np.uint8, True, 30),
        ((10,), np.bool_, True, 10),
        ((10, 3), np.float64, False, 240),
        ((10, 2, 2), np.float16, False, 160),
    ],
)
def test_numbers_count_as_float32_unless_they_are_wider_or_kept(
    shape: tuple[int, ...], dtype: type, as_is: bool, needed: int
) -> None:
    unpacked = Unpacked("a", 1, DataError)
    unpacked.add("x", shape, dtype, as_is)
    assert (unpacked.numbers, unpacked.pictures) == (needed, 0)


def test_arrays_that_are_not_free_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking.psutil, "virtual_memory", lambda: types.SimpleNamespace(available=100))
    check_free("log: 'top' of 2 files", 100, DataError)
    with pytest.raises(DataError, match=r"log: 'top' of 2 files take 101 bytes together, and 100 are free"):
        check_free("log: 'top' of 2 files", 101, DataError)


def test_objects_other_types_double_names_and_lying_headers_are_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.npz"
    for value, sentence in (
        (np.array([{}], dtype=object), "holds python objects, which are never loaded"),
        (np.zeros(3, "V8"), "holds values of type"),
        (np.zeros(3, "M8[s]"), "holds values of type datetime64"),
        (np.zeros(3, complex), "holds values of type complex128"),
    ):
        np.savez(path, rewards=value)
        with pytest.raises(DataError, match=sentence):
            read_npz(path, everything, DataError)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rewards.npy", _npy(np.zeros(3)))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("rewards.npy", _npy(np.zeros(3)))
    with pytest.raises(DataError, match="holds 'rewards' twice"):
        read_npz(path, everything, DataError)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rewards.npy", _npy(np.zeros(3)) + b"more")
    with pytest.raises(DataError, match="holds more bytes than its shape"):
        read_npz(path, everything, DataError)


def test_an_archive_of_a_million_members_is_refused_unread(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for index in range(10_001):
            archive.writestr(str(index), b"")
    with pytest.raises(DataError, match="it says that it has 10001 members"):
        read_npz(path, everything, DataError)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"x" * 100_000])
def test_what_is_no_archive_is_refused(tmp_path: pathlib.Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npz: is a damaged NPZ file"):
        read_npz(tmp_path / "a.npz", everything, DataError)


def test_a_device_is_not_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / "endless.npz").symlink_to("/dev/zero")
    with pytest.raises(DataError, match=r"endless\.npz: can't be read \(it is a device or a pipe"):
        read_npz(tmp_path / "endless.npz", everything, DataError)


def _npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()
