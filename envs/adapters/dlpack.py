"""Arrays of other libraries as torch tensors and back, without a copy where they share a device (DLPack)."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import MissingExtraError

PACKAGES = {  # module -> package, our extra
    "brax.envs": ("brax", "brax"),
    "jax": ("jax", "jax"),
    "jaxmarl": ("jaxmarl", "jaxmarl"),
    "jaxmarl.registration": ("jaxmarl", "jaxmarl"),
    "mujoco.mjx": ("mujoco-mjx", "jax"),
    "mujoco_playground": ("playground", "playground"),
    "mujoco_warp": ("mujoco-warp", "warp"),
    "warp": ("warp-lang", "warp"),
}


PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
"""Unless it is set to "false", jax takes three quarters of a GPU's memory at once, and torch has the rest."""


def to_torch(array: Any) -> Tensor:
    """A tensor over the memory of an array of jax, Warp, numpy or any library with `__dlpack__`.

    Writing to it writes to the array, which jax's arrays do not expect: copy before you write to one of those.
    """
    if isinstance(array, Tensor):
        return array
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    return torch.from_dlpack(array)


def from_torch(tensor: Tensor, like: Any) -> Any:
    """The tensor's memory as an array of the library of `like` (jax or numpy)."""
    tensor = tensor.detach().contiguous()
    if isinstance(like, np.ndarray):
        return tensor.cpu().numpy()
    return require("jax", "brax").dlpack.from_dlpack(tensor)


def require(module: str, purpose: str) -> Any:
    """An optional module, imported where it is needed; jax then takes a GPU's memory as it needs it, unless given
    otherwise.

    Raises:
        MissingExtraError: it is not installed; the message says how to install it.
    """
    os.environ.setdefault(PREALLOCATE, "false")  # read when jax's device is first used
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package, extra = PACKAGES[module]
        raise MissingExtraError(package, extra, f"the {purpose} adapter") from error
