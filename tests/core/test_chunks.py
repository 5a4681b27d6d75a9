"""Targets of chunks at episode ends, against numbers by hand and a chain whose values are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.core.actors.chunks import chunk_target, decisions
from surefoot.core.engine.sources import Batch, Stores
from surefoot.data.dataset import RUNS_ON, Dataset
from surefoot.data.sources import WindowSource, chunk_source
from surefoot.data.store import Store, store_from_dataset


def recorded(rewards: list[float], ends: dict[int, str]) -> Dataset:
    """One-dimensional steps whose observation is their number; row -> how its episode ends."""
    count = len(rewards)
    numbers = np.arange(count, dtype=np.float32)[:, None]
    over = np.array([row in ends for row in range(count)])
    terminal = np.array([ends.get(row) == "terminated" for row in range(count)])
    return Dataset(
        observations=numbers,
        actions=numbers / 100,
        rewards=np.array(rewards, np.float32),
        next_observations=numbers + 1,
        terminations=terminal,
        truncations=over & ~terminal,
        episode_ids=np.concatenate([[0], np.cumsum(over[:-1])]).astype(np.int64),
        valid=np.ones(count, bool),
    )


READS = ("observations", "actions", "rewards", "terminations", "next_observations")


def windows(dataset: Dataset, chunk: int, discount: float) -> Batch:
    """Every row's window, as a row of decisions in float64."""
    source = chunk_source(Stores(dataset, store_from_dataset(dataset, READS)), chunk)
    assert isinstance(source, WindowSource)
    raw = {name: value.double() for name, value in source.gather(torch.arange(len(dataset))).items()}
    return decisions(raw, discount, chunk)


TWO = recorded([1, 2, 3, 4, 5, 6, 7, 10, 20, 30, 40], {6: "terminated", 10: "truncated"})


def test_targets_of_chunks_over_two_episodes_equal_those_by_hand() -> None:
    found = windows(TWO, 3, 0.9)
    target = found["rewards"] + found["reach"] * 100
    assert target[:5].tolist() == pytest.approx([78.13, 80.84, 83.55, 86.26, 16.07])
    assert target[7].item() == pytest.approx(125.2)
    assert target[8].item() == pytest.approx(20 + 27 + 32.4 + 72.9)


def test_a_termination_within_the_chunk_ends_it_and_the_row_counts() -> None:
    found = windows(TWO, 3, 0.9)
    assert found["rewards"][5:7].tolist() == pytest.approx([12.3, 7])  # 6 + .9 * 7; nothing of the next episode's 10
    assert found["reach"][4:7].tolist() == [0, 0, 0]
    assert found["valid"][:9].tolist() == [1] * 9  # the official code leaves out starts 5 and 6


def test_a_window_that_a_time_limit_cuts_is_left_out() -> None:
    found = windows(TWO, 3, 0.9)
    assert found["valid"][9:].tolist() == [0, 0]
    assert found["reach"][8].item() == pytest.approx(0.9**3)  # a window that ends exactly there bootstraps


def test_rewards_after_the_task_ended_do_not_count_where_data_run_on() -> None:
    rewards = torch.tensor([[0.0, -1.0, -1.0]], dtype=torch.float64)  # success in the first row, and data continue
    ended = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    found = chunk_target(rewards, ended, torch.ones(1, 3, dtype=torch.float64), 0.9)
    assert [value.item() for value in found] == [0, 0, 1]  # summed on, it would be -1.71


def test_chunks_are_time_major_and_masked_behind_the_episode() -> None:
    found = windows(TWO, 3, 0.9)
    assert found["actions"][3].tolist() == pytest.approx([0.03, 0.04, 0.05])
    assert found["actions"][5].tolist() == pytest.approx([0.05, 0.06, 0.06])
    assert found["mask"][5].tolist() == [1, 1, 0]
    assert found["next_observations"][[3, 5], 0].tolist() == [6, 7]
    assert found["observation_actions"].shape == (11, 4)


def test_a_chunk_behind_the_task_s_end_has_the_recording_s_actions_and_no_rewards_of_it() -> None:
    labelled = TWO.replace(attributes={RUNS_ON: 1})  # what follows row 6 begins where it led to
    found, alone = windows(labelled, 3, 0.9), windows(TWO, 3, 0.9)
    assert found["actions"][5].tolist() == pytest.approx([0.05, 0.06, 0.07])
    assert found["mask"][5].tolist() == [1, 1, 1]
    assert alone["mask"][5].tolist() == [1, 1, 0]
    for name in ("rewards", "reach", "valid"):
        assert torch.equal(found[name], alone[name])
    assert found["actions"][10].tolist() == pytest.approx([0.1, 0.1, 0.1])  # here the recording itself ends
    apart = labelled.replace(next_observations=labelled.next_observations + 1)  # another recording follows
    assert torch.equal(windows(apart, 3, 0.9)["actions"], alone["actions"])


def test_two_numbers_an_action_are_masked_together() -> None:
    rows = {"observations": torch.zeros(1, 2, 1), "actions": torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])}
    found = decisions({**rows, "mask": torch.tensor([[1.0, 0.0]])}, 0.9, 2)
    assert found["actions"].tolist() == [[1, 2, 3, 4]]
    assert found["mask"].tolist() == [[1, 1, 0, 0]]


def test_a_chunk_of_one_is_the_plain_row() -> None:
    store = store_from_dataset(TWO, READS)
    rows = chunk_source(Stores(TWO, store), 1).gather(torch.arange(11))
    found = decisions(rows, 0.9)
    assert torch.equal(found["rewards"], rows["rewards"])
    torch.testing.assert_close(found["reach"], 0.9 * (1 - rows["terminations"]))
    assert bool((found["valid"] == 1).all())
    window = chunk_target(rows["rewards"][:, None], rows["terminations"][:, None], torch.ones(11, 1), 0.9)
    torch.testing.assert_close(window.rewards, found["rewards"])
    torch.testing.assert_close(window.reach, found["reach"])


def solved(batch: Batch, dropped: Tensor | None = None) -> list[float]:
    """Values of the states 0 .. 6 by sweeps over all windows, from zeros; `dropped` rows are never learned."""
    value = torch.zeros(9, dtype=torch.float64)
    learned = batch["valid"] > 0 if dropped is None else (batch["valid"] > 0) & ~dropped
    for _ in range(20):
        target = batch["rewards"] + batch["reach"] * value[batch["next_observations"][:, 0].long()]
        value[:7][learned] = target[learned]
    return value[:7].tolist()


def test_a_chain_of_seven_steps_gets_its_true_values_and_the_official_masks_miss_them() -> None:
    chain = windows(recorded([-1.0] * 7, {6: "terminated"}), 3, 0.99)
    true = [-6.793465, -5.851985, -4.900995, -3.940399, -2.9701, -1.99, -1]
    assert solved(chain) == pytest.approx(true, abs=1e-6)
    cut = chain["mask"].sum(-1) < 3  # what the official code gives weight 0
    official = [-5.851985, -5.851985, -2.9701, -2.9701, -2.9701, 0, 0]
    assert solved(chain, cut) == pytest.approx(official, abs=1e-6)


def test_rows_that_are_not_valid_end_a_window() -> None:
    holed = TWO.replace(valid=np.arange(11) != 2)
    source = chunk_source(Stores(holed, store_from_dataset(holed, READS)), 3)
    found = decisions(source.gather(torch.tensor([0, 1, 2])), 0.9, 3)
    assert found["valid"].tolist() == [0, 0, 1]  # rows 0, 1, then 3 4 5


def test_a_store_without_windows_is_drawn_row_by_row() -> None:
    store = Store.pack({"observations": torch.zeros(4, 1), "actions": torch.zeros(4, 1)})
    assert not isinstance(chunk_source(Stores(None, store), 1), WindowSource)
