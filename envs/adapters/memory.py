"""Rows of a simulator that don't fit into its device's memory, in a sentence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from surefoot.core.base.errors import DeviceError

OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "out of memory", "Out of memory", "can't allocate memory")
"""What errors of jax, Warp and torch say where memory ends."""


@contextlib.contextmanager
def in_memory(num_envs: int) -> Iterator[None]:
    """Say in a sentence where a simulator's rows don't fit into its device's memory.

    Raises:
        DeviceError: they don't.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # jax's error is a RuntimeError, and so is torch's
        text = str(error)
        if not isinstance(error, MemoryError) and not any(sign in text for sign in OUT_OF_MEMORY):
            raise
        raise DeviceError(
            f"{num_envs:,} environments don't fit into the memory of the simulator's device "
            f"({(text.strip().splitlines() or ['out of memory'])[0][:200]}): lower envs, or leave the simulator more "
            "(docs/device_simulators.md)"
        ) from error
