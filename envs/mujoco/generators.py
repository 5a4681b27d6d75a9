"""PCG64 generators as rows of integers, so that a state is arrays only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

LOW = (1 << 64) - 1
ABSENT = np.iinfo(np.uint64).max  # in the column `has_uint32`: no generator yet


def pack(generators: Sequence[np.random.Generator | None]) -> Array:
    """(N, 6) uint64: state and increment in two words each, and the buffered half word."""
    rows = np.zeros((len(generators), 6), np.uint64)
    for row, generator in zip(rows, generators, strict=True):
        if generator is None:
            row[4] = ABSENT
            continue
        value: Any = generator.bit_generator.state
        state, increment = value["state"]["state"], value["state"]["inc"]
        row[:] = [state >> 64, state & LOW, increment >> 64, increment & LOW, value["has_uint32"], value["uinteger"]]
    return rows


def unpack(rows: Array) -> list[np.random.Generator | None]:
    """Inverse of `pack`."""
    generators: list[np.random.Generator | None] = []
    for row in np.asarray(rows, dtype=np.uint64).tolist():
        if row[4] == ABSENT:
            generators.append(None)
            continue
        bits = np.random.PCG64(0)
        bits.state = {
            "bit_generator": "PCG64",
            "state": {"state": row[0] << 64 | row[1], "inc": row[2] << 64 | row[3]},
            "has_uint32": row[4],
            "uinteger": row[5],
        }
        generators.append(np.random.Generator(bits))
    return generators
