"""DPPO's pair of NPZ files, read and written."""

from __future__ import annotations

import errno
import pathlib
from typing import Any

import numpy as np
import pytest

from surefoot.core.base.errors import DataError
from surefoot.data import Dataset, load, save
from surefoot.data.dataset import NO_REWARDS, REWARDS

BOUNDS = {
    "obs_min": np.array([-1.0, 5.0]), "obs_max": np.array([3.0, 5.0]), "action_min": np.array([-0.5]),
    "action_max": np.array([1.5]),
}  # fmt: skip


def given() -> dict[str, Any]:
    return {
        "states": np.array([[-1, -1], [0, -1], [1, -1], [-1, -1]], np.float32),
        "actions": np.array([[-1], [0], [1], [0.5]], np.float32),
        "rewards": np.array([1, 2, 3, 4], np.float32),
        "terminals": np.array([False, True, False, False]),
        "traj_lengths": np.array([2, 2]),
    }


def write(folder: pathlib.Path, bounds: dict[str, Any] | None = None, **change: Any) -> pathlib.Path:
    folder.mkdir(exist_ok=True)
    np.savez(folder / "train.npz", **{key: value for key, value in (given() | change).items() if value is not None})
    if bounds is None or bounds:
        np.savez(folder / "normalization.npz", **(bounds or BOUNDS))
    return folder / "train.npz"


def test_numbers_come_back_in_their_units_and_trajectories_as_episodes(tmp_path: pathlib.Path) -> None:
    found = load(write(tmp_path / "hopper"))
    # (x + 1) / 2 (max - min + 1e-6) + min by hand; a constant dimension stays what it was
    np.testing.assert_allclose(found.observations, [[-1, 5], [1, 5], [3, 5], [-1, 5]], atol=2e-6)
    np.testing.assert_allclose(found.actions, [[-0.5], [0.5], [1.5], [1.0]], atol=2e-6)
    assert found.episode_lengths.tolist() == [2, 2]
    assert found.terminations.tolist() == [False, True, False, False]
    assert found.truncations.tolist() == [False, False, False, True]
    assert found.transitions.tolist() == [True, True, True, False]  # no one says where the last step led
    np.testing.assert_array_equal(found.next_observations[2], found.observations[3])


def dataset() -> Dataset:
    generator = np.random.default_rng(0)
    ends = np.arange(40) % 8 == 7
    dead = np.arange(40) == 15
    numbers = generator.normal(size=(40, 3)).astype(np.float32)
    return Dataset(
        numbers, generator.uniform(-2, 2, (40, 2)).astype(np.float32), generator.normal(size=40).astype(np.float32),
        np.concatenate([numbers[1:], numbers[:1]]), dead, ends & ~dead, np.arange(40) // 8, np.ones(40, bool),
    )  # fmt: skip


def test_what_is_written_lies_between_minus_one_and_one_and_reads_back(tmp_path: pathlib.Path) -> None:
    made = dataset()
    path = tmp_path / "mine" / "train.npz"
    save(made, path, layout="dppo")
    with np.load(path) as raw, np.load(path.with_name("normalization.npz")) as scale:
        assert raw["states"].min() == -1
        assert 1 - 1e-5 < raw["states"].max() <= 1
        assert raw["traj_lengths"].tolist() == [8] * 5
        np.testing.assert_array_equal(scale["action_max"], made.actions.max(0))
        wide = made.actions.max(0).astype(float) - made.actions.min(0) + 1e-6
        np.testing.assert_allclose(raw["actions"], 2 * (made.actions - made.actions.min(0)) / wide - 1, atol=1e-6)
    again = load(path)
    np.testing.assert_allclose(again.observations, made.observations, atol=1e-6)
    np.testing.assert_allclose(again.actions, made.actions, atol=1e-6)
    for key in ("rewards", "terminations", "truncations", "episode_ids"):
        np.testing.assert_array_equal(getattr(again, key), getattr(made, key))
    with pytest.raises(DataError, match=r"normalization\.npz: exists already"):
        save(made, tmp_path / "mine" / "other.npz", layout="dppo")


def test_a_pair_whose_second_file_can_not_be_written_leaves_nothing_and_can_be_written_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    made, path = dataset(), tmp_path / "train.npz"
    with monkeypatch.context() as disk:
        disk.setattr(np, "savez_compressed", full)
        with pytest.raises(DataError, match=r"the disk is full.*Nothing was changed"):
            save(made, path, layout="dppo")
    assert list(tmp_path.iterdir()) == []
    save(made, path, layout="dppo")
    assert len(load(path)) == len(made)


def test_data_without_rewards_are_refused_since_they_would_be_read_as_recorded_zeros(tmp_path: pathlib.Path) -> None:
    made = dataset().replace(rewards=np.zeros(40, np.float32), attributes={REWARDS: NO_REWARDS})
    with pytest.raises(DataError, match="has no rewards, and DPPO's layout always holds some"):
        save(made, tmp_path / "train.npz", layout="dppo")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"traj_lengths": np.array([2, 3])}, "'traj_lengths' add up to 5, and 'terminals' has 4 rows"),
        ({"traj_lengths": np.array([4, 0])}, "'traj_lengths' must be whole numbers from 1 on"),
        ({"terminals": np.array([True, False, False, False])}, "'terminals' is true in row 0, which is inside"),
        ({"states": np.full((4, 2), np.inf)}, "'states' holds inf in row 0"),
        ({"states": np.zeros((4, 3))}, "'states' has 3 columns, and normalization.npz the bounds of"),
        ({"rewards": None}, "the key 'rewards' is missing"),
        ({"images": np.zeros((4, 3, 8, 8), np.uint8)}, "'images', which are not read"),
        ({"actions": np.zeros((3, 1))}, "3 rows"),
    ],
)
def test_what_is_wrong_is_named_with_its_key_and_row(
    tmp_path: pathlib.Path, change: dict[str, Any], match: str
) -> None:
    with pytest.raises(DataError, match=match):
        load(write(tmp_path / "odd", **change))


def test_the_file_without_its_scale_is_refused_and_so_is_a_scale_that_is_none(tmp_path: pathlib.Path) -> None:
    with pytest.raises(DataError, match=r"mean nothing without .*normalization\.npz"):
        load(write(tmp_path / "alone", bounds={}))
    with pytest.raises(DataError, match="'action_max' is below"):
        load(write(tmp_path / "turned", bounds={**BOUNDS, "action_max": np.array([-2.0])}))
    with pytest.raises(DataError, match="'obs_min' must be finite"):
        load(write(tmp_path / "nan", bounds={**BOUNDS, "obs_min": np.array([np.nan, 1.0])}))
