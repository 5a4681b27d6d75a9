"""Features of a dataset's observations by an encoder that is not trained: computed once, in place of its pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.engine.features import ENCODED
from surefoot.core.nn.encoders import Encoder
from surefoot.data.dataset import Dataset
from surefoot.data.derived import blocks
from surefoot.data.pictures import Pictures
from surefoot.data.store import NEXT

Array = np.ndarray[Any, Any]

SEEN, BESIDE = ENCODED
"""Keys of the columns of all cameras' features, in half precision, and what the encoder gives of vectors, in float32,
since they may be of any size."""
ROWS = 256
"""Observations that are encoded at once."""
LARGEST = 60_000.0
"""Of a feature in half precision, whose largest number is 65,504."""


def with_features(dataset: Dataset, encoder: Encoder, device: torch.device, following: bool) -> Dataset:
    """A dataset with features for the arrays that an encoder reads.

    The columns are `observations/~features` (N, F of all cameras), float16, or float32 where one is above `LARGEST`,
    and `observations/~vectors` (N, V); and `next_observations/...`. What followed a step and begins the next row is not
    encoded again.

    Args:
        dataset: as the agent's losses read it, vectors normalised.
        encoder: stays as it is.
        device: where it encodes.
        following: whether what followed is read too.
    """
    arrays = list(encoder.arrays)
    own = {key: dataset.extras[f"observations/{key}"] for key in arrays}
    found = {"observations": _encoded(own, encoder, device, np.arange(len(dataset)))}
    if following:
        after = {key: dataset.extras[f"{NEXT}observations/{key}"] for key in arrays}
        same = _same_as_next_row(own, after)
        features = np.empty_like(found["observations"])
        features[same] = found["observations"][same + 1]
        alone = np.setdiff1d(np.arange(len(dataset)), same)
        features[alone] = _encoded(after, encoder, device, alone)
        found[f"{NEXT}observations"] = features
    seen = len(encoder.images) * encoder.features
    small = all(np.abs(one[:, :seen]).max(initial=0) <= LARGEST for one in found.values())
    extras = {
        name: value
        for name, value in dataset.extras.items()
        if name.partition("/")[0] not in ("observations", f"{NEXT}observations") or name.partition("/")[2] not in arrays
    }
    for name, features in found.items():
        extras[f"{name}/{SEEN}"] = features[:, :seen].astype(np.float16 if small else np.float32)
        if features.shape[1] > seen:
            extras[f"{name}/{BESIDE}"] = np.ascontiguousarray(features[:, seen:])
    return dataset.replace(extras=extras)


@torch.no_grad()
def _encoded(columns: dict[str, Any], encoder: Encoder, device: torch.device, rows: Array) -> Array:
    """(k, width) float32 features of some rows."""
    found = np.empty((len(rows), encoder.width), np.float32)
    place = next((parameter.device for parameter in encoder.parameters()), device)
    encoder.to(device)
    for some in blocks(len(rows), ROWS):
        read: dict[str, Tensor] = {
            key: torch.from_numpy(np.array(column[rows[some]])).to(device) for key, column in columns.items()
        }
        found[some] = encoder(read).float().cpu().numpy()
    encoder.to(place)
    return found


def _same_as_next_row(own: dict[str, Any], after: dict[str, Any]) -> Array:
    """(k,) rows after which the observation of the next row followed, in all arrays."""
    same = np.ones(max(0, len(next(iter(own.values()))) - 1), bool)
    for key, one in own.items():
        following = after[key]
        if isinstance(one, Pictures) and isinstance(following, Pictures) and one.shares(following):
            same &= following.numbers[:-1] == one.numbers[1:]
        elif isinstance(one, np.ndarray) and isinstance(following, np.ndarray) and one.ndim == 2:
            same &= (following[:-1] == one[1:]).all(1)
        else:
            same[:] = False
    return np.flatnonzero(same)
