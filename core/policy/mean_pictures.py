"""What a policy's cameras saw on average in training, small, and whether another camera is turned or its colors are.

No program minds a picture that is upside down, mirrored or in the order blue, green, red, and every network does:
robosuite renders upside down, robomimic turns it, and OpenCV gives BGR. A policy's file holds the mean picture of each
camera, and who shows it pictures can compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.spec import Array
from surefoot.core.nn.encoders import channels_first

SIDE, MOST = 16, 1000
"""Pixels of a mean picture's side, and pictures that it is the mean of at most."""
CLEARLY = 0.75
"""Part of the distance to the mean picture below which another form of a picture counts as the right one."""
FORMS = {
    "upside down": lambda picture: picture.flip(-2),
    "mirrored": lambda picture: picture.flip(-1),
    "turned by 180 degrees": lambda picture: picture.flip(-2, -1),
    "in the order blue, green, red": lambda picture: picture.unflatten(-3, (-1, 3)).flip(-3).flatten(-4, -3),
}
"""In words -> what undoes it, of (C, 16, 16)."""


def small(images: Tensor, array: Array) -> Tensor:
    """(C, 16, 16) float32 mean of (N, *shape) uint8 images, scaled by the mean of areas; frames are among channels."""
    first = channels_first(images, array).float()
    return torch.nn.functional.adaptive_avg_pool2d(first, SIDE).mean(0)


def mean_pictures(columns: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, list[Any]]:
    """Camera -> (C, 16, 16) whole numbers from 0 to 255, of (N, *shape) uint8 pictures.

    Args:
        columns: camera -> pictures; cameras that are not there are left out.
        arrays: key -> shape and dtype of an observation.
    """
    found = {}
    for key, array in arrays.items():
        if not array.image or array.dtype != "uint8" or key not in columns:
            continue
        pictures = columns[key]
        rows = np.linspace(0, len(pictures) - 1, min(len(pictures), MOST)).astype(int)
        sums = torch.stack([small(torch.from_numpy(np.asarray(pictures[part])), array) * len(part)
                            for part in np.array_split(rows, -(-len(rows) // 100))])  # fmt: skip
        found[key] = (sums.sum(0) / len(rows)).round().int().tolist()
    return found


def looks(images: Tensor, array: Array, mean: list[Any]) -> str | None:
    """How a camera differs from the one of training, in words of `FORMS`; None where nothing speaks for it.

    Args:
        images: (N, *shape) uint8, a few.
        array: of the camera.
        mean: its picture of `mean_pictures`.
    """
    now, then = small(images, array), torch.tensor(mean, dtype=torch.float32)
    if now.shape != then.shape:
        return None
    colors = now.shape[0] % 3 == 0
    forms = {words: undo for words, undo in FORMS.items() if colors or not words.startswith("in the order")}
    apart = float((now - then).abs().mean())
    distances = {words: float((undo(now) - then).abs().mean()) for words, undo in forms.items()}
    best = min(distances, key=lambda words: distances[words])
    return best if distances[best] < CLEARLY * apart else None
