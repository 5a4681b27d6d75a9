"""The mean picture of a policy's cameras: in its file, and what is reported of turned pictures and other colors."""

from __future__ import annotations

import json
import pathlib
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict

from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.base.errors import CheckpointError
from surefoot.core.base.spec import Array
from surefoot.core.nn.encoders import Encoder
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.mean_pictures import looks, mean_pictures
from surefoot.core.policy.policy import Policy
from surefoot.envs.acting.episodes import EpisodeRunner
from surefoot.envs.side_by_side import PausingVectorEnv

SIZE = (48, 48, 3)
ARRAYS = {"front": Array(SIZE, "uint8"), "state": Array((2,))}


def scenes(count: int = 20, seed: int = 0) -> np.ndarray:
    """A red sky over a blue floor, darker to the left, with noise and a green block somewhere."""
    source = np.random.default_rng(seed)
    found = source.normal(0, 15, (count, *SIZE))
    found[:, :20, :, 0] += 180
    found[:, 20:, :, 2] += 120
    found += np.linspace(0, 60, 48)[None, None, :, None]
    for picture in found:
        y, x = source.integers(20, 40, 2)
        picture[y : y + 8, x : x + 8, 1] += 150
    return found.clip(0, 255).astype(np.uint8)


def test_a_mean_picture_is_the_mean_of_areas_of_evenly_chosen_pictures() -> None:
    pictures = np.zeros((2, *SIZE), np.uint8)
    pictures[0, :3, :3] = [90, 60, 30]
    pictures[1, :3, 3:6, 1] = 9
    found = np.array(mean_pictures({"front": pictures}, ARRAYS)["front"])
    assert found.shape == (3, 16, 16)
    assert found[:, 0, 0].tolist() == [45, 30, 15]  # a cell is 3 x 3 pixels
    assert found[:, 0, 1].tolist() == [0, 4, 0]  # 4.5, to even
    assert found.sum() == 94
    assert mean_pictures({}, ARRAYS) == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p, None),
        (lambda p: p[:, ::-1], "upside down"),
        (lambda p: p[:, :, ::-1], "mirrored"),
        (lambda p: p[:, ::-1, ::-1], "turned by 180 degrees"),
        (lambda p: p[..., ::-1], "in the order blue, green, red"),
        (lambda p: (p * 0.7).astype(np.uint8), None),  # darker
        (lambda p: np.full_like(p, 90), None),
    ],
)
def test_other_forms_are_told_apart(change: Any, words: str | None) -> None:
    mean = mean_pictures({"front": scenes()}, ARRAYS)["front"]
    for count in (1, 5):
        others = np.ascontiguousarray(change(scenes(count, seed=1)))
        assert looks(torch.from_numpy(others), ARRAYS["front"], mean) == words


def made() -> Policy:
    torch.manual_seed(0)
    encoder = Encoder(ARRAYS, "small", 8)
    head = DeterministicActor(encoder.width, 1, (8,))
    policy = Policy.of(head, Normalizer(2), -torch.ones(1), torch.ones(1), encoder)
    return policy.pictured(mean_pictures({"front": scenes()}, ARRAYS))


def test_the_file_holds_it_and_what_is_no_picture_is_refused(tmp_path: pathlib.Path) -> None:
    policy = made()
    policy.save(tmp_path / "policy")
    assert Policy.load(tmp_path / "policy").pictures == policy.pictures
    from surefoot.core.base import checkpoint

    tensors, meta = checkpoint.load(tmp_path / "policy.safetensors", kind="policy")
    wrong = {**meta, "mean_pictures": {"front": [[[300]]]}}
    checkpoint.save(tmp_path / "odd.safetensors", tensors, wrong)
    (tmp_path / "odd.json").write_text(json.dumps({k: v for k, v in wrong.items() if k != "kind"}))
    with pytest.raises(CheckpointError, match=r"mean_pictures\.front"):
        Policy.load(tmp_path / "odd")


class Camera(gymnasium.Env[Any, Any]):
    """Shows a scene, two steps long."""

    observation_space = Dict({"front": Box(0, 255, SIZE, np.uint8), "state": Box(-1, 1, (2,), np.float32)})
    action_space = Box(-1, 1, (1,), np.float32)

    def __init__(self, turned: bool) -> None:
        self.turned, self.count = turned, 0

    def seen(self) -> Any:
        picture = scenes(1, seed=5)[0]
        return {
            "front": np.ascontiguousarray(picture[::-1]) if self.turned else picture,
            "state": np.zeros(2, np.float32),
        }

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.count = 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.seen(), 0.0, False, self.count == 2, {}


@pytest.mark.parametrize("turned", [False, True])
def test_evaluation_warns_of_a_camera_that_is_turned(turned: bool) -> None:
    vector = PausingVectorEnv([lambda: Camera(turned)])
    policy = made()
    runner = EpisodeRunner(vector, [policy], "camera", 1, limit=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runner.run([0], [policy.begin(1)])
    told = [str(one.message) for one in caught if one.category is RuntimeWarning]
    wanted = (
        "camera: its first pictures of 'front' look upside down, compared with those that the policy was trained on: "
        "check the camera, or the data"
    )
    assert told == ([wanted] if turned else [])
