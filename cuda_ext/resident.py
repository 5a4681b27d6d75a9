"""What the host hands to a GPU at every call (constants, weights, seeds): copied there once and found by its content.

A copy from ordinary memory waits for all that the GPU has to do. What has been there before is not copied again, and
what is new and large goes through page-locked memory, which waits for nothing.
"""

from __future__ import annotations

import collections
import threading
from typing import Any

import torch
from torch import Tensor

LARGEST = 1 << 20
"""Bytes of a tensor that is kept."""
MOST = 1 << 26
"""Bytes of all that is kept; what was used longest ago goes first."""

_kept: collections.OrderedDict[Any, Tensor] = collections.OrderedDict()
_bytes = 0
_lock = threading.Lock()


def on_device(values: Tensor, device: torch.device) -> Tensor:
    """`values` in the memory of a device, to be read only; the host's numbers are copied to a GPU once.

    Args:
        values: contiguous or not; those of a device stay where `Tensor.to` leaves them.
        device: where they are read.
    """
    global _bytes
    values = values.detach()
    if (
        device.type == "cpu" or values.device.type != "cpu" or type(values) is not Tensor
    ):  # the last: a compiler's trace
        return values.to(device)
    if torch.compiler.is_compiling():
        return values.to(device)
    values = values.contiguous()
    if values.nbytes > LARGEST:
        return values.pin_memory().to(device, non_blocking=True)
    key = (device, values.dtype, tuple(values.shape), values.numpy().tobytes())
    with _lock:
        found = _kept.get(key)
        if found is None:
            found = _kept[key] = values.to(device)
            _bytes += found.nbytes
            while _bytes > MOST:
                _bytes -= _kept.popitem(last=False)[1].nbytes
        else:
            _kept.move_to_end(key)
    return found
