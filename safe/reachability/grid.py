"""A box of states with values on a regular grid, read between its points by multilinear interpolation."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError

MOST_AXES = 4
"""A grid has at most so many dimensions: each more multiplies its size by the points of one axis."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """One state variable: `points` values from `low` to `high`, both included; `high` is `low` again if periodic."""

    name: str
    low: float
    high: float
    points: int
    periodic: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"axis {self.name!r} goes from {self.low} to {self.high}; low must be below high")
        if self.points < 2:
            raise ConfigError(f"axis {self.name!r} has {self.points} points; it needs at least 2")

    @property
    def spacing(self) -> float:
        """Distance of two neighbours."""
        return (self.high - self.low) / (self.points if self.periodic else self.points - 1)


@dataclasses.dataclass(frozen=True)
class Grid:
    """Up to four axes.

    Values are tensors of shape `shape`. For interpolation they are laid out flat with the first plane of each
    periodic axis repeated behind its last, so that the corners of every cell lie at fixed distances in memory.
    """

    axes: tuple[Axis, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.axes) <= MOST_AXES:
            raise ConfigError(
                f"a grid of {len(self.axes)} dimensions can't be solved here; it must have 1 to {MOST_AXES}. Take the "
                f"states that the constraint depends on"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Points along each axis."""
        return tuple(axis.points for axis in self.axes)

    @property
    def size(self) -> int:
        """Points of the whole grid."""
        return math.prod(self.shape)

    @property
    def spacings(self) -> tuple[float, ...]:
        """Distance of two neighbours along each axis."""
        return tuple(axis.spacing for axis in self.axes)

    @property
    def cell_volume(self) -> float:
        """Volume that one point stands for."""
        return math.prod(self.spacings)

    def with_points(self, points: Sequence[int]) -> Grid:
        """The same box with other numbers of points, one for each axis.

        Raises:
            ConfigError: not one number for each axis, or below 2.
        """
        if len(points) != len(self.axes):
            names = ", ".join(axis.name for axis in self.axes)
            raise ConfigError(f"{len(points)} numbers of points are given for {len(self.axes)} axes: {names}")
        return Grid(tuple(dataclasses.replace(axis, points=count) for axis, count in zip(self.axes, points)))

    def coordinates(self, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> list[Tensor]:
        """(points,) values of each axis."""
        return [axis.low + axis.spacing * torch.arange(axis.points, dtype=dtype, device=device) for axis in self.axes]

    def states(self, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> Tensor:
        """(size, S) states of all points, the last axis fastest."""
        return torch.cartesian_prod(*self.coordinates(dtype, device)).reshape(self.size, len(self.axes))

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """Shape of the layout for interpolation."""
        return tuple(axis.points + axis.periodic for axis in self.axes)

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance in memory between neighbours along each axis, in that layout."""
        shape = self.padded_shape
        return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))

    def padded(self, values: Tensor) -> Tensor:
        """`values` of shape `shape` as the flat layout for interpolation."""
        values = values.reshape(self.shape)
        for k, axis in enumerate(self.axes):
            if axis.periodic:
                values = torch.cat((values, values.narrow(k, 0, 1)), k)
        return values.reshape(-1)

    def locate(self, states: Tensor) -> tuple[Tensor, list[Tensor]]:
        """(N,) int64 lowest corners of the cells of (N, S) states, in the flat layout, and their place inside.

        The places are S tensors (N,) in [0, 1]. States beyond an axis that is not periodic are moved to its edge.
        """
        base, places = torch.zeros(states.shape[:-1], dtype=torch.int64, device=states.device), []
        for k, (axis, stride) in enumerate(zip(self.axes, self.strides)):
            at = (states[..., k] - axis.low) / axis.spacing
            at = at - axis.points * (at / axis.points).floor() if axis.periodic else at.clamp(0, axis.points - 1)
            cell = at.floor().clamp(0, axis.points - (1 if axis.periodic else 2))
            base = base + cell.to(torch.int64) * stride
            places.append(at - cell)
        return base, places

    def interpolate(self, padded: Tensor, base: Tensor, places: Sequence[Tensor]) -> Tensor:
        """(N,) multilinear values at what `locate` gave, of `padded` values."""
        offsets = [sum(step) for step in itertools.product(*((0, stride) for stride in self.strides))]
        corners = [padded[offset:].index_select(0, base) for offset in offsets]
        for place in reversed(places):  # the corners of the last axis are neighbours in the list
            corners = [low + place * (high - low) for low, high in zip(corners[::2], corners[1::2])]
        return corners[0]

    def to_json(self) -> list[dict[str, Any]]:
        """The axes as JSON values."""
        return [dataclasses.asdict(axis) for axis in self.axes]

    @classmethod
    def from_json(cls, axes: Sequence[dict[str, Any]]) -> Grid:
        """What `to_json` gave."""
        return cls(tuple(Axis(**axis) for axis in axes))


class GridValue(nn.Module):
    """A function of the state, known on a grid: (..., S) states -> (...) values. It can be exported."""

    padded: Tensor

    def __init__(self, grid: Grid, values: Tensor) -> None:
        """`values` have the grid's shape."""
        super().__init__()
        self.grid = grid
        self.register_buffer("padded", grid.padded(values))

    @property
    def values(self) -> Tensor:
        """On the points, of the grid's shape."""
        values = self.padded.reshape(self.grid.padded_shape)
        for k, count in enumerate(self.grid.shape):
            values = values.narrow(k, 0, count)
        return values

    def forward(self, states: Tensor) -> Tensor:
        """Multilinear values; beyond the box those of its edge.

        Raises:
            EnvironmentMismatchError: a state holds NaN; the message says which. An exported file can't.
        """
        if not torch.compiler.is_compiling() and bool(states.isnan().any()):
            rows = states.reshape(-1, states.shape[-1])
            row = int(rows.isnan().any(-1).nonzero()[0])
            raise EnvironmentMismatchError(
                f"state {row} is {rows[row].tolist()}, and NaN has no value: check what the state is made from"
            )
        base, places = self.grid.locate(states.reshape(-1, states.shape[-1]))
        return self.grid.interpolate(self.padded, base, places).reshape(states.shape[:-1])
