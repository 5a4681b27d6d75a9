"""Windows of the replay buffer: whole within an episode, cut at its end and where new rows overwrite old ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.actors.chunks import decisions
from surefoot.data.collect import TransitionBuffer
from surefoot.data.samplers import Windows
from surefoot.data.sources import WindowSource
from surefoot.data.store import Store
from surefoot.online.loops.replay import JoinedWindows, ReplayWindows

ENVS, LENGTH = 2, 3
SHAPES: dict[str, tuple[int, ...]] = {"time": (), "row": (), "terminations": (), "rewards": ()}


def filled(steps: int, capacity: int = 12) -> TransitionBuffer:
    """Rows say their time and environment; environment 0 terminates at times 4, 9, ..., 1 is truncated at 6, 13, ..."""
    buffer = TransitionBuffer(capacity, SHAPES, num_envs=ENVS)
    for time in range(steps):
        ends = np.array([time % 5 == 4, False]), np.array([False, time % 7 == 6])
        times = np.full(ENVS, time, np.float32)
        buffer.add({"time": times, "row": np.arange(ENVS), "rewards": times, "terminations": ends[0],
                    "truncations": ends[1]})  # fmt: skip
    return buffer


def bound(source: Any, rows: int = 64, seeds: tuple[int, ...] = (0,)) -> Any:
    source.bind(seeds, rows, torch.device("cpu"))
    return source


@pytest.mark.parametrize("steps", [2, 5, 6, 7, 8, 9, 10, 11, 17])
def test_windows_cross_neither_an_episode_s_end_nor_the_place_that_is_written_next(steps: int) -> None:
    buffer = filled(steps)  # of 6 steps: from the seventh on it is written over
    source = bound(ReplayWindows(buffer, LENGTH))
    batch = source.gather(torch.arange(len(buffer)))
    for place in range(len(buffer)):
        first, row = int(batch["time"][place, 0]), int(batch["row"][place, 0])
        end = min(t for t in (*range(first, steps), steps - 1) if (t % 5 == 4, t % 7 == 6)[row] or t == steps - 1)
        real = min(LENGTH, end - first + 1)
        assert batch["mask"][place].tolist() == [1.0] * real + [0.0] * (LENGTH - real)
        expected = [float(first + min(k, real - 1)) for k in range(LENGTH)]  # padded by the last row
        assert batch["time"][place].tolist() == expected
        assert batch["row"][place].tolist() == [float(row)] * LENGTH


@pytest.mark.parametrize(
    ("steps", "longest", "over"),
    [(0, 0, False), (2, 2, False), (5, 5, False), (6, 6, True), (7, 6, True), (17, 4, True)],
)
def test_the_longest_episode_is_known_as_far_as_it_is_in_the_buffer(steps: int, longest: int, over: bool) -> None:
    assert bound(ReplayWindows(filled(steps), LENGTH)).longest() == (longest, over)


def test_a_window_that_the_seam_or_the_present_cuts_is_no_target_and_one_that_a_termination_cuts_is() -> None:
    batch = bound(ReplayWindows(filled(9), LENGTH)).gather(torch.arange(12))
    states = torch.zeros(12, LENGTH, 1)
    whole = {**batch, "observations": states, "next_observations": states, "actions": states}
    found = decisions(whole, 0.9, LENGTH)
    by_time = {(int(t), int(e)): place for place, (t, e) in enumerate(zip(batch["time"][:, 0], batch["row"][:, 0]))}
    assert float(found["valid"][by_time[8, 0]]) == 0  # the newest: what follows is not known yet
    assert float(found["valid"][by_time[7, 1]]) == 0
    assert float(found["valid"][by_time[6, 1]]) == 0  # a time limit
    assert float(found["valid"][by_time[4, 0]]) == 1  # a termination: nothing follows, and that is known
    assert float(found["reach"][by_time[4, 0]]) == 0
    assert float(found["valid"][by_time[6, 0]]) == 1
    assert float(found["rewards"][by_time[6, 0]]) == pytest.approx(6 + 0.9 * 7 + 0.81 * 8)


def test_rows_of_data_and_buffer_are_equally_likely_and_say_where_they_are_from() -> None:
    data = {name: np.arange(24, dtype=np.float32) + (100 if name == "time" else 0) for name in SHAPES}
    store = Store.pack(data)
    windows = WindowSource(store, np.repeat(np.arange(4), 6), Windows(LENGTH))
    windows.bind([0], 6000, torch.device("cpu"))
    source = bound(JoinedWindows(windows, ReplayWindows(filled(9), LENGTH)), 6000)
    rows = source.rows(0)[0]
    batch = source.gather(rows)
    counts = torch.bincount(rows, minlength=36)
    assert counts.shape == (36,)
    assert bool((counts > 6000 / 36 * 0.6).all())
    of_data = batch["time"][:, 0] >= 100
    assert torch.equal(of_data, rows < 24)
    assert set(batch["time"][~of_data][:, 0].tolist()) == {3.0, 4.0, 5.0, 6.0, 7.0, 8.0}
    empty = bound(JoinedWindows(windows, ReplayWindows(TransitionBuffer(12, SHAPES, num_envs=ENVS), LENGTH)), 64)
    assert int(empty.rows(0).max()) < 24  # nothing met yet: the data alone


def test_two_seeds_draw_windows_of_their_own_environments() -> None:
    source = bound(ReplayWindows(filled(9), LENGTH), 50, (0, 1))
    found = source.gather(source.rows(3))
    assert found["row"][0].unique().tolist() == [0.0]
    assert found["row"][1].unique().tolist() == [1.0]
