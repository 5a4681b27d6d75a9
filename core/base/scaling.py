"""Pictures scaled to another size, by one rule: what data were scaled by, a policy scales what it sees by."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Size = tuple[int, int]

RULE = "box"
"""Each new pixel is the mean of those that it covers, along rows and then along columns, rounded each time (pillow)."""


def scaled(picture: Array, size: Size | None) -> Array:
    """A uint8 picture, or frames of one, in any layout of `core.base.spec.Array`, scaled to `size` (H, W)."""
    from PIL import Image

    if size is None or size in (picture.shape[-3:-1], picture.shape[-2:]):
        return picture
    if picture.ndim == 3 and picture.shape[-1] == 3:
        return np.array(scaled_image(Image.fromarray(picture), size))
    inner = picture.ndim > 2 and picture.shape[-3] >= picture.shape[-1]  # channels are the last dimension
    planes = np.moveaxis(picture, -1, -3) if inner else picture
    flat = [np.asarray(scaled_image(Image.fromarray(plane), size)) for plane in planes.reshape(-1, *planes.shape[-2:])]
    made = np.stack(flat).reshape(*planes.shape[:-2], *size)
    return np.moveaxis(made, -3, -1) if inner else made


def scaled_image(image: Any, size: Size | None) -> Any:
    """A pillow image scaled to `size` (H, W); None: as it is."""
    from PIL import Image

    wanted = None if size is None else size[::-1]
    return image if wanted is None or image.size == wanted else image.resize(wanted, Image.Resampling.BOX)
