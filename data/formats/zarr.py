"""Zarr folders as Diffusion Policy keeps demonstrations, read: `data/NAME` with a row a step, and `meta/episode_ends`.

`action` (N, A) and `meta/episode_ends` (E,), the numbers behind each episode's last step, are always there; `state`
(N, S) or other vectors, and cameras such as `img` (N, H, W, 3), bytes or whole numbers from 0 to 255 as floats. There
are no rewards. Source: Chi et al., "Diffusion Policy: Visuomotor Policy Learning via Action Diffusion" (2023), whose
replay buffers have this layout, and the specification of Zarr's storage, version 2: an array is a folder with
`.zarray`, JSON that names shape, chunks, dtype and compressor, and a file for each chunk.

Only compressors of plain bytes are read: a file can name codecs that unpickle objects, and those never run.
"""

from __future__ import annotations

import bz2
import dataclasses
import itertools
import json
import math
import pathlib
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from surefoot.core.base.errors import DataError, MissingExtraError
from surefoot.core.base.files import open_regular
from surefoot.core.base.scaling import RULE, scaled
from surefoot.core.base.schema import parse, shown
from surefoot.core.base.unpacking import Unpacked, check_picture, is_picture, memory_limit, too_many_pictures
from surefoot.data.cameras import CAMERAS, Cameras
from surefoot.data.checks import exact_matrix
from surefoot.data.dataset import NO_REWARDS, REWARDS, SCALED_BY, Dataset
from surefoot.data.files import digest_of
from surefoot.data.formats.flat import Source, dataset_from_arrays
from surefoot.data.formats.named import beside_state
from surefoot.data.frame_cache import cached
from surefoot.data.left_out import stated

Array = np.ndarray[Any, Any]

ACTION, STATE = "action", "state"
ENDS = "meta/episode_ends"
HEADER, NEWER = ".zarray", "zarr.json"
HEADER_BYTES = 1 << 20
"""Of an array's JSON; real ones have a few hundred bytes."""
BUILT_IN = ("zlib", "gzip", "bz2")
"""Compressors that python has; `zarr`, the extra, brings the others."""
OTHERS = ("blosc", "zstd", "lz4")
COLORS = (1, 3)


def is_zarr(folder: pathlib.Path) -> bool:
    """Whether a folder is of this layout, in whichever version of Zarr."""
    return any((folder / "data" / ACTION / name).is_file() for name in (HEADER, NEWER))


def read(folder: pathlib.Path, source: Source, view: str = "corrected", cameras: Cameras | None = None) -> Dataset:
    """The demonstrations in a folder, of which policies are cloned: there are no rewards.

    The vector of observations is `state`, or else all other vectors than `action` in alphabetical order.

    Args:
        folder: `NAME.zarr`.
        source: what else is known.
        view: as `formats.flat`.
        cameras: that are read too, into the cache of frames, and the vector as `state`; None: none, unless there are no
            vectors.

    Raises:
        DataError: the folder is damaged, incomplete, inconsistent, of Zarr's version 3, or compressed in a way that is
            not read.
        MissingExtraError: numcodecs is not installed, and a compressor needs it.
    """
    held = {path.parent.name: StoredArray.at(folder, f"data/{path.parent.name}") for path in _headers(folder)}
    behind, rows = StoredArray.at(folder, ENDS), held[ACTION].shape[0]
    unpacked = Unpacked(folder, behind.bytes_of_files(), DataError)
    unpacked.add(ENDS, behind.shape, behind.dtype, as_is=True)
    ends = behind.whole(folder)
    if ends.ndim != 1 or ends.dtype.kind not in "iu" or (np.diff(ends, prepend=0) <= 0).any() or ends[-1:] != [rows]:
        raise DataError(
            f"{folder}, {ENDS!r}: is {shown(ends[-3:].tolist())} at its end; it must increase to the {rows} rows of "
            f"{ACTION!r}"
        )
    if odd := [name for name, one in held.items() if not one.shape or one.shape[0] != rows]:
        raise DataError(f"{folder}: 'data/{odd[0]}' has shape {held[odd[0]].shape}, and {ACTION!r} {rows} rows")
    pictured = [name for name, one in held.items() if one.pictures]
    vectors = sorted(name for name, one in held.items() if name != ACTION and len(one.shape) == 2)
    vectors = [STATE] if STATE in vectors else vectors
    if cameras is None and not vectors:
        cameras = Cameras()
    taken = [] if cameras is None else cameras.chosen(str(folder), sorted(pictured))
    unpacked = Unpacked(folder, sum(held[name].bytes_of_files() for name in (ACTION, *vectors)), DataError)
    for name in (ACTION, *vectors):
        unpacked.add(name, held[name].shape, held[name].dtype)
    joined = [exact_matrix(str(folder), name, held[name].whole(folder)) for name in vectors]
    last = np.zeros(rows, bool)
    last[ends - 1] = True
    arrays = {
        "actions": held[ACTION].whole(folder),
        "rewards": np.zeros(rows, np.float32),
        "terminals": np.zeros(rows, bool),
        "timeouts": last,
    }
    if joined:
        arrays["observations"] = np.concatenate(joined, 1)
    attributes: dict[str, Any] = {
        "kind": "diffusion_policy",
        "observation_keys": ",".join(vectors),
        REWARDS: NO_REWARDS,
    }
    if pictured:
        attributes[CAMERAS] = json.dumps({name: list(held[name].shape[1:]) for name in sorted(pictured)})
    used = {ACTION, *vectors, *taken}
    kinds = {name: f"{'pictures, ' * one.pictures}{one.dtype} {list(one.shape[1:])}" for name, one in held.items()}
    attributes |= stated({name: kind for name, kind in kinds.items() if name not in used})
    digest, extras = digest_of(folder), dict[str, Any]()
    if taken and cameras is not None:
        frames = {name: _pictures(folder, held[name], digest, cameras) for name in taken}
        arrays, extras = beside_state(arrays, frames, str(folder))
        if cameras.size is not None:
            attributes[SCALED_BY] = RULE
    known = dataclasses.replace(source.with_attributes(attributes), sha256=digest)
    return dataset_from_arrays(arrays, known, view, extras)


def _headers(folder: pathlib.Path) -> list[pathlib.Path]:
    if newer := next(iter((folder / "data").glob(f"*/{NEWER}")), None):
        raise DataError(f"{newer}: is of Zarr's version 3, and version 2 is read: write it with zarr_format=2")
    return sorted((folder / "data").glob(f"*/{HEADER}"))


def _pictures(folder: pathlib.Path, stored: StoredArray, digest: str, cameras: Cameras) -> Array:
    """(N, ...) pictures of a camera from the cache, into which the chunks are read one after another."""

    def each() -> Iterator[Array]:
        for block in stored.blocks(folder):
            for picture in stored.as_bytes(block):
                yield scaled(picture, cameras.size)

    where = f"{folder}, {stored.name!r}"
    count = stored.shape[0]
    return cached(where, digest, stored.name, count, cameras.size, each, cameras.folder, cameras.done)


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array in Zarr's version 2, as its header describes it."""

    path: pathlib.Path
    name: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    compressor: dict[str, Any] | None
    order: str
    fill: Any
    separator: str

    @classmethod
    def at(cls, folder: pathlib.Path, name: str) -> StoredArray:
        """The array of a name in a folder.

        Raises:
            DataError: it is not there, damaged, or of a kind that is not read.
        """
        path = folder / name
        where = f"{path / HEADER}"
        try:
            with open_regular(path / HEADER) as file:
                text = file.read(HEADER_BYTES).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{folder}: the array {name!r} can't be read: {error}; fetch it again") from error
        found = parse(text, where, DataError)
        if not isinstance(found, dict) or found.get("zarr_format") != 2:
            raise DataError(f"{where}: is no header of an array of Zarr's version 2; fetch it again")
        shape, chunks = (_lengths(where, key, found.get(key)) for key in ("shape", "chunks"))
        if len(shape) != len(chunks) or not shape or 0 in chunks:
            raise DataError(f"{where}: chunks {list(chunks)} do not fit the shape {list(shape)}")
        kind = found.get("dtype")
        try:
            dtype = np.dtype(kind) if isinstance(kind, str) else None
        except TypeError:
            dtype = None
        if dtype is None or dtype.kind not in "biuf":
            raise DataError(f"{where}: dtype {shown(kind)} is not read: arrays must be of numbers")
        compressor, known = found.get("compressor"), (*BUILT_IN, *OTHERS)
        codec = compressor.get("id") if isinstance(compressor, dict) else compressor
        if (codec is not None and codec not in known) or found.get("filters"):
            odd = found.get("filters") or codec
            raise DataError(
                f"{where}: is compressed by {shown(odd)}, which is not read, and {', '.join(known)} are, without "
                "filters: write it again with one of them"
            )
        order, separator = found.get("order", "C"), found.get("dimension_separator", ".")
        if order not in ("C", "F") or separator not in (".", "/"):
            raise DataError(f"{where}: order {shown(order)} or separator {shown(separator)} is unknown")
        fill = found.get("fill_value")
        if not isinstance(fill, int | float | bool | None):
            fill = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}.get(fill)
        packed = compressor if isinstance(compressor, dict) else None
        return cls(path, name, shape, chunks, dtype, packed, order, fill, separator)

    @property
    def pictures(self) -> bool:
        """Whether it holds a picture for each row."""
        colored = len(self.shape) == 4 and self.shape[-1] in COLORS
        return colored and (is_picture(self.shape, self.dtype) or self.dtype.kind == "f")

    def bytes_of_files(self) -> int:
        """What its files take on the disk."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def whole(self, folder: pathlib.Path) -> Array:
        """All rows."""
        parts = list(self.blocks(folder))
        return np.concatenate(parts) if parts else np.empty(self.shape, self.dtype)

    def blocks(self, folder: pathlib.Path) -> Iterator[Array]:
        """Rows of one chunk after another.

        Raises:
            DataError: a chunk is damaged or missing, or takes more memory than there is.
        """
        if self.pictures:
            check_picture(f"{folder}, {self.name!r}", self.shape[1:], DataError)
        rows = min(self.chunks[0], max(1, self.shape[0]))
        needed, limit = (
            (rows * math.prod(self.shape[1:]) + math.prod(self.chunks)) * self.dtype.itemsize,
            memory_limit(),
        )
        if needed > limit:
            raise DataError(f"{folder}, {self.name!r}: {too_many_pictures(needed, limit)}")
        grid = [range(-(-length // chunk)) for length, chunk in zip(self.shape, self.chunks, strict=True)]
        for first in grid[0]:
            start = first * self.chunks[0]
            block = np.empty((min(self.chunks[0], self.shape[0] - start), *self.shape[1:]), self.dtype)
            for rest in itertools.product(*grid[1:]):
                corner = [k * chunk for k, chunk in zip(rest, self.chunks[1:], strict=True)]
                to = [slice(at, at + chunk) for at, chunk in zip(corner, self.chunks[1:], strict=True)]
                view = block[(slice(None), *to)]
                view[...] = self._chunk((first, *rest))[tuple(slice(0, length) for length in view.shape)]
            yield block

    def _chunk(self, place: tuple[int, ...]) -> Array:
        """One chunk, whole."""
        path = self.path / self.separator.join(map(str, place))
        expected = math.prod(self.chunks) * self.dtype.itemsize
        try:
            with open_regular(path) as file:
                content = file.read(2 * expected + HEADER_BYTES)
        except FileNotFoundError as error:  # a chunk of one value is not written
            if self.fill is None:
                raise DataError(f"{path}: the chunk is missing; fetch the folder again") from error
            return np.full(self.chunks, self.fill, self.dtype)
        except OSError as error:
            raise DataError(f"{path}: the chunk can't be read: {error}; fetch the folder again") from error
        plain = self._decompressed(path, content, expected)
        if len(plain) != expected:
            raise DataError(f"{path}: the chunk unpacks to {len(plain)} bytes, not {expected}; fetch the folder again")
        return np.frombuffer(plain, self.dtype).reshape(self.chunks, order=self.order)  # type: ignore[call-overload,no-any-return]

    def _decompressed(self, path: pathlib.Path, content: bytes, expected: int) -> bytes | bytearray:
        """The bytes of a chunk, of which no more are made than there should be."""
        codec = None if self.compressor is None else self.compressor["id"]
        try:
            if codec is None:
                return content
            if codec == "bz2":
                return bz2.BZ2Decompressor().decompress(content, expected + 1)
            if codec in BUILT_IN:  # by the head: gzip's or zlib's
                return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress(content, expected + 1)
            return _by_numcodecs(path, codec, content, expected)
        except (ValueError, OSError, RuntimeError, zlib.error) as error:
            raise DataError(f"{path}: the chunk is damaged ({error}); fetch the folder again") from error

    def as_bytes(self, block: Array) -> Array:
        """Pictures of bytes, also of those that are kept as floats.

        Raises:
            DataError: a number is none of a picture's.
        """
        if block.dtype == np.uint8:
            return block
        whole = block.astype(np.uint8, casting="unsafe") if _fits_bytes(block) else None
        if whole is None or (whole != block).any():
            raise DataError(
                f"{self.path}: holds {self.dtype} pictures with numbers that are not whole from 0 to 255; write them "
                "as uint8"
            )
        return whole


def _fits_bytes(block: Array) -> bool:
    return bool(np.isfinite(block).all() and block.min() >= 0 and block.max() <= 255)


def _by_numcodecs(path: pathlib.Path, codec: str, content: bytes, expected: int) -> bytearray:
    try:
        import numcodecs
    except ImportError as error:
        raise MissingExtraError("numcodecs", "zarr", f"reading {path.parent.name!r}, compressed by {codec},") from error
    if (declared := _declared(codec, content)) != expected:
        raise ValueError(f"its head tells of {declared} bytes, not {expected}")
    kinds = {"blosc": numcodecs.Blosc, "zstd": numcodecs.Zstd, "lz4": numcodecs.LZ4}
    plain = bytearray(expected)
    kinds[codec]().decode(content, out=plain)
    return plain


def _declared(codec: str, content: bytes) -> int:
    """Bytes that the head of a compressed chunk tells of: Blosc's, LZ4's as numcodecs writes it, or a Zstandard frame's
    (RFC 8878, 3.1.1.1)."""
    if codec == "lz4":
        return int.from_bytes(content[:4], "little")
    if codec == "blosc":
        return int.from_bytes(content[4:8], "little")
    if len(content) < 5:
        raise ValueError("it has no head")
    descriptor = content[4]
    single, width = descriptor >> 5 & 1, (0, 2, 4, 8)[descriptor >> 6]
    width = width or single
    if width == 0:
        raise ValueError("its head does not tell of its size")
    start = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    return int.from_bytes(content[start : start + width], "little") + (256 if width == 2 else 0)


def _lengths(where: str, key: str, value: Any) -> tuple[int, ...]:
    """A shape of an array.

    Raises:
        DataError: it is none.
    """
    fine = isinstance(value, list) and all(isinstance(one, int) and 0 <= one < 2**40 for one in value)
    if not fine:
        raise DataError(f"{where}: {key!r} is {shown(value)}; must be a list of whole numbers")
    return tuple(value)
