"""Interventions and penalties in LeRobot folders: under LeRobot's own names, there and back."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from surefoot import data
from surefoot.core.base.errors import DataError
from surefoot.data.arrays import from_arrays
from surefoot.data.dataset import Dataset


def recorded(rows: int = 6) -> Dataset:
    observations = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    ends = np.arange(rows) % 3 == 2
    made = from_arrays(observations, np.zeros((rows, 2), np.float32), np.ones(rows, np.float32), ends & False, ends)
    intervened, penalties = np.array([0, 1, 1, 0, 0, 1], bool), np.array([0, -0.1, 0, 0, 0, -0.02], np.float32)
    return made.replace(extras={"intervened": intervened, "penalties": penalties, "other": np.ones(rows, np.float32)})


def test_they_are_written_and_read_under_lerobots_names(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pyarrow")
    made = recorded()
    data.save(made, tmp_path / "folder", "lerobot")
    features = json.loads((tmp_path / "folder" / "meta" / "info.json").read_text())["features"]
    assert features["complementary_info.is_intervention"]["dtype"] == "bool"
    assert features["complementary_info.discrete_penalty"] == {"dtype": "float32", "shape": [1], "names": None}
    assert not {"extras.intervened", "extras.penalties"} & set(features)
    read = data.load(tmp_path / "folder")
    for key in ("intervened", "penalties", "other"):
        np.testing.assert_array_equal(read.extras[key], made.extras[key])
    assert read.extras["intervened"].dtype == np.bool_


def test_a_flag_that_is_none_is_named(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pyarrow")
    made = recorded()
    made = made.replace(extras={"intervened": np.array([0, 1, 2, 0, 0, 0], np.float32)})
    data.save(made, tmp_path / "folder", "lerobot")
    with pytest.raises(DataError, match=r"complementary_info\.is_intervention"):
        data.load(tmp_path / "folder")
