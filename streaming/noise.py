"""Exploration noise of K streams, drawn a little at a time, so that no step waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from surefoot.core.base.random import generator

BLOCK = 128
"""Steps that one generator gives numbers for; part of what a seed means, so it is a constant."""
PIECE = 16
"""Steps of one stream that are drawn at once: a few microseconds."""


class ExplorationNoise:
    """Numbers of step t for each stream, by (seed, t) alone; while one block is used up the next one is drawn.

    A step elsewhere than in this block or the next, as the first one after a file was opened, draws a whole block.
    """

    def __init__(self, seeds: Sequence[int], draws: int, width: int, uniform: bool) -> None:
        """Draw the first block.

        Args:
            seeds: K, a stream each.
            draws: sets of numbers for each step.
            width: N, numbers of a set.
            uniform: on [0, 1), or else standard normal.
        """
        self.seeds, self.draws, self.width, self.uniform = tuple(seeds), draws, width, uniform
        shape = (BLOCK, draws, len(self.seeds), width)
        self._present, self._next = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._block = -1
        self._pieces = len(self.seeds) * (BLOCK // PIECE)
        self._drawn = 0  # pieces of the next block
        # One generator takes every stream's place in turn: setting its state is four times faster than making another.
        self._states = [generator(seed, "exploration").bit_generator.state for seed in self.seeds]
        self._source = generator(0, "exploration")
        self.at(0)

    def at(self, step: int, draw: int = 0) -> np.ndarray:
        """(K, N) float32 numbers of a step >= 0; valid until the block after the next is begun."""
        block, row = divmod(step, BLOCK)
        if block != self._block:
            self._turn_to(block)
        due = (row + 1) * self._pieces // BLOCK
        if due > self._drawn:
            self._draw(due)
        return self._present[row, draw]  # type: ignore[no-any-return]

    def at_beginning(self, step: int, stream: int) -> np.ndarray:
        """(N,) numbers for a stream that begins an episode by itself before that step; its others stay as they are."""
        return self._numbers(generator(self.seeds[stream], "begin", step), 1)[0, 0]  # type: ignore[no-any-return]

    def _turn_to(self, block: int) -> None:
        if block != self._block + 1:
            self._block, self._drawn = block - 1, 0
        self._draw(self._pieces)
        self._present, self._next = self._next, self._present
        self._block, self._drawn = block, 0

    def _draw(self, due: int) -> None:
        """Pieces of the next block, stream after stream, until so many are drawn."""
        while self._drawn < due:
            stream, piece = divmod(self._drawn, BLOCK // PIECE)
            if piece == 0:
                state: Any = self._states[stream]
                state["state"]["counter"][3] = self._block + 1  # where `generator` puts the block
                self._source.bit_generator.state = state
            self._next[piece * PIECE : (piece + 1) * PIECE, :, stream] = self._numbers(self._source, PIECE)
            self._drawn += 1

    def _numbers(self, source: np.random.Generator, steps: int) -> np.ndarray:
        shape = (steps, self.draws, self.width)
        if self.uniform:
            return source.random(shape, dtype=np.float32)
        return source.standard_normal(shape, dtype=np.float32)
