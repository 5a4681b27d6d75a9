"""A ring buffer keeps each picture once, and gives the batches of one that keeps two in each row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from surefoot.core.base.errors import CheckpointError, DataError
from surefoot.data import followed, ring
from surefoot.data.collect import TransitionBuffer
from surefoot.data.followed import FURTHER, joined, part_of
from surefoot.data.ring import COLUMN_PREFIX, RingBuffer, row_bytes

CAMERA, NEXT = "observations/camera", "next_observations/camera"
SIZE = (4, 3, 3)
SHAPES: dict[str, tuple[int, ...]] = {CAMERA: SIZE, NEXT: SIZE, "rewards": ()}
BYTES = {CAMERA: torch.uint8, NEXT: torch.uint8}
APART = {"now": CAMERA, "after": NEXT, "rewards": "rewards"}
"""Columns of a buffer that knows nothing of what follows: two pictures in each row."""


class Frames:
    """Environments whose pictures are all different, and whose episodes end at random."""

    def __init__(self, envs: int, seed: int, ends: float, inserts: bool = False) -> None:
        self.source = torch.Generator().manual_seed(seed)
        self.envs, self.ends, self.inserts = envs, ends, inserts
        self.seen, self.over = self.pictures(), torch.zeros(envs, dtype=torch.bool)

    def pictures(self) -> Tensor:
        return torch.randint(0, 256, (self.envs, *SIZE), dtype=torch.uint8, generator=self.source)

    def step(self) -> dict[str, Tensor]:
        """Episodes begin again in the same step, or in the next one, whose row is no transition."""
        after, done = self.pictures(), torch.rand(self.envs, generator=self.source) < self.ends
        valid = ~self.over if self.inserts else torch.ones(self.envs, dtype=torch.bool)
        done &= valid
        found = {
            CAMERA: self.seen, NEXT: after, "rewards": torch.rand(self.envs, generator=self.source),
            "terminations": torch.zeros_like(done), "truncations": done, "valid": valid,
        }  # fmt: skip
        fresh = (done if not self.inserts else torch.zeros_like(done)).view(-1, 1, 1, 1)
        self.seen, self.over = torch.where(fresh, self.pictures(), after), done
        return found


def once(capacity: int, envs: int) -> TransitionBuffer:
    return TransitionBuffer(capacity, SHAPES, num_envs=envs, dtypes=BYTES)


def twice(capacity: int, envs: int) -> TransitionBuffer:
    shapes: dict[str, tuple[int, ...]] = {"now": SIZE, "after": SIZE, "rewards": ()}
    return TransitionBuffer(capacity, shapes, num_envs=envs, dtypes={"now": torch.uint8, "after": torch.uint8})


def apart(step: dict[str, Tensor]) -> dict[str, Tensor]:
    return step | {name: step[key] for name, key in APART.items()}


def assert_equal(ours: TransitionBuffer, plain: TransitionBuffer) -> None:
    rows = torch.arange(len(plain)).flip(0)
    found, wanted = ours.gather(rows), plain.gather(rows)
    space = ours.workspace(len(rows))
    ours.gather(rows, space)
    for name, key in APART.items():
        assert torch.equal(found[key], wanted[name]), key
        assert torch.equal(space.batch[key], wanted[name]), key
        assert torch.equal(ours[key][: len(plain)], plain[name][: len(plain)]), key


@pytest.mark.parametrize("ends", [0.0, 0.1, 0.6, 1.0])
@pytest.mark.parametrize(("steps", "envs"), [(1, 1), (2, 1), (40, 1), (5, 3), (24, 2)])
@pytest.mark.parametrize("inserts", [False, True])
@pytest.mark.parametrize("in_numpy", [False, True])  # on a GPU; on a CPU
def test_batches_are_those_of_a_buffer_with_two_pictures_in_each_row(
    steps: int, envs: int, ends: float, inserts: bool, in_numpy: bool
) -> None:
    source = Frames(envs, seed=steps + envs, ends=ends, inserts=inserts)
    ours, plain = once(steps * envs, envs), twice(steps * envs, envs)
    ours._followed[CAMERA].in_numpy = in_numpy
    for time in range(3 * steps + 2):
        if time == steps // 2:  # a reset in the middle of an episode: what followed is nowhere else
            source.seen = source.pictures()
        step = source.step()
        ours.add(step)
        plain.add(apart(step))
        assert_equal(ours, plain)


def test_what_followed_a_truncated_episode_is_neither_the_next_ones_first_picture_nor_the_oldest_row() -> None:
    """The two slips of buffers that take the row after a transition for what followed it."""
    buffer = once(4, 1)
    pictures = [torch.full((1, *SIZE), value, dtype=torch.uint8) for value in range(12)]

    def add(now: int, after: int, truncated: bool = False) -> None:
        ends = {"terminations": torch.tensor([False]), "truncations": torch.tensor([truncated])}
        buffer.add({CAMERA: pictures[now], NEXT: pictures[after], "rewards": torch.zeros(1), **ends})

    add(0, 1)
    add(1, 2, truncated=True)
    add(5, 6)
    assert buffer[NEXT][:3].flatten(1)[:, 0].tolist() == [1, 2, 6]  # not 5 behind the end
    add(6, 7)
    add(7, 8)  # over the oldest
    assert buffer[NEXT].flatten(1)[:, 0].tolist() == [8, 2, 6, 7]  # not 1, which follows in the ring


def test_numbers_of_a_ring_of_four_rows_with_resets_in_the_next_step() -> None:
    """The row that an environment inserts after an episode begins with the final picture: nothing is kept aside."""
    buffer = once(4, 1)
    pictures = [torch.full((1, *SIZE), value, dtype=torch.uint8) for value in range(6)]
    for time in range(4):
        ends = {"terminations": torch.tensor([time == 1]), "truncations": torch.tensor([False])}
        valid = torch.tensor([time != 2])
        step = {CAMERA: pictures[time], NEXT: pictures[time + 1], "rewards": torch.zeros(1), "valid": valid, **ends}
        buffer.add(step)
    assert buffer._store.frames[NEXT].numbers.tolist() == [1, 2, 3, -1]
    assert buffer.valid.tolist() == [True, True, False, True]


@pytest.mark.parametrize("ends", [0.0, 0.3, 1.0])
def test_it_continues_from_its_state_as_one_that_was_never_interrupted(ends: float) -> None:
    for count in (0, 1, 3, 6, 7, 13):
        source = Frames(2, seed=count, ends=ends)
        whole, plain = once(12, 2), twice(12, 2)
        for _ in range(count):
            step = source.step()
            whole.add(step)
            plain.add(apart(step))
        resumed, other = once(12, 2), Frames(2, seed=99, ends=0.5)
        for _ in range(9):
            resumed.add(other.step())  # what was there before must not shine through
        resumed.load_state_dict({name: value.clone() for name, value in whole.state_dict().items()})
        for _ in range(9):
            assert_equal(resumed, plain)
            step = source.step()
            resumed.add(step)
            plain.add(apart(step))


def test_a_state_of_fewer_rows_continues_in_a_larger_ring() -> None:
    for count in (1, 3, 6):
        source = Frames(2, seed=count, ends=0.4)
        small, plain, larger = once(12, 2), twice(30, 2), once(30, 2)
        for _ in range(count):
            step = source.step()
            small.add(step)
            plain.add(apart(step))
        larger.load_state_dict(small.state_dict())
        for _ in range(20):
            assert_equal(larger, plain)
            step = source.step()
            larger.add(step)
            plain.add(apart(step))


@pytest.mark.parametrize("count", [1, 4, 6, 9])
def test_a_state_with_two_pictures_in_each_row_is_read(count: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(followed, "COMPARED_BYTES", 100)  # several blocks
    source = Frames(2, seed=count, ends=0.3)
    plain, ours = twice(12, 2), once(12, 2)
    for _ in range(count):
        plain.add(apart(source.step()))
    names = {COLUMN_PREFIX + name: COLUMN_PREFIX + key for name, key in APART.items()}
    ours.load_state_dict({names.get(name, name): value for name, value in plain.state_dict().items()})
    for _ in range(8):
        assert_equal(ours, plain)
        step = source.step()
        ours.add(step)
        plain.add(apart(step))


def test_a_state_is_parted_among_seeds_and_joined_again() -> None:
    source = Frames(6, seed=4, ends=0.4)
    buffer = once(30, 6)
    for _ in range(8):
        buffer.add(source.step())

    def part(seed: int) -> Any:
        def of(value: Tensor) -> Tensor:
            if value.dim() == 0 or len(value) % 6:
                return value
            return value.view(-1, 3, 2, *value.shape[1:])[:, seed].flatten(0, 1)

        return of

    def join(values: list[Tensor]) -> Tensor:
        if values[0].dim() == 0:
            return values[0]
        return torch.stack([value.view(-1, 2, *value.shape[1:]) for value in values], 1).flatten(0, 2)

    state = buffer.state_dict()
    parts = [part_of(state, part(seed)) for seed in range(3)]
    assert sum(len(one[FURTHER + CAMERA]) for one in parts) == len(state[FURTHER + CAMERA])
    again = joined(parts, join)
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], value) for name, value in state.items())


def test_a_damaged_state_is_refused_and_nothing_changes() -> None:
    source, buffer = Frames(1, seed=0, ends=0.5), once(8, 1)
    for _ in range(5):
        buffer.add(source.step())
    state, before = buffer.state_dict(), buffer[NEXT].clone()
    name = FURTHER + CAMERA
    for changed in (
        state | {name: state[name][:-1]},
        state | {name: state[name].float()},
        {key: value for key, value in state.items() if key != name},
    ):
        with pytest.raises(CheckpointError, match=r"further\.observations/camera"):
            buffer.load_state_dict(changed)
        assert torch.equal(buffer[NEXT], before)


def test_it_takes_half_of_the_memory_and_says_how_much_a_row_takes() -> None:
    rows, size = 1600, (64, 64, 3)
    shapes: dict[str, tuple[int, ...]] = {CAMERA: size, NEXT: size, "rewards": ()}
    ours = RingBuffer(rows, shapes, num_envs=4, dtypes=BYTES)
    picture = 64 * 64 * 3
    assert ours.nbytes < 1.08 * rows * picture  # of two in each row: 2.01
    kinds = {key: (shape, BYTES.get(key, torch.float32)) for key, shape in shapes.items()}
    assert row_bytes(kinds) == picture + picture // 16 + 8 + 64
    assert row_bytes({"rewards": ((), torch.float32)}) == 64


def test_more_than_there_is_room_for_is_refused_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "free_bytes", lambda device: 100_000)
    with pytest.raises(
        DataError, match=r"1,000 rows takes 0\.00 GB, 110 bytes a row.*lower its capacity to 909 or less"
    ):
        once(1000, 1)
    buffer, source = once(64, 1), Frames(1, seed=0, ends=1.0)
    for _ in range(4):
        buffer.add(source.step())
    monkeypatch.setattr(followed, "free_bytes", lambda device: 100)
    before = buffer.state_dict()
    for _ in range(4):
        before = buffer.state_dict()
        if buffer._followed[CAMERA].room == int(buffer._followed[CAMERA]._head):
            break
        buffer.add(source.step())
    with pytest.raises(DataError, match="pictures behind the ends of"):
        buffer.add(source.step())
    after = buffer.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
