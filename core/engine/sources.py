"""`Source`: where the rows of a batch come from. A loop hands the Learner named sources; each update names its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from surefoot.core.base.batch import Batch as Batch
from surefoot.core.base.counter import CounterGenerator
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.random import STEPS_PER_BLOCK, drawn

MAIN = "batch"
"""Name of the source that updates read where they name no other."""


class Source(Protocol):
    """Rows to learn from: which ones a training step sees, and what they hold."""

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """Called once, by the Learner: S seeds that ask for `rows` rows a training step."""
        ...

    def rows(self, step: int) -> Tensor:
        """(S, rows) int64 of training step `step` >= 0; the same whenever and wherever they are asked for."""
        ...

    def gather(self, indices: Tensor, out: Any = None) -> Batch:
        """The rows at (S, rows) or (rows,) indices; a source with `workspace(rows)` writes into `out` where given."""
        ...


class Table(Protocol):
    """What rows are gathered from: a `Store` or a `RingBuffer`."""

    def __len__(self) -> int: ...

    def gather(self, indices: Tensor, out: Any = None) -> Batch:
        """The rows at `indices`."""
        ...

    def workspace(self, shape: int) -> Any:
        """Memory that `gather` fills again and again."""
        ...


@dataclasses.dataclass(frozen=True)
class Stores:
    """What a loop has rows in: an agent makes its sources of them."""

    dataset: Any = None
    """The `Dataset` that `Agent.prepare` returned, or None."""
    data: Any = None
    """Its valid rows as a `Store`, with the columns that the agent reads, or None."""
    replay: Any = None
    """The `TransitionBuffer` that acting fills, or None."""
    corrections: Any = None
    """Another one, of the steps of it in which a person acted, or None."""
    relabelling: Any = None
    """What makes many rows of one transition (`online.loops.relabelling`), or None."""


class Drawn:
    """Base of sources that draw anew for each training step: numbers of a counter stream, a block of steps at once."""

    seeds: list[int]
    count: int
    device: torch.device

    def __init__(self, stream: str = MAIN) -> None:
        """Draw from the counter stream of this name: two sources of one agent need two names."""
        self.stream = stream
        self._block = -1
        self._steps: tuple[Tensor, ...] = ()

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """As `Source.bind`."""
        self.seeds, self.count, self.device = list(seeds), rows, device
        self._block = -1

    def drawn(self, step: int) -> Tensor:
        """(S, rows) numbers of a training step, as `draw` makes them."""
        block, offset = divmod(step, STEPS_PER_BLOCK)
        if block != self._block:
            shape = (STEPS_PER_BLOCK, self.count)
            found = drawn(self.seeds, self.stream, block, self.device, lambda source: self.draw(source, shape))
            self._steps = found.unbind(1)
            self._block = block
        return self._steps[offset]

    def draw(self, source: CounterGenerator, shape: tuple[int, ...]) -> Tensor:
        """(S, *shape) uniform float64 numbers in [0, 1), in this base.

        Args:
            source: of all seeds.
            shape: steps of a block and rows.
        """
        return source.random(shape)


class Uniform(Drawn):
    """Rows drawn uniformly, with replacement, from a table that does not change."""

    def __init__(
        self, table: Table | Callable[[Tensor], Batch], population: int | None = None, stream: str = MAIN
    ) -> None:
        """Draw from all rows of a table, or from `population` rows of what a function gathers.

        Raises:
            ConfigError: there is no row.
        """
        super().__init__(stream)
        if callable(table) and not hasattr(table, "gather"):
            self.gather: Callable[..., Batch] = lambda indices, out=None: table(indices)
            self.population = 0 if population is None else population
        else:
            self.gather = table.gather
            self.workspace = table.workspace  # type: ignore[union-attr]
            self.population = len(table) if population is None else population  # type: ignore[arg-type]
        if self.population < 1:
            raise ConfigError("there is no row to train on")

    def draw(self, source: CounterGenerator, shape: tuple[int, ...]) -> Tensor:
        """(S, *shape) int64 rows."""
        return source.integers(0, self.population, shape)

    def rows(self, step: int) -> Tensor:
        """(S, rows) int64 indices of training step `step` >= 0."""
        return self.drawn(step)


def as_sources(given: Mapping[str, Source] | Source) -> dict[str, Source]:
    """Sources by name; one alone is the main one."""
    return dict(given) if isinstance(given, Mapping) else {MAIN: given}


def joined(parts: Mapping[str, Batch], *names: str) -> Batch:
    """The rows of several sources one after another, in the order of `names` (all, where none is given).

    Args:
        parts: source -> batch, as a loss of several sources is given them; only keys that all of them have are kept.
        names: of the sources.
    """
    batches = [parts[name] for name in names or tuple(parts)]
    shared = [key for key in batches[0] if all(key in batch for batch in batches[1:])]
    return {key: torch.cat([batch[key] for batch in batches]) for key in shared}
