"""What a source holds and its dataset does not is named by `info`, drafts and training, cameras first."""

from __future__ import annotations

import io
import json
import pathlib
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from surefoot.core.base.errors import DataError
from surefoot.data import info, left_out, load, logs, save
from surefoot.data.formats import lerobot


def robomimic(path: pathlib.Path) -> pathlib.Path:
    """Two demonstrations of five steps with a camera, a vector beside the usual ones, and the simulator's states."""
    draws = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for k in range(2):
            demo = file.create_group(f"data/demo_{k}")
            demo["actions"], demo["states"] = draws.uniform(-1, 1, (5, 2)), np.full((5, 1), float(k))
            for name in (*("object", "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos"), "robot0_joint_pos"):
                demo[f"obs/{name}"] = draws.normal(size=(5, 2))
            demo["obs/agentview_image"] = np.full((5, 4, 4, 3), k, np.uint8)
    return path


def test_robomimic_names_its_cameras_first_and_a_mapping_takes_them_in(tmp_path: pathlib.Path) -> None:
    path = robomimic(tmp_path / "demos.hdf5")
    found = load(path)
    assert [name for name, _ in left_out.features(found)] == ["obs/agentview_image", "obs/robot0_joint_pos", "states"]
    cameras, others = left_out.notes(found)
    assert "cameras are left out: obs/agentview_image" in cameras
    assert "images: {agentview_image: obs/agentview_image}" in cameras
    assert "also left out: obs/robot0_joint_pos (an array), states" in others
    assert info(found)["left_out"][0] == "obs/agentview_image (an array)"
    (tmp_path / "m.yaml").write_text(
        "files: demos.hdf5\nobservations: [obs/robot0_joint_pos, states]\nactions: actions\n"
        "images: {agentview_image: obs/agentview_image}\n"
    )
    mapped = load(tmp_path / "m.yaml")
    assert mapped.episode_lengths.tolist() == [5, 5]  # demonstrations are distinguished by themselves
    assert mapped.extras["observations/agentview_image"][:, 0, 0, 0].tolist() == [0] * 5 + [1] * 5
    assert mapped.extras["observations/state"][:, 2].tolist() == [0] * 5 + [1] * 5
    assert "obs/object" in dict(left_out.features(mapped))
    assert "in m.yaml" in left_out.notes(mapped)[0]


def test_aloha_s_cameras_are_named_by_the_draft_and_by_what_is_read_with_it(tmp_path: pathlib.Path) -> None:
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file["observations/qpos"], file["action"] = np.arange(12.0).reshape(6, 2), np.ones((6, 2))
        for camera in ("cam_high", "cam_low"):
            file[f"observations/images/{camera}"] = np.zeros((6, 4, 4, 3), np.uint8)
    text = logs.draft(tmp_path / "episode_0.hdf5", tmp_path)
    wanted = "images: {cam_high: 'observations/images/cam_high', cam_low: 'observations/images/cam_low'}"
    assert f"# {wanted}\n" in text
    (tmp_path / "m.yaml").write_text(text)
    left = [name for name, _ in left_out.features(load(tmp_path / "m.yaml"))]
    assert left == ["observations/images/cam_high", "observations/images/cam_low"]
    (tmp_path / "m.yaml").write_text(text.replace(f"# {wanted}", wanted))
    taken = load(tmp_path / "m.yaml")
    assert set(taken.arrays) == {"state", "cam_high", "cam_low"}
    assert left_out.notes(taken) == []


def test_aloha_s_compressed_cameras_are_decoded_and_a_damaged_one_is_named_by_its_step(tmp_path: pathlib.Path) -> None:
    """As ALOHA's recorder compresses: a JPEG file a step, padded with zeros to the longest, lengths in compress_len."""
    files = []
    for step in range(5):
        buffer = io.BytesIO()
        Image.fromarray(np.full((6, 8, 3), 40 * step, np.uint8)).save(buffer, "JPEG", quality=95)
        files.append(buffer.getvalue())
    longest = max(map(len, files)) + 3
    padded = np.stack([np.frombuffer(one.ljust(longest, b"\0"), np.uint8) for one in files])
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file.attrs["compress"] = True
        file["observations/qpos"], file["action"] = np.arange(10.0).reshape(5, 2), np.ones((5, 2))
        file["observations/images/cam_high"] = padded
        file["compress_len"] = np.array([[len(one) for one in files]], float)
    text = logs.draft(tmp_path / "episode_0.hdf5", tmp_path)
    (tmp_path / "m.yaml").write_text(text.replace("# images:", "images:"))
    taken = load(tmp_path / "m.yaml").extras["observations/cam_high"]
    assert taken.shape == (5, 6, 8, 3)
    assert np.abs(taken[:, 3, 4, :].astype(int) - 40 * np.arange(5)[:, None]).max() <= 2  # JPEG of one color
    (tmp_path / "m.yaml").write_text(text.replace("# images:", "images:").replace("# image_size: 84", "image_size: 4"))
    assert load(tmp_path / "m.yaml").extras["observations/cam_high"].shape == (5, 4, 4, 3)
    with h5py.File(tmp_path / "episode_0.hdf5", "r+") as file:
        file["observations/images/cam_high"][3] = 7
    with pytest.raises(DataError, match=r"'cam_high', step 3: is no PNG or JPEG picture"):
        load(tmp_path / "m.yaml")


def test_lerobot_names_features_that_it_does_not_read(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pyarrow")
    from make_files import random_walk, write_hdf5

    save(load(write_hdf5(tmp_path / "a.hdf5", random_walk())), tmp_path / "a", layout="lerobot")
    path = tmp_path / "a/meta/info.json"
    value: dict[str, Any] = json.loads(path.read_text())
    value["features"]["observation.images.top"] = {"dtype": "video", "shape": [48, 64, 3]}
    value["features"]["observation.effort"] = {"dtype": "float32", "shape": [2]}
    path.write_text(json.dumps(value))
    found = load(tmp_path / "a")
    named = [name for name, _ in left_out.features(found)]
    assert named[0] == "observation.images.top"
    assert "observation.effort" in named
    assert not {"observation.state", "action", lerobot.EPISODE, *lerobot.COUNTS} & set(named)
    assert "images: {top: observation.images.top}" in left_out.notes(found)[0]
    save(found, tmp_path / "b.hdf5")  # what is written holds all that the dataset does
    assert left_out.features(load(tmp_path / "b.hdf5")) == []


def test_numbers_called_depth_are_no_camera_and_a_damaged_list_is_none(tmp_path: pathlib.Path) -> None:
    assert not left_out.is_camera("water_depth", "numbers")
    assert left_out.is_camera("wrist_depth", "an array")
    (tmp_path / "log.csv").write_text("q,u,depth\n1,2,3\n4,5,6\n")
    (tmp_path / "m.yaml").write_text("files: log.csv\nobservations: q\nactions: u\n")
    found = load(tmp_path / "m.yaml")
    assert left_out.features(found) == [("depth", "numbers")]
    assert left_out.features(found.replace(attributes={left_out.LEFT_OUT: "[1"})) == []
