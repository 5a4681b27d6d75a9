"""`Followed`: what followed the rows of a ring buffer, by number, so that it holds each picture once.

What follows a step is mostly what the next step of its environment begins with, which is in the ring by itself. Only
what is nowhere else is kept aside: what followed the newest step of each environment, until the next one shows whether
it begins with it, and what followed the last steps of episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import CheckpointError, DataError
from surefoot.data.derived import blocks
from surefoot.data.frames import Frames
from surefoot.data.pictures import COMPARED_BYTES
from surefoot.data.store import NEXT, free_bytes

ASIDE, FURTHER = "aside.", "further."
"""What names in a state begin with: which rows' next pictures are kept aside, and those pictures, in order of rows."""
SHARE = 16
"""Of so many rows one has room aside at first."""

Array = np.ndarray[Any, Any]
Part = Callable[[Tensor], Tensor]


class Followed:
    """The column of next pictures of a ring of N rows, of which `num_envs` = E lie side by side.

    A row's number is k >= 0, the row that begins with what followed it, or -1 - k, place k aside. Places 0 ... E - 1
    are of the newest step of each environment; the next `room` are a ring of others, the oldest of which is free again
    when its row has been replaced; the last is for what is not kept. Nothing waits for a GPU, except where the room
    may be full.
    """

    def __init__(self, key: str, own: Tensor, num_envs: int) -> None:
        """Begin without rows.

        Args:
            key: of the column of `own`, for messages.
            own: (N, ...) pictures that the rows begin with, which the ring writes.
            num_envs: E.
        """
        self.key, self.own, self.num_envs = key, own, num_envs
        self.room = first_room(len(own))
        self.numbers = torch.zeros(len(own), dtype=torch.int64, device=own.device)
        self.aside = self._places(self.room)
        self._head = torch.zeros((), dtype=torch.int64, device=own.device)  # pictures kept aside so far
        self._tail = self._head.clone()  # of them, those whose rows have been replaced
        self._most = 0  # at least head - tail
        self.in_numpy = own.device.type == "cpu"

    @property
    def frames(self) -> Frames:
        """The column for batches; another one after the room has grown."""
        return Frames(self.numbers, self.own, self.aside)

    def add(self, rows: slice, before: slice | None, following: Tensor, replaces: bool) -> None:
        """Write what followed a step, whose own pictures are written, after `make_room`.

        Args:
            rows: of the step.
            before: those of the step before; None: there is none.
            following: (E, ...).
            replaces: whether the rows were written before.
        """
        if self.in_numpy:
            self._add_here(rows, before, following.numpy(), replaces)
            return
        count = self.num_envs
        newest = self.aside[:count]
        if replaces:
            self._tail += (self.numbers[rows] < -count).sum()
        if before is not None:
            same = (newest == self.own[rows]).flatten(1).all(1)
            alone = (~same).long()
            place = count + (self._head + alone.cumsum(0) - 1) % self.room
            place = torch.where(same, count + self.room, place)
            self.aside.index_copy_(0, place, newest.clone())
            own = torch.arange(rows.start, rows.stop, device=place.device)
            self.numbers[before] = torch.where(same, own, -1 - place)
            self._head += alone.sum()
            self._most += count
        newest.copy_(following)
        self.numbers[rows] = -1 - torch.arange(count, device=self.numbers.device)

    def _add_here(self, rows: slice, before: slice | None, following: Array, replaces: bool) -> None:
        """As `add` on a CPU: numpy compares in a fifth of the time, and only what is kept aside is copied."""
        count, aside, numbers = self.num_envs, self.aside.numpy(), self.numbers.numpy()
        newest = aside[:count]
        if replaces:
            self._tail += int((numbers[rows] < -count).sum())
        if before is not None:
            same = (newest == self.own[rows].numpy()).reshape(count, -1).all(1)
            numbers[before] = np.arange(rows.start, rows.stop)
            alone, head = np.flatnonzero(~same), int(self._head)
            for number, env in enumerate(alone.tolist()):
                place = count + (head + number) % self.room
                aside[place] = newest[env]
                numbers[before.start + env] = -1 - place
            self._head += len(alone)
            self._most += len(alone)
        newest[...] = following
        numbers[rows] = -1 - np.arange(count)

    def make_room(self) -> bool:
        """Make sure that the pictures of a step can be kept aside.

        Returns:
            Whether more memory was taken, so that `frames` has other tensors.

        Raises:
            DataError: more bytes than the device has free; nothing has changed then.
        """
        count, tail = self.num_envs, self._tail
        if self._most + count <= self.room:
            return False
        self._most = int(self._head - tail)
        room = self._room_for(self._most + count)
        if room == self.room:
            return False
        larger = self._places(room)
        larger[:count] = self.aside[:count]
        held = tail + torch.arange(self._most, device=tail.device)
        larger[count + held % room] = self.aside[count + held % self.room]
        moved = self.numbers < -count
        place = -1 - self.numbers - count
        number = tail + (place - tail) % self.room
        self.numbers = torch.where(moved, -1 - count - number % room, self.numbers)
        self.aside, self.room = larger, room
        return True

    def _room_for(self, pictures: int) -> int:
        """The present room, doubled until so many fit."""
        room = self.room
        while room < pictures:
            room *= 2
        return room

    def _places(self, room: int) -> Tensor:
        count = self.num_envs + room + 1
        needed, free = count * self.own[:1].nbytes, free_bytes(self.own.device)
        if needed > free:
            raise DataError(
                f"pictures behind the ends of {count - 1:,} episodes of {self.key!r} take {needed / 1e9:.2f} GB, and "
                f"{str(self.own.device)!r} has {free / 1e9:.2f} GB free: lower the buffer's capacity"
            )
        return torch.zeros((count, *self.own.shape[1:]), dtype=self.own.dtype, device=self.own.device)

    # -- what is saved -----------------------------------------------------------------------------------

    def state(self, size: int) -> dict[str, Tensor]:
        """Of the first `size` rows: (size,) bool, whose next pictures are kept aside, and those, in order of rows."""
        numbers = self.numbers[:size]
        aside = numbers < 0
        return {ASIDE + self.key: aside, FURTHER + self.key: self.aside[-1 - numbers[aside]]}

    def check(self, state: Mapping[str, Tensor], size: int) -> None:
        """Refuse what `state` would not have given.

        Raises:
            CheckpointError: other shapes, or as many pictures as are not named.
        """
        aside, further = state[ASIDE + self.key], state[FURTHER + self.key]
        shape = (int(aside.sum()), *self.own.shape[1:])
        if tuple(aside.shape) != (size,) or tuple(further.shape) != shape or further.dtype != self.own.dtype:
            raise CheckpointError(
                f"{FURTHER + self.key!r} in the state is {further.dtype} of shape {tuple(further.shape)}, not "
                f"{self.own.dtype} of {shape}"
            )

    def load(self, state: Mapping[str, Tensor], size: int, position: int) -> None:
        """Continue from a state that was checked, whose own pictures are written.

        Args:
            state: as `state` gave it.
            size: rows.
            position: row that the next step goes to: the oldest, where all rows are written.
        """
        count, device = self.num_envs, self.numbers.device
        order = torch.arange(size, device=device)
        if size == len(self.own):
            order = (order + position) % size
        older, newest = order[: size - count], order[size - count :]
        aside, further = state[ASIDE + self.key].to(device), state[FURTHER + self.key].to(device)
        rank = aside.long().cumsum(0) - 1
        old = older[aside[older]]
        self._tail.zero_()
        self._head.fill_(len(old))
        self._most, self.room = len(old), self._room_for(len(old))
        self.aside = self._places(self.room)
        self.aside[count : count + len(old)] = further[rank[old]]
        self.aside[: len(newest)] = further[rank[newest]]
        self.numbers.zero_()
        self.numbers[:size] = (torch.arange(size, device=device) + count) % len(self.own)
        self.numbers[old] = -1 - count - torch.arange(len(old), device=device)
        self.numbers[newest] = -1 - torch.arange(len(newest), device=device)


def first_room(capacity: int) -> int:
    """Pictures that there is room for aside at first, beside a ring of so many rows."""
    return max(1, capacity // SHARE)


def by_number(
    state: Mapping[str, Tensor], prefix: str, keys: Sequence[str], num_envs: int, capacity: int
) -> dict[str, Tensor]:
    """A state that holds two pictures of each row, as version 0.3 wrote it, with each once.

    Args:
        state: of a ring buffer.
        prefix: what names of columns begin with.
        keys: columns of pictures.
        num_envs: E.
        capacity: of the ring that the state is of.
    """
    found = dict(state)
    for key in keys:
        following = found.pop(f"{prefix}{NEXT}{key}", None)
        if following is None:
            continue
        own, rows = state[prefix + key], torch.arange(len(following))
        newest = (rows - state["position"]) % capacity >= capacity - num_envs
        aside = newest.clone()
        for some in blocks(len(rows), max(1, COMPARED_BYTES // max(1, own[:1].nbytes))):
            after = torch.where(newest[some], rows[some], (rows[some] + num_envs) % capacity)
            aside[some] |= (following[some] != own[after]).flatten(1).any(1)
        found |= {ASIDE + key: aside, FURTHER + key: following[aside]}
    return found


def part_of(state: Mapping[str, Tensor], part: Part) -> dict[str, Tensor]:
    """A state of some environments of a buffer: `part` picks theirs of a tensor that has rows."""
    found = {name: part(value) for name, value in state.items() if not name.startswith(FURTHER)}
    for name, further in state.items():
        if name.startswith(FURTHER):
            aside = state[ASIDE + name.removeprefix(FURTHER)]
            place = part(aside.long().cumsum(0) - 1)
            found[name] = further[place[part(aside)]]
    return found


def joined(parts: Sequence[Mapping[str, Tensor]], join: Callable[[list[Tensor]], Tensor]) -> dict[str, Tensor]:
    """The inverse of `part_of`: `join` puts rows of all together."""
    found = {name: join([part[name] for part in parts]) for name in parts[0] if not name.startswith(FURTHER)}
    for name in parts[0]:
        if name.startswith(FURTHER):
            key = ASIDE + name.removeprefix(FURTHER)
            first = np.cumsum([0, *(len(part[name]) for part in parts)]).tolist()
            place = join([before + part[key].long().cumsum(0) - 1 for before, part in zip(first, parts, strict=False)])
            found[name] = torch.cat([part[name] for part in parts])[place[found[key]]]
    return found
