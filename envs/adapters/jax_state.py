"""A tree of jax arrays as named numpy arrays and back, so that a run's checkpoint holds a simulator's whole state."""

from __future__ import annotations

from typing import Any

import numpy as np

from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.envs.adapters.dlpack import require
from surefoot.envs.interface import Array


def arrays_of_tree(tree: Any) -> dict[str, Array]:
    """Path of a leaf -> its numbers, of every leaf that has any; whole numbers without sign are viewed as signed ones.

    torch and safetensors store no uint32, of which jax's random keys are.
    """
    jax = require("jax", "brax")
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        numbers = np.asarray(_numbers(jax, leaf))
        if numbers.size:
            found[jax.tree_util.keystr(path)] = numbers.view(np.int32) if numbers.dtype == np.uint32 else numbers
    return found


def tree_of_arrays(tree: Any, arrays: dict[str, Array]) -> Any:
    """A tree like `tree`, with the numbers that `arrays_of_tree` gave.

    Raises:
        EnvironmentMismatchError: a leaf is missing or has another shape.
    """
    jax = require("jax", "brax")

    def restored(path: Any, leaf: Any) -> Any:
        name, own = jax.tree_util.keystr(path), _numbers(jax, leaf)
        if own.size == 0:
            return leaf
        if name not in arrays or arrays[name].shape != own.shape:
            raise EnvironmentMismatchError(
                f"the saved state has no {name} of shape {own.shape}: it is of another environment, or of another "
                "version of its simulator"
            )
        value = np.ascontiguousarray(arrays[name])
        value = value.view(np.uint32) if own.dtype == np.uint32 else value.astype(own.dtype, copy=False)
        placed = jax.numpy.array(value)
        return jax.random.wrap_key_data(placed, impl=jax.random.key_impl(leaf)) if own is not leaf else placed

    return jax.tree_util.tree_map_with_path(restored, tree)


def _numbers(jax: Any, leaf: Any) -> Any:
    """The numbers of a leaf, also of one that is a typed random key."""
    typed = hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if typed else leaf
