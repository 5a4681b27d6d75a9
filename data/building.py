"""A store on disk as it is built: block after block, each on the disk before the next begins.

What is built lies in a hidden folder beside the store, `.NAME.building`, without the file that makes a store of it, and
takes the store's name when it is whole. `journal.json` in it says how many rows are safe: whoever continues cuts the
files there. So neither a kill nor a full disk leaves anything that could be taken for a store.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import pathlib
import shutil
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import CheckpointError, ConfigError, DataError
from surefoot.core.base.files import read_json, why, write_json
from surefoot.core.base.schema import Many, Maybe, Number, Plain, Record, Table, Text
from surefoot.data.checks import LIKE_CHOICES
from surefoot.data.dataset import Dataset
from surefoot.data.files import sha256_of
from surefoot.data.formats import on_disk
from surefoot.data.formats.named import written_once
from surefoot.data.formats.on_disk import DTYPES, EXTRAS, FIELDS, KIND, MOST_DIMENSIONS
from surefoot.data.pictures import FURTHER, OBSERVED, Pictures, shown

Array = np.ndarray[Any, Any]

JOURNAL, LOCK = "journal.json", "lock"
NEXT_KNOWN = "next_known"
SPARE = 64 << 20
"""Bytes of the disk that a store leaves free."""
MEANT_ALIKE = ("action_low", "action_high", "choices", "observation_names", "action_names", "fps", "rewards")
"""Attributes that say what numbers mean, in which the parts of a store must agree."""
SHOWN = 100

_LAYOUT = Record(
    {
        "name": Text(200),
        "dtype": Text(among=DTYPES),
        "shape": Many(Number(0, on_disk.MOST_SIZE, whole=True), most=MOST_DIMENSIONS),
    }
)
_STATE = Record(
    {
        "request": Plain(),
        "parts": Number(0, whole=True),
        "rows": Number(0, whole=True),
        "episodes": Number(0, whole=True),
        "unknown": Number(0, whole=True),
        "further": Table(Number(0, whole=True)),
        "columns": Many(_LAYOUT, 0, on_disk.MOST_COLUMNS),
        "env_id": Maybe(Text()),
        "attributes": Table(Plain()),
        "warnings": Table(Number(0, whole=True)),
        "dropped": Many(Text(200)),
    }
)


def columns_of(dataset: Dataset) -> dict[str, Array]:
    """Column -> its rows of a dataset, in the order of a store's files; `next_known` always, as the last.

    Of a camera: the pictures of the rows, numbers of those that followed, and further ones, which may be none.
    """
    found = {name: value for name in FIELDS if name != NEXT_KNOWN and (value := getattr(dataset, name)) is not None}
    extras = written_once(dataset.extras)
    for key, value in dataset.extras.items():
        if key.startswith(OBSERVED) and isinstance(value, Pictures):
            extras.setdefault(FURTHER + key.removeprefix(OBSERVED), value.further[:0])
    found |= {f"{EXTRAS}{key}": extras[key] for key in sorted(extras)}
    return found | {NEXT_KNOWN: np.ones(len(dataset), bool) if dataset.next_known is None else dataset.next_known}


def row_bytes(dataset: Dataset) -> int:
    """Bytes that a row of a dataset takes in a store, rounded up where some have a further picture."""
    fields = [value for name in FIELDS if (value := getattr(dataset, name)) is not None]
    plain = [value for value in (*fields, *dataset.extras.values()) if isinstance(value, np.ndarray)]
    total = sum(math.prod(column.shape[1:]) * column.dtype.itemsize for column in plain)
    for key, value in dataset.extras.items():
        if isinstance(value, Pictures) and key.startswith(OBSERVED):
            following = dataset.extras.get(f"next_{key}", value)
            total += math.ceil(shown(value, following) * value.picture_bytes / len(dataset)) + value.numbers.itemsize
    return total + (1 if dataset.next_known is None else 0)


class Building:
    """A store that is being built; a context, in which no other process builds it."""

    def __init__(self, destination: pathlib.Path, request: Sequence[Any]) -> None:
        """Begin, or continue where the same request was stopped.

        Args:
            destination: of the store; nothing is there.
            request: what it is made of and how, JSON: another one begins anew.
        """
        self.destination, self.request = destination, list(request)
        self.folder = destination.with_name(f".{destination.name}.building")
        self.state: dict[str, Any] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Building:
        """Take the folder and read what is there.

        Raises:
            ConfigError: the destination exists, or another process builds it.
            DataError: the folder can't be written.
        """
        if self.destination.exists() or self.destination.is_symlink():
            raise ConfigError(f"{self.destination}: exists already; delete it or choose another name")
        if self.folder.is_symlink():
            raise ConfigError(f"{self.folder}: is a symbolic link; delete it")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = self._stack.enter_context(open(self.folder / LOCK, "ab"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._stack.close()
            raise ConfigError(f"{self.destination}: another process is building it") from None
        except OSError as failure:
            self._stack.close()
            raise DataError(f"{self.destination}: can't be written: {why(failure)}") from failure
        self.state = self._found() or {
            "request": self.request,
            "parts": 0,
            "rows": 0,
            "episodes": 0,
            "unknown": 0,
            "further": {},
            "columns": [],
            "env_id": None,
            "attributes": {},
            "warnings": {},
            "dropped": [],
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        """Let others continue; nothing stays of what has no row."""
        if self.folder.is_dir() and not self.state.get("rows"):
            shutil.rmtree(self.folder, ignore_errors=True)
        self._stack.close()

    @property
    def parts(self) -> int:
        """How many blocks are safe."""
        return int(self.state["parts"])

    @property
    def rows(self) -> int:
        """How many rows are safe."""
        return int(self.state["rows"])

    def require_disk(self, rows: int, per_row: int) -> None:
        """Refuse a store that the disk has no room for.

        Raises:
            DataError: says how much it needs, and how much there is.
        """
        needed = (rows - self.rows) * per_row
        free = shutil.disk_usage(self.folder).free
        if needed + SPARE > free:
            raise DataError(
                f"{self.destination}: {rows:,} rows take {rows * per_row / 1e9:,.2f} GB, of which "
                f"{needed / 1e9:,.2f} GB are to be written, and {free / 1e9:,.2f} GB of the disk are free: free some "
                "space, or choose another place"
            )

    def append(self, part: Dataset) -> None:
        """Write a block of whole episodes behind those that are there, and say that it is safe.

        Raises:
            DataError: its columns, environment or the meaning of its numbers are not those of the first; the disk is
                full.
        """
        columns = columns_of(part)
        columns["episode_ids"] = columns["episode_ids"] + self.state["episodes"]
        further = dict(self.state["further"])
        for key in [key for key in columns if key.startswith(on_disk.FURTHER)]:
            followed, there = on_disk.numbers_of(key), further.get(key, 0)
            if followed in columns:
                numbers = columns[followed]
                columns[followed] = np.where(numbers >= 0, numbers + self.rows, numbers - there)
            further[key] = there + len(columns[key])
        layout = [
            {"name": name, "dtype": str(column.dtype), "shape": [int(size) for size in column.shape[1:]]}
            for name, column in columns.items()
        ]
        state = {**self.state, "attributes": dict(self.state["attributes"]), "dropped": list(self.state["dropped"])}
        if self.parts == 0:
            state |= {"columns": layout, "env_id": part.env_id, "attributes": dict(part.attributes)}
        else:
            self._require_alike(part, layout)
            for key in [*state["attributes"], *part.attributes]:
                if state["attributes"].get(key) != part.attributes.get(key) and key not in state["dropped"]:
                    state["dropped"].append(key)
            state["attributes"] = {k: v for k, v in state["attributes"].items() if k not in state["dropped"]}
        warnings = dict(self.state["warnings"])
        for what, count in part.warnings.items():
            warnings[what] = warnings.get(what, 0) + int(count)
        try:
            for number, column in enumerate(columns.values()):
                with open(on_disk.column_file(self.folder, number), "ab") as file:
                    file.write(np.ascontiguousarray(column).reshape(-1).view(np.uint8).data)
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as failure:
            with contextlib.suppress(OSError):
                self._cut(self.state)
            raise DataError(
                f"{self.destination}: can't be written: {why(failure)}; {self.rows:,} rows are kept in {self.folder}, "
                "and the same command continues behind them"
            ) from failure
        state |= {
            "parts": self.parts + 1,
            "rows": self.rows + len(part),
            "episodes": self.state["episodes"] + int(part.episode_ids[-1]) + 1,
            "further": further,
            "unknown": self.state["unknown"] + (0 if part.next_known is None else int((~part.next_known).sum())),
            "warnings": warnings,
        }
        write_json(self.folder / JOURNAL, state)
        self.state = state

    def finish(self, sources: Sequence[Mapping[str, Any]], hashed: Callable[[int, int], None] | None = None) -> str:
        """Make a store of what is there; its SHA-256.

        Args:
            sources: what it was made of, for store.json.
            hashed: called with the number of columns whose SHA-256 is known, and of all.

        Raises:
            DataError: the disk is full.
        """
        held, columns = list(self.state["columns"]), []
        if not self.state["unknown"]:  # the last column says nothing
            held = [column for column in held if column["name"] != NEXT_KNOWN]
        try:
            for number, column in enumerate(held):
                further = {"rows": more[name]} if (name := column["name"]) in (more := self.state["further"]) else {}
                columns.append({**column, **further, "sha256": sha256_of(on_disk.column_file(self.folder, number))})
                if hashed is not None:
                    hashed(number + 1, len(held))
            # Whether data look like choices is asked of all of them: of a block that does it says nothing.
            reported = {w: n for w, n in self.state["warnings"].items() if w != LIKE_CHOICES or n == self.rows}
            header = {
                "format": on_disk.FORMAT if self.state["further"] else on_disk.WITHOUT_PICTURES,
                "kind": KIND,
                "rows": self.rows,
                "columns": columns,
                "env_id": self.state["env_id"],
                "attributes": self.state["attributes"],
                "warnings": reported,
                "sources": [dict(one) for one in sources],
            }
            header = on_disk.checked_header(header, self.destination)
            write_json(self.folder / on_disk.HEADER, header)
            os.rename(self.folder, self.destination)
            for path in self.destination.iterdir():  # what a kill leaves of them does no harm
                if path.name in (JOURNAL, LOCK) or path == on_disk.column_file(self.destination, len(held)):
                    path.unlink()
            _to_disk(self.destination.parent)
        except OSError as failure:
            raise DataError(f"{self.destination}: can't be written: {why(failure)}") from failure
        return str(header["sha256"])

    def _require_alike(self, part: Dataset, layout: list[dict[str, Any]]) -> None:
        first = {column["name"]: column for column in self.state["columns"]}
        names = {column["name"] for column in layout}
        if names != set(first):
            which = sorted(names ^ set(first))[0]
            raise DataError(f"{part.name}: the column {which!r} is not in all that the store is made of")
        for column in layout:
            if column != first[column["name"]]:
                raise DataError(
                    f"{part.name}: {column['name']!r} is {column['dtype']} of shape {column['shape']}, and "
                    f"{first[column['name']]['dtype']} of shape {first[column['name']]['shape']} in what came before"
                )
        if part.env_id != self.state["env_id"]:
            raise DataError(f"{part.name}: is of {part.env_id}, and what came before of {self.state['env_id']}")
        for key in MEANT_ALIKE:
            mine, others = part.attributes.get(key), self.state["attributes"].get(key)
            if mine != others:
                raise DataError(
                    f"{part.name}: its attribute {key!r} is {str(mine)[:SHOWN]}, and {str(others)[:SHOWN]} in what "
                    "came before; they must agree"
                )

    def _found(self) -> dict[str, Any] | None:
        """What a build of the same request left, its files cut to what is safe; None, and nothing there, else."""
        journal = self.folder / JOURNAL
        state: dict[str, Any] | None = None
        if journal.is_file() and not journal.is_symlink():
            with contextlib.suppress(CheckpointError):
                state = read_json(journal, _STATE)
        if state is not None and state["request"] == self.request:
            with contextlib.suppress(OSError):
                self._cut(state)
                return state
        for path in self.folder.iterdir():
            if path.name != LOCK:
                path.unlink()
        return None

    def _cut(self, state: dict[str, Any]) -> None:
        """Cut the files to the rows of a state.

        Raises:
            OSError: one is shorter, missing, or a symbolic link.
        """
        for number, column in enumerate(state["columns"]):
            path = on_disk.column_file(self.folder, number)
            rows = state["further"].get(column["name"], state["rows"])
            size = rows * math.prod(column["shape"]) * np.dtype(column["dtype"]).itemsize
            if path.is_symlink() or path.stat().st_size < size:
                raise OSError(f"{path} is shorter than it was")
            os.truncate(path, size)


def _to_disk(folder: pathlib.Path) -> None:
    """A folder's names onto the disk."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
