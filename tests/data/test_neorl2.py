"""NeoRL-2's own NPZ files: their names, both ends of episodes, the rows in which trajectories begin."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from make_files import three_episodes, without

from surefoot.core.base.errors import DataError
from surefoot.data import load, reference_scores

Array = np.ndarray[Any, Any]
THEIRS = {
    "observations": "obs",
    "next_observations": "next_obs",
    "actions": "action",
    "rewards": "reward",
    "terminals": "done",
    "timeouts": "truncated",
}


def arrays() -> dict[str, Array]:
    """Three episodes of rows 0-2 (terminated), 3-6 and 7-8 (cut off)."""
    held = three_episodes()
    held["timeouts"] = np.isin(np.arange(9), [6, 8])
    return {THEIRS[key]: array for key, array in held.items()}


def written(path: pathlib.Path, changes: dict[str, Any] | None = None, *left_out: str) -> pathlib.Path:
    np.savez(path, **(without(arrays(), *left_out) | (changes or {})))  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("column", [False, True])
def test_their_names_are_ours_and_the_name_of_the_file_tells_the_task(tmp_path: pathlib.Path, column: bool) -> None:
    flat = {key: array[:, None] for key, array in arrays().items() if array.ndim == 1} if column else {}
    data = load(written(tmp_path / "DMSD-train.npz", flat))
    for ours, theirs in (("observations", "obs"), ("next_observations", "next_obs"), ("actions", "action")):
        np.testing.assert_array_equal(getattr(data, ours), arrays()[theirs])
    np.testing.assert_array_equal(data.rewards, arrays()["reward"])
    assert (np.flatnonzero(data.terminations).tolist(), np.flatnonzero(data.truncations).tolist()) == ([2], [6, 8])
    assert (data.transitions.all(), data.warnings, data.env_id) == (True, {}, "neorl2:DMSD")
    assert reference_scores(data.env_id or "") is not None
    assert load(written(tmp_path / "DMSD-high-100000-val.npz")).env_id == "neorl2:DMSD"
    for other in ("mine.npz", "mine-train.npz", "DMSD.npz"):
        assert load(written(tmp_path / other)).env_id is None


@pytest.mark.parametrize("left_out", [(), ("truncated",)])
def test_the_rows_in_which_trajectories_begin_end_those_before(
    tmp_path: pathlib.Path, left_out: tuple[str, ...]
) -> None:
    data = load(written(tmp_path / "a.npz", {"index": np.array([0, 3, 7])}, *left_out))
    assert data.episode_ids.tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert (np.flatnonzero(data.truncations).tolist(), data.warnings) == ([6, 8], {})
    none = {"index": np.array([[0], [3], [7]]), "truncated": np.zeros(9)}
    assert load(written(tmp_path / "b.npz", none)).episode_lengths.tolist() == [3, 4, 2]


def test_without_either_episodes_end_where_observations_jump(tmp_path: pathlib.Path) -> None:
    assert load(written(tmp_path / "a.npz", {}, "truncated")).episode_lengths.tolist() == [3, 4, 2]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"index": np.array([0, 3, 9])}, r"'index' must be growing whole numbers from 0 to 8"),
        ({"index": np.array([0, 7, 3])}, r"'index' must be growing"),
        ({"index": np.array([0.0, 3.0])}, r"'index' must be growing"),
        ({"done": np.full(9, 2)}, r"'done' holds 2 in row 0"),
        ({"truncated": np.zeros(8)}, r"'truncated' has 8 rows"),
        ({"index": np.array([0]), "done": np.zeros(8)}, r"'done' has 8 rows"),
        ({"reward": np.full(9, np.nan)}, r"'reward' holds nan in row 0"),
    ],
)
def test_files_that_contradict_themselves_are_refused(
    tmp_path: pathlib.Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(DataError, match=sentence):
        load(written(tmp_path / "a.npz", changes))


def test_a_file_that_has_d4rls_names_too_is_read_by_those(tmp_path: pathlib.Path) -> None:
    held = three_episodes()
    assert load(written(tmp_path / "a.npz", held)).truncations.tolist() == [*[False] * 6, True, False, True]
    del held["rewards"]
    with pytest.raises(DataError, match="the key 'rewards' is missing"):
        load(written(tmp_path / "b.npz", held))
