"""Layouts in which the next row holds the next observation: Minari, OGBench, DPPO."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import numpy as np
import pytest
from make_files import three_episodes, without, write_hdf5

from surefoot.core.base.errors import DataError
from surefoot.data import Dataset, convert, load, save


@pytest.fixture(autouse=True)
def _private_store(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def in_minari(source: pathlib.Path) -> Dataset:
    pytest.importorskip("minari", reason="the extra minari is not installed")
    convert(source, f"minari/test/{source.stem}-v0")
    return load(f"minari/test/{source.stem}-v0")


def in_ogbench(source: pathlib.Path) -> Dataset:
    convert(source, source.with_suffix(".npz"), layout="ogbench")
    return load(source.with_suffix(".npz"))


def in_dppo(source: pathlib.Path) -> Dataset:
    convert(source, source.with_suffix(".npz"), layout="dppo")
    return load(source.with_suffix(".npz"))


@pytest.mark.parametrize("written", [in_minari, in_ogbench])
@pytest.mark.filterwarnings("ignore")
def test_a_row_whose_next_observation_is_not_known_does_not_become_a_step_to_itself(
    written: Callable[[pathlib.Path], Dataset], tmp_path: pathlib.Path
) -> None:
    source = write_hdf5(tmp_path / f"ends-{written.__name__[3:]}.hdf5", without(three_episodes(), "next_observations"))
    assert load(source).transitions.tolist() == [True] * 6 + [False, True, False]
    back = written(source)
    np.testing.assert_array_equal(back.observations[:, 0], [0, 1, 2, 3, 4, 5, 7])
    np.testing.assert_array_equal(back.next_observations[:, 0][~back.terminations], [1, 2, 4, 5, 6, 8])
    np.testing.assert_array_equal(back.rewards, [1, 2, 3, 4, 5, 6, 8])
    assert back.terminations.tolist() == [False, False, True, False, False, False, False]
    assert back.truncations.tolist() == [False, False, False, False, False, True, True]
    assert back.transitions.all()


@pytest.mark.parametrize("written", [in_minari, in_ogbench, in_dppo])
def test_what_such_a_layout_would_change_is_refused(
    written: Callable[[pathlib.Path], Dataset], tmp_path: pathlib.Path
) -> None:
    arrays = three_episodes()
    arrays["next_observations"][4] += 1
    name = f"torn-{written.__name__[3:]}.hdf5"
    with pytest.raises(DataError, match=r"row 4's next observation is not the next row's \(1 such rows\)"):
        written(write_hdf5(tmp_path / name, arrays))
    gap = write_hdf5(tmp_path / f"gap-{name}", {**three_episodes(), "valid": np.arange(9) != 4})
    with pytest.raises(DataError, match=r"row 4 is inside an episode and may not be sampled"):
        written(gap)


def test_data_without_a_row_that_may_be_sampled_are_not_written(tmp_path: pathlib.Path) -> None:
    arrays = {key: value[:1] for key, value in without(three_episodes(), "next_observations").items()}
    with pytest.raises(DataError, match=r"no row is valid as a transition"):
        save(load(write_hdf5(tmp_path / "one.hdf5", arrays)), tmp_path / "one.npz", "ogbench")
