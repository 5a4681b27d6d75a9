"""`RingBuffer`: a store that vectorised environments write to, the newest rows replacing the oldest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import CheckpointError, ConfigError, DataError
from surefoot.data.followed import ASIDE, FURTHER, SHARE, Followed, by_number
from surefoot.data.samplers import Chain
from surefoot.data.store import (
    NEXT,
    OBSERVATION_ACTIONS,
    Batch,
    Field,
    Store,
    Workspace,
    bytes_of_row,
    checked_device,
    free_bytes,
)

END_KEYS = ("terminations", "truncations")
COLUMN_PREFIX = "columns."


class RingBuffer:
    """The last `capacity` transitions of `num_envs` environments that step together.

    Row t * num_envs + e holds step t of environment e, so a step is written as one slice and row i is
    followed by row i + num_envs. The filled rows are always 0 ... len - 1: sample with
    `uniform_rows(uniform, len(buffer))`, sequences with `buffer.chain`.

    Pictures are held once: of a column KEY of them that has a `next_KEY` beside it, the latter is a column of numbers
    (`data.followed`).

    Args:
        capacity: rows, a multiple of `num_envs`.
        shapes: name -> shape of one transition's value; () for a number.
        device: where the rows live.
        num_envs: rows that each `add` brings.
        dtypes: of columns that are not floats, e.g. {"images": torch.uint8}.
        dtype: of the packed float row.

    Raises:
        ConfigError: a capacity that does not fit the number of environments.
        DataError: columns that a store can't hold, or more than the device has free.
    """

    def __init__(
        self,
        capacity: int,
        shapes: Mapping[str, tuple[int, ...]],
        device: str | torch.device = "cpu",
        num_envs: int = 1,
        dtypes: Mapping[str, torch.dtype] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if num_envs < 1 or capacity < num_envs or capacity % num_envs:
            raise ConfigError(
                f"capacity {capacity} must be a positive multiple of the number of environments, {num_envs}"
            )
        kinds = {key: torch.float32 for key in shapes} | dict(dtypes or {})
        if unknown := set(kinds) - set(shapes):
            raise ConfigError(f"dtypes names columns without a shape: {', '.join(sorted(unknown))}")
        self.capacity = capacity
        self.num_envs = num_envs
        columns = {key: (tuple(shape), kinds[key]) for key, shape in shapes.items()}
        paired = seen_and_followed(columns)
        _check_fits(capacity, row_bytes(columns, dtype), checked_device(device))
        self._store = Store.allocate(capacity, columns, device, dtype, [NEXT + key for key in paired])
        self._followed = {key: Followed(key, self._store.groups[key], num_envs) for key in paired}
        self._point_to_frames()
        self.moved = 0
        """How often tensors that batches are gathered from have been replaced by larger ones."""
        everything = [key for key in self.keys if key != OBSERVATION_ACTIONS]
        self._columns = [key for key in everything if key not in self._store.frames]
        self._wanted = {key: (num_envs, *self.fields[key].shape) for key in everything}
        """Key -> shape of what a step must have."""
        self._wanted |= {key: (num_envs,) for key in END_KEYS}
        # An unwritten row counts as an end, and so does the newest row of each environment: no sequence
        # runs into rows that are not there, or round the ring from the newest step into the oldest.
        self._ends = torch.ones(capacity, dtype=torch.bool, device=self.device)
        self._newest_done = torch.ones(num_envs, dtype=torch.bool, device=self.device)
        self._arrays = _arrays({**{key: self._store[key] for key in self._columns}, "ends": self._ends})
        self._position = 0  # row that the next step of environment 0 goes to
        self._size = 0
        self.rewritten = 0
        """How often rows that were there have changed: replaced by newer ones, written again, or loaded."""

    def __len__(self) -> int:
        """Rows written so far, at most `capacity`."""
        return self._size

    def __getitem__(self, key: str) -> Tensor:
        """The whole column `key`, (capacity, ...): a view; rows from `len(self)` on are not written yet."""
        return self._store[key]

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the columns, as `Store.keys`."""
        return self._store.keys

    @property
    def fields(self) -> dict[str, Field]:
        """Layout of the packed row, as `Store.fields`."""
        return self._store.fields

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self._store.device

    @property
    def nbytes(self) -> int:
        """Bytes held by the rows, padding included."""
        return self._store.nbytes

    @property
    def cameras(self) -> tuple[str, ...]:
        """The columns of pictures that are held once."""
        return tuple(self._followed)

    @property
    def position(self) -> int:
        """The row that the next step of environment 0 goes to."""
        return self._position

    @property
    def chain(self) -> Chain:
        """Which row follows which, for `Windows`; it follows later additions."""
        return Chain(self._ends, self.num_envs)

    def add(self, batch: Mapping[str, Tensor | np.ndarray]) -> Tensor:
        """Append one step of every environment.

        Args:
            batch: name -> (num_envs, ...): every column of the buffer, and `terminations` and `truncations`,
                columns or not: either marks an episode's last step. Other keys are not read.

        Returns:
            (num_envs,) int64: the rows that were written.

        Raises:
            DataError: a column is missing or has another shape; nothing is written then.
        """
        rows = slice(self._position, self._position + self.num_envs)
        replaces = self._position < self._size
        newest = (self._position - self.num_envs) % self.capacity
        before = slice(newest, newest + self.num_envs)
        wanted = {key: batch[key] for key in self._wanted if key in batch}
        numbers = None if self._arrays is None else _in_memory(wanted)
        checked = self._checked(batch) if numbers is None else None
        if numbers is not None:
            self._check_shapes(numbers)
        self._make_room()
        if numbers is not None:  # of few numbers numpy's calls take a fifth of the time of torch's
            self._write_arrays(numbers, rows, before)
        else:
            assert checked is not None
            self._write(checked, rows, before)
        for key, followed in self._followed.items():
            following = torch.as_tensor(batch[NEXT + key])
            followed.add(rows, before if self._size and before != rows else None, following, replaces)
        self.rewritten += replaces
        self._position = rows.stop % self.capacity
        self._size = max(self._size, rows.stop)
        written = torch.from_numpy(np.arange(rows.start, rows.stop))
        return written if self.device.type == "cpu" else written.to(self.device)

    def _write(self, values: Mapping[str, Tensor], rows: slice, before: slice) -> None:
        """Put checked columns of a step into its rows."""
        for key in self._columns:
            self._store[key][rows].copy_(values[key])
        if self._size:  # the step before was no end after all, unless its episode was over
            self._ends[before] = self._newest_done
        self._ends[rows] = True
        self._newest_done.copy_(values["terminations"].bool() | values["truncations"].bool())

    def _write_arrays(self, values: Mapping[str, np.ndarray], rows: slice, before: slice) -> None:
        """As `_write`, of columns in memory."""
        assert self._arrays is not None
        ends = self._arrays["ends"]
        for key in self._columns:
            self._arrays[key][rows] = values[key]
        done = self._newest_done.numpy()
        if self._size:
            ends[before] = done
        ends[rows] = True
        np.logical_or(values["terminations"], values["truncations"], out=done)

    def _make_room(self) -> None:
        """Make sure that each camera has room for what follows the next step."""
        grown = [followed.make_room() for followed in self._followed.values()]
        if any(grown):
            self._point_to_frames()
            self.moved += 1

    def _point_to_frames(self) -> None:
        """Gather from where next pictures now are."""
        self._store.frames.update({NEXT + key: followed.frames for key, followed in self._followed.items()})

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of, whose arrays lie elsewhere."""
        return {**self.__dict__, "_arrays": None}

    def rewrite(self, key: str, rows: Tensor, values: Tensor) -> None:
        """Put other values into one column of rows that are there.

        Args:
            key: of the column.
            rows: (n,) int64.
            values: (n, ...).
        """
        self._store[key][rows] = values
        self.rewritten += 1

    def end_episodes(self) -> None:
        """Say that the next steps begin new episodes, e.g. when a resumed run resets its environments."""
        self._newest_done.fill_(True)

    def gather(self, indices: Tensor, out: Workspace | None = None) -> Batch:
        """The rows at `indices` (...,) in [0, len), as `Store.gather`."""
        return self._store.gather(indices, out)

    def gather_groups(self, indices: Tensor) -> dict[str, Tensor]:
        """Packed rows at `indices`, as `Store.gather_groups`."""
        return self._store.gather_groups(indices)

    def columns(self, wanted: Callable[[str], bool]) -> Store:
        """The columns whose names are wanted, as `Store.columns`; ask again after rows were added."""
        return self._store.columns(wanted)

    def split(self, groups: Mapping[str, Tensor]) -> Batch:
        """Columns of packed rows, as `Store.split`."""
        return self._store.split(groups)

    def workspace(self, shape: int | tuple[int, ...]) -> Workspace:
        """Buffers for `gather`, as `Store.workspace`."""
        return self._store.workspace(shape)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to continue: contiguous copies of the written rows, and where to write next."""
        state = {COLUMN_PREFIX + key: self[key][: self._size].clone(memory_format=torch.contiguous_format)
                 for key in self._columns}  # fmt: skip
        for followed in self._followed.values():
            state |= followed.state(self._size)
        return state | {
            "ends": self._ends[: self._size].clone(),
            "newest_done": self._newest_done.clone(),
            "position": torch.tensor(self._position),
            "capacity": torch.tensor(self.capacity),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state_dict()` of a buffer of the same columns and environments.

        Its capacity may be smaller, if its rows still lie in the order in which they came: steps are then added behind
        them, as if there had been as much room from the beginning.

        Raises:
            CheckpointError: the state is of another kind of buffer; this one is then unchanged.
        """
        if self._followed and "capacity" in state:
            state = by_number(state, COLUMN_PREFIX, list(self._followed), self.num_envs, int(state["capacity"]))
        self._check_state(state)
        size = len(state["ends"])
        for key in self._columns:
            self[key][:size].copy_(state[COLUMN_PREFIX + key])
            self[key][size:].zero_()
        self._ends.fill_(True)
        self._ends[:size].copy_(state["ends"])
        self._newest_done.copy_(state["newest_done"])
        self._position = (int(state["position"]) or size) % self.capacity
        self._size = size
        for followed in self._followed.values():
            followed.load(state, size, self._position)
        self._point_to_frames()
        self.moved += 1
        self.rewritten += 1

    def _checked(self, batch: Mapping[str, Tensor | np.ndarray]) -> dict[str, Tensor]:
        """The columns of a step as tensors of the right shapes."""
        values = {key: torch.as_tensor(batch[key]) for key in self._wanted if key in batch}
        self._check_shapes(values)
        ends = {key: values[key].to(self.device) for key in END_KEYS}
        return values | ends

    def _check_shapes(self, values: Mapping[str, Tensor | np.ndarray]) -> None:
        for key, shape in self._wanted.items():
            if key not in values:
                raise DataError(f"the step has no {key!r}: the ring buffer needs {', '.join(self._wanted)}")
            if values[key].shape != shape:
                raise DataError(
                    f"{key!r} of the step has shape {tuple(values[key].shape)}; the ring buffer holds {shape}"
                )

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        cameras = {prefix + key for key in self._followed for prefix in (ASIDE, FURTHER)}
        expected = (
            cameras
            | {COLUMN_PREFIX + key for key in self._columns}
            | {
                "ends",
                "newest_done",
                "position",
                "capacity",
            }
        )
        if set(state) != expected:
            odd = ", ".join(sorted(set(state) ^ expected))
            raise CheckpointError(f"the state is of another ring buffer, its entries differ in: {odd}")
        size, position, capacity = len(state["ends"]), int(state["position"]), int(state["capacity"])
        if capacity > self.capacity or (capacity < self.capacity and position not in (0, size)):
            raise CheckpointError(
                f"the state is of a ring buffer of {capacity} rows, not {self.capacity}"
                + (", and its newest rows have replaced the oldest" if capacity < self.capacity else "")
                + ": continue the capacity that it was filled with, or begin with an empty buffer"
            )
        shapes = {COLUMN_PREFIX + key: (size, *self.fields[key].shape) for key in self._columns}
        shapes |= {"newest_done": (self.num_envs,)}
        for key, shape in shapes.items():
            if tuple(state[key].shape) != shape:
                raise CheckpointError(f"{key!r} in the state has shape {tuple(state[key].shape)}, not {shape}")
        for followed in self._followed.values():
            followed.check(state, size)
        full = size == capacity and position % self.num_envs == 0 and 0 <= position < capacity
        if not full and not (size < capacity and position == size and size % self.num_envs == 0):
            raise CheckpointError(f"the state's position {position} does not fit its {size} written rows")


def seen_and_followed(columns: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> list[str]:
    """The columns of pictures, given by shape and dtype, that have one of what followed beside them."""
    return [
        key for key, (shape, dtype) in columns.items()
        if dtype == torch.uint8 and len(shape) > 1 and columns.get(NEXT + key) == (shape, dtype)
    ]  # fmt: skip


def row_bytes(columns: Mapping[str, tuple[tuple[int, ...], torch.dtype]], dtype: torch.dtype = torch.float32) -> int:
    """Bytes that a row of a ring buffer of these columns takes, with its share of the first room for pictures aside."""
    paired = seen_and_followed(columns)
    once = {key: column for key, column in columns.items() if key.removeprefix(NEXT) not in paired or key in paired}
    pictures = sum(math.prod(columns[key][0]) for key in paired)
    return bytes_of_row(once, dtype) + pictures // SHARE + len(paired) * torch.int64.itemsize


def _check_fits(rows: int, each: int, device: torch.device) -> None:
    """Refuse more bytes than the device has free; raises DataError."""
    free = free_bytes(device)
    if rows * each > free:
        raise DataError(
            f"a replay buffer of {rows:,} rows takes {rows * each / 1e9:.2f} GB, {each:,} bytes a row, and "
            f"{str(device)!r} has {free / 1e9:.2f} GB free: lower its capacity to {free // each:,} or less"
        )


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray] | None:
    """Tensors as numpy sees them, where it can."""
    if any(value.device.type != "cpu" or value.dtype == torch.bfloat16 for value in tensors.values()):
        return None
    return {key: value.numpy() for key, value in tensors.items()}


def _in_memory(batch: Mapping[str, Tensor | np.ndarray]) -> dict[str, np.ndarray] | None:
    """The same of a batch, in which some are arrays already."""
    found: dict[str, np.ndarray] = {}
    for key, value in batch.items():
        if isinstance(value, np.ndarray):
            found[key] = value
        elif not isinstance(value, Tensor) or value.device.type != "cpu" or value.dtype == torch.bfloat16:
            return None
        else:
            found[key] = value.detach().numpy()
    return found
