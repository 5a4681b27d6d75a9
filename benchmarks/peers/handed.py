"""Random numbers that both codes are handed where steps are compared, so that losses with noise compare exactly.

By name, where the runner knows which of our noises a draw is. By row, where it only sees that so many numbers a row of
the batch are asked for, in whatever shape: each row has one line of numbers a training step, and a request takes the
first of them, so that one action of three numbers is the beginning of ten actions. Needs numpy only.
"""

import functools
import zlib

import numpy as np

ROWS, WIDTH = 256, 256
"""Rows of a batch, and the most numbers that a row of it is asked for."""


def by_name(name: str, kind: str, step: int, rows: int, width: int) -> np.ndarray:
    """(rows, width) float32 numbers of one of our noises, "normal" (standard) or "uniform" (on [0, 1))."""
    source = np.random.default_rng([zlib.crc32(name.encode()), step])
    if kind == "normal":
        return source.standard_normal((rows, width), dtype=np.float32)
    return source.random((rows, width), dtype=np.float32)


@functools.lru_cache(maxsize=4)
def lines(kind: str, step: int) -> np.ndarray:
    """(256, 256) float32 numbers of a training step, "normal" (standard) or "uniform" (on [0, 1))."""
    source = np.random.default_rng([step, 0 if kind == "normal" else 1])
    if kind == "normal":
        return source.standard_normal((ROWS, WIDTH), dtype=np.float32)
    return source.random((ROWS, WIDTH), dtype=np.float32)


def numbers(kind: str, step: int, rows: int, width: int) -> np.ndarray:
    """(rows, width) numbers; a batch of more than 256 rows repeats the lines.

    Raises:
        SystemExit: more numbers a row than a line has.
    """
    if width > WIDTH:
        raise SystemExit(f"{width} random numbers a row are asked for, a line has {WIDTH}: raise handed.WIDTH")
    return lines(kind, step)[np.arange(rows) % ROWS, :width]


def shaped(kind: str, step: int, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers in a shape of which one axis is the rows: of 256 the first, or the second of three.

    A first axis of n times 256 has n places for each row, one after the other.
    """
    if len(shape) == 3 and shape[0] != ROWS and shape[1] == ROWS:
        return numbers(kind, step, ROWS, shape[0] * shape[2]).reshape(ROWS, shape[0], shape[2]).swapaxes(0, 1)
    if len(shape) == 2 and shape[0] > ROWS and shape[0] % ROWS == 0:
        return numbers(kind, step, ROWS, shape[0] // ROWS * shape[1]).reshape(shape)
    return numbers(kind, step, shape[0], int(np.prod(shape[1:]))).reshape(shape)
