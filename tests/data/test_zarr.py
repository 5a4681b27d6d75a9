"""Diffusion Policy's Zarr folders: read chunk by chunk, cameras into the cache; damaged ones are refused."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import pathlib
import sys
import zlib
from typing import Any

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError, DataError, MissingExtraError
from surefoot.data import convert, info, load, pack, save
from surefoot.data.dataset import SCALED_BY

Array = np.ndarray[Any, Any]
PACK: dict[str, Any] = {"zlib": zlib.compress, "gzip": gzip.compress, "bz2": bz2.compress}
LENGTHS = (4, 3, 6)
ROWS = sum(LENGTHS)


def stored(
    folder: pathlib.Path, name: str, array: Array, chunks: tuple[int, ...], codec: str | None = "zlib", **changes: Any
) -> None:
    """An array as the specification of version 2 has it; chunks that are 0 everywhere are not written."""
    path = folder / name
    path.mkdir(parents=True)
    header: dict[str, Any] = {
        "zarr_format": 2, "shape": list(array.shape), "chunks": list(chunks), "dtype": array.dtype.str,
        "compressor": None if codec is None else {"id": codec}, "fill_value": 0, "order": "C", "filters": None,
    } | changes  # fmt: skip
    (path / ".zarray").write_text(json.dumps(header))
    grid = [range(-(-length // chunk)) for length, chunk in zip(array.shape, chunks, strict=True)]
    for place in itertools.product(*grid):
        part = array[tuple(slice(k * c, (k + 1) * c) for k, c in zip(place, chunks, strict=True))]
        whole = np.zeros(chunks, array.dtype)
        whole[tuple(slice(0, length) for length in part.shape)] = part
        if whole.any():
            plain = whole.tobytes(header["order"])
            packed = plain if codec is None else PACK[codec](plain)
            (path / header.get("dimension_separator", ".").join(map(str, place))).write_bytes(packed)


def columns(floats: bool = False) -> dict[str, Array]:
    source = np.random.default_rng(0)
    pictures = source.integers(0, 256, (ROWS, 12, 10, 3), dtype=np.uint8)
    pictures[5:10] = 0  # a chunk that is not written
    return {
        "img": pictures.astype(np.float32) if floats else pictures,
        "action": source.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
        "state": source.normal(size=(ROWS, 5)).astype(np.float32),
        "keypoint": source.normal(size=(ROWS, 9, 2)).astype(np.float32),
        "n_contacts": np.ones((ROWS, 1), np.float32),
    }


def pusht(folder: pathlib.Path, floats: bool = False, codec: str | None = "zlib", **changes: Any) -> dict[str, Array]:
    """A folder such as PushT's."""
    made = columns(floats)
    for name, array in made.items():
        stored(folder, f"data/{name}", array, (5, *array.shape[1:]), codec)
    stored(folder, "meta/episode_ends", np.cumsum(LENGTHS), (3,), codec)
    for name, change in changes.items():
        path = folder / name.replace("__", "/") / ".zarray"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return made


@pytest.mark.parametrize("codec", [None, "zlib", "gzip", "bz2"])
def test_vectors_are_read_alone_and_cameras_where_they_are_asked_for(codec: str | None, tmp_path: pathlib.Path) -> None:
    made = pusht(tmp_path / "pusht.zarr", codec=codec)
    plain = load(tmp_path / "pusht.zarr")
    np.testing.assert_array_equal(plain.observations, made["state"])
    np.testing.assert_array_equal(plain.actions, made["action"])
    assert plain.episode_lengths.tolist() == list(LENGTHS)
    assert not plain.has_rewards
    assert not plain.terminations.any()
    found = load(tmp_path / "pusht.zarr", cameras="img", frames=tmp_path / "frames")
    assert set(found.arrays) == {"img", "state"}
    np.testing.assert_array_equal(found.extras["observations/img"][:], made["img"])
    np.testing.assert_array_equal(found.extras["observations/state"], made["state"])
    after = found.extras["next_observations/img"]
    ends = np.cumsum(LENGTHS) - 1
    np.testing.assert_array_equal(after[:], made["img"][[k if k in ends else k + 1 for k in range(ROWS)]])
    assert found.transitions.tolist() == [k not in ends for k in range(ROWS)]
    assert found.valid.all()  # the last ones are cloned


def test_pictures_as_floats_are_bytes_and_are_scaled(tmp_path: pathlib.Path) -> None:
    made = pusht(tmp_path / "pusht.zarr", floats=True)
    found = load(tmp_path / "pusht.zarr", image_size=[6, 5], frames=tmp_path / "frames")
    seen = found.extras["observations/img"]
    assert (seen.dtype, seen.shape) == (np.uint8, (ROWS, 6, 5, 3))
    assert np.abs(seen[0] - made["img"][0].reshape(6, 2, 5, 2, 3).mean((1, 3))).max() <= 1
    assert found.attributes[SCALED_BY] == "box"
    other = made["img"].copy()
    other[7, 0, 0, 0] = 0.5
    for name in ("data/img/0.0.0.0", "data/img/.zarray"):
        assert (tmp_path / "pusht.zarr" / name).is_file()
    (tmp_path / "pusht.zarr/data/img/1.0.0.0").write_bytes(zlib.compress(other[5:10].tobytes()))
    with pytest.raises(DataError, match="not whole from 0 to 255"):
        load(tmp_path / "pusht.zarr", image_size=[6, 5], frames=tmp_path / "frames")


def test_chunks_within_a_row_and_fortrans_order(tmp_path: pathlib.Path) -> None:
    made = columns()
    folder = tmp_path / "real.zarr"
    stored(folder, "data/camera_0", made["img"], (4, 5, 10, 2))
    stored(folder, "data/action", made["action"], (6, 1), order="F")
    stored(folder, "data/robot_pose", made["state"].astype(np.float64), (13, 2), None)
    stored(folder, "data/arm", made["n_contacts"], (100, 1))
    stored(folder, "meta/episode_ends", np.cumsum(LENGTHS), (2,))
    found = load(folder, cameras=["camera_0"], frames=tmp_path / "frames")
    np.testing.assert_array_equal(found.actions, made["action"])
    np.testing.assert_array_equal(found.extras["observations/camera_0"][:], made["img"])
    joined = np.concatenate([made["n_contacts"], made["state"]], 1)  # in alphabetical order
    np.testing.assert_array_equal(found.extras["observations/state"], joined)


def test_it_is_converted_and_told_of(tmp_path: pathlib.Path) -> None:
    made = pusht(tmp_path / "pusht.zarr")
    found = load(tmp_path / "pusht.zarr", cameras="img", frames=tmp_path / "frames")
    save(found, tmp_path / "pusht.hdf5")
    again = load(tmp_path / "pusht.hdf5")
    np.testing.assert_array_equal(again.extras["observations/img"][:], made["img"])
    facts = info(load(tmp_path / "pusht.zarr"))
    assert "img" in str(facts)
    assert "keypoint" in str(facts)  # what is left out is named


def test_convert_and_pack_scale_pictures_as_load_does(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path / "cache" / "data"))
    source = tmp_path / "pusht.zarr"
    pusht(source)
    expected = load(source, image_size=[6, 5])
    convert(source, tmp_path / "small.hdf5", image_size=[6, 5])
    told: list[str] = []
    pack([source], tmp_path / "small.store", image_size=[6, 5], cameras=["img"], tell=told.append)
    assert any("pictures scaled" in text for text in told)
    for found in (load(tmp_path / "small.hdf5"), load(tmp_path / "small.store")):
        np.testing.assert_array_equal(found.extras["observations/img"][:], expected.extras["observations/img"][:])
        np.testing.assert_array_equal(found.extras["observations/state"], expected.extras["observations/state"])
        assert found.arrays["img"].scaled == "box"
        assert found.transitions.tolist() == expected.transitions.tolist()


@pytest.mark.parametrize("codec", ["blosc", "zstd", "lz4"])
def test_other_compressors_are_those_of_numcodecs(codec: str, tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    numcodecs = pytest.importorskip("numcodecs", reason="pip install 'surefoot[zarr]'")
    kinds = {"blosc": numcodecs.Blosc, "zstd": numcodecs.Zstd, "lz4": numcodecs.LZ4}
    monkeypatch.setitem(PACK, codec, lambda plain: bytes(kinds[codec]().encode(plain)))
    made = pusht(tmp_path / "pusht.zarr", codec=codec)
    np.testing.assert_array_equal(load(tmp_path / "pusht.zarr").observations, made["state"])
    for content in (kinds[codec]().encode(bytes(10)), kinds[codec]().encode(bytes(10**6)), b"damaged"):
        (tmp_path / "pusht.zarr/data/state/1.0").write_bytes(content)
        with pytest.raises(DataError, match=r"1\.0: the chunk (is damaged|unpacks to)"):
            load(tmp_path / "pusht.zarr")


def test_a_compressor_that_is_not_installed_names_the_extra(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    pusht(tmp_path / "pusht.zarr", data__state={"compressor": {"id": "blosc", "cname": "lz4"}})
    monkeypatch.setitem(sys.modules, "numcodecs", None)
    with pytest.raises(MissingExtraError, match=r"surefoot\[zarr\]"):
        load(tmp_path / "pusht.zarr")


@pytest.mark.parametrize(
    ("where", "change", "message"),
    [
        ("data__state", {"dtype": "|O", "filters": [{"id": "pickle"}]}, r"dtype '\|O' is not read"),
        ("data__state", {"filters": [{"id": "pickle"}]}, "'pickle'.* is not read"),
        ("data__img", {"compressor": {"id": "imagecodecs_jpegxl"}}, "imagecodecs_jpegxl.*is not read, and zlib"),
        ("data__state", {"chunks": [5, 0]}, "do not fit"),
        ("data__state", {"shape": [ROWS, -1]}, "must be a list of whole numbers"),
        ("data__state", {"shape": [ROWS - 1, 5]}, "'data/state' has shape"),
        ("data__action", {"shape": [2**39, 2]}, "must increase to the"),
        ("data__state", {"shape": [ROWS, 2**34], "chunks": [5, 2**34]}, "unpacks to"),
        ("data__img", {"shape": [ROWS, 2**14, 2**14, 3]}, "picture"),
        ("data__state", {"zarr_format": 3}, "no header of an array of Zarr's version 2"),
        ("data__state", {"dtype": [["a", "<f4"]]}, "must be of numbers"),
        ("meta__episode_ends", {"shape": [2]}, "must increase to the 13 rows"),
    ],
)
def test_what_is_not_read_is_refused_in_a_sentence(
    where: str, change: dict[str, Any], message: str, tmp_path: pathlib.Path
) -> None:
    changes: dict[str, Any] = {where: change}
    pusht(tmp_path / "pusht.zarr", **changes)
    with pytest.raises(DataError, match=message):
        load(tmp_path / "pusht.zarr", cameras="img", frames=tmp_path / "frames")


def test_damaged_chunks_and_newer_versions_are_refused(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "pusht.zarr"
    pusht(folder)
    chunk = folder / "data/state/1.0"
    whole = chunk.read_bytes()
    for content, message in (
        (whole[:-9], r"1\.0: the chunk (unpacks to|is damaged)"),
        (zlib.compress(bytes(10**7)), "unpacks to 101 bytes, not 100"),
        (b"no zlib", "is damaged"),
    ):
        chunk.write_bytes(content)
        with pytest.raises(DataError, match=message):
            load(folder)
    chunk.unlink()
    header = folder / "data/state/.zarray"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"fill_value": None}))
    with pytest.raises(DataError, match="the chunk is missing"):
        load(folder)
    with pytest.raises(ConfigError, match="has no camera"):
        load(folder, cameras="front")
    (folder / "data/state/zarr.json").write_text("{}")
    with pytest.raises(DataError, match="version 3, and version 2 is read: write it with zarr_format=2"):
        load(folder)
