"""Logs of several files: the same columns of each, and one digest of all."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from surefoot.core.base.errors import DataError
from surefoot.data import convert, info, load, save, verify
from surefoot.data.files import sha256_of


def test_names_with_a_star_are_the_same_columns_in_every_file_whatever_their_order(tmp_path: pathlib.Path) -> None:
    (tmp_path / "run1.csv").write_text("joint_1,joint_2,u\n1,2,0.5\n1,2,0.5\n")
    (tmp_path / "run2.csv").write_text("u,joint_2,joint_1\n0.5,2,1\n0.5,2,1\n")
    (tmp_path / "m.yaml").write_text("files: 'run*.csv'\nobservations: 'joint_*'\nactions: u\n")
    np.testing.assert_array_equal(load(tmp_path / "m.yaml").observations, [[1, 2]] * 4)
    np.testing.assert_array_equal(convert(tmp_path / "m.yaml", tmp_path / "out.npz").observations, [[1, 2]] * 4)


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ("joint_1,joint_3,u", r"here for 'joint_3' too, no 'joint_2'"),
        ("joint_1,joint_2,joint_3,u", r"here for 'joint_3' too\. Name"),
        ("joint_1,u", r"here for no 'joint_2'"),
    ],
)
def test_a_file_in_which_a_star_stands_for_other_columns_is_refused(
    tmp_path: pathlib.Path, header: str, sentence: str
) -> None:
    (tmp_path / "run1.csv").write_text("joint_1,joint_2,u\n1,2,0.5\n")
    (tmp_path / "run2.csv").write_text(f"{header}\n{','.join('1' for _ in header.split(','))}\n")
    (tmp_path / "m.yaml").write_text("files: 'run*.csv'\nobservations: 'joint_*'\nactions: u\n")
    with pytest.raises(DataError, match=rf"run2.csv: .*'observations' .*than in .*run1.csv: {sentence}"):
        load(tmp_path / "m.yaml")


def test_another_number_in_any_file_is_another_digest_wherever_it_is_told(tmp_path: pathlib.Path) -> None:
    for k in (1, 2):
        (tmp_path / f"run{k}.csv").write_text("q,u\n1,0.5\n2,0.5\n")
    path = tmp_path / "m.yaml"
    path.write_text("files: 'run*.csv'\nobservations: q\nactions: u\n")
    first = verify(path)
    assert first.ok
    assert first.sha256 == load(path).sha256 == info(load(path))["sha256"]
    (tmp_path / "m.yaml.sha256").write_text(f"{first.sha256}  m.yaml\n")
    assert verify(path).ok
    (tmp_path / "run2.csv").write_text("q,u\n1,0.5\n3,0.5\n")
    assert [first.sha256 in problem for problem in verify(path).problems] == [True]
    (tmp_path / "run2.csv").unlink()
    (tmp_path / "run1.csv").unlink()
    assert len(verify(path).problems) == 2  # no files, stated once; and no digest to compare


def test_a_log_with_a_mapping_beside_it_has_the_digest_of_both(tmp_path: pathlib.Path) -> None:
    (tmp_path / "log.csv").write_text("q,dq,torque\n1,10,-1\n2,20,-2\n")
    path = tmp_path / "m.yaml"
    path.write_text("files: log.csv\nobservations: q\nactions: torque\n")
    assert load(tmp_path / "log.csv", mapping=path).sha256 == load(path).sha256
    before = load(path).sha256
    path.write_text("files: log.csv\nobservations: dq\nactions: torque\n")
    assert load(path).sha256 != before


def test_a_folder_has_a_digest_of_its_files_and_their_names(tmp_path: pathlib.Path) -> None:
    found = set()
    for folder, name, content in (("a", "x", "1"), ("b", "x", "1"), ("c", "y", "1"), ("d", "x", "2")):
        (tmp_path / folder / "inside").mkdir(parents=True)
        (tmp_path / folder / "inside" / name).write_text(content)
        found.add(sha256_of(tmp_path / folder))
    assert len(found) == 3
    assert sha256_of(tmp_path / "a") == sha256_of(tmp_path / "b")


def robot(folder: pathlib.Path, *widths: int) -> pathlib.Path:
    """A mapping of files whose `q` has so many numbers, and `dq` the rest of 4."""
    for k, width in enumerate(widths):
        q, dq = np.arange(3.0 * width).reshape(3, width), np.ones((3, 4 - width))
        arrays = {"q": q, "dq": dq, "imu": np.ones((3, 6)), "tau": np.ones(3), "grip °": np.ones((3, 1))}
        np.savez(folder / f"run{k}.npz", **arrays)  # type: ignore[arg-type]
    (folder / "m.yaml").write_text(
        "files: 'run*.npz'\nobservations: [q, dq, 'imu[1:3]', 'imu[-1]']\nactions: [tau, 'grip °']\n"
    )
    return folder / "m.yaml"


NAMES = ("q[0]", "q[1]", "dq[0]", "dq[1]", "imu[1]", "imu[2]", "imu[5]")


@pytest.mark.parametrize("name", ["a.hdf5", "a.npz", "a.parquet", "a"])
def test_each_number_keeps_the_name_of_its_column_in_every_file_with_room_for_it(
    tmp_path: pathlib.Path, name: str
) -> None:
    if name in ("a", "a.parquet"):
        pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    data = load(robot(tmp_path, 2, 2))
    save(data, tmp_path / name, layout="lerobot" if name == "a" else None)
    back = load(tmp_path / name)
    assert data.observation_names == back.observation_names == info(back)["observation_names"] == NAMES
    assert data.action_names == back.action_names == info(back)["action_names"] == ("tau", "grip °")
    if name == "a":
        features = json.loads((tmp_path / "a" / "meta" / "info.json").read_text())["features"]
        assert features["observation.state"]["names"] == features["next.observation.state"]["names"] == [*NAMES]
        assert features["action"]["names"] == ["tau", "grip °"]


def test_files_whose_arrays_are_as_wide_in_all_but_each_otherwise_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(DataError, match=r"a number of observations is 'q\[0\]' in one file and 'q' in another"):
        load(robot(tmp_path, 2, 1))


@pytest.mark.parametrize("text", ["q,dq", '["q"]', "[1, 2, 3, 4, 5, 6, 7]", "{", 3, "[" * 100_000])
def test_an_attribute_of_another_meaning_is_no_names(tmp_path: pathlib.Path, text: object) -> None:
    data = load(robot(tmp_path, 2))
    assert data.replace(attributes={"observation_names": text}).observation_names is None


def test_names_that_lerobots_features_have_are_those_of_the_data(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    save(load(robot(tmp_path, 2)), tmp_path / "a", layout="lerobot")
    path = tmp_path / "a" / "meta" / "info.json"
    told = json.loads(path.read_text())
    del told["surefoot_attributes"]
    told["features"]["action"]["names"] = {"motors": ["shoulder", "grip"]}
    told["features"]["observation.state"]["names"] = None
    path.write_text(json.dumps(told))
    assert load(tmp_path / "a").action_names == ("shoulder", "grip")
    assert load(tmp_path / "a").observation_names is None


@pytest.mark.parametrize(("encoding", "told"), [("latin-1", "LATIN1"), ("utf-16", "UTF-16")])
def test_a_log_that_is_no_utf8_is_told_its_encoding(tmp_path: pathlib.Path, encoding: str, told: str) -> None:
    (tmp_path / "log.csv").write_text("q [\N{DEGREE SIGN}],u\n1,2\n", encoding=encoding)
    (tmp_path / "log.yaml").write_text("files: [log.csv]\nobservations: ['q*']\nactions: [u]\n")
    with pytest.raises(DataError, match=rf"log\.csv: its first line is no UTF-8 text \({told}\); .* iconv -f {told}"):
        load(tmp_path / "log.yaml")
