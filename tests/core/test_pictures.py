"""Shifts and crops in numbers worked out by hand: which part of a picture training sees, and which one acting does."""

from __future__ import annotations

import pytest
import torch

from surefoot.core.base.spec import Array, Spec
from surefoot.core.engine.features import encoded, training_encoder
from surefoot.core.nn.encoders import Encoder
from surefoot.core.nn.pictures import View, centre_crop, random_crop, random_shift
from surefoot.offline.bc import BC

NUMBERED = torch.arange(25.0).view(1, 1, 5, 5)
"""A 5 x 5 picture whose pixels are numbered."""


@pytest.mark.parametrize(
    ("uniform", "first_row"), [(0.34, [0, 1, 2, 3, 4]), (0.0, [0, 0, 1, 2, 3]), (0.99, [6, 7, 8, 9, 9])]
)
def test_a_shift_of_a_numbered_picture(uniform: float, first_row: list[int]) -> None:
    found = random_shift(NUMBERED, torch.full((1, 2), uniform), 1)
    assert found[0, 0, 0].tolist() == first_row
    if uniform == 0.34:
        assert torch.equal(found, NUMBERED)


def test_a_crop_draws_every_place_the_last_included() -> None:
    torch.manual_seed(0)
    images = torch.arange(84 * 84, dtype=torch.int32).view(1, 1, 84, 84).expand(10_000, -1, -1, -1)
    corners = random_crop(images, torch.rand(10_000, 2), (76, 76))[:, 0, 0, 0]
    assert set(corners.tolist()) == {84 * down + right for down in range(9) for right in range(9)}
    counts = torch.bincount(corners)[corners.unique()]
    assert counts.min() > 60  # of 123 expected; 6 deviations below
    assert counts.max() < 190


def test_a_crop_of_the_whole_picture_and_the_middle_one() -> None:
    assert torch.equal(random_crop(NUMBERED, torch.rand(1, 2), (5, 5)), NUMBERED)
    assert centre_crop(torch.arange(84.0).expand(84, 84), (76, 76))[0, 0] == 4
    assert centre_crop(NUMBERED, (2, 3))[0, 0].tolist() == [[6, 7, 8], [11, 12, 13]]
    assert random_crop(NUMBERED, torch.tensor([[0.99, 0.0]]), (2, 3))[0, 0].tolist() == [[15, 16, 17], [20, 21, 22]]


@pytest.mark.parametrize("shape", [(9, 8), (9, 8, 3), (3, 9, 8), (2, 9, 8, 3), (2, 3, 9, 8)])
def test_training_and_acting_see_parts_of_one_size_in_every_layout(shape: tuple[int, ...]) -> None:
    view = View(Array(shape, "uint8"), crop=0.75)
    images = torch.randint(0, 256, (4, *shape), dtype=torch.uint8)
    assert view(images).shape == (4, *view.shape)
    part = view.moved(images, torch.rand(4, 2), 2, torch.rand(4, 2))
    assert view(part).shape == (4, *view.shape)
    middle = view.moved(images, None, 0, torch.full((4, 2), 0.5))  # 9 of 12 spare places, the middle of 3
    spare = [whole - seen for whole, seen in zip(view.array.image_size[1:], view.size, strict=True)]
    if all(one % 2 == 0 for one in spare):
        assert torch.equal(view(middle), view(images))


def test_all_frames_of_a_history_share_a_draw() -> None:
    view = View(Array((12, 12, 3), "uint8"), crop=0.75)
    frame = torch.randint(0, 256, (4, 12, 12, 3), dtype=torch.uint8)
    history = torch.stack([frame, frame, frame], 1)
    found = view.moved(history, torch.rand(4, 2), 3, torch.rand(4, 2))
    assert found.shape == (4, 3, 9, 9, 3)
    assert torch.equal(found[:, 0], found[:, 1])
    assert torch.equal(found[:, 0], found[:, 2])


CAMERAS = {"front": Array((24, 24), "uint8"), "wrist": Array((24, 24), "uint8")}


def agent(**options: object) -> BC:
    return BC(Spec(CAMERAS, 1, (-1.0,), (1.0,)), encoder="small", encoder_features=4, **options)


def test_cameras_and_observations_draw_their_own_unless_they_move_together() -> None:
    frame = torch.randint(0, 256, (6, 24, 24), dtype=torch.uint8)
    batch = {f"{name}/{key}": frame for name in ("observations", "next_observations") for key in CAMERAS}
    noise = {"shift": torch.rand(6, 8), "crop": torch.rand(6, 8)}
    apart = encoded(agent(crop=0.9), batch, noise)
    assert len({apart[name].numpy().tobytes() for name in batch}) == 4
    assert apart["observations/front"].shape == (6, 22, 22)
    together = encoded(agent(crop=0.9, shift_together=True), batch, noise)
    for key in CAMERAS:
        assert torch.equal(together[f"observations/{key}"], together[f"next_observations/{key}"])
    assert not torch.equal(together["observations/front"], together["observations/wrist"])


def test_only_what_is_asked_for_is_drawn() -> None:
    for options, names in (
        ({"shift": 0}, set()),
        ({"shift": 2}, {"shift"}),
        ({"shift": 0, "crop": 0.9}, {"crop"}),
        ({"shift": 1, "crop": 0.9}, {"shift", "crop"}),
    ):
        one = agent(**options)
        (update,) = training_encoder(one, one.updates())
        assert set(update.noise) == names
        assert all(drawn.width == 8 for drawn in update.noise.values())


def test_an_encoder_reads_the_middle_of_whole_pictures_and_parts_as_they_are() -> None:
    encoder = Encoder(CAMERAS, "small", 4, crop=0.9)
    images = {key: torch.randint(0, 256, (3, 24, 24), dtype=torch.uint8) for key in CAMERAS}
    middle = {key: value[:, 1:23, 1:23] for key, value in images.items()}
    assert torch.equal(encoder(images), encoder(middle))
    part = encoder.moved(images, {"crop": torch.full((3, 8), 0.99)}, 0)
    assert torch.equal(part["front"], images["front"][:, 2:, 2:])
