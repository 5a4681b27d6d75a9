"""A ring buffer keeps the newest steps, knows where episodes end, and resumes exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from surefoot.core.base.errors import CheckpointError, ConfigError, DataError
from surefoot.data.ring import RingBuffer
from surefoot.data.samplers import Mixture, Windows, uniform_rows
from surefoot.data.store import Store

SHAPES: dict[str, tuple[int, ...]] = {
    "observations": (2,),
    "actions": (1,),
    "rewards": (),
    "terminations": (),
}


def step(time: int, envs: int, done_every: int = 0) -> dict[str, torch.Tensor]:
    """Environment e at time t has observation (t, e), reward 10 t + e, and ends when (t + e) % k == k - 1."""
    t, e = torch.full((envs,), float(time)), torch.arange(envs).float()
    done = (t + e) % done_every == done_every - 1 if done_every else torch.zeros(envs, dtype=torch.bool)
    return {
        "observations": torch.stack([t, e], 1), "actions": -t[:, None], "rewards": 10 * t + e,
        "terminations": done & (e % 2 == 0), "truncations": done & (e % 2 == 1),
    }  # fmt: skip


def filled(steps: int, capacity: int = 12, envs: int = 3, done_every: int = 0) -> RingBuffer:
    buffer = RingBuffer(capacity, SHAPES, num_envs=envs)
    for time in range(steps):
        buffer.add(step(time, envs, done_every))
    return buffer


def test_the_newest_steps_replace_the_oldest() -> None:
    buffer = filled(2)
    assert len(buffer) == 6
    assert buffer["rewards"][:6].tolist() == [0, 1, 2, 10, 11, 12]
    buffer = filled(6)
    assert len(buffer) == 12
    assert sorted(buffer["rewards"].tolist()) == sorted(10 * t + e for t in (2, 3, 4, 5) for e in range(3))
    assert buffer.add(step(6, 3)).tolist() == [6, 7, 8]


def test_a_gathered_batch_holds_what_was_added() -> None:
    batch = filled(5).gather(torch.tensor([[0, 4]]))
    assert batch["observations"].tolist() == [[[4, 0], [1, 1]]]
    assert batch["observation_actions"].tolist() == [[[4, 0, -4], [1, 1, -1]]]
    assert batch["rewards"].tolist() == [[40, 11]]


def test_numpy_steps_and_uint8_columns_are_stored() -> None:
    buffer = RingBuffer(4, {"images": (2, 2)}, num_envs=2, dtypes={"images": torch.uint8})
    ends = {"terminations": np.zeros(2, bool), "truncations": np.zeros(2, bool)}
    buffer.add({"images": np.full((2, 2, 2), 255, np.uint8), **ends})
    assert buffer.gather(torch.tensor([1]))["images"].tolist() == [[[255, 255], [255, 255]]]
    assert buffer.gather(torch.tensor([1]))["images"].dtype == torch.uint8


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7, 9, 23])
@pytest.mark.parametrize("padding", ["left", "right"])
def test_no_window_crosses_an_episode_an_environment_or_the_newest_step(steps: int, padding: str) -> None:
    buffer = filled(steps, capacity=15, envs=3, done_every=4)
    rows = torch.arange(len(buffer))
    window = Windows(4, padding)(rows, buffer.chain)  # type: ignore[arg-type]
    observations = buffer.gather(window.rows)["observations"]
    kept = range(max(0, steps - 5), steps)
    for row in rows.tolist():
        time, env = (int(x) for x in buffer["observations"][row])
        episode = (time + env) // 4
        around = range(time, time + 4) if padding == "right" else range(time - 3, time + 1)
        expected = [[t, env] for t in around if t in kept and (t + env) // 4 == episode]
        assert observations[row][window.mask[row]].tolist() == expected


def test_a_resumed_buffer_goes_on_exactly() -> None:
    for steps in (0, 2, 4, 7):
        first = filled(steps, done_every=3)
        second = RingBuffer(12, SHAPES, num_envs=3)
        for time in range(9):
            second.add(step(time, 3))  # what was there before must not shine through
        second.load_state_dict({key: value.clone() for key, value in first.state_dict().items()})
        for time in range(steps, steps + 3):
            first.add(step(time, 3, 3))
            second.add(step(time, 3, 3))
            assert len(first) == len(second)
            assert torch.equal(first.chain.ends, second.chain.ends)
            for key in first.keys:
                assert torch.equal(first[key], second[key]), (steps, key)


def test_a_ring_that_was_never_overwritten_goes_on_in_a_larger_one_as_if_it_had_been_that_large() -> None:
    for steps in (0, 1, 3, 4):  # of the four that the smaller one has room for
        whole, larger = filled(steps, capacity=24, done_every=3), RingBuffer(24, SHAPES, num_envs=3)
        larger.load_state_dict(filled(steps, done_every=3).state_dict())
        for time in range(steps, 10):  # until the larger one is overwritten too
            assert larger.add(step(time, 3, 3)).tolist() == whole.add(step(time, 3, 3)).tolist()
            assert (len(larger), larger.position) == (len(whole), whole.position)
            assert torch.equal(larger.chain.ends, whole.chain.ends)
            for key in whole.keys:
                assert torch.equal(larger[key], whole[key]), (steps, key)


def test_a_ring_of_another_capacity_is_refused_where_rows_were_lost_or_would_be() -> None:
    larger = RingBuffer(24, SHAPES, num_envs=3)
    with pytest.raises(
        CheckpointError, match=r"12 rows, not 24, and its newest rows have replaced the oldest: continue"
    ):
        larger.load_state_dict(filled(5).state_dict())
    assert len(larger) == 0
    with pytest.raises(CheckpointError, match=r"24 rows, not 12: continue the capacity"):
        filled(1).load_state_dict(filled(2, capacity=24).state_dict())


def test_a_state_holds_contiguous_tensors_that_later_steps_do_not_change() -> None:
    buffer = filled(3)
    state = buffer.state_dict()
    assert all(isinstance(value, torch.Tensor) and value.is_contiguous() for value in state.values())
    before = {key: value.clone() for key, value in state.items()}
    for time in range(8):
        buffer.add(step(100 + time, 3))
    assert all(torch.equal(state[key], before[key]) for key in state)


def test_resuming_with_new_episodes_cuts_the_old_ones() -> None:
    buffer = filled(2)
    buffer.end_episodes()
    buffer.add(step(2, 3))
    assert Windows(3)(torch.tensor([0]), buffer.chain).lengths.item() == 2
    assert Windows(3, "left")(torch.tensor([6]), buffer.chain).lengths.item() == 1


def test_a_ring_and_a_store_mix_in_one_batch() -> None:
    buffer = filled(2)
    store = Store.pack({key: torch.full((50, *shape), -5.0) for key, shape in SHAPES.items()})
    uniform = torch.rand(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batch = Mixture([buffer, store], [1, 3])(uniform)
    assert (batch["rewards"] == -5).tolist() == [False, False] + [True] * 6
    assert uniform_rows(uniform, len(buffer)).max() < 6


def test_steps_that_do_not_fit_are_refused_and_nothing_is_written() -> None:
    buffer = filled(1)
    before = buffer.state_dict()
    with pytest.raises(DataError, match="no 'truncations'"):
        buffer.add({key: value for key, value in step(1, 3).items() if key != "truncations"})
    with pytest.raises(DataError, match=r"'observations' of the step has shape \(3, 5\)"):
        buffer.add(step(1, 3) | {"observations": torch.zeros(3, 5)})
    assert all(torch.equal(value, before[key]) for key, value in buffer.state_dict().items())
    with pytest.raises(ConfigError, match="multiple"):
        RingBuffer(10, SHAPES, num_envs=3)
    with pytest.raises(ConfigError, match="without a shape: image"):
        RingBuffer(10, SHAPES, dtypes={"image": torch.uint8})


def test_a_state_of_another_buffer_is_refused_and_nothing_changes() -> None:
    buffer = filled(2)
    state = filled(3).state_dict()
    before = buffer.state_dict()
    bad = [
        ({key: value for key, value in state.items() if key != "columns.rewards"}, "columns.rewards"),
        (state | {"capacity": torch.tensor(24)}, "24 rows"),
        (state | {"columns.actions": torch.zeros(9, 2)}, "columns.actions"),
        (state | {"position": torch.tensor(3)}, "position 3"),
        (filled(3, envs=1).state_dict(), "newest_done"),
    ]
    for other, said in bad:
        with pytest.raises(CheckpointError, match=said):
            buffer.load_state_dict(other)
    assert all(torch.equal(value, before[key]) for key, value in buffer.state_dict().items())
