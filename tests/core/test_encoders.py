"""Encoders: sizes in closed form, numbers of torch's own layers, layouts, and the shift against a loop over images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.core.base.spec import Array
from surefoot.core.nn.encoders import Encoder, as_laid_out, by_key, channels_first, on_vectors, random_shift

CAMERA = Array((64, 64, 3), "uint8")
STATE = Array((5,))


def convolution(inputs: int, outputs: int, kernel: int) -> int:
    return outputs * (inputs * kernel**2 + 1)


def head(flat: int, features: int) -> int:
    return features * (flat + 1) + 2 * features


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("small", convolution(3, 16, 8) + convolution(16, 32, 4) + head(32 * 6 * 6, 50)),
        ("nature", convolution(3, 32, 8) + convolution(32, 64, 4) + convolution(64, 64, 3) + head(64 * 4 * 4, 50)),
        (
            "impala",
            convolution(3, 16, 3)
            + convolution(16, 32, 3)
            + convolution(32, 32, 3)
            + 4 * convolution(16, 16, 3)
            + 8 * convolution(32, 32, 3)
            + head(32 * 8 * 8, 50),
        ),
    ],
)
def test_each_size_has_as_many_parameters_as_its_paper_says(name: str, expected: int) -> None:
    encoder = Encoder({"camera": CAMERA}, name, 50)
    assert sum(parameter.numel() for parameter in encoder.parameters()) == expected
    assert encoder.width == 50


def test_natures_numbers_are_those_of_torchs_layers_in_a_row() -> None:
    torch.manual_seed(0)
    encoder = Encoder({"camera": CAMERA, "state": STATE}, "nature", 7)
    images, state = torch.randint(0, 256, (4, 64, 64, 3), dtype=torch.uint8), torch.randn(4, 5)
    own = dict(encoder.named_parameters())
    value = images.permute(0, 3, 1, 2).double() / 255 - 0.5
    for layer, stride in ((0, 4), (2, 2), (4, 1)):
        stem = f"images.camera.convolutions.{layer}"
        value = nn.functional.conv2d(value, own[f"{stem}.weight"].double(), own[f"{stem}.bias"].double(), stride)
        value = value.clamp(min=0)
    seen = squashed(value.flatten(1) @ own["images.camera.linear.weight"].double().T)
    told = squashed(state.double() @ own["linear.weight"].double().T + own["linear.bias"].double())
    expected = torch.cat([seen, told], 1)
    torch.testing.assert_close(encoder({"camera": images, "state": state}).double(), expected, atol=1e-5, rtol=0)
    assert encoder.width == 14


def squashed(values: Tensor) -> Tensor:
    """Tanh of a layer norm that has not learned yet."""
    centred = values - values.mean(1, keepdim=True)
    return torch.tanh(centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt())


def test_weights_are_orthogonal_and_biases_zero() -> None:
    encoder = Encoder({"camera": CAMERA, "state": STATE}, "nature", 7)
    first = encoder.images["camera"].convolutions[0]  # type: ignore[union-attr]
    rows = first.weight.detach().flatten(1)
    torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(32), atol=1e-5, rtol=0)
    assert not first.bias.detach().any()


def test_a_vector_beside_an_image_is_seen_with_its_size_and_not_only_its_direction() -> None:
    torch.manual_seed(0)
    encoder = Encoder({"camera": CAMERA, "velocity": Array((1,))}, "small", 50)
    images = torch.zeros(5, *CAMERA.shape, dtype=torch.uint8)
    found = encoder({"camera": images, "velocity": torch.tensor([[-2.0], [0.0], [0.5], [1.0], [2.0]])})[:, 50:]
    assert (found[1:] - found[:-1]).square().mean(1).min() > 0.01


def test_vectors_alone_are_joined_without_a_parameter() -> None:
    encoder = Encoder({"goal": Array((2,)), "state": STATE})
    goal, state = torch.randn(3, 2), torch.randn(3, 5)
    assert torch.equal(encoder({"state": state, "goal": goal}), torch.cat([goal, state], 1))
    assert not list(encoder.parameters())
    assert encoder.width == 7


def test_leading_dimensions_are_kept() -> None:
    encoder = Encoder({"camera": CAMERA, "state": STATE}, "small", 4)
    images, state = torch.randint(0, 256, (2, 3, 64, 64, 3), dtype=torch.uint8), torch.randn(2, 3, 5)
    found = encoder({"camera": images, "state": state})
    assert found.shape == (2, 3, 8)
    torch.testing.assert_close(found[1], encoder({"camera": images[1], "state": state[1]}))


@pytest.mark.parametrize("shape", [(8, 6), (8, 6, 3), (3, 8, 6), (2, 8, 6, 3), (2, 3, 8, 6)])
def test_all_layouts_of_an_image_show_the_same_pixels(shape: tuple[int, ...]) -> None:
    array = Array(shape, "uint8")
    images = torch.randint(0, 256, (5, *shape), dtype=torch.uint8)
    found = channels_first(images, array)
    assert found.shape == (5, *array.image_size)
    assert torch.equal(as_laid_out(found, array), images)
    for place in torch.cartesian_prod(*(torch.arange(size) for size in shape)).tolist():
        height, width = shape.index(8), shape.index(6)
        others = [index for axis, index in enumerate(place) if axis not in (height, width)]
        sizes = [size for size in shape if size not in (8, 6)]
        channel = 0
        for index, size in zip(others, sizes, strict=True):  # frame, then channel
            channel = channel * size + index
        pixel = found[:, channel, place[height], place[width]]
        assert torch.equal(pixel, images[(slice(None), *place)])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_shift_is_a_part_of_the_padded_image(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    images = torch.randint(0, 256, (6, 2, 9, 7)).to(dtype)
    uniform = torch.rand(6, 2)
    uniform[0], uniform[1] = 0.0, 1 - 1e-7
    found = random_shift(images, uniform, 4)
    padded = nn.functional.pad(images.float(), (4, 4, 4, 4), mode="replicate")
    for image, (down, right) in enumerate((uniform * 9).long().tolist()):
        assert torch.equal(found[image].float(), padded[image, :, down : down + 9, right : right + 7])


def test_no_shift_leaves_an_image_alone() -> None:
    images = torch.randint(0, 256, (3, 1, 5, 5), dtype=torch.uint8)
    assert torch.equal(random_shift(images, torch.rand(3, 2), 0), images)


def test_vectors_are_joined_in_the_order_that_is_asked_for_whatever_order_they_come_in() -> None:
    camera = torch.zeros(1, 9, 9, 3, dtype=torch.uint8)
    given = {"state": torch.tensor([[1.0, 2.0]]), "camera": camera, "goal": torch.tensor([[3.0]])}
    found = on_vectors(lambda joined: joined * torch.tensor([10.0, 100.0, 1000.0]), given, ("goal", "state"))
    assert {key: found[key].tolist() for key in ("goal", "state")} == {"goal": [[30.0]], "state": [[100.0, 2000.0]]}
    assert found["camera"] is camera


def test_what_can_not_be_an_encoder_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be one of small, nature, impala"):
        Encoder({"camera": CAMERA}, "huge")
    with pytest.raises(ConfigError, match="images of 20 x 20 are too small for the nature encoder"):
        Encoder({"camera": Array((20, 20), "uint8")}, "nature")
    with pytest.raises(ConfigError, match="encoder_features is 0"):
        Encoder({"camera": CAMERA}, "small", 0)


def test_an_encoder_changes_nothing_that_it_is_given() -> None:
    encoder = Encoder({"image": CAMERA}, "small")
    images = torch.full((2, *CAMERA.shape), 200.0)
    first = encoder({"image": images})
    assert bool((images == 200).all())
    torch.testing.assert_close(encoder({"image": images.to(torch.uint8)}), first, rtol=0, atol=0)


def test_arrays_of_an_observation_are_checked_by_name() -> None:
    arrays = {"image": CAMERA, "state": STATE}
    image, state = torch.zeros(2, *CAMERA.shape, dtype=torch.uint8), torch.ones(2, 5, dtype=torch.float64)
    found = by_key({"image": image, "state": state, "other": state}, arrays)
    assert {key: value.dtype for key, value in found.items()} == {"image": torch.uint8, "state": torch.float32}
    wrong: dict[str, dict[str, Any]] = {
        r"image is torch.float32, must be torch.uint8": {"image": image.float(), "state": state},
        r"image is \(32, 32, 3\); this policy was trained on": {"image": image[:, :32, :32], "state": state},
        r"state is missing": {"image": image},
        r"state is ndarray, must be a tensor": {"image": image, "state": state.numpy()},
        r"have \{'image': 2, 'state': 1\} rows": {"image": image, "state": state[:1]},
    }
    for words, observations in wrong.items():
        with pytest.raises(EnvironmentMismatchError, match=words):
            by_key(observations, arrays)
