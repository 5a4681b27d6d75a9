"""`Placed`: a constant that is copied to each device once, so that a captured training step finds it there."""

from __future__ import annotations

import torch
from torch import Tensor


class Placed:
    """A tensor that never changes, on whatever device it is asked for.

    A CUDA graph can hold no copy from the host. The engine takes steps before it captures one, and the first of them
    makes the copy that the captured one reads.
    """

    def __init__(self, values: Tensor) -> None:
        """Keep `values`: of any shape, on the host."""
        self.values = values
        self._copies: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def __call__(self, like: Tensor) -> Tensor:
        """The values on the device and in the dtype of a tensor: to be read only."""
        place = (like.device, like.dtype)
        found = self._copies.get(place)
        if found is None:
            found = self.values.to(*place)
            if type(found) is Tensor:  # what an exporter traces with must not outlive it
                self._copies[place] = found
        return found
