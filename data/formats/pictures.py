"""Pictures and videos as uint8 arrays: PNG and JPEG by pillow, which matplotlib brings, videos by av, an extra."""

from __future__ import annotations

import io
import math
import pathlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import DataError, MissingExtraError
from surefoot.core.base.scaling import Size, scaled, scaled_image
from surefoot.core.base.unpacking import PICTURE_BYTES, check_picture, memory_limit, too_many_pictures
from surefoot.data.pictures import aligned

Array = np.ndarray[Any, Any]
COLORS = 3
ALONE = {"format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,h264,hevc,av1", "protocol_whitelist": "file"}
"""Of a video: formats that are lists of other files and addresses are not read, whatever the file is called."""


def decoded(name: str, content: bytes, size: Size | None = None) -> Array:
    """(H, W, 3) uint8 of a PNG or JPEG file's bytes, scaled to `size` (H, W) where it is given.

    Raises:
        DataError: the bytes are no picture, or their head says that it is larger than one may be.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # it has more pixels than we allow
            with Image.open(io.BytesIO(content), formats=["PNG", "JPEG"]) as image:
                check_picture(name, (image.height, image.width, COLORS), DataError)
                return np.asarray(scaled_image(image.convert("RGB"), size))
    except DataError:
        raise
    except Exception as error:  # pillow raises many kinds on damaged files, and on pictures of absurd sizes
        raise DataError(f"{name}: is no PNG or JPEG picture ({type(error).__name__}: {error})") from error


def encoded(picture: Array) -> bytes:
    """A PNG file's bytes, without loss, of an (H, W), (H, W, C) or (C, H, W) uint8 picture of 1 or 3 channels."""
    from PIL import Image

    if picture.ndim == 3 and picture.shape[0] < picture.shape[-1]:
        picture = np.moveaxis(picture, 0, -1)
    if picture.ndim == 3 and picture.shape[-1] == 1:
        picture = picture[..., 0]
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def stack(name: str, pictures: Iterator[Array], rows: int) -> Array:
    """(N, H, W, 3) of as many pictures of one size.

    Raises:
        DataError: they differ in size, are fewer or more, or take more memory than `core.base.unpacking.memory_limit`,
        which
            the first of them shows.
    """
    found: Array | None = None
    index = -1
    for index, picture in enumerate(pictures):
        if found is None:
            needed, limit = rows * picture.size, memory_limit()
            if needed > limit:
                raise DataError(
                    f"{name}: {too_many_pictures(needed, limit)}, or scale them by `image_size` in a mapping"
                )
            found = aligned((rows, *picture.shape))
        if index >= rows or picture.shape != found.shape[1:]:
            raise DataError(f"{name}: picture {index} is one too many, or of another size than the first")
        found[index] = picture
    if found is None or index != rows - 1:
        raise DataError(f"{name}: has {index + 1} pictures for {rows} steps")
    return found


def frames(path: pathlib.Path, seconds: Sequence[float], tolerance: float, size: Size | None = None) -> Iterator[Array]:
    """The (H, W, 3) uint8 pictures of a video that are shown at these times, which increase.

    Where the video has as many pictures as there are times, these are its pictures in their order, whatever their
    times: those that are written down drift from those of long videos that were joined of many. Where only the last
    time has none, as of clocks that run a little past a video's end, the last picture is repeated, with a warning.

    Args:
        path: of the video.
        seconds: from its beginning.
        tolerance: how far from a time its picture may stand, in seconds.
        size: (H, W) to scale to.

    Raises:
        DataError: the video is damaged, ends before, or has pictures that are larger than one may be or than the
            others, fewer than its head says, or out of order.
        MissingExtraError: av is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise MissingExtraError("av", "video", f"decoding {path.name}") from error
    if not path.is_file():
        raise DataError(f"{path}: is no file; fetch the dataset whole")
    wanted = iter(seconds)
    target = next(wanted, None)
    count, before = 0, -math.inf
    last: Array | None = None
    most = {"max_pixels": str(PICTURE_BYTES // COLORS)}  # the decoder takes no memory for more, whatever the head says
    try:
        with av.open(f"file:{path}", options=ALONE | most) as container:
            stream = container.streams.video[0]
            given = (stream.codec_context.height, stream.codec_context.width)
            check_picture(str(path), (*given, COLORS), DataError)
            stream.codec_context.options = most
            by_number = stream.frames == len(seconds)
            for frame in container.decode(stream):
                if (frame.height, frame.width) != given:
                    raise DataError(
                        f"{path}: says that its pictures are {given[0]} x {given[1]} and holds one of {frame.height} x "
                        f"{frame.width}; it is damaged, or joined of several: write it again at one size"
                    )
                if by_number:
                    if frame.time is None or frame.time <= before or count == len(seconds):
                        raise DataError(
                            f"{path}: picture {count} comes at {frame.time} s, after one at {before} s, and its head "
                            f"tells of {len(seconds)}: it is damaged; fetch it again, or write it again"
                        )
                    count, before = count + 1, frame.time
                    yield scaled(frame.to_ndarray(format="rgb24"), size)
                    continue
                picture = None
                before = -math.inf if frame.time is None else frame.time
                while target is not None and frame.time is not None and abs(frame.time - target) <= tolerance:
                    if picture is None:
                        picture = last = scaled(frame.to_ndarray(format="rgb24"), size)
                    yield picture
                    target = next(wanted, None)
                if target is None:
                    return
    except (OSError, IndexError, ValueError) as error:  # av's errors are OSError or ValueError, and ours is neither
        raise DataError(
            f"{path}: is a damaged video, or none, or has pictures of more than {PICTURE_BYTES // COLORS} pixels "
            f"({error}); fetch it again, or write it with smaller pictures"
        ) from error
    if by_number and count < len(seconds):
        raise DataError(f"{path}: its head tells of {len(seconds)} pictures, and it has {count}; fetch it again")
    if target is not None and not by_number:
        one_behind = before < target <= before + 3 * tolerance
        if last is None or next(wanted, None) is not None or not one_behind:
            raise DataError(f"{path}: has no picture at {target:.3f} s")
        warnings.warn(
            f"{path}: ends at {before:.3f} s, one picture before {target:.3f} s: its last picture is taken twice",
            stacklevel=2,
        )
        yield last
