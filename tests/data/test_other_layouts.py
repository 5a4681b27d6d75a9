"""Layouts of other projects: robomimic, d3rlpy, LeRobot and Parquet, read and written."""

from __future__ import annotations

import json
import math
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
import pytest
from make_files import random_walk, write_hdf5
from test_formats import assert_same, made

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data import convert, load, save, verify
from surefoot.data.dataset import SCALED_BY
from surefoot.data.files import sha256_of
from surefoot.data.formats import lerobot, lerobot_write, pictures, robomimic
from surefoot.data.formats.lerobot_write import USUAL_FPS, fps_of


def test_robomimic_comes_back_bit_for_bit(tmp_path: pathlib.Path) -> None:
    data = made(tmp_path)
    save(data, tmp_path / "a.hdf5", layout="robomimic")
    assert_same(load(tmp_path / "a.hdf5"), data)
    with h5py.File(tmp_path / "a.hdf5") as file:  # as robomimic's own readers find it
        assert file["data"].attrs["total"] == 300
        assert json.loads(file["data"].attrs["env_args"])["env_name"] == "Hopper-v5"
        assert file["data/demo_1"].attrs["num_samples"] == len(file["data/demo_1/obs/flat"]) == 50


def robomimic_file(path: pathlib.Path) -> pathlib.Path:
    """Two demonstrations, the tenth before the second by their names' letters; only one succeeds."""
    with h5py.File(path, "w") as file:
        for k, rows in ((2, 3), (10, 2)):
            rewards, dones = np.zeros(rows), np.zeros(rows, np.int64)
            rewards[-1], dones[-1] = k == 2, 1
            group = file.create_group(f"data/demo_{k}")
            group["actions"], group["rewards"], group["dones"] = np.full((rows, 2), k / 20), rewards, dones
            for which in ("obs", "next_obs"):
                for size, key in enumerate(("robot0_eef_pos", "object", "robot0_eef_quat", "robot0_gripper_qpos"), 1):
                    group[f"{which}/{key}"] = np.full((rows, size), 10 * size + (which == "next_obs"))
                group[f"{which}/agentview_image"] = np.zeros((rows, 4, 4, 3), np.uint8)
    return path


def test_robomimic_reads_the_usual_observations_and_takes_success_for_the_end(tmp_path: pathlib.Path) -> None:
    data = load(robomimic_file(tmp_path / "a.hdf5"))
    np.testing.assert_array_equal(data.observations[0], [20, 20, 10, 30, 30, 30, 40, 40, 40, 40])
    np.testing.assert_array_equal(data.next_observations[0], data.observations[0] + 1)
    np.testing.assert_allclose(data.actions[:, 0], [0.1, 0.1, 0.1, 0.5, 0.5])
    np.testing.assert_array_equal(data.terminations, [False, False, True, False, False])
    np.testing.assert_array_equal(data.truncations, [False, False, False, False, True])
    assert data.transitions.all()


def test_a_demonstration_that_lacks_an_array_is_named(tmp_path: pathlib.Path) -> None:
    path = robomimic_file(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_10/obs/object"]
    with pytest.raises(DataError, match=r"data/demo_10: 'obs/object' is missing"):
        load(path)


def test_d3rlpy_of_version_2_is_read(tmp_path: pathlib.Path) -> None:
    arrays = {}
    for k, rows in enumerate((3, 2)):
        arrays |= {
            f"observations_{k}": np.full((rows, 2), k),
            f"actions_{k}": np.full((rows, 1), k / 2),
            f"rewards_{k}": np.ones((rows, 1)),
            f"terminated_{k}": np.asarray(k == 0),
        }
    path = write_hdf5(tmp_path / "a.h5", arrays | {"num_episodes": np.asarray(2)})
    with h5py.File(path, "a") as file:
        file["columns"], file["version"] = ["observations", "actions", "rewards", "terminated"], "2.1"
    data = load(path)
    np.testing.assert_array_equal(data.terminations, [False, False, True, False, False])
    np.testing.assert_array_equal(data.transitions, [True, True, True, True, False])
    np.testing.assert_array_equal(data.episode_lengths, [3, 2])


def test_d3rlpy_of_version_1_is_read_with_continuous_actions_and_with_choices(tmp_path: pathlib.Path) -> None:
    arrays = random_walk() | {"episode_terminals": np.arange(300) % 50 == 49}
    del arrays["timeouts"]
    assert load(write_hdf5(tmp_path / "a.h5", arrays)).episode_lengths.tolist() == [50] * 6
    arrays["actions"] = np.arange(300)[:, None] % 3
    found = load(write_hdf5(tmp_path / "b.h5", arrays))
    assert found.choices == 3
    np.testing.assert_array_equal(found.actions, np.eye(3)[np.arange(300) % 3])


def test_parquet_comes_back_bit_for_bit_with_attributes_and_images(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    data = made(tmp_path, seed=7)
    images = np.arange(300 * 12, dtype=np.uint8).reshape(300, 2, 2, 3)
    extras = {"observations/camera": images, "next_observations/camera": images, "margins": np.arange(300.0)}
    data = data.replace(
        observations=np.zeros((300, 0), np.float32), next_observations=np.zeros((300, 0), np.float32), extras=extras
    )
    save(data, tmp_path / "a.parquet")
    back = load(tmp_path / "a.parquet")
    assert_same(back, data)
    for key, value in extras.items():
        np.testing.assert_array_equal(back.extras[key], value)
    assert (back.env_id, back.attributes["seed"]) == ("Hopper-v5", 7)


def test_a_damaged_or_strange_parquet_file_is_refused(tmp_path: pathlib.Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")
    import pyarrow as pa

    save(made(tmp_path), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:5000])
    with pytest.raises(DataError, match=r"b.parquet: is a damaged Parquet file"):
        load(tmp_path / "b.parquet")
    parquet.write_table(pa.table({"q": [1.0], "u": [0.5]}), tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c.parquet: column 'q' is unknown.*mapping"):
        load(tmp_path / "c.parquet")
    parquet.write_table(pa.table({"q": [[1.0], [1.0, 2.0]], "u": [0.5, None]}), tmp_path / "d.parquet")
    for name, sentence in (("q", r"lists of 1 to 2 entries"), ("u", r"'u' has 1 rows without a value")):
        (tmp_path / "m.yaml").write_text(f"observations: {name}\nactions: {name}\n")
        with pytest.raises(DataError, match=sentence):
            load(tmp_path / "d.parquet", mapping=tmp_path / "m.yaml")


def test_a_lerobot_dataset_comes_back_bit_for_bit(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    data = made(tmp_path).replace(extras={"margins": np.arange(300, dtype=np.float32)})
    save(data, tmp_path / "a", layout="lerobot")
    back = load(tmp_path / "a")
    assert_same(back, data)
    assert back.env_id == "Hopper-v5"
    np.testing.assert_array_equal(back.extras["margins"], data.extras["margins"])
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["data", "meta"]


@pytest.mark.parametrize("size", [200, 5000, 1 << 30])
def test_episodes_larger_than_a_lerobot_file_should_be_have_files_of_their_own(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    monkeypatch.setattr(lerobot_write, "FILE_BYTES", size)
    data = made(tmp_path)
    save(data, tmp_path / "a", layout="lerobot")
    files = sorted(path.name for path in (tmp_path / "a/data/chunk-000").iterdir())
    assert files == [f"file-{number:03d}.parquet" for number in range(len(files))]
    assert len(files) == 1 if size > 1 << 20 else 2 <= len(files) <= len(data.episode_lengths)
    assert_same(load(tmp_path / "a"), data)


def test_pictures_of_a_lerobot_dataset_come_by_a_mapping(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    data, rng = made(tmp_path), np.random.default_rng(0)
    images = rng.integers(0, 256, (300, 6, 8, 3), np.uint8)
    vectors = {f"{which}/state": getattr(data, which) for which in ("observations", "next_observations")}
    nothing = np.zeros((300, 0), np.float32)
    data = data.replace(
        observations=nothing,
        next_observations=nothing,
        extras=vectors | {"observations/camera": images, "next_observations/camera": images},
    )
    save(data, tmp_path / "a", layout="lerobot")
    (tmp_path / "m.yaml").write_text(
        "observations: observation.state\nimages: {top: observation.images.camera}\nactions: action\n"
        "episode: episode_index\nreward: next.reward\n"
    )
    back = load(tmp_path / "a", mapping=tmp_path / "m.yaml")
    np.testing.assert_array_equal(back.extras["observations/top"], images)
    inside = back.transitions & ~(back.truncations | back.terminations)
    np.testing.assert_array_equal(back.extras["next_observations/top"][inside], images[np.flatnonzero(inside) + 1])
    (tmp_path / "m.yaml").write_text("images: observation.images.camera\nimage_size: [3, 4]\nactions: action\n")
    assert load(tmp_path / "a", mapping=tmp_path / "m.yaml").arrays["image"].shape == (3, 4, 3)


def test_a_lerobot_dataset_of_another_version_or_without_a_file_is_refused(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    save(made(tmp_path), tmp_path / "a", layout="lerobot")
    info = tmp_path / "a" / "meta" / "info.json"
    held = json.loads(info.read_text())
    info.write_text(json.dumps(held | {"codebase_version": "v1.6"}))
    with pytest.raises(DataError, match=r"version v1.6, and v2 and v3 are read"):
        load(tmp_path / "a")
    del held["features"]["observation.state"]
    info.write_text(json.dumps(held))
    with pytest.raises(DataError, match=r"has no feature 'observation.state'"):
        load(tmp_path / "a")
    with pytest.raises(ConfigError, match=r"no layout 'lerobo': did you mean 'lerobot'"):
        save(made(tmp_path), tmp_path / "b", layout="lerobo")


def test_a_parquet_file_of_repeated_values_that_unpacks_to_far_more_than_its_size_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")
    import pyarrow as pa

    monkeypatch.setenv("SUREFOOT_MAX_UNPACKED_MB", "3")
    count = 300_000
    wide = pa.ListArray.from_arrays([0, count, 2 * count], pa.array(np.zeros(2 * count)))
    few: dict[str, Any] = {"rewards": [0.0, 0.0], "terminals": [False, False], "timeouts": [False, True]}
    parquet.write_table(pa.table({"observations": wide, "actions": [[0.0], [0.0]], **few}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    with pytest.raises(DataError, match=r"a\.parquet: unpacks to 48\d+ bytes, .*set SUREFOOT_MAX_UNPACKED_MB=5"):
        load(tmp_path / "a.parquet")
    save(made(tmp_path), tmp_path / "lerobot", layout="lerobot")
    part = tmp_path / "lerobot/data/chunk-000/file-000.parquet"
    table = parquet.read_table(part)
    repeated = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(len(table) * 5_000)), 5_000)
    place = table.column_names.index("observation.state")
    parquet.write_table(table.set_column(place, "observation.state", repeated), part)
    with pytest.raises(DataError, match=r"file-000\.parquet: unpacks to 12\d+ bytes"):
        load(tmp_path / "lerobot")


@pytest.mark.parametrize("lengths", [[10**13], [30, 40], [-5, 55], [np.nan]])
def test_lengths_of_lerobots_episodes_that_are_not_those_of_its_frames_are_refused(
    lengths: list[float], tmp_path: pathlib.Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")
    import pyarrow as pa

    (tmp_path / "meta/episodes/chunk-000").mkdir(parents=True)
    columns = {"episode_index": range(len(lengths)), "length": lengths}
    columns |= {f"videos/c/{one}": [0.0] * len(lengths) for one in ("chunk_index", "file_index", "from_timestamp")}
    parquet.write_table(pa.table(columns), tmp_path / "meta/episodes/chunk-000/file-000.parquet")
    with pytest.raises(DataError, match=r"the lengths in meta/episodes are of .* frames, and there are 50"):
        next(lerobot._from_videos(tmp_path, "c", {"fps": 10}, None, 50))


def test_an_end_whose_kind_lerobot_does_not_say_is_cut_off_and_counted(tmp_path: pathlib.Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")
    save(made(tmp_path), tmp_path / "a", layout="lerobot")
    path, info = tmp_path / "a" / "data" / "chunk-000" / "file-000.parquet", tmp_path / "a" / "meta" / "info.json"
    parquet.write_table(parquet.read_table(path).drop_columns(["next.terminated"]), path)
    held = json.loads(info.read_text())
    del held["features"]["next.terminated"]
    info.write_text(json.dumps(held))
    data = load(tmp_path / "a")
    assert not data.terminations.any()
    assert data.warnings[lerobot.UNKNOWN_ENDS] == 6


def test_a_parquet_file_with_both_names_of_a_column_is_refused(tmp_path: pathlib.Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")
    import pyarrow as pa

    held = {"observations": [[0.0], [1.0]], "actions": [[0.1], [0.2]], "rewards": [0.0, 0.0]}
    parquet.write_table(
        pa.table({**held, "terminals": [False, True], "terminations": [True, False]}), tmp_path / "a.parquet"
    )
    with pytest.raises(DataError, match=r"holds both 'terminations' and 'terminals'; keep one of them"):
        load(tmp_path / "a.parquet")


@pytest.mark.parametrize("fps", [0, -3, 1e-4, 1e7, math.nan, math.inf])
def test_steps_a_second_must_be_a_number_that_lerobots_folder_can_say(tmp_path: pathlib.Path, fps: float) -> None:
    with pytest.raises(ConfigError, match=r"fps is .*; it must be a number of steps a second from 0.001 to 1,000,000"):
        convert(tmp_path / "a.hdf5", tmp_path / "b", layout="lerobot", fps=fps)
    assert fps_of(made(tmp_path).replace(attributes={"fps": fps})) == USUAL_FPS


@pytest.mark.parametrize("fps", [12.5, 0.2, 50.0])
def test_times_and_steps_a_second_of_a_lerobot_folder_are_those_that_were_told(
    tmp_path: pathlib.Path, fps: float
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")
    save(made(tmp_path), tmp_path / "a.hdf5")
    convert(tmp_path / "a.hdf5", tmp_path / "b", layout="lerobot", fps=fps)
    held = json.loads((tmp_path / "b" / "meta" / "info.json").read_text())
    assert held["fps"] == fps == load(tmp_path / "b").attributes["fps"]
    assert isinstance(held["fps"], int) == (fps == 50)
    times = parquet.read_table(tmp_path / "b/data/chunk-000/file-000.parquet")["timestamp"].to_numpy()
    np.testing.assert_allclose(times[:50], np.arange(50) / fps, rtol=1e-6)


def test_episodes_whose_rows_differ_in_size_are_refused(tmp_path: pathlib.Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for k in (0, 1):
            file[f"data/demo_{k}/actions"] = np.zeros((3, 2), np.float32)
            file[f"data/demo_{k}/obs/q"] = np.zeros((3, 2 + k), np.float32)
    with h5py.File(tmp_path / "b.hdf5", "w") as file:
        file["num_episodes"] = 2
        for k in (0, 1):
            file[f"observations_{k}"], file[f"actions_{k}"] = np.zeros((3, 2 + k)), np.full((3, 1), 0.5)
            file[f"rewards_{k}"], file[f"terminated_{k}"] = np.zeros((3, 1)), False
    for name in ("a", "b"):
        with pytest.raises(DataError, match=r"'observations' has rows of shape \(3,\) in part 1 .* and of \(2,\)"):
            load(tmp_path / f"{name}.hdf5")


def test_a_mapping_of_a_lerobot_dataset_does_not_join_its_episodes(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    data = made(tmp_path)
    save(data, tmp_path / "folder", "lerobot")
    (tmp_path / "m.yaml").write_text("observations: observation.state\nactions: action\n")
    found = load(tmp_path / "folder", mapping=tmp_path / "m.yaml")
    assert found.episode_lengths.tolist() == data.episode_lengths.tolist()
    assert len(data.episode_lengths) > 1


def test_a_lerobot_folder_is_known_by_the_sha_256_of_its_files(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    save(made(tmp_path), tmp_path / "a", "lerobot")
    save(made(tmp_path, other=1.0), tmp_path / "b", "lerobot")
    known = load(tmp_path / "a").sha256
    assert known == sha256_of(tmp_path / "a")
    assert known != load(tmp_path / "b").sha256
    sound = verify(tmp_path / "a", known)
    assert (sound.ok, sound.sha256) == (True, known)
    (tmp_path / "b.sha256").write_text(f"{known}  b\n")
    assert "another file, or damaged" in verify(tmp_path / "b").problems[0]
    part = tmp_path / "a" / "data" / "chunk-000" / "file-000.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    assert not verify(tmp_path / "a").ok
    assert len(verify(tmp_path / "a", known).problems) == 2
    (tmp_path / "empty").mkdir()
    assert "its SHA-256 can't be found" in verify(tmp_path / "empty", known).problems[-1]


def as_version_2(folder: pathlib.Path) -> None:
    """Make a LeRobot dataset of version 3 one of version 2.1: a Parquet file for each episode, and no meta/episodes."""
    import pyarrow.parquet as parquet

    (path,) = folder.glob("data/chunk-*/file-*.parquet")
    table = parquet.read_table(path)
    ids = table.column("episode_index").to_numpy()
    for episode in np.unique(ids):
        parquet.write_table(table.filter(ids == episode), path.with_name(f"episode_{episode:06d}.parquet"))
    path.unlink()
    shutil.rmtree(folder / "meta" / "episodes")
    info = folder / "meta" / "info.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"codebase_version": "v2.1"}))


def test_lerobot_of_version_2_is_read_and_becomes_version_3_by_one_command(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    data = made(tmp_path)
    save(data, tmp_path / "a", layout="lerobot")
    as_version_2(tmp_path / "a")
    found = load(tmp_path / "a")
    assert found.attributes["lerobot_version"] == "v2.1"
    for name in ("observations", "actions", "rewards", "episode_ids", "terminations"):
        np.testing.assert_array_equal(getattr(found, name), getattr(data, name))
    convert(tmp_path / "a", tmp_path / "b", layout="lerobot")
    again = load(tmp_path / "b")
    assert again.attributes["lerobot_version"].startswith("v3.")
    np.testing.assert_array_equal(again.observations, data.observations)
    for episode, said in (
        ("000005", "has 250 frames, and meta/info.json says 300"),
        ("000002", "'index' does not count"),
    ):
        (tmp_path / f"a/data/chunk-000/episode_{episode}.parquet").unlink()
        with pytest.raises(DataError, match=said):
            load(tmp_path / "a")


def test_videos_of_version_2_are_those_of_each_episode(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    save(made(tmp_path), tmp_path / "a", layout="lerobot")
    as_version_2(tmp_path / "a")
    info = tmp_path / "a" / "meta" / "info.json"
    held = json.loads(info.read_text())
    held["features"]["observation.images.top"] = {"dtype": "video", "shape": [2, 2, 3]}
    info.write_text(json.dumps(held))
    asked: list[tuple[str, int, float]] = []

    def frames(path: pathlib.Path, seconds: list[float], tolerance: float, size: Any = None) -> Iterator[np.ndarray]:
        asked.append((path.relative_to(tmp_path / "a").as_posix(), len(seconds), seconds[1]))
        yield from (np.full((2, 2, 3), int(path.stem[-6:]), np.uint8) for _ in seconds)

    monkeypatch.setattr(pictures, "frames", frames)
    (tmp_path / "m.yaml").write_text(
        "files: a\nobservations: observation.state\nactions: action\nimages: {top: observation.images.top}\n"
    )
    found = load(tmp_path / "m.yaml")
    np.testing.assert_array_equal(found.extras["observations/top"][:, 0, 0, 0], found.episode_ids)
    assert asked[1] == ("videos/chunk-000/observation.images.top/episode_000001.mp4", 50, 1 / held["fps"])


def filmed_demonstrations(path: pathlib.Path, vectors: bool = True) -> dict[int, dict[str, np.ndarray]]:
    """Three demonstrations with two cameras; those of demo 10 come last."""
    source, made = np.random.default_rng(0), dict[int, dict[str, np.ndarray]]()
    with h5py.File(path, "w") as file:
        for k, length in ((0, 4), (2, 3), (10, 5)):
            front, wrist = (source.integers(0, 256, (length + 1, 8, 8, 3), dtype=np.uint8) for _ in range(2))
            state = source.normal(size=(length + 1, 7)).astype(np.float32)
            done = np.arange(length) == length - 1
            columns = {"actions": source.uniform(-1, 1, (length, 2)).astype(np.float32), "dones": done.astype(np.uint8)}
            columns["rewards"] = done.astype(np.float32) * (k != 2)
            for which, rows in (("obs", slice(0, -1)), ("next_obs", slice(1, None))):
                columns |= {f"{which}/front_image": front[rows], f"{which}/wrist_image": wrist[rows]}
                columns |= {f"{which}/robot0_eef_pos": state[rows]} if vectors else {}
            for name, column in columns.items():
                file.create_dataset(f"data/demo_{k}/{name}", data=column)
            made[k] = columns
    return made


def test_robomimics_cameras_are_read_where_they_are_asked_for(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(robomimic, "STEPS_AT_ONCE", 6)  # two files' reads
    made = filmed_demonstrations(tmp_path / "demos.hdf5")
    plain = load(tmp_path / "demos.hdf5")
    assert (plain.observation_dim, list(plain.arrays)) == (7, ["observations"])
    found = load(tmp_path / "demos.hdf5", cameras=["front_image"], frames=tmp_path / "frames")
    assert set(found.arrays) == {"front_image", "state"}
    whole = np.concatenate([made[k]["obs/front_image"] for k in (0, 2, 10)])
    np.testing.assert_array_equal(found.extras["observations/front_image"][:], whole)
    np.testing.assert_array_equal(found.extras["observations/state"], plain.observations)
    np.testing.assert_array_equal(found.actions, plain.actions)
    after = found.extras["next_observations/front_image"]
    np.testing.assert_array_equal(after[[0, 1, 2, 4, 5]], whole[[1, 2, 3, 5, 6]])
    # what followed the last step of a demonstration that failed is not read; of one that ended it does not matter
    assert found.transitions.tolist() == [True] * 6 + [False] + [True] * 5
    assert found.terminations.tolist() == plain.terminations.tolist()
    both = load(tmp_path / "demos.hdf5", image_size=4, frames=tmp_path / "frames")
    assert both.extras["observations/wrist_image"].shape == (12, 4, 4, 3)
    assert both.attributes[SCALED_BY] == "box"
    with pytest.raises(ConfigError, match="has no camera 'side'"):
        load(tmp_path / "demos.hdf5", cameras="side")


def test_a_robomimic_file_of_pictures_alone_is_read_with_them(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path / "cache"))
    filmed_demonstrations(tmp_path / "demos.hdf5", vectors=False)
    found = load(tmp_path / "demos.hdf5")
    assert set(found.arrays) == {"front_image", "wrist_image"}
    assert len(found) == 12
    with h5py.File(tmp_path / "demos.hdf5", "a") as file:
        del file["data/demo_2/obs/wrist_image"]
    with pytest.raises(DataError, match=r"data/demo_2: 'obs/wrist_image' is missing"):
        load(tmp_path / "demos.hdf5")
