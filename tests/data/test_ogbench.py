"""OGBench's and OCBench's NPZ files: recordings become episodes that end where the task is solved, and back."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data import convert, info, load, save
from surefoot.data.dataset import NO_TASK, REWARDS, recording_ends
from surefoot.data.prepare import best_episodes


def arrays(rows: int = 12, recordings: int = 2) -> dict[str, Any]:
    """A file of OGBench's layout: recordings of equal length, the last row of each only an observation."""
    generator = np.random.default_rng(0)
    length = rows // recordings
    return {
        "observations": generator.normal(size=(rows, 3)).astype(np.float32),
        "actions": generator.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "terminals": np.arange(rows) % length == length - 1,
        "qpos": generator.normal(size=(rows, 4)).astype(np.float32),
        "qvel": generator.normal(size=(rows, 4)).astype(np.float32),
        "button_states": generator.integers(0, 2, (rows, 2)),
    }


def write(path: pathlib.Path, **given: Any) -> pathlib.Path:
    np.savez_compressed(path, **given)
    return path


def test_the_last_row_of_a_recording_only_gives_the_observation_after_the_one_before(tmp_path: pathlib.Path) -> None:
    given = arrays()
    found = load(write(tmp_path / "scene-play-v0.npz", **given))
    rows = [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    np.testing.assert_array_equal(found.observations, given["observations"][rows])
    np.testing.assert_array_equal(found.next_observations, given["observations"][[row + 1 for row in rows]])
    np.testing.assert_array_equal(found.extras["qpos"], given["qpos"][rows])
    np.testing.assert_array_equal(found.extras["button_states"], given["button_states"][rows])
    assert found.episode_lengths.tolist() == [5, 5]
    assert found.truncations[[4, 9]].all()
    assert not found.terminations.any()
    assert found.transitions.all()
    assert found.attributes[REWARDS] == NO_TASK
    assert not found.rewards.any()


def test_a_termination_is_where_masks_are_0_and_nowhere_else(tmp_path: pathlib.Path) -> None:
    given = arrays() | {"rewards": np.array([-2, -1, 0, -1, 0, -9, -2, -2, -2, -1, 0, -9], np.float32)}
    given["masks"] = np.array([1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 0, 1], np.float32)
    found = load(write(tmp_path / "labelled.npz", **given))
    assert found.terminations.tolist() == [False, False, True, False, True, False, False, False, False, True]
    assert not found.truncations.any()  # both recordings end solved
    assert found.episode_lengths.tolist() == [3, 2, 5]
    assert found.rewards.tolist() == [-2, -1, 0, -1, 0, -2, -2, -2, -1, 0]
    np.testing.assert_array_equal(found.next_observations[2], given["observations"][3])  # the recording ran on
    assert np.flatnonzero(recording_ends(found)).tolist() == [4, 9]
    assert REWARDS not in found.attributes


def test_what_is_written_in_ogbenchs_layout_reads_back_the_same(tmp_path: pathlib.Path) -> None:
    for extra in ({}, {"rewards": -np.ones(12, np.float32), "masks": (np.arange(12) % 5 != 2).astype(np.float32)}):
        found = load(write(tmp_path / "given.npz", **arrays(), **extra))
        save(found, tmp_path / "again.npz", layout="ogbench")
        again = load(tmp_path / "again.npz")
        for key in ("observations", "actions", "rewards", "next_observations", "terminations", "truncations"):
            np.testing.assert_array_equal(getattr(again, key), getattr(found, key), err_msg=key)
        for key, value in found.extras.items():
            np.testing.assert_array_equal(again.extras[key], value)
        with np.load(tmp_path / "again.npz") as raw:
            assert raw["terminals"].sum() == 2
            assert len(raw["terminals"]) == 12
            assert ("rewards" in raw) == bool(extra)


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".hdf5", ".parquet"])
def test_data_that_name_no_task_have_no_rewards_in_any_format(tmp_path: pathlib.Path, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    found = load(write(tmp_path / "given.npz", **arrays()))
    assert not found.has_rewards
    assert info(found)["return_mean"] is None
    with pytest.raises(ConfigError, match="no rewards, by which the best"):
        best_episodes(found, 0.5)
    save(found, tmp_path / f"again{suffix}")
    assert not load(tmp_path / f"again{suffix}").has_rewards


def test_terminations_of_data_without_rewards_are_written(tmp_path: pathlib.Path) -> None:
    masks = (np.arange(12) % 5 != 2).astype(np.float32)
    found = load(write(tmp_path / "given.npz", **arrays(), masks=masks))
    assert found.terminations.any()
    save(found, tmp_path / "again.npz", layout="ogbench")
    again = load(tmp_path / "again.npz")
    np.testing.assert_array_equal(again.terminations, found.terminations)
    assert not again.has_rewards


def test_a_file_written_so_is_read_by_ogbenchs_own_loader_to_the_same_rows(tmp_path: pathlib.Path) -> None:
    utils = pytest.importorskip("ogbench.utils", reason="needs the extra ogbench")
    found = load(write(tmp_path / "given.npz", **arrays()))
    save(found, tmp_path / "again.npz", layout="ogbench")
    theirs = utils.load_dataset(tmp_path / "again.npz", add_info=True)
    for key in ("observations", "actions", "next_observations"):
        np.testing.assert_array_equal(theirs[key], getattr(found, key))
    np.testing.assert_array_equal(theirs["qpos"], found.extras["qpos"])
    np.testing.assert_array_equal(theirs["terminals"], found.truncations)


def test_ogbenchs_file_through_hdf5_keeps_states_and_what_is_known_of_rewards(tmp_path: pathlib.Path) -> None:
    first = load(write(tmp_path / "given.npz", **arrays()))
    convert(tmp_path / "given.npz", tmp_path / "kept.hdf5")
    kept = load(tmp_path / "kept.hdf5")
    np.testing.assert_array_equal(kept.extras["button_states"], first.extras["button_states"])
    assert kept.attributes[REWARDS] == NO_TASK
    convert(tmp_path / "kept.hdf5", tmp_path / "back.npz", layout="ogbench")
    np.testing.assert_array_equal(load(tmp_path / "back.npz").observations, first.observations)


def test_ocbenchs_recordings_have_one_observation_more_than_actions(tmp_path: pathlib.Path) -> None:
    generator = np.random.default_rng(1)
    given = {
        "observations": generator.normal(size=(9, 3)).astype(np.float32),
        "observation_interval": np.int32(1),
        "actions": generator.uniform(-1, 1, (7, 2)).astype(np.float32),
        "rewards": np.array([0, 0, 1, 0, 0, 0, 0], np.float32),
        "masks": np.array([1, 1, 0, 1, 1, 1, 1], np.float32),
        "terminals": np.array([0, 0, 1, 0, 0, 0, 1], bool),
    }
    found = load(write(tmp_path / "block.npz", **given))
    assert found.episode_lengths.tolist() == [3, 4]
    assert found.terminations.tolist() == [False, False, True, False, False, False, False]
    assert found.truncations.tolist() == [False] * 6 + [True]
    np.testing.assert_array_equal(found.next_observations, given["observations"][[1, 2, 3, 5, 6, 7, 8]])
    with pytest.raises(DataError, match="'observation_interval' is 5"):
        load(write(tmp_path / "sparse.npz", **{**given, "observation_interval": np.int32(5)}))
    with pytest.raises(DataError, match="2 recordings of 7 steps in all need 9"):
        load(write(tmp_path / "short.npz", **{**given, "observations": given["observations"][:8]}))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"terminals": np.zeros(12, bool)}, "'terminals' is false in the last row, 11"),
        ({"terminals": np.arange(12) > 9}, "row 11 has one row"),
        ({"masks": np.full(12, 0.5)}, "'masks' holds 0.5 in row 0"),
        ({"rewards": np.zeros(5)}, r"'rewards' has shape \(5,\); 12 steps"),
        ({"qpos": np.full((12, 4), np.nan)}, "'qpos' holds nan in row 0"),
        ({"observations": np.zeros((7, 3))}, "'observations' has 7 rows but 'terminals' has 12"),
        ({"actions": np.zeros((11, 2))}, "'terminals' has 12 rows but 'actions' has 11"),
        ({"terminals": np.full(12, 3)}, "'terminals' holds 3 in row 0"),
        ({"button_states": np.array(["a"] * 12)}, "'button_states' has type"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_key_and_row(
    tmp_path: pathlib.Path, change: dict[str, Any], match: str
) -> None:
    path = write(tmp_path / "odd.npz", **{**arrays(), **change})
    with pytest.raises(DataError, match=match):
        load(path)


def test_a_missing_key_a_cut_file_and_a_bomb_are_refused(tmp_path: pathlib.Path) -> None:
    given = arrays()
    del given["actions"]
    with pytest.raises(DataError, match="the key 'actions' is missing"):
        load(write(tmp_path / "missing.npz", **given))
    path = write(tmp_path / "cut.npz", **arrays())
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(DataError, match=r"cut\.npz: is a damaged NPZ file"):
        load(path)
    bomb = {**arrays(), "qpos": np.zeros((12, 8_000_000), np.float32)}
    with pytest.raises(DataError, match="unpacks to"):
        load(write(tmp_path / "bomb.npz", **bomb))


def test_layouts_and_views_that_do_not_fit_are_refused(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "given.npz", **arrays())
    with pytest.raises(ConfigError, match="view='d4rl' is of D4RL's files"):
        load(path, view="d4rl")
    found = load(path)
    with pytest.raises(ConfigError, match="did you mean 'ogbench'"):
        save(found, tmp_path / "x.npz", layout="ogbensch")
    with pytest.raises(ConfigError, match=r"is of \.npz files"):
        save(found, tmp_path / "x.hdf5", layout="ogbench")


def seen(rows: int = 12) -> dict[str, Any]:
    """As `arrays`, of pictures."""
    pictures = np.random.default_rng(1).integers(0, 256, (rows, 8, 8, 3), dtype=np.uint8)
    return arrays(rows) | {"observations": pictures}


def test_pictures_are_held_once_and_the_one_behind_followed(tmp_path: pathlib.Path) -> None:
    given = seen()
    found = load(write(tmp_path / "visual-scene-play-v0.npz", **given))
    rows = np.array([0, 1, 2, 3, 4, 6, 7, 8, 9, 10])
    own, after = found.extras["observations/image"], found.extras["next_observations/image"]
    np.testing.assert_array_equal(own[:], given["observations"][rows])
    np.testing.assert_array_equal(after[:], given["observations"][rows + 1])
    assert own.shares(after)
    assert (len(own.pictures), len(own.further)) == (12, 0)
    assert found.arrays["image"].shape == (8, 8, 3)  # the key of a lone picture of an environment
    assert found.observation_dim == 0
    assert found.transitions.all()
    np.testing.assert_array_equal(found.extras["qpos"], given["qpos"][rows])


def test_pictures_need_no_other_mark_and_the_compact_form_says_which_rows_are_valid(tmp_path: pathlib.Path) -> None:
    given = seen()
    bare = {key: given[key] for key in ("observations", "actions", "terminals")}
    plain = load(write(tmp_path / "bare.npz", **bare))
    ends = given["terminals"]
    compact = bare | {"valids": 1 - ends.astype(np.float32), "terminals": np.append(ends[1:], True)}
    other = load(write(tmp_path / "compact.npz", **compact))
    for one in (plain, other):
        assert one.episode_lengths.tolist() == [5, 5]
        assert one.attributes[REWARDS] == NO_TASK
        np.testing.assert_array_equal(one.extras["observations/image"][5], given["observations"][6])


def test_recordings_of_pictures_are_cut_where_a_task_is_solved(tmp_path: pathlib.Path) -> None:
    given = seen() | {"rewards": np.arange(12, dtype=np.float32), "masks": np.ones(12, np.float32)}
    given["masks"][2] = 0
    found = load(write(tmp_path / "labelled.npz", **given))
    assert found.episode_lengths.tolist() == [3, 2, 5]
    assert found.terminations.tolist() == [False, False, True] + [False] * 7
    np.testing.assert_array_equal(found.extras["next_observations/image"][2], given["observations"][3])


def test_pictures_are_scaled_where_it_is_asked_for(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "visual.npz", **seen())
    found = load(path, image_size=4, frames=tmp_path / "frames")
    assert found.extras["observations/image"].shape == (10, 4, 4, 3)
    again = load(path)
    expected = again.extras["next_observations/image"][0].reshape(4, 2, 4, 2, 3).mean((1, 3))
    assert np.abs(found.extras["next_observations/image"][0] - expected).max() <= 1
