"""Prioritised replay: rows are drawn in proportion to how large their errors were when they were last learned from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from surefoot.core.base.errors import DataError
from surefoot.core.engine.sources import Batch, Drawn
from surefoot.online.loops.replay import NewRows, Replay

FAN = 32
"""Children of a node: few levels, each of which is a handful of operations."""


class SumTree:
    """Sums of (S, n) weights in a tree, on one device: drawing and writing take a number of operations that hardly
    depends on n.

    Each sum is that of its children as they are, so that the tree depends on nothing but the weights.
    """

    def __init__(self, seeds: int, leaves: int, device: torch.device) -> None:
        """All weights are 0."""
        sizes = [leaves]
        while sizes[-1] > 1:
            sizes.append(-(-sizes[-1] // FAN))
        padded = [-(-size // FAN) * FAN for size in sizes]
        self.nodes = torch.zeros(seeds, sum(padded), dtype=torch.float64, device=device)
        """(S, nodes) level by level, the weights first and the sum of all last."""
        self._levels = self.nodes.split(padded, 1)
        self.leaves = leaves

    @property
    def weights(self) -> Tensor:
        """(S, n); a view."""
        return self._levels[0][:, : self.leaves]

    @property
    def total(self) -> Tensor:
        """(S, 1) sums of all weights; a view."""
        return self._levels[-1][:, :1]

    def write(self, rows: Tensor, weights: Tensor) -> None:
        """Replace (S, K) weights at rows in [0, n); of a row that stands there twice the larger one counts."""
        first = self._levels[0]
        first.scatter_(1, rows, 0.0)
        first.scatter_reduce_(1, rows, weights, "amax")
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            rows = torch.div(rows, FAN, rounding_mode="floor")
            above.scatter_(1, rows, self._children(below, rows).sum(-1))

    def draw(self, uniform: Tensor) -> Tensor:
        """(S, K) rows, each with a probability in proportion to its weight, for float64 numbers in [0, 1)."""
        left = uniform * self.total
        found = torch.zeros(uniform.shape, dtype=torch.int64, device=uniform.device)
        places = torch.arange(FAN, device=uniform.device)
        for level in reversed(self._levels[:-1]):
            children = self._children(level, found)
            upto = children.cumsum(-1)
            last = torch.where(children > 0, places, 0).amax(-1)  # rounding may lead beyond it
            child = torch.minimum((upto <= left.unsqueeze(-1)).sum(-1), last)
            before = torch.where(child > 0, upto.gather(-1, (child - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1), 0.0)
            left, found = left - before, found * FAN + child
        return found

    @staticmethod
    def _children(level: Tensor, parents: Tensor) -> Tensor:
        """(S, K, FAN) what lies below (S, K) nodes of the level above."""
        groups = level.unflatten(1, (-1, FAN))
        return groups.gather(1, parents.unsqueeze(-1).expand(*parents.shape, FAN))


@dataclasses.dataclass(frozen=True)
class Priorities:
    """How errors become probabilities, and what their bias is corrected by.

    Source: Schaul, Quan, Antonoglou and Silver, "Prioritized Experience Replay" (2016).
    """

    exponent: float = 0.6
    """alpha of p^alpha: 0 is uniform."""
    correction: float = 0.4
    """beta of the importance weights at the first training step."""
    correction_steps: int = 100_000
    """Training steps over which beta rises to 1."""
    least: float = 1e-6
    """What is added to an error."""

    def beta(self, step: int) -> float:
        """At training step `step`."""
        return self.correction + (1 - self.correction) * min(1.0, step / self.correction_steps)


class PrioritisedReplay(Drawn):
    r"""Rows of a replay buffer, or rows of steps, drawn with probabilities :math:`p_i^\alpha / \sum_k p_k^\alpha`.

    The priority p of a row is the size of its last error, which `write` is given after each step, and a small number;
    that of a new row is the largest so far. Of B rows the k-th is drawn from the k-th of B equal parts of the sum, as
    in the paper. Batches have `weights`, :math:`(n P_i)^{-\beta}` over the largest of the batch.
    """

    def __init__(self, rows: Replay, priorities: Priorities, capacity: int) -> None:
        """Draw from what `rows` draws from.

        Args:
            rows: of the buffer; it gathers them.
            priorities: settings.
            capacity: the most rows of a seed that the buffer may ever have, as after a resumed run was made longer.
        """
        super().__init__(rows.stream)
        self.inner, self.buffer, self.priorities, self.capacity = rows, rows.buffer, priorities, capacity

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """As `Source.bind`."""
        super().bind(seeds, rows, device)
        self.inner.bind(seeds, rows, device)
        self.new = NewRows(self.buffer, len(seeds), device)
        self.tree = SumTree(len(seeds), max(self.capacity, self.buffer.capacity // len(seeds)), device)
        self.largest = torch.ones(len(seeds), 1, dtype=torch.float64, device=device)
        """(S, 1) the largest priority so far."""
        self._beta = torch.zeros((), dtype=torch.float64, device=device)  # changed in place: a CUDA graph reads it
        self._strata = torch.arange(rows, device=device)
        self._asked: tuple[int, Tensor] | None = None

    def rows(self, step: int) -> Tensor:
        """(S, rows) int64 indices of training step `step` >= 0: again the same while it lasts.

        Raises:
            DataError: the buffer holds no transition of some seed.
        """
        if self._asked is None or self._asked[0] != step:
            self._enter()
            if self.device.type == "cpu" and not bool((self.tree.total > 0).all()):  # a GPU is not asked
                raise DataError("no row of the buffer is a transition yet: raise algo.initial_steps")
            own = self.tree.draw((self._strata + self.drawn(step)) / self.count)
            self._beta.fill_(self.priorities.beta(step))
            self._asked = (step, self.new.of_buffer(own))
        return self._asked[1]

    def _enter(self) -> None:
        """Give the rows that came since the last step the largest priority."""
        if len(self.buffer) == 0:
            raise DataError("there are no rows to sample from: act in the environment before the first training step")
        rows = self.new.take()
        if rows is not None:
            valid = self.buffer.valid[self.new.of_buffer(rows)]
            self.tree.write(rows, (self.largest**self.priorities.exponent * valid).expand(rows.shape))

    def write(self, indices: Tensor, errors: Tensor) -> None:
        """Set the priorities of rows by what their errors were.

        Args:
            indices: (S, rows) or (rows,) as `rows` gave them.
            errors: of the same shape; their sizes count.
        """
        own = self.new.own(indices).view(len(self.seeds), -1)
        found = errors.detach().reshape(own.shape).double().abs() + self.priorities.least
        torch.maximum(self.largest, found.amax(1, keepdim=True), out=self.largest)
        self.tree.write(own, found**self.priorities.exponent)

    def gather(self, indices: Tensor, out: object = None) -> Batch:
        """The rows at `indices` (S, rows) or (rows,), and their `weights`."""
        own = self.new.own(indices).view(len(self.seeds), -1)
        held = self.tree.weights.gather(1, own)
        weights = (held.amin(1, keepdim=True) / held) ** self._beta
        return {**self.inner.gather(indices), "weights": weights.view(indices.shape).float()}

    def rows_added(self, position: int) -> dict[str, Tensor]:
        """What a checkpoint of seed `position` holds of it: the priorities, and how far rows have one."""
        return {"tree": self.tree.nodes[position], "largest": self.largest[position], "entered": self.new.entered}
