"""Both views of D4RL files, row by row on files small enough to work out by hand."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from make_files import random_walk, three_episodes, without, write_hdf5

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data import load
from surefoot.data.checks import UNMARKED


def test_corrected_view_keeps_every_row_with_the_true_next_observation(tmp_path: pathlib.Path) -> None:
    arrays = three_episodes()
    data = load(write_hdf5(tmp_path / "a.hdf5", arrays))
    assert len(data) == 9
    assert data.episode_ids.tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert np.flatnonzero(data.terminations).tolist() == [2]
    assert np.flatnonzero(data.truncations).tolist() == [6, 8]
    assert data.next_observations[:, 0].tolist() == [1, 2, 102, 4, 5, 6, 106, 8, 108]
    assert data.transitions.all()
    assert data.episode_returns.tolist() == [6, 22, 17]


def test_d4rl_view_drops_exactly_the_timeout_row_and_the_last_row(tmp_path: pathlib.Path) -> None:
    data = load(write_hdf5(tmp_path / "a.hdf5", three_episodes()), view="d4rl")
    assert data.rewards.tolist() == [1, 2, 3, 4, 5, 6, 8]  # rows 6 and 8 are gone
    assert data.next_observations[:, 0].tolist() == [
        1,
        2,
        3,
        4,
        5,
        6,
        8,
    ]  # row 2 reaches into the next episode
    assert data.terminations.tolist() == [False, False, True, False, False, False, False]
    assert data.episode_ids.tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert data.truncations.tolist() == [False, False, False, False, False, True, True]
    assert data.transitions.all()


def test_final_observations_complete_the_episodes(tmp_path: pathlib.Path) -> None:
    arrays = three_episodes()
    ends = np.array([2, 6, 8])
    stored = without(arrays, "next_observations") | {
        "infos/final_observations": arrays["next_observations"][ends],
        "infos/episode_ends": ends,
    }
    data = load(write_hdf5(tmp_path / "a.hdf5", stored))
    np.testing.assert_array_equal(data.next_observations, arrays["next_observations"])
    assert data.transitions.all()


def test_final_observations_of_other_rows_are_refused(tmp_path: pathlib.Path) -> None:
    arrays = three_episodes()
    stored = without(arrays, "next_observations") | {
        "infos/final_observations": arrays["next_observations"][[2, 6, 8]],
        "infos/episode_ends": np.array([2, 5, 8]),
    }
    with pytest.raises(DataError, match=r"episode_ends"):
        load(write_hdf5(tmp_path / "a.hdf5", stored))
    stored["infos/final_observations"] = stored["infos/final_observations"][:2]
    with pytest.raises(DataError, match=r"final_observations.*\(2, 2\).*3 episodes"):
        load(write_hdf5(tmp_path / "b.hdf5", stored))


def test_truncated_rows_without_a_next_observation_are_never_sampled(tmp_path: pathlib.Path) -> None:
    data = load(write_hdf5(tmp_path / "a.hdf5", without(three_episodes(), "next_observations")))
    assert np.flatnonzero(~data.transitions).tolist() == [6, 8]  # the terminal row 2 stays: its bootstrap is masked
    assert np.isfinite(data.next_observations).all()
    assert data.next_observations[[0, 1, 3], 0].tolist() == [1, 2, 4]
    assert data.episode_returns.tolist() == [6, 22, 17]


def test_jumps_of_the_observations_split_files_without_timeouts(tmp_path: pathlib.Path) -> None:
    arrays = without(three_episodes(), "timeouts")
    data = load(write_hdf5(tmp_path / "a.hdf5", arrays))
    assert data.episode_ids.tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert np.flatnonzero(data.truncations).tolist() == [6, 8]


def test_jumps_equal_true_ids_where_the_last_step_was_dropped(tmp_path: pathlib.Path) -> None:
    arrays = three_episodes()
    kept = np.setdiff1d(np.arange(9), [6])  # as qlearning_dataset leaves the middle episode
    data = load(write_hdf5(tmp_path / "a.hdf5", without({k: v[kept] for k, v in arrays.items()}, "timeouts")))
    assert data.episode_ids.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]


def test_without_timeouts_and_next_observations_the_step_limit_splits(tmp_path: pathlib.Path) -> None:
    arrays = without(three_episodes(), "timeouts", "next_observations")
    path = write_hdf5(tmp_path / "a.hdf5", arrays)
    assert load(path).episode_lengths.tolist() == [3, 6]
    assert load(path).warnings == {UNMARKED: 9}
    assert load(path, max_episode_steps=4).episode_lengths.tolist() == [3, 4, 2]
    assert load(path, max_episode_steps=4).warnings == {}
    with pytest.raises(DataError, match=r"max_episode_steps"):
        load(path, view="d4rl")


def test_d4rl_view_counts_steps_with_its_fault_after_a_terminal(tmp_path: pathlib.Path) -> None:
    # Limit 4. Rows 0-2: counter 0, 1, 2, terminal. Then it restarts at 1: row 3 is 1, row 4 is 2, row 5 is 3
    # = limit - 1:
    # dropped, one early. Rows 6, 7: 0, 1. Row 8 is the last of the file.
    arrays = without(three_episodes(), "timeouts", "next_observations")
    data = load(write_hdf5(tmp_path / "a.hdf5", arrays), view="d4rl", max_episode_steps=4)
    assert data.rewards.tolist() == [1, 2, 3, 4, 5, 7, 8]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("with_timeouts", [True, False])
def test_d4rl_view_equals_the_row_by_row_loop(tmp_path: pathlib.Path, seed: int, with_timeouts: bool) -> None:
    from surefoot.data.formats.flat import Source, dataset_from_arrays

    rng = np.random.default_rng(seed)
    steps, limit = 60, int(rng.integers(2, 8))
    arrays = {
        "observations": rng.normal(size=(steps, 1)).astype(np.float32),
        "actions": rng.normal(size=(steps, 1)).astype(np.float32),
        "rewards": np.arange(steps, dtype=np.float32),
        "terminals": rng.random(steps) < 0.2,
    }
    if with_timeouts:
        arrays["timeouts"] = rng.random(steps) < 0.15
    # As D4RL's qlearning_dataset does it: a row whose time runs out is dropped, and so is the last.
    expected, counter = [], 0
    for row in range(steps - 1):
        time_out = arrays["timeouts"][row] if with_timeouts else counter == limit - 1
        if time_out:
            counter = 0
            continue
        if arrays["terminals"][row]:
            counter = 0
        expected.append(row)
        counter += 1
    data = dataset_from_arrays(arrays, Source("drawn", max_episode_steps=limit), "d4rl")
    assert data.rewards.tolist() == expected
    np.testing.assert_array_equal(data.next_observations, arrays["observations"][np.array(expected) + 1])
    np.testing.assert_array_equal(data.terminations, arrays["terminals"][expected])


def test_terminal_and_timeout_together_is_a_counted_termination(tmp_path: pathlib.Path) -> None:
    arrays = three_episodes()
    arrays["timeouts"][2] = True
    path = write_hdf5(tmp_path / "a.hdf5", arrays)
    data = load(path)
    assert data.terminations[2]
    assert not data.truncations[2]
    assert data.warnings == {"terminal and timeout together": 1}
    with pytest.raises(DataError, match=r"strict.*1 terminal and timeout together"):
        load(path, strict=True)


def test_one_step_episodes_are_counted(tmp_path: pathlib.Path) -> None:
    arrays = three_episodes()
    arrays["terminals"][3] = True
    assert load(write_hdf5(tmp_path / "a.hdf5", arrays)).warnings == {"one-step episodes": 1}


def test_actions_outside_are_counted_only_where_the_bounds_are_known(tmp_path: pathlib.Path) -> None:
    arrays = three_episodes()
    arrays["actions"][4] = 1.5
    assert load(write_hdf5(tmp_path / "a.hdf5", arrays, env_id="Pendulum-v1")).warnings == {}
    data = load(write_hdf5(tmp_path / "b.hdf5", arrays, env_id="Hopper-v2"))
    assert data.warnings == {"actions outside [-1, 1]": 1}
    assert data.actions[4] == 1.5  # kept as stored
    assert data.env_id == "Hopper-v5"
    assert data.attributes["env_id"] == "Hopper-v2"


def test_rewards_and_flags_as_columns_or_numbers_are_accepted(tmp_path: pathlib.Path) -> None:
    arrays = three_episodes()
    path = write_hdf5(tmp_path / "a.hdf5", arrays)
    arrays["rewards"] = arrays["rewards"].astype(">f8")[:, None]
    arrays["terminals"] = arrays["terminals"].astype(np.float32)[:, None]
    arrays["timeouts"] = arrays["timeouts"].astype(np.int64)
    odd, plain = load(write_hdf5(tmp_path / "b.hdf5", arrays)), load(path)
    for key in ("rewards", "terminations", "truncations"):
        np.testing.assert_array_equal(getattr(odd, key), getattr(plain, key))


def test_costs_are_kept_in_both_views(tmp_path: pathlib.Path) -> None:
    arrays = three_episodes() | {"costs": np.array([0, 0, 1, 0, 1, 0, 1, 0, 1], np.float32)}
    path = write_hdf5(tmp_path / "a.hdf5", arrays)
    assert load(path).episode_costs.tolist() == [1, 2, 1]
    assert load(path, view="d4rl").costs.tolist() == [0, 0, 1, 0, 1, 0, 0]


def test_an_unknown_view_is_refused_with_the_nearest(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'd4rl'"):
        load(write_hdf5(tmp_path / "a.hdf5", random_walk()), view="d4lr")
