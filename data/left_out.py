"""What a source holds and a dataset of it does not: named, cameras first, with how to take it in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from surefoot.core.base.errors import printable
from surefoot.data.dataset import Dataset

LEFT_OUT = "left_out"
"""Attribute: a JSON list of [name, what it is] of features of the source that were not read."""
PICTURES = ("image", "video", "pictures")
"""What columns are reported to hold that are pictures."""
ARRAYS = ("an array", "uint8", "list")
"""What columns are reported to hold that may be pictures."""
_CAMERA = re.compile(r"image|camera|(?:^|[^a-z])(?:cam|rgb|depth)(?![a-z])", re.IGNORECASE)
MOST = 12
"""Features beside cameras that a note names; `datasets info` names all."""
LONGEST = 20_000
"""Characters of the attribute of a file of which a list is read."""


def is_camera(name: str, what: str) -> bool:
    """Whether a feature is a camera's, by what it holds or, of an array of any shape, by its name."""
    return what.startswith(PICTURES) or (what.startswith(ARRAYS) and _CAMERA.search(name) is not None)


def stated(features: Mapping[str, str]) -> dict[str, str]:
    """The attribute for these features, name -> what it is; no attribute where there are none."""
    ordered = sorted(features.items(), key=lambda one: (not is_camera(*one), one[0].startswith("next")))
    return {LEFT_OUT: json.dumps([list(one) for one in ordered])} if ordered else {}


def features(dataset: Dataset) -> list[tuple[str, str]]:
    """Name and kind of each feature of the source that the dataset does not hold, cameras first."""
    text = dataset.attributes.get(LEFT_OUT)
    try:
        found = json.loads(text) if isinstance(text, str) and len(text) <= LONGEST else []
        return [(printable(str(name)), printable(str(what))) for name, what in found]
    except (ValueError, TypeError, RecursionError):  # any file may hold an attribute of this name
        return []


def reported(dataset: Dataset) -> list[str]:
    """Each feature in words, as `datasets info` lists them."""
    return [_told(*one) for one in features(dataset)]


def notes(dataset: Dataset) -> list[str]:
    """A sentence on cameras and one on other features that are left out, each with how to take them in."""
    left = features(dataset)
    cameras = [one for one in left if is_camera(*one)]
    others = [one for one in left if not is_camera(*one)]
    mapping = dataset.attributes.get("mapping")
    where = (
        f"name them in {mapping}"
        if mapping is not None
        else f"name them in a mapping, which `surefoot datasets draft {dataset.name} -o map.yaml` begins"
    )
    kind = dataset.attributes.get("kind")
    alone = kind == "diffusion_policy"  # no mapping reads it
    found = []
    if cameras:
        key = key_of(cameras[0][0])
        asked, example = f"give image_size=96, or cameras=[{key}]", f"{where}: images: {{{key}: {cameras[0][0]}}}"
        if mapping is None and kind in ("lerobot", "robomimic"):
            example = f"{example}; or {asked}"
        found.append(
            f"{dataset.name}: cameras are left out: {', '.join(_told(*one) for one in cameras)}; to take them in, "
            f"{asked if alone else example} (docs/images.md)"
        )
    if others:
        names = ", ".join(_told(*one) for one in others[:MOST])
        more = f" and {len(others) - MOST} more (`surefoot datasets info` lists them)" if len(others) > MOST else ""
        how = f"{where}, under observations, actions, reward, cost or extras"
        if alone:
            how = "write it into the array 'state'"
        found.append(f"{dataset.name}: also left out: {names}{more}; to take one in, {how} (docs/own_data.md)")
    return found


def key_of(name: str) -> str:
    """A key for a camera's pictures: the last part of its name that is fit for one.

    >>> key_of("observation.images.top"), key_of("observations/images/cam_high"), key_of("obs/agentview_image")
    ('top', 'cam_high', 'agentview_image')
    """
    key = re.sub(r"\W+", "_", re.split(r"[./]", name)[-1]).strip("_")
    return key if key.isidentifier() else f"camera_{key}"


def _told(name: str, what: str) -> str:
    return f"{name} ({what})" if what else name
