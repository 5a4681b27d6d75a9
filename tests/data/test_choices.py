"""Discrete actions in data: numbers of choices become one-hot rows, and files keep how many there are."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.spec import Spec
from surefoot.data import from_arrays, load, save
from surefoot.data.checks import LIKE_CHOICES

NUMBERS = np.arange(40) % 3


def log(actions: Any, **others: Any) -> Any:
    return from_arrays(np.zeros((40, 2)), actions, np.ones(40), timeouts=np.arange(40) % 10 == 9, **others)


def test_few_whole_numbers_are_choices_and_real_ones_are_not() -> None:
    found = log(NUMBERS)
    assert found.choices == 3
    np.testing.assert_array_equal(found.actions, np.eye(3)[NUMBERS])
    assert Spec.of(found).discrete
    real = log(NUMBERS.astype(np.float32))
    assert (real.choices, real.actions.shape) == (None, (40, 1))
    assert LIKE_CHOICES in real.warnings


@pytest.mark.parametrize("actions", [NUMBERS, NUMBERS[:, None], NUMBERS.astype(np.float32), np.eye(5)[NUMBERS]])
def test_a_stated_number_counts_choices_that_nobody_took(actions: Any) -> None:
    found = log(actions, choices=5)
    assert found.choices == found.action_dim == 5
    np.testing.assert_array_equal(found.actions.argmax(1), NUMBERS)


@pytest.mark.parametrize("name", ["a.hdf5", "a.npz", "a.parquet"])
def test_files_keep_them(tmp_path: pathlib.Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    save(log(NUMBERS, choices=4), tmp_path / name)
    found = load(tmp_path / name)
    assert found.choices == 4
    np.testing.assert_array_equal(found.actions.argmax(1), NUMBERS)


def test_a_mapping_states_them(tmp_path: pathlib.Path) -> None:
    (tmp_path / "log.csv").write_text("q,gear\n" + "".join(f"{k},{k % 2}\n" for k in range(6)))
    (tmp_path / "log.yaml").write_text("files: log.csv\nobservations: q\nactions: gear\nchoices: 3\n")
    found = load(tmp_path / "log.yaml")
    assert found.choices == 3
    assert found.actions.argmax(1).tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("actions", "choices", "words"),
    [
        (NUMBERS - 1, 3, "is -1 in row 0"),
        (NUMBERS + 0.5, 3, "is 0.5 in row 0"),
        (np.where(NUMBERS == 1, np.nan, NUMBERS), 3, "is nan in row 1"),
        (np.ones((40, 3)), 3, "is no choice in row 0"),
        (np.ones((40, 2)), 3, "has shape"),
        (NUMBERS, 1, "must be a whole number from 2"),
        (NUMBERS, "many", "must be a whole number from 2"),
    ],
)
def test_what_is_no_choice_is_refused(actions: Any, choices: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        log(actions, choices=choices)


def test_choices_have_no_range() -> None:
    with pytest.raises(ConfigError, match="have no range"):
        Spec.of(log(NUMBERS), -1, 1)
    assert log(NUMBERS, action_low=0, action_high=1).action_range is None


def test_images_need_no_next_images() -> None:
    pixels = np.arange(6 * 12, dtype=np.uint8).reshape(6, 2, 2, 3)
    ends, falls = np.array([0, 0, 1, 0, 0, 0]), np.array([0, 0, 0, 0, 1, 0])
    found = from_arrays({"top": pixels, "q": np.arange(6.0)[:, None]}, np.ones((6, 1)), terminals=falls, timeouts=ends)
    after = [1, 2, 2, 4, 4, 5]  # the next row's inside an episode, and the row's own at its end
    np.testing.assert_array_equal(found.extras["next_observations/top"], pixels[after])
    assert found.extras["next_observations/q"][:, 0].tolist() == after
    assert found.transitions.tolist() == [True, True, False, True, True, False]
    assert found.valid.all()
    alone = from_arrays(pixels, np.ones((6, 1)), timeouts=ends)
    np.testing.assert_array_equal(alone.extras["next_observations/image"], pixels[[1, 2, 2, 4, 5, 5]])
