"""Counter-based random streams: what a draw gives depends on (seed, purpose, block), never on what was drawn before.

So seed i of a run gets the same numbers alone or beside others, and a resumed run continues where it was killed
without any generator state to save. All that training and policies draw is `drawn`: one scheme of numbers on every
device (`core.base.counter`), made where they are wanted.

`generator` is a numpy generator of the same kind, for what is drawn on the host whatever the device, with methods or
for code that only numpy's have:

- seeds of environments (`envs.acting`), and what gymnasium and simulators make of them;
- the split of data, and resamples of it: held-out episodes (`runs.run`, `studies.select_model`,
  `world_models.ensemble.rows`), bootstraps and features in float64 (`offline.evaluation.least_squares_q`);
- initial weights of streaming networks, sparse by a random choice of inputs;
- latencies that are simulated (`play.execute`), and preferences that are made up (`data.comparisons`).

Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (Philox).
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base import dropout
from surefoot.core.base.counter import CounterGenerator

STEPS_PER_BLOCK = 32
"""Training steps whose noise is drawn at once; part of what a seed means, so it is a constant."""


def generator(seed: int, purpose: str, block: int = 0) -> np.random.Generator:
    """A numpy generator of its own for each (seed, purpose, block); training draws by `drawn`, not by this.

    Args:
        seed: in [0, 2**64).
        purpose: any text, e.g. "batch" or "target_noise".
        block: in [0, 2**64), e.g. a number of steps.
    """
    key = np.array([seed % 2**64, zlib.crc32(purpose.encode())], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, 0, block], dtype=np.uint64)))


def drawn(
    seeds: Sequence[int], purpose: str, block: int, device: torch.device, draw: Callable[[CounterGenerator], Tensor]
) -> Tensor:
    """(S, ...) what `draw` draws from the streams of some seeds, the same on every device.

    Args:
        seeds: S of them, in [0, 2**64).
        purpose: any text, e.g. "batch" or "target_noise".
        block: in [0, 2**64), e.g. a number of steps.
        device: where the numbers are drawn.
        draw: from a `CounterGenerator` of all seeds to a tensor.
    """
    return draw(CounterGenerator(seeds, purpose, block, device))


@dataclasses.dataclass(frozen=True)
class Noise:
    """Random numbers that a loss is handed for each row of its batch, or once for the whole of it."""

    kind: Literal["normal", "uniform", "keep", "dropped"]
    """Standard normal; uniform on [0, 1); 1 / keep with probability `keep`, else 0 (a dropout mask); or the places of
    the units that are dropped, fewer numbers than units (`core.base.dropout`)."""
    width: int
    """Numbers per row; of the kind "dropped", units per row."""
    keep: float = 1.0
    """Probability that a unit is kept, for the kinds "keep" and "dropped"."""
    whole_batch: bool = False
    """Whether all rows of a batch have the same numbers: the loss is handed (1, width)."""

    @property
    def numbers(self) -> int:
        """Random numbers per row."""
        return dropout.most_dropped(self.width, self.keep) if self.kind == "dropped" else self.width

    def draw(self, source: CounterGenerator, shape: tuple[int, ...]) -> Tensor:
        """(S, *shape, width) float32 numbers; of the kind "dropped", `core.base.dropout.most_dropped` for width.

        Args:
            source: of S seeds.
            shape: of the rows.
        """
        if self.kind == "dropped":
            return dropout.places(source, shape, self.width, self.keep)
        size = (*shape, self.width)
        if self.kind == "normal":
            return source.standard_normal(size)
        uniform = source.random(size, np.float32)
        return uniform if self.kind == "uniform" else (uniform < self.keep).to(torch.float32) / self.keep


class Stream:
    """The noise of each training step, for S seeds at once."""

    def __init__(
        self,
        seeds: list[int],
        rows: int | Mapping[str, int],
        noises: Mapping[str, Noise],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Draws `noises` for each of `rows` rows a step.

        Args:
            seeds: a stream each.
            rows: rows per step, of each name or of all.
            noises: name -> what to draw.
            device: where the tensors go.
            dtype: of the noise.
        """
        self.seeds, self.noises = seeds, dict(noises)
        self.rows = {name: rows if isinstance(rows, int) else rows[name] for name in noises}
        self.device, self.dtype = device, dtype
        self._block = -1
        self._noise: dict[str, Tensor] = {}

    def at(self, step: int) -> dict[str, Tensor]:
        """{name: (S, rows, width)} noise of training step `step` >= 0."""
        block, offset = divmod(step, STEPS_PER_BLOCK)
        if block != self._block:
            self._fill(block)
        return {name: value[:, offset] for name, value in self._noise.items()}

    def once(self, step: int, rows: int, noises: Mapping[str, Noise], of: str) -> dict[str, Tensor]:
        """{name: (S, rows, width)} numbers of a rule named `of` at training step `step` alone."""
        return {name: self._drawn(f"{of}/{name}", step, noise, (rows,)) for name, noise in noises.items()}

    def _drawn(self, purpose: str, block: int, noise: Noise, shape: tuple[int, ...]) -> Tensor:
        """(S, *shape, width) numbers."""
        found = drawn(self.seeds, purpose, block, self.device, lambda source: noise.draw(source, shape))
        return found.to(self.dtype)

    def _fill(self, block: int) -> None:
        shapes = {name: (STEPS_PER_BLOCK, rows) for name, rows in self.rows.items()}
        counts = tuple((n, math.prod(shapes[n]) * noise.numbers) for n, noise in self.noises.items())
        sources = CounterGenerator.several(self.seeds, counts, block, self.device)
        self._noise = {n: noise.draw(sources[n], shapes[n]).to(self.dtype) for n, noise in self.noises.items()}
        self._block = block
