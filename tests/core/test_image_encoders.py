"""Encoders of images by name: sizes of their papers, closed forms, ranges, shared trunks, files and exports."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.files import read_json, write_json
from surefoot.core.base.spec import Array, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.encoders import Encoder
from surefoot.core.nn.image_encoders import NAMES
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.nn.pictures import View
from surefoot.core.nn.resnet import group_norm, spatial_softmax
from surefoot.core.policy.policy import Policy
from surefoot.data.store import Store
from surefoot.offline.bc import BC

TWO = {
    "front": Array((48, 48, 3), "uint8"),
    "wrist": Array((48, 48, 3), "uint8"),
    "state": Array((4,)),
}
NEW = ["impala_small", "d4pg", "drq", "resnet18", "vit"]


def size(module: nn.Module | None) -> int:
    assert module is not None
    return sum(parameter.numel() for parameter in module.parameters())


def of_camera(name: str, shape: tuple[int, int, int], **options: Any) -> Encoder:
    return Encoder({"image": Array(shape, "uint8", channels="first")}, name, **options)


def bytes_of(rows: int, arrays: dict[str, Array]) -> dict[str, Tensor]:
    return {
        key: torch.randint(0, 256, (rows, *array.shape), dtype=torch.uint8)
        if array.image
        else torch.randn(rows, *array.shape)
        for key, array in arrays.items()
    }


@pytest.mark.parametrize(
    ("name", "shape", "parameters", "width"),
    [
        ("small", (3, 96, 96), 171_462, 50),
        ("nature", (3, 84, 84), 232_886, 50),
        ("impala_small", (9, 64, 64), 1_105_920, 512),
        ("d4pg", (9, 64, 64), 505_494, 50),
        ("drq", (9, 84, 84), 1_990_518, 50),
        ("resnet18", (3, 76, 76), 11_689_512 - 513_000 + 16_416 + 4_160, 64),
        ("resnet18", (3, 96, 96), 11_197_088, 64),
        ("vit", (3, 96, 96), 386_304 + 32_256, 128),
    ],
)
def test_each_has_as_many_parameters_as_published(
    name: str, shape: tuple[int, int, int], parameters: int, width: int
) -> None:
    encoder = of_camera(name, shape)
    assert (size(encoder), encoder.width) == (parameters, width)
    assert encoder({"image": torch.zeros(2, *shape, dtype=torch.uint8)}).shape == (2, width)


def test_a_vit_reads_nine_numbers_in_its_spatial_embedding_and_joins_them_behind() -> None:
    arrays = {"image": Array((96, 96, 3), "uint8"), "state": Array((9,))}
    encoder = Encoder(arrays, "vit")
    embedding = encoder.images["image"].embedding
    assert (size(embedding), encoder.width) == (33_408, 128 + 9)
    given = bytes_of(2, arrays)
    found = encoder(given)
    assert torch.equal(found[:, 128:], given["state"])
    other = encoder({**given, "state": given["state"] + 1})
    assert not torch.allclose(found[:, :128], other[:, :128])


@pytest.mark.parametrize("shape", [(3, 84, 84), (3, 60, 84), (3, 37, 41)])
def test_a_vit_counts_the_places_that_its_convolutions_leave(shape: tuple[int, int, int]) -> None:
    encoder = of_camera("vit", shape)
    places = [((side - 8) // 4 + 1 - 3) // 2 + 1 for side in shape[1:]]
    assert encoder.images["image"].convolutions.positions.shape[1] == places[0] * places[1]  # type: ignore[union-attr]
    assert encoder({"image": torch.zeros(1, *shape, dtype=torch.uint8)}).shape == (1, 128)


def test_the_spatial_softmax_gives_the_expected_place_of_a_peak() -> None:
    height, width, weight = 3, 5, 15.0
    maps = torch.zeros(1, 3, height, width)
    maps[0, 0, 1, 3] = maps[0, 1, 2, 0] = np.log(weight)
    share = (weight - 1) / (weight + height * width - 1)
    expected = torch.tensor([[share * 0.5, 0.0, -share, share, 0.0, 0.0]])  # x from -1 to 1 over 5, y over 3
    torch.testing.assert_close(spatial_softmax(maps), expected)
    assert float(spatial_softmax(maps)[0, 0]) == pytest.approx(0.2413793)
    torch.testing.assert_close(spatial_softmax(maps + 7), expected)


def test_a_group_norm_of_a_constant_map_gives_its_bias() -> None:
    norm = group_norm(64)
    assert isinstance(norm, nn.GroupNorm)
    assert norm.num_groups == 4
    with torch.no_grad():
        norm.bias.copy_(torch.arange(64.0))
    found = norm(torch.full((2, 64, 3, 3), 5.0)).detach()
    torch.testing.assert_close(found, torch.arange(64.0).view(1, -1, 1, 1).expand(2, -1, 3, 3), atol=1e-4, rtol=0)


def test_no_encoder_has_a_norm_that_depends_on_the_batch() -> None:
    for name in NAMES:
        encoder = Encoder(TWO, name)
        assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in encoder.modules())


@pytest.mark.parametrize(
    ("pixels", "white", "black"),
    [
        ("half", (0.5, 0.5, 0.5), (-0.5, -0.5, -0.5)),
        ("unit", (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)),
        ("imagenet", (2.2489, 2.4286, 2.64), (-2.1179, -2.0357, -1.8044)),
    ],
)
def test_the_trunk_reads_the_range_that_the_encoder_states_and_nothing_scales_it_twice(
    pixels: str, white: tuple[float, ...], black: tuple[float, ...]
) -> None:
    array = Array((40, 40, 3), "uint8", low=0, high=255)
    encoder = Encoder({"image": array}, "small", pixels=pixels)
    policy = Policy.of(
        DeterministicActor(encoder.width, 1, (4,)), Normalizer(0), -torch.ones(1), torch.ones(1), encoder
    )
    seen: list[Tensor] = []
    trunk: Any = policy.encoder.images["image"].convolutions  # type: ignore[union-attr]
    trunk.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    for value in (255, 0):
        policy.act({"image": torch.full((1, *array.shape), value, dtype=torch.uint8)}, policy.begin(1))
    for found, expected in zip(seen, (white, black), strict=True):
        torch.testing.assert_close(found[0, :, 5, 7], torch.tensor(expected), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("name", "pixels"), [("drq", "half"), ("impala_small", "unit"), ("resnet18", "unit")])
def test_each_has_the_range_of_its_paper(name: str, pixels: str) -> None:
    assert Encoder(TWO, name).description()["pixels"] == pixels


@pytest.mark.parametrize("name", ["small", "resnet18"])
def test_cameras_can_share_a_trunk_and_keep_heads_of_their_own(name: str) -> None:
    apart, shared = Encoder(TWO, name), Encoder(TWO, name, share=True)
    one = size(apart.images["front"].convolutions)  # type: ignore[arg-type]
    assert size(apart) - size(shared) == one
    given = bytes_of(3, TWO)
    found = shared({**given, "wrist": given["front"]})
    width = shared.features
    assert not torch.allclose(found[:, :width], found[:, width : 2 * width])
    shared.images["wrist"].load_state_dict(shared.images["front"].state_dict())
    found = shared({**given, "wrist": given["front"]})
    assert torch.equal(found[:, :width], found[:, width : 2 * width])


def test_a_trunk_is_shared_by_cameras_of_one_size_only() -> None:
    odd = {**TWO, "wrist": Array((56, 48, 3), "uint8")}
    with pytest.raises(ConfigError, match=r"front 3 x 48 x 48, wrist 3 x 56 x 48: take encoder_share=false"):
        Encoder(odd, "small", share=True)
    with pytest.raises(ConfigError, match="take another encoder than vit"):
        Encoder(odd, "vit")


@pytest.mark.parametrize("name", NEW)
def test_one_update_trains_it_the_same_alone_and_among_seeds(name: str) -> None:
    side = 72 if name == "resnet18" else 36
    arrays = {"front": Array((side, side, 3), "uint8"), "state": Array((2,))}
    torch.manual_seed(0)
    rows = {f"observations/{key}": value for key, value in bytes_of(12, arrays).items()}
    rows["actions"] = torch.rand(12, 1) * 2 - 1

    def learner(seeds: list[int]) -> Learner:
        options: dict[str, Any] = {"encoder": name, "encoder_features": 8, "hidden": (8,), "shift": 2, "crop": 0.9}
        agents = [BC(Spec(arrays, 1, (-1.0,), (1.0,)), **options).fresh(seed) for seed in seeds]
        return Learner(agents, seeds, Uniform(Store.pack(rows)), batch_size=4, planned_steps=2)

    alone, among = learner([7]), learner([5, 7])
    before = {key: value.clone() for key, value in alone.agents_parameters(0).items()}
    for one in (alone, among):
        one.run(2)
    after = alone.agents_parameters(0)
    still = [key for key in after if key.startswith("encoder") and torch.equal(after[key], before[key])]
    assert still == []
    for key, value in after.items():
        torch.testing.assert_close(among.agents_parameters(1)[key], value, atol=2e-4, rtol=1e-3)


def policy_of(name: str, **options: Any) -> Policy:
    torch.manual_seed(1)
    encoder = Encoder(TWO, name, 8, **options)
    head = DeterministicActor(encoder.width, 2, (8,))
    return Policy.of(head, Normalizer(4), -torch.ones(2), torch.ones(2), encoder)


@pytest.mark.parametrize("name", NEW)
def test_a_policys_file_keeps_encoder_range_crop_and_sharing(name: str, tmp_path: pathlib.Path) -> None:
    policy = policy_of(name, pixels="imagenet", crop=0.9, share=True)
    policy.save(tmp_path / "policy")
    back = Policy.load(tmp_path / "policy")
    given = bytes_of(2, TWO)
    assert torch.equal(back(given), policy(given))
    assert read_json(tmp_path / "policy.json")["pixels"] == "imagenet"
    assert back.encoder is not None
    assert (back.encoder.crop, back.encoder.share) == (0.9, True)


@pytest.mark.parametrize(("key", "value"), [("pixels", "bgr"), ("crop", 1.5), ("crop", 0.5), ("encoder", "big")])
def test_a_file_with_another_crop_or_range_is_refused(key: str, value: Any, tmp_path: pathlib.Path) -> None:
    policy_of("drq", crop=0.9).save(tmp_path / "policy")
    meta = read_json(tmp_path / "policy.json")
    write_json(tmp_path / "policy.json", {**meta, key: value})
    with pytest.raises(CheckpointError):
        Policy.load(tmp_path / "policy")


def test_a_file_that_says_no_range_has_that_of_half(tmp_path: pathlib.Path) -> None:
    meta = {key: value for key, value in policy_of("small").description().items() if key != "pixels"}
    older = Policy.from_description(meta)
    assert older.encoder is not None
    assert older.encoder.pixels == "half"


@pytest.mark.parametrize("name", ["resnet18", "vit"])
def test_an_exported_policy_crops_and_scales_by_itself(name: str, tmp_path: pathlib.Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    policy = policy_of(name, crop=0.9)
    policy.export(tmp_path / "policy.onnx")
    session = runtime.InferenceSession(tmp_path / "policy.onnx")
    assert {one.name: one.type for one in session.get_inputs()} == {
        "front": "tensor(uint8)",
        "wrist": "tensor(uint8)",
        "state": "tensor(float)",
    }
    for rows in (1, 5):
        given = bytes_of(rows, TWO)
        (found,) = session.run(None, {key: value.numpy() for key, value in given.items()})
        np.testing.assert_allclose(found, policy(given).numpy(), atol=1e-5)


def test_what_an_encoder_can_not_have_is_refused() -> None:
    for options, words in (
        ({"name": "resnet18", "features": 7}, "must be even"),
        ({"name": "small", "pixels": "bgr"}, "pixels is 'bgr', must be one of half, unit, imagenet"),
        ({"name": "small", "crop": 0.0}, "crop is 0.0, must be above 0"),
        ({"name": "resnet18", "crop": 0.5}, "leave the resnet18 encoder's map one place"),
        ({"name": "drq", "crop": 0.05}, "too small for the drq encoder"),
    ):
        with pytest.raises(ConfigError, match=words):
            Encoder(TWO, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"images have 4 channels: take pixels=unit"):
        Encoder({"image": Array((40, 40, 4), "uint8")}, "small", pixels="imagenet")
    assert View(Array((84, 84, 3), "uint8"), crop=0.9).size == (76, 76)
