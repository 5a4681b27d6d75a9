"""Bad input: one sentence that names the file, key and row; nothing else."""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any

import h5py
import numpy as np
import pytest
from make_files import random_walk, three_episodes, without, write_hdf5

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data import load, save


def test_a_truncated_file_is_refused(tmp_path: pathlib.Path) -> None:
    whole = write_hdf5(tmp_path / "a.hdf5", random_walk()).read_bytes()
    cut = tmp_path / "cut.hdf5"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut.hdf5.*truncated"):
        load(cut)


@pytest.mark.parametrize("content", [b"<html>404</html>", b"\x00" * 4000, b"\x89HDF", b"a,\xff\xfe\n"])
def test_a_file_of_another_kind_is_refused(tmp_path: pathlib.Path, content: bytes) -> None:
    path = tmp_path / "a.hdf5"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a.hdf5: is not HDF5, NPZ or CSV"):
        load(path)


def test_an_empty_file_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.hdf5").touch()
    with pytest.raises(DataError, match=r"is empty"):
        load(tmp_path / "a.hdf5")


def test_a_misnamed_key_is_refused_with_the_name_that_looks_like_it(tmp_path: pathlib.Path) -> None:
    arrays = random_walk()
    arrays["reward"] = arrays.pop("rewards")
    with pytest.raises(DataError, match=r"'rewards' is missing; 'reward' looks like it"):
        load(write_hdf5(tmp_path / "a.hdf5", arrays))


def test_a_missing_key_is_refused_with_what_the_file_holds(tmp_path: pathlib.Path) -> None:
    with pytest.raises(DataError, match=r"'actions' is missing \(the file holds: .*observations.*by a mapping"):
        load(write_hdf5(tmp_path / "a.hdf5", without(random_walk(), "actions")))


def test_lengths_that_disagree_are_refused_with_keys_and_lengths(tmp_path: pathlib.Path) -> None:
    arrays = random_walk()
    arrays["rewards"] = arrays["rewards"][:-1]
    with pytest.raises(DataError, match=r"'rewards' has 299 rows but 'observations' has 300"):
        load(write_hdf5(tmp_path / "a.hdf5", arrays))


@pytest.mark.parametrize(("key", "value"), [("rewards", np.nan), ("observations", np.inf), ("actions", -np.inf)])
def test_values_that_are_not_finite_are_refused_with_row_key_and_count(
    tmp_path: pathlib.Path, key: str, value: float
) -> None:
    arrays = random_walk()
    arrays[key][17] = value
    arrays[key][40] = value
    count = 2 * arrays[key][0].size
    with pytest.raises(DataError, match=f"'{key}' holds {value} in row 17 and {count} values"):
        load(write_hdf5(tmp_path / "a.hdf5", arrays))


def test_doubles_beyond_single_precision_are_refused(tmp_path: pathlib.Path) -> None:
    arrays = random_walk()
    arrays["rewards"] = arrays["rewards"].astype(np.float64)
    arrays["rewards"][3] = 1e300
    with pytest.raises(DataError, match=r"'rewards' holds inf in row 3"):
        load(write_hdf5(tmp_path / "a.hdf5", arrays))


def test_an_empty_dataset_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(DataError, match=r"is empty"):
        load(write_hdf5(tmp_path / "a.hdf5", {key: value[:0] for key, value in random_walk().items()}))


@pytest.mark.parametrize(
    ("key", "array", "sentence"),
    [
        ("observations", np.zeros((300, 2, 2)), "'observations' has shape"),
        ("rewards", np.zeros((300, 2)), "'rewards' has shape"),
        ("actions", np.array([b"left"] * 300), "'actions' has type"),
        ("terminals", np.full(300, 2.0), "'terminals' holds 2.0 in row 0"),
        ("timeouts", np.full(300, np.nan), "'timeouts' holds nan in row 0"),
        ("next_observations", np.zeros((300, 4)), "'next_observations' has shape"),
        ("observations", np.float32(1), "'observations' has shape"),
        ("extras/weights", np.zeros(7), "'extras/weights' has shape"),
    ],
)
def test_wrong_shapes_and_types_are_refused(tmp_path: pathlib.Path, key: str, array: np.ndarray, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        load(write_hdf5(tmp_path / "a.hdf5", random_walk() | {key: array}))


def test_a_declared_shape_that_the_file_cannot_hold_is_refused_unread(tmp_path: pathlib.Path) -> None:
    path = write_hdf5(tmp_path / "a.hdf5", without(random_walk(), "observations"))
    with h5py.File(path, "a") as file:  # 40 TB that were never written
        file.create_dataset("observations", shape=(10**12, 10), dtype="f4", chunks=(1000, 10), compression="gzip")
    with pytest.raises(DataError, match=r"'observations' says that it has shape"):
        load(path)


def test_data_in_other_files_are_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(4 * 300))
    path = write_hdf5(tmp_path / "a.hdf5", without(random_walk(), "rewards"))
    with h5py.File(path, "a") as file:
        file.create_dataset("rewards", shape=(300,), dtype="f4", external=[(str(tmp_path / "secret"), 0, 1200)])
    with pytest.raises(DataError, match=r"other files"):
        load(path)


def test_links_to_other_files_are_not_followed(tmp_path: pathlib.Path) -> None:
    write_hdf5(tmp_path / "other.hdf5", random_walk())
    path = write_hdf5(tmp_path / "a.hdf5", without(random_walk(), "rewards"))
    with h5py.File(path, "a") as file:
        file["rewards"] = h5py.ExternalLink("other.hdf5", "rewards")
    with pytest.raises(DataError, match=r"'rewards' is missing"):
        load(path)


def test_a_reader_that_takes_too_long_is_stopped(tmp_path: pathlib.Path) -> None:
    from surefoot.data.formats.hdf5 import read_hdf5

    with pytest.raises(DataError, match=r"took longer"):
        read_hdf5(write_hdf5(tmp_path / "a.hdf5", random_walk()), ["rewards"], seconds=0.0)


def test_a_crash_of_the_reader_is_one_sentence(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from surefoot.data.formats import hdf5

    crasher = tmp_path / "hdf5_worker.py"
    crasher.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setattr(hdf5, "WORKER", crasher)
    with pytest.raises(DataError, match=r"crashed on it \(signal 11\)"):
        load(write_hdf5(tmp_path / "a.hdf5", random_walk()))


@pytest.mark.parametrize("most", [3, 4, 5])
def test_an_hdf5_file_of_more_datasets_than_are_read_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    from surefoot.data.formats import hdf5

    worker = tmp_path / "hdf5_worker.py"
    worker.write_text(hdf5.WORKER.read_text().replace("MAX_NAMES = 100_000", f"MAX_NAMES = {most}"))
    monkeypatch.setattr(hdf5, "WORKER", worker)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for k in range(4):
            file[f"data/demo_{k}/actions"] = np.zeros((3, 1))
    if most < 4:
        with pytest.raises(DataError, match=r"a\.hdf5: has more than 3 datasets, and no more are read"):
            hdf5.read_hdf5(tmp_path / "a.hdf5", [])
    else:
        assert len(hdf5.read_hdf5(tmp_path / "a.hdf5", []).names) == 4


def test_an_hdf5_file_of_thousands_of_datasets_is_read_in_seconds(tmp_path: pathlib.Path) -> None:
    names = {"observations": 2, "actions": 1, "rewards": 0, "terminals": 0}
    with h5py.File(tmp_path / "a.hdf5", "w", libver="latest") as file:
        for name, width in names.items():
            file[name] = np.zeros((4, width) if width else 4, np.float32)
        file["timeouts"] = np.array([False, False, False, True])
        for k in range(5_000):
            file[f"infos/x{k}"] = np.zeros(4, np.float32)
    start = time.process_time()
    assert len(load(tmp_path / "a.hdf5")) == 4
    assert time.process_time() - start < 5  # the reader is a process of its own, within this time too


@pytest.mark.parametrize("name", ["a=b (1), c.hdf5", "algo=iql,bc.hdf5", "d4rl"])
def test_any_existing_path_loads_whatever_its_name(
    tmp_path: pathlib.Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hdf5(tmp_path / name, random_walk())
    monkeypatch.chdir(tmp_path)
    assert len(load(name)) == 300


def test_unknown_names_are_refused_with_the_nearest(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean .*d4rl/hopper-medium-v2"):
        load("d4rl/hoper-medium-v2")
    write_hdf5(tmp_path / "hopper.hdf5", random_walk())
    with pytest.raises(ConfigError, match=r"no such file; did you mean 'hopper.hdf5'"):
        load(tmp_path / "hoper.hdf5")
    with pytest.raises(ConfigError, match=r"no such file; did you mean 'hopper.hdf5'"):
        load(tmp_path / "hopper.hdf")
    (tmp_path / "letters").mkdir()
    (tmp_path / "key.pem").write_text("")
    with pytest.raises(ConfigError, match=r"choose from hopper\.hdf5$"):  # and nothing of what else lies there
        load(tmp_path / "zzz")
    with pytest.raises(ConfigError, match=r"^/nope: no such file or folder, and in / lies no file of data$"):
        load("/nope")
    with pytest.raises(ConfigError, match=r"doesn't exist either"):
        load(tmp_path / "nowhere" / "a.hdf5")
    with pytest.raises(ConfigError):
        load("null\0byte")
    with pytest.raises(ConfigError):
        load("x" * 5000)


def test_a_folder_without_a_dataset_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(DataError, match=r"folder without a Minari dataset"):
        load(tmp_path)


def test_the_inside_of_a_minari_dataset_is_refused_with_the_way_out(tmp_path: pathlib.Path) -> None:
    arrays = {f"episode_0/{key}": value for key, value in three_episodes().items()}
    with pytest.raises(DataError, match=r"inside of a Minari dataset; give the dataset's folder"):
        load(write_hdf5(tmp_path / "main_data.hdf5", arrays))


@pytest.mark.parametrize("key", ["margins", "extras/margins", "extras/note"])
def test_a_further_column_with_nan_is_refused_like_any_other(tmp_path: pathlib.Path, key: str) -> None:
    arrays = random_walk()
    column = np.zeros(len(arrays["rewards"]))
    column[3] = np.nan
    for path in (write_hdf5(tmp_path / "a.hdf5", {**arrays, key: column}), tmp_path / "a.npz"):
        if path.suffix == ".npz":
            np.savez(path, **{**arrays, key: column})
        with pytest.raises(DataError, match=rf"'{key}' holds nan in row 3"):
            load(path)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e300, 2.5, 2**63, 10**400])
def test_a_step_limit_that_is_no_number_of_steps_is_refused(tmp_path: pathlib.Path, value: float) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **random_walk(), attributes=np.array(json.dumps({"max_episode_steps": value})))
    with pytest.raises(DataError, match=r"attribute 'max_episode_steps' is .*, must be a whole number up to"):
        load(path)


def test_other_attributes_may_be_anything_and_are_kept_as_what_json_and_a_terminal_can_hold(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "a.npz"
    odd = {"a": float("inf"), "b": 2**63, "c": "x\x1b[2J", "d": True, "e": 1.5, "max_episode_steps": -1}
    np.savez(path, **random_walk(), attributes=np.array(json.dumps(odd)))
    found = load(path).attributes
    assert found == {"a": "inf", "b": str(2**63), "c": "x\\x1b[2J", "d": True, "e": 1.5, "max_episode_steps": -1}
    assert json.dumps(dict(found), allow_nan=False)


def test_a_newer_layout_is_refused_by_both_versions_and_todays_loads(tmp_path: pathlib.Path) -> None:
    dataset = load(write_hdf5(tmp_path / "a.hdf5", random_walk()))
    save(dataset, tmp_path / "b.npz")
    assert load(tmp_path / "b.npz").attributes["surefoot_version"] == "1"
    with np.load(tmp_path / "b.npz") as held:
        np.savez(tmp_path / "c.npz", **{**held, "attributes": np.array('{"surefoot_version": "2"}')})
    with pytest.raises(DataError, match=r"is written as 'surefoot_version 2', and .* reads 'surefoot_version 1'"):
        load(tmp_path / "c.npz")


def test_an_hdf5_file_that_unpacks_to_far_more_than_its_size_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for key, value in {**random_walk(), "extras/zeros": np.zeros(80 << 20, np.float32)}.items():
            file.create_dataset(key, data=value, compression="gzip")
    with pytest.raises(DataError, match=r"a\.hdf5: unpacks to 3\d+ bytes, .*set SUREFOOT_MAX_UNPACKED_MB=3"):
        load(tmp_path / "a.hdf5")
    monkeypatch.setenv("SUREFOOT_MAX_UNPACKED_MB", "1000")
    with pytest.raises(DataError, match="must have one row per step"):
        load(tmp_path / "a.hdf5")


@pytest.mark.parametrize("source", [None, 3])
def test_what_is_no_path_is_refused(source: Any) -> None:
    with pytest.raises(ConfigError, match=f"a path or an id of the catalogue, not a {type(source).__name__}"):
        load(source)


def test_numbers_of_every_kind_of_hdf5_dataset_arrive_as_they_are(tmp_path: pathlib.Path) -> None:
    from surefoot.data.formats import hdf5

    rows = np.arange(24, dtype=np.int16).reshape(6, 4)
    held = {
        "big": rows.astype(">f8"),
        "chunked": rows.astype(np.float16),
        "flags": rows[:, 0] % 2 == 0,
        "none": np.zeros((0, 3), np.float32),
        "one": np.float32(3.5),
        "bytes": rows.astype(np.uint8),
    }
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name, value in held.items():
            more = {"chunks": (2, 2), "compression": "gzip"} if name == "chunked" else {}
            file.create_dataset(f"in/{name}", data=value, **more)
    read = hdf5.read_hdf5(tmp_path / "a.hdf5", [], prefixes=["in/"]).arrays
    for name, value in held.items():
        assert read[f"in/{name}"].dtype == np.asarray(value).dtype.newbyteorder("=")
        np.testing.assert_array_equal(read[f"in/{name}"], value)
    some = hdf5.read_hdf5(tmp_path / "a.hdf5", ["in/big", "in/chunked", "in/flags"], rows=(2, 5)).arrays
    for name in ("big", "chunked", "flags"):
        np.testing.assert_array_equal(some[f"in/{name}"], held[name][2:5])


@pytest.mark.parametrize("kind", ["none", "text", "compound", "virtual"])
def test_hdf5_datasets_that_are_no_arrays_of_numbers_are_refused(tmp_path: pathlib.Path, kind: str) -> None:
    from surefoot.data.formats import hdf5

    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        if kind == "none":
            file["odd"] = h5py.Empty("f4")
        elif kind == "text":
            file["odd"] = ["a", "b"]
        elif kind == "compound":
            file["odd"] = np.zeros(3, [("a", "f4"), ("b", "i8")])
        else:
            layout = h5py.VirtualLayout(shape=(3,), dtype="f4")
            layout[:] = h5py.VirtualSource("/etc/passwd", "x", shape=(3,))
            file.create_virtual_dataset("odd", layout)
    why = {"none": "has shape None", "text": "has type object", "compound": "has type", "virtual": "in other files"}
    with pytest.raises(DataError, match=rf"a\.hdf5: 'odd' .*{why[kind]}"):
        hdf5.read_hdf5(tmp_path / "a.hdf5", ["odd"])


def test_robomimic_files_are_listed_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from surefoot.data.formats import hdf5

    started, start = [], hdf5.start_python
    monkeypatch.setattr(hdf5, "start_python", lambda *line, **more: started.append(line) or start(*line, **more))
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for k in range(3):
            for key, shape in {"obs/state": (4, 2), "next_obs/state": (4, 2), "actions": (4, 1), "rewards": 4}.items():
                file[f"data/demo_{k}/{key}"] = np.full(shape, k, np.float32)
            file[f"data/demo_{k}/dones"] = np.arange(4) == 3
    dataset = load(tmp_path / "a.hdf5")
    assert dataset.observations[:, 0].tolist() == np.repeat([0, 1, 2], 4).tolist()
    assert len(started) == 3  # names, shapes of the first demonstration, numbers: a fourth would list all names again
