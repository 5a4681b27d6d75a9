"""What networks see of an image: its channels and its black and white are stated, or those that its shape shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.spec import Array, Spec
from surefoot.core.engine.encoder_config import EncoderConfig, encoder_of
from surefoot.core.nn.encoders import channels_first, scaled

BOARD = (8, 8, 12)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((8, 8, 12), (12, 8, 8)),
        ((12, 8, 8), (12, 8, 8)),
        ((3, 36, 48), (3, 36, 48)),
        ((36, 48, 3), (3, 36, 48)),
        ((4, 84, 84), (4, 84, 84)),
        ((84, 84, 128), (128, 84, 84)),
        ((9, 9, 9), (9, 9, 9)),
        ((4, 8, 8, 12), (48, 8, 8)),
    ],
)
def test_two_equal_neighbors_are_height_and_width(shape: tuple[int, ...], size: tuple[int, int, int]) -> None:
    assert Array(shape, "uint8").image_size == size


def test_stated_channels_come_before_the_shape() -> None:
    assert Array(BOARD, "uint8", channels="first").image_size == (8, 8, 12)
    images = torch.arange(2 * 8 * 8 * 12, dtype=torch.uint8).view(2, *BOARD)
    assert channels_first(images, Array(BOARD, "uint8", channels="first")).equal(images)
    assert channels_first(images, Array(BOARD, "uint8")).equal(images.permute(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("array", "values", "seen"),
    [
        (Array((8, 8), "uint8", low=0, high=255), [0, 51, 255], [-0.5, -0.3, 0.5]),
        (Array((8, 8), "uint8", low=0, high=1), [0, 1, 1], [-0.5, 0.5, 0.5]),
        (Array((8, 8), "uint8", low=0, high=4), [0, 1, 4], [-0.5, -0.25, 0.5]),
        (Array((8, 8), "uint8"), [0, 51, 255], [-0.5, -0.3, 0.5]),
        (Array((8, 8), "uint8"), [0, 1, 1], [-0.5, 0.5, 0.5]),
        (Array((8, 8), "uint8"), [0, 1, 2], [-0.5, 1 / 255 - 0.5, 2 / 255 - 0.5]),
        (Array((8, 8)), [0.0, 0.25, 1.0], [-0.5, -0.25, 0.5]),
        (Array((8, 8), low=-1, high=1), [-1.0, 0.5, 1.0], [-0.5, 0.25, 0.5]),
    ],
)
def test_black_is_minus_a_half_and_white_a_half(array: Array, values: list[Any], seen: list[float]) -> None:
    images = torch.zeros(1, 1, 8, 8, dtype=torch.float32 if array.dtype == "float32" else torch.uint8)
    images.view(-1)[:3] = torch.tensor(values)
    torch.testing.assert_close(scaled(images, array).view(-1)[:3], torch.tensor(seen))


def test_an_unstated_image_is_taken_for_planes_or_bytes_by_itself() -> None:
    images = torch.ones(2, 1, 8, 8, dtype=torch.uint8)
    images[1, 0, 0, 0] = 200
    found = scaled(images, Array((8, 8), "uint8"))
    assert found[0, 0, 1, 1] == 0.5
    assert found[1, 0, 1, 1] == pytest.approx(1 / 255 - 0.5)


def test_files_keep_what_is_stated_and_older_ones_mean_what_they_did() -> None:
    board, real = Array(BOARD, "uint8", low=0, high=1), Array((8, 8), low=-1, high=1)
    arrays = {"a": board, "b": Array((8, 8), "uint8"), "c": real}
    spec = Spec(arrays, 1, (-1.0,), (1.0,))
    back = Spec.from_json(spec.to_json()).observations
    assert [(array.range, array.image_size) for array in back.values()] == [
        ((0.0, 1.0), (12, 8, 8)),
        (None, (1, 8, 8)),
        ((-1.0, 1.0), (1, 8, 8)),
    ]
    old = {**spec.to_json(), "observations": {"a": {"shape": list(BOARD), "dtype": "uint8"}}}
    array = Spec.from_json(old).observations["a"]
    assert (array.range, array.image_size) == ((0.0, 255.0), (8, 8, 12))
    plain = Spec({"image": Array((64, 64, 3), "uint8", low=0, high=255)}, 1, (-1.0,), (1.0,)).to_json()
    assert plain["observations"] == {"image": {"shape": [64, 64, 3], "dtype": "uint8"}}


@pytest.mark.parametrize("damage", [{"range": [1.0]}, {"range": [1.0, 1.0]}, {"channels": "middle"}, {"range": 3}])
def test_a_damaged_statement_is_refused(damage: dict[str, Any]) -> None:
    good = Spec({"image": Array(BOARD, "uint8")}, 1, (-1.0,), (1.0,)).to_json()
    good["observations"]["image"] |= damage
    with pytest.raises(CheckpointError):
        Spec.from_json(good)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": (8, 8), "dtype": "uint8", "low": 1.0, "high": 1.0}, "low < high"),
        ({"shape": (8, 8), "dtype": "uint8", "low": 1.0}, "low < high"),
        ({"shape": (8, 8), "dtype": "uint8", "low": 0.0, "high": float("inf")}, "both finite"),
        ({"shape": (3,), "low": 0.0, "high": 1.0}, "a vector has none"),
        ({"shape": (8, 8), "dtype": "uint8", "channels": "first"}, "has no channels"),
        ({"shape": BOARD, "dtype": "uint8", "channels": "middle"}, "must be first, last or None"),
        ({"shape": (3, 3)}, "a float32 image too, two of them 8 or more"),
    ],
)
def test_images_that_can_not_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Array(**arguments)


def test_an_agents_options_come_before_the_environments_statement() -> None:
    spec = Spec({"image": Array((12, 12, 16), "uint8", low=0, high=255)}, 1, (-1.0,), (1.0,))
    encoder = encoder_of(spec, EncoderConfig("impala", 8, image_channels="first", image_range=(0.0, 1.0)), "bc")
    assert encoder is not None
    assert (encoder.arrays["image"].image_size, encoder.arrays["image"].range) == ((12, 12, 16), (0.0, 1.0))
    for wrong in ({"image_channels": "middle"}, {"image_range": (1.0,)}, {"image_range": (1.0, 0.0)}):
        with pytest.raises(ConfigError):
            encoder_of(spec, EncoderConfig("impala", 8, **wrong), "bc")  # type: ignore[arg-type]
