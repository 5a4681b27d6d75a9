"""What float32 loses of 64-bit columns with a large offset is counted and named, by every way into a dataset.

The column of most tests is 5,400,000 + k / 8 for k from 0 to 15. float32's numbers lie 0.5 apart there, and a number
half-way between two goes to the one whose last bit is 0: 0, 0.5, 1, 1.5 and 2 are left, and 12 of 16 rows change, by up
to 0.25. The standard deviation of 0 to 15 is sqrt((16^2 - 1) / 12) = 4.61, of the column an eighth, 0.576.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from make_files import write_hdf5

from surefoot.core.base.errors import DataError
from surefoot.core.base.precision import losses, warnings_of
from surefoot.data import Dataset, from_arrays, load, save
from surefoot.data.rewards import rewarded
from surefoot.runs.inputs import dataset_of
from surefoot.runs.plan import Plan
from surefoot.runs.run import read_columns, write_columns

Array = np.ndarray[Any, Any]

K = np.arange(16)
NORTHING = 5_400_000 + K / 8
SENTENCE = (
    "values of {} rounded to float32 (subtract 5,400,000): 5 of 16 different ones are left, errors up to 0.25 (0.43 "
    "standard deviations)"
)

TICKS = "(subtract 67,109,000): 3 of 16 different ones are left, errors up to 4 (0.87 {})"


def arrays() -> dict[str, Array]:
    """Sixteen steps of one episode: the northing, and beside it an angle that float32 holds."""
    return {
        "observations": np.stack([NORTHING, np.sin(K)], 1),
        "actions": np.cos(K)[:, None],
        "rewards": -np.sin(K),
        "terminals": K == 15,
        "timeouts": np.zeros(16, bool),
    }


def of_arrays(folder: pathlib.Path) -> Dataset:
    return from_arrays(**arrays())


def npz(folder: pathlib.Path) -> pathlib.Path:
    np.savez(folder / "a.npz", **arrays())  # type: ignore[arg-type]
    return folder / "a.npz"


def named(folder: pathlib.Path) -> pathlib.Path:
    held = arrays()
    images = np.zeros((16, 8, 8, 1), np.uint8)
    vectors = {"observations/state": held.pop("observations"), "observations/camera": images}
    np.savez(folder / "a.npz", **held, **vectors, **{f"next_{key}": one for key, one in vectors.items()})  # type: ignore[arg-type]
    return folder / "a.npz"


def hdf5(folder: pathlib.Path) -> pathlib.Path:
    return write_hdf5(folder / "a.hdf5", arrays())


def hdf5_with_next_observations(folder: pathlib.Path) -> pathlib.Path:
    held = arrays()
    following = np.concatenate([held["observations"][1:], held["observations"][-1:]])
    return write_hdf5(folder / "a.hdf5", held | {"next_observations": following})


def csv(folder: pathlib.Path) -> pathlib.Path:
    rows = [f"{5_400_000 + k / 8!r},{float(np.sin(k))!r},{float(np.cos(k))!r},{int(k == 15)}" for k in range(16)]
    (folder / "a.csv").write_text("\n".join(["observation_0,observation_1,action_0,termination", *rows]))
    return folder / "a.csv"


def mapping(folder: pathlib.Path) -> pathlib.Path:
    csv(folder)
    text = (folder / "a.csv").read_text().replace("observation_0,observation_1,action_0", "northing,angle,torque")
    (folder / "a.csv").write_text(text)
    (folder / "a.yaml").write_text("files: a.csv\nobservations: [northing, angle]\nactions: torque\n")
    return folder / "a.yaml"


def parquet(folder: pathlib.Path) -> pathlib.Path:
    held = {key: pa.array(list(one)) if one.ndim > 1 else pa.array(one) for key, one in arrays().items()}
    pyarrow.parquet.write_table(pa.table(held), folder / "a.parquet")
    return folder / "a.parquet"


def lerobot(folder: pathlib.Path) -> pathlib.Path:
    """A folder of float32 states, whose Parquet file then holds them as float64."""
    save(from_arrays(**arrays()), folder / "lerobot", layout="lerobot")
    (path,) = (folder / "lerobot" / "data").glob("*/*.parquet")
    table = pyarrow.parquet.read_table(path)
    place = table.schema.names.index("observation.state")
    states = pa.array(list(arrays()["observations"]))
    pyarrow.parquet.write_table(table.set_column(place, "observation.state", states), path)
    return folder / "lerobot"


def robomimic(folder: pathlib.Path) -> pathlib.Path:
    held = arrays()
    with h5py.File(folder / "a.hdf5", "w") as file:
        for k, rows in enumerate((slice(8), slice(8, 16))):
            file[f"data/demo_{k}/obs/pose"] = held["observations"][rows]
            file[f"data/demo_{k}/actions"] = held["actions"][rows]
            file[f"data/demo_{k}/rewards"] = held["rewards"][rows]
    return folder / "a.hdf5"


def d3rlpy(folder: pathlib.Path) -> pathlib.Path:
    held = arrays()
    with h5py.File(folder / "a.hdf5", "w") as file:
        file["num_episodes"] = 1
        for key in ("observations", "actions", "rewards"):
            file[f"{key}_0"] = held[key]
        file["terminated_0"] = True
    return folder / "a.hdf5"


def neorl2(folder: pathlib.Path) -> pathlib.Path:
    held = arrays()
    names = {"obs": "observations", "next_obs": "observations", "action": "actions", "reward": "rewards"}
    given = {name: held[key] for name, key in names.items()}
    np.savez(folder / "a.npz", **given, done=held["terminals"], truncated=held["timeouts"])
    return folder / "a.npz"


def ogbench(folder: pathlib.Path) -> pathlib.Path:
    held = {key: array for key, array in arrays().items() if key in ("observations", "actions", "terminals")}
    np.savez(folder / "a.npz", **held, masks=np.ones(16))  # type: ignore[arg-type]
    return folder / "a.npz"


@pytest.mark.parametrize(
    ("made", "column", "rows"),
    [
        (of_arrays, "observations[0]", 12),
        (npz, "observations[0]", 12),
        (named, "observations/state[0]", 12),
        (hdf5, "observations[0]", 12),
        (hdf5_with_next_observations, "observations[0]", 12),
        (csv, "observations[0]", 12),
        (mapping, "observations[0] (northing)", 12),
        (parquet, "observations[0]", 12),
        (lerobot, "observations[0]", 12),
        (robomimic, "observations[0]", 12),
        (d3rlpy, "observations[0]", 12),
        (neorl2, "observations[0]", 12),
        (ogbench, "observations[0]", 12),
    ],
)
def test_every_format_counts_and_names_a_column_that_float32_makes_a_staircase_of(
    tmp_path: pathlib.Path, made: Callable[[pathlib.Path], Any], column: str, rows: int
) -> None:
    source = made(tmp_path)
    data = source if isinstance(source, Dataset) else load(source)
    told = {what: count for what, count in data.warnings.items() if "float32" in what}
    assert told == {SENTENCE.format(column): rows}
    vectors = data.extras["observations/state"] if made is named else data.observations
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors[:, 0], NORTHING.astype(np.float32)[: len(vectors)])  # nothing is subtracted
    if source is data:
        with pytest.raises(DataError, match=r"^mine: refused because strict is set: .*observations\[0\] rounded"):
            from_arrays(**arrays(), name="mine", strict=True)
    else:
        with pytest.raises(DataError) as refused:
            load(source, strict=True)
        assert str(refused.value).startswith(f"{source}: refused because strict is set: ")
        assert SENTENCE.format(column) in str(refused.value)


def test_scaled_states_are_counted_in_the_units_that_they_are_restored_to(tmp_path: pathlib.Path) -> None:
    """DPPO's files hold states scaled to [-1, 1], which float32 holds, and the offset beside them."""
    held = arrays()
    low, high = held["observations"].min(0), held["observations"].max(0)
    states = 2 * (held["observations"] - low) / (high - low + 1e-6) - 1
    columns = {"states": states, "actions": held["actions"], "rewards": held["rewards"], "terminals": held["terminals"]}
    np.savez(tmp_path / "train.npz", **columns, traj_lengths=np.array([16]))
    bounds = {"obs_min": low, "obs_max": high, "action_min": -np.ones(1), "action_max": np.ones(1)}
    np.savez(tmp_path / "normalization.npz", **bounds)
    (what,) = load(tmp_path / "train.npz").warnings
    assert what == SENTENCE.format("observations[0]")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        # 128 apart, steps of 16: 0, 128 and 256 are left, as 64 (half-way) goes to 0 and 192 to 256; 16 * 4.61 = 73.8
        (1.75e9 + 16 * K, "(subtract 1,750,000,000): 3 of 16 different ones are left, errors up to 64 (0.87 {})"),
        # 8 apart, steps of 1: the same in eighths
        (2**26 + K, TICKS),
        ((2**26 + K).astype(np.int32), TICKS),
        ((2**26 + K).astype(np.uint64), TICKS),
        (-NORTHING, "(subtract -5,400,000): 5 of 16 different ones are left, errors up to 0.25 (0.43 {})"),
    ],
)  # fmt: skip
def test_clocks_ticks_and_negative_columns_are_counted_too(values: Array, sentence: str) -> None:
    sentence = sentence.format("standard deviations")
    (what,) = warnings_of({"observations": values[:, None]})
    assert what == f"values of observations[0] rounded to float32 {sentence}"
    (what,) = warnings_of({"rewards": values})
    assert what == f"values of rewards rounded to float32 {sentence}"


@pytest.mark.parametrize(("step", "found"), [(0.2, 1), (0.6, 0)])
def test_a_wide_column_is_reported_where_float32_is_coarser_than_its_steps(step: float, found: int) -> None:
    """A car on 300 m of road: a quarter of a metre is 0.3 % of its spread, and more than it drives in a row."""
    x = 5_400_000 + np.arange(0, 300, step)
    assert 0.25 / x.std() < 0.01
    assert len(losses(x)) == found


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).normal(size=(1000, 3)),
        100 + np.random.default_rng(0).normal(size=1000),  # spacing 8e-6
        np.round(101_325 + np.random.default_rng(0).normal(0, 5, 1000), 2),  # pascals in hundredths: spacing 0.0078
        np.arange(2**24 - 1000, 2**24 + 1),
        np.arange(1000) * 20_000_000,  # nanoseconds since the recording began
        np.full(1000, 1e8 + 0.3),  # constant
        1e8 + 0.3 + np.random.default_rng(0).normal(0, 1e-8, 1000),  # constant but for float64's last bits
        0.4 + np.random.default_rng(0).normal(0, 1e-9, 1000),  # a joint that rests
        np.pi + np.exp(-np.arange(1000) / 20),  # a pendulum that settles: its last steps are below float32's spacing
        np.where(np.arange(1000) == 5, 1e9 + 0.3, np.sin(np.arange(1000))),  # one outlier
        NORTHING.astype(np.float32),  # what is lost already can't be determined
        np.arange(1000, dtype=np.uint16),
        np.zeros((0, 3)),
        np.zeros((16, 0)),
    ],
)  # fmt: skip
def test_columns_that_float32_holds_well_are_not_reported(values: Array) -> None:
    assert losses(values) == []


def test_a_column_of_next_observations_is_not_named_twice_and_one_of_its_own_is() -> None:
    after = np.stack([NORTHING, NORTHING], 1)
    (what,) = warnings_of({"observations": np.stack([NORTHING, np.sin(K)], 1), "next_observations": after[:, :1]})
    assert what == SENTENCE.format("observations[0]")
    first, second = warnings_of({"observations": np.stack([NORTHING, np.sin(K)], 1), "next_observations": after})
    assert (first, second) == (SENTENCE.format("observations[0]"), SENTENCE.format("next_observations[1]"))


def test_the_columns_beyond_the_eighth_are_counted() -> None:
    found = warnings_of({"observations": np.repeat(NORTHING[:, None], 11, 1)})
    assert len(found) == 9
    assert found["values of 3 further columns of observations rounded to float32, as those that are named"] == 12


def test_rewards_and_costs_are_looked_at_and_rewards_of_a_function_take_the_place_of_the_data_s() -> None:
    held = arrays() | {"rewards": 1e8 + K / 8.0, "costs": NORTHING}
    data = from_arrays(**held)
    # float32's numbers lie 8 apart at 1e8: one value is left, and 15 rows change by up to 15 / 8
    reward = (
        "values of rewards rounded to float32 (subtract 100,000,000): 1 of 16 different ones are left, errors up to 1.9"
    )
    assert [what for what in data.warnings if what.startswith(reward)]
    assert SENTENCE.format("costs") in data.warnings
    better = rewarded(data, lambda observations, actions, following: actions[:, 0], "mine:reward")
    assert [*better.warnings] == [what for what in data.warnings if not what.startswith(reward)]
    worse = rewarded(better, lambda observations, actions, following: 1e8 + K / 8.0, "mine:offset")
    assert worse.warnings == {**better.warnings, **{w: n for w, n in data.warnings.items() if w.startswith(reward)}}


def test_a_run_refuses_data_in_memory_under_strict_and_its_workers_read_the_warnings(tmp_path: pathlib.Path) -> None:
    data = from_arrays(**arrays())
    with pytest.raises(DataError, match=r"arrays: refused because strict is set: .*observations\[0\]"):
        dataset_of(Plan("bc", {}, dataset="<memory>", environment=None, strict=True), data, lambda event: None)
    long = {"observation_names": f'["{"n" * 400}", "{"m" * 400}"]', "action_names": '["a"]'}
    named = from_arrays(**arrays()).replace(attributes=long)
    found = warnings_of({"observations": arrays()["observations"]}, {"observations": named.observation_names})
    write_columns(data.replace(warnings=found), tmp_path / "columns.safetensors")
    (what,) = read_columns(tmp_path / "columns.safetensors").warnings
    assert what == SENTENCE.format(f"observations[0] ({'n' * 21}...)")


def test_a_warning_with_a_long_key_is_cut_to_what_files_hold_and_still_tells_its_columns_apart(
    tmp_path: pathlib.Path,
) -> None:
    found = warnings_of({f"observations/{'k' * 300}": np.stack([NORTHING, NORTHING], 1)})
    assert [len(what) for what in found] == [200, 200]
    assert all("kkk[" in what and what.startswith("values of observat...kkk") for what in found)
    write_columns(from_arrays(**arrays()).replace(warnings=found), tmp_path / "columns.safetensors")
    assert read_columns(tmp_path / "columns.safetensors").warnings == found


@pytest.mark.slow
def test_no_column_of_a_real_dataset_is_reported(shared_data: pathlib.Path) -> None:
    """Neither as it is stored nor in other units: times pi it holds 64-bit numbers that float32 has to round."""
    paths = sorted(shared_data.glob("*.hdf5"))
    assert len(paths) > 20
    for path in paths:
        data = load(path)
        assert [what for what in data.warnings if "float32" in what] == [], path
        columns = {"observations": data.observations, "actions": data.actions, "rewards": data.rewards}
        assert warnings_of({key: np.pi * array.astype(np.float64) for key, array in columns.items()}) == {}, path
