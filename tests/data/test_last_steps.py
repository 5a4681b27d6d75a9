"""The last step of a demonstration: who reads no next observation learns from it, in every format; no one else does."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.base.errors import DataError
from surefoot.data import Dataset, from_arrays, load, save
from surefoot.data.samplers import Chain, Windows
from surefoot.data.store import segment_ids, store_from_dataset
from surefoot.runs.algorithms import ALGORITHMS

EPISODES, STEPS = 30, 10
LAST = slice(STEPS - 1, None, STEPS)


def demonstrations(**others: Any) -> Dataset:
    """Thirty of ten steps whose last action alone is 1 (open the gripper); nothing says what followed the last one."""
    actions, ends = np.zeros((EPISODES * STEPS, 1)), np.zeros(EPISODES * STEPS)
    actions[LAST] = ends[LAST] = 1
    observations = np.tile(np.arange(STEPS, dtype=float)[:, None], (EPISODES, 1))
    return from_arrays(observations, actions, timeouts=ends, **others)


def test_every_step_can_be_learned_from_and_the_last_ones_are_no_transitions() -> None:
    data = demonstrations()
    assert data.valid.all()
    np.testing.assert_array_equal(np.flatnonzero(~data.transitions), np.arange(STEPS - 1, 300, STEPS))


def test_a_store_of_observations_and_actions_has_all_rows_and_one_of_next_observations_has_not() -> None:
    data = demonstrations()
    whole = store_from_dataset(data, ("observations", "actions"))
    assert len(whole) == 300
    assert int((whole["actions"] > 0.5).sum()) == EPISODES
    partly = store_from_dataset(data, ("observations", "actions", "next_observations"))
    assert len(partly) == 270
    assert not (partly["actions"] > 0.5).any()
    assert len(segment_ids(data)) == 300
    assert len(segment_ids(data, partly.keys)) == 270


def test_chunks_hold_the_last_action() -> None:
    data = demonstrations()
    store = store_from_dataset(data, ("observations", "actions"))
    window = Windows(4)(torch.arange(len(store)), Chain.from_segments(segment_ids(data, store.keys)))
    assert int((store["actions"][window.rows][..., 0] * window.mask > 0.5).any(1).sum()) == 4 * EPISODES


def test_algorithms_that_read_no_next_observation_are_these() -> None:
    found = {
        name
        for name, kind in ALGORITHMS.items()
        if kind.required_columns
        and kind.requires.data != "refused"
        and not any(key.startswith("next_") for key in kind.required_columns)
    }
    assert found == {
        *("bc", "bc_safe", "diffusion_bc", "flow_bc", "awr_flow", "raft_flow", "rcsl", "dt", "cdt", "aligndiff"),
        *("trajectory_transformer", "gcbc", "crl", "act", "classifier", "preferences"),
    }


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("d.hdf5", None), ("d.npz", None), ("d.csv", None), ("d.parquet", None), ("d", "lerobot"),
        ("robomimic.hdf5", "robomimic"),
    ],
)  # fmt: skip
def test_files_keep_which_rows_lack_what_followed(tmp_path: pathlib.Path, name: str, layout: str | None) -> None:
    if name.endswith("parquet") or layout == "lerobot":
        pytest.importorskip("pyarrow")
    data = demonstrations()
    valid = data.valid.copy()
    valid[3] = False  # a row that no one may learn from, beside those
    save(data.replace(valid=valid), tmp_path / name, layout)
    found = load(tmp_path / name)
    np.testing.assert_array_equal(found.valid, valid)
    np.testing.assert_array_equal(found.transitions, data.transitions & valid)


def test_logs_of_other_layouts_give_their_last_steps(tmp_path: pathlib.Path) -> None:
    rows = [f"{k // 10},{k % 10},{float(k % 10 == 9)}" for k in range(40)]
    (tmp_path / "log.csv").write_text("\n".join(["trial,q,u", *rows, ""]))
    (tmp_path / "log.yaml").write_text("files: log.csv\nobservations: q\nactions: u\nepisode: trial\n")
    found = load(tmp_path / "log.yaml")
    assert found.valid.all()
    assert int((store_from_dataset(found, ("observations", "actions"))["actions"] > 0.5).sum()) == 4


def test_unordered_pairs_are_cloned_and_what_needs_transitions_says_what_is_missing() -> None:
    draws = np.random.default_rng(0)
    pairs = from_arrays(draws.normal(size=(200, 2)), draws.normal(size=(200, 1)), max_episode_steps=1)
    assert len(store_from_dataset(pairs, ("observations", "actions"))) == 200
    with pytest.raises(DataError, match=r"what followed a step is known of none.*bc and others"):
        store_from_dataset(pairs, ("observations", "next_observations"))
