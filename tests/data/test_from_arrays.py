"""`from_arrays`: the dataset of arrays in memory is that of a file of the same arrays, and bad arrays are named."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from make_files import random_walk, three_episodes, without

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.spec import Array
from surefoot.data import Dataset, from_arrays, load, save, validate
from surefoot.data.checks import TORN, UNMARKED
from surefoot.data.corrupt import corrupt


def assert_equal(found: Dataset, wanted: Dataset) -> None:
    """In every column, bit for bit, and in what is known beside them."""
    for field in dataclasses.fields(Dataset):
        one, other = getattr(found, field.name), getattr(wanted, field.name)
        if isinstance(other, np.ndarray):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other, err_msg=field.name)
        elif field.name not in ("name", "sha256", "extras", "as_read"):
            assert one == other, field.name
    assert found.extras.keys() == wanted.extras.keys()
    for key, value in wanted.extras.items():
        np.testing.assert_array_equal(found.extras[key], value)


@pytest.mark.parametrize(
    "arrays",
    [
        random_walk(),
        three_episodes(),
        without(three_episodes(), "timeouts"),
        without(random_walk(), "timeouts"),
        {key: value.astype(np.float64) for key, value in random_walk().items()},
        random_walk() | {"costs": np.arange(300) % 2, "margins": np.ones(300), "extras/mark": np.arange(300)},
        random_walk() | {"valid": np.arange(300) % 3 > 0},
        three_episodes() | {"infos/final_observations": np.ones((3, 2))},
        {"truncations" if key == "timeouts" else key: value for key, value in random_walk().items()},
    ],
)
def test_arrays_are_read_as_a_file_of_them_is(tmp_path: pathlib.Path, arrays: dict[str, Any]) -> None:
    np.savez(tmp_path / "a.npz", **arrays, attributes=np.array(json.dumps({"env_id": "Hopper-v5"})))
    found = from_arrays(**arrays, env_id="Hopper-v5")
    validate(found)
    assert_equal(found, load(tmp_path / "a.npz"))
    assert (found.env_id, found.name) == ("Hopper-v5", "arrays")


def test_the_order_of_d3rlpy_lists_and_tensors_are_taken() -> None:
    arrays = random_walk()
    wanted = from_arrays(**arrays)
    assert_equal(from_arrays(*arrays.values()), wanted)
    assert_equal(from_arrays(*(value.tolist() for value in arrays.values())), wanted)
    assert_equal(from_arrays(*map(torch.from_numpy, arrays.values())), wanted)


def test_images_and_named_arrays_are_given_as_a_mapping(tmp_path: pathlib.Path) -> None:
    arrays = random_walk(100)
    seen = {"image": np.full((100, 4, 4, 3), 7, np.uint8), "state": arrays["observations"]}
    found = from_arrays(**(arrays | {"observations": seen, "next_observations": seen}))
    files: dict[str, Any] = without(arrays, "observations")
    for which in ("observations", "next_observations"):
        files |= {f"{which}/{key}": value for key, value in seen.items()}
    np.savez(tmp_path / "a.npz", **files)
    assert_equal(found, load(tmp_path / "a.npz"))
    assert set(found.arrays) == {"image", "state"}


def test_ends_of_episodes_have_to_be_said() -> None:
    arrays = random_walk()
    bare = without(arrays, "terminals", "timeouts")
    with pytest.raises(DataError, match=r"arrays: nothing says where episodes end: give 'terminals'.*'timeouts'"):
        from_arrays(**bare)
    cut = from_arrays(**bare, timeouts=np.arange(300) % 50 == 49)
    assert (cut.terminations.any(), cut.episode_lengths.tolist()) == (False, [50] * 6)
    assert from_arrays(**bare, max_episode_steps=100).episode_lengths.tolist() == [100] * 3
    joined = from_arrays(**bare, terminals=np.zeros(300))
    assert joined.warnings == {UNMARKED: 300}


def walk() -> dict[str, np.ndarray[Any, Any]]:
    """Six episodes of 50 steps, cut off, each with what followed its last step."""
    positions = np.random.default_rng(0).normal(size=(6, 51, 3)).astype(np.float32)
    ends = np.arange(300) % 50 == 49
    parts = {"observations": positions[:, :-1].reshape(300, 3), "next_observations": positions[:, 1:].reshape(300, 3)}
    return {**without(random_walk(), "terminals"), **parts, "timeouts": ends}


def test_episodes_that_were_joined_are_seen_by_their_next_observations() -> None:
    arrays = walk()
    assert from_arrays(**arrays).warnings == {}
    unmarked = from_arrays(**arrays | {"timeouts": np.zeros(300)})
    assert (unmarked.episode_lengths.tolist(), unmarked.warnings) == ([300], {TORN: 5})
    some = from_arrays(**arrays | {"timeouts": np.arange(300) % 100 == 99})
    assert (some.episode_lengths.tolist(), some.warnings) == ([100] * 3, {TORN: 3})
    named = {key: {"state": arrays.pop(key)} for key in ("observations", "next_observations")}
    assert from_arrays(**named, **arrays | {"timeouts": np.zeros(300)}).warnings == {TORN: 5}


def test_rounding_rows_without_a_next_observation_and_corruption_are_no_joined_episodes(tmp_path: pathlib.Path) -> None:
    arrays = walk()
    following = arrays["next_observations"]
    assert from_arrays(**arrays | {"next_observations": following * (1 + 1e-6)}).warnings == {}
    data = from_arrays(**arrays)
    for element, consistent in (("observations", False), ("observations", True), ("dynamics", False)):
        path = tmp_path / f"{element}{consistent}.npz"
        save(corrupt(data, element, consistent=consistent).dataset, path)
        assert load(path).warnings == {}
    joined = arrays | {"timeouts": np.zeros(300)}
    assert from_arrays(**joined, valid=np.arange(300) % 50 != 49).warnings == {}
    save(corrupt(from_arrays(**joined), "actions").dataset, tmp_path / "actions.npz")
    assert load(tmp_path / "actions.npz").warnings == {TORN: 5}
    assert from_arrays(**without(joined, "next_observations")).warnings == {}  # nothing tells


def test_without_rewards_the_data_say_that_they_have_none() -> None:
    assert not from_arrays(**without(random_walk(), "rewards")).has_rewards
    assert from_arrays(**random_walk()).has_rewards


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rewards": np.zeros(299)}, "mine: 'rewards' has 299 rows but 'observations' has 300"),
        ({"actions": np.full((300, 2), np.nan)}, "mine: 'actions' holds nan in row 0 and 600 values"),
        ({"timeouts": np.full(300, 0.5)}, "mine: 'timeouts' holds 0.5 in row 0"),
        ({"actions": 3.0}, r"mine: 'actions' has shape \(\)"),
        ({"actions": ["left"] * 300}, "mine: 'actions' has type <U4; it must be numbers"),
        ({"observations": [[1.0, 2.0], [3.0]]}, "mine: 'observations' is no array of numbers"),
        ({"rewards": torch.zeros(300, requires_grad=True)}, "mine: 'rewards' is no array of numbers"),
        ({"terminations": np.zeros(300)}, "mine: holds both 'terminations' and 'terminals'"),
        ({"next_observations": np.zeros((300, 2))}, "mine: 'next_observations' has shape"),
        ({"actions": np.arange(300) % 3, "choices": 2}, "mine: 'actions' is 2 in row 2; of 2 choices"),
    ],
)
def test_bad_arrays_are_refused_by_name_and_row(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        from_arrays(**(random_walk() | changes), name="mine")


def test_names_that_are_not_read_and_environments_in_place_of_ids_are_refused() -> None:
    with pytest.raises(ConfigError, match="from_arrays reads no 'reward': did you mean 'rewards'"):
        from_arrays(**random_walk(), reward=np.zeros(300))
    env: Any = SimpleNamespace(spec=SimpleNamespace(id="Pendulum-v1"))
    with pytest.raises(ConfigError, match=r"is given by its id, 'Pendulum-v1'.*of type SimpleNamespace"):
        from_arrays(**random_walk(), env_id=env)


def test_a_dataset_is_shown_by_its_columns_and_not_by_its_numbers() -> None:
    rows = np.zeros((1000, 3))
    shown = repr(from_arrays(rows, rows, rows[:, 0], np.arange(1000) % 50 == 49, env_id="Robot-v0", name="log"))
    assert shown.startswith("Dataset('log', env_id='Robot-v0', observations float32[1000, 3], actions float32[1000, 3]")
    assert len(shown) < 600


@pytest.mark.parametrize("limit", [7.5, "7", True, 0, float("nan"), float("inf")])
def test_a_step_limit_that_is_no_whole_number_is_refused(limit: Any) -> None:
    arrays = without(random_walk(), "timeouts")
    with pytest.raises(ConfigError, match=r"max_episode_steps is .*, must be a whole number from 1 to"):
        from_arrays(**arrays, max_episode_steps=limit)


def test_a_step_limit_may_be_of_any_type_of_numbers() -> None:
    arrays = without(random_walk(), "timeouts")
    for limit in (np.int64(7), 7.0, np.float32(7)):
        assert_equal(from_arrays(**arrays, max_episode_steps=limit), from_arrays(**arrays, max_episode_steps=7))


def test_what_lies_below_a_mask_is_not_learned_from() -> None:
    arrays = random_walk()
    hidden = np.ma.masked_array(arrays["observations"], np.zeros_like(arrays["observations"], bool))
    assert_equal(from_arrays(**(arrays | {"observations": hidden})), from_arrays(**arrays))  # nothing is masked
    hidden.mask[3, 1] = True
    with pytest.raises(DataError, match=r"'observations' is masked in row 3 and 1 values in all"):
        from_arrays(**(arrays | {"observations": hidden}))


def test_planes_of_truth_values_are_images_of_zeros_and_ones() -> None:
    planes = np.random.default_rng(0).random((4, 8, 8, 12)) < 0.5
    dataset = from_arrays(planes, np.zeros((4, 1)), np.ones(4), timeouts=[0, 0, 0, 1], next_observations=planes)
    assert dataset.arrays == {"image": Array((8, 8, 12), "uint8")}
    np.testing.assert_array_equal(dataset.extras["observations/image"], planes)
    with pytest.raises(DataError, match=r"of pictures, hold uint8"):
        from_arrays(planes.astype(np.float32), np.zeros((4, 1)), np.ones(4), timeouts=[0, 0, 0, 1])
