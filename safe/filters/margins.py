"""The margin that a filter keeps inside its safe set, measured by simulating its fallback."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.safe.filters.safety_filter import LeastRestrictive, Value
from surefoot.safe.reachability.grid import Grid

SAFETY_FACTOR = 1.5
"""By which the default margin exceeds what was found among the states that were tried."""


@dataclasses.dataclass(frozen=True)
class Margin:
    """The margin that a filter needs, and how it was found."""

    value: float
    """eps."""
    deepest: float
    """Largest -V(x_0) of a state tried from which the fallback came to break the constraint; 0 where none did."""
    states: int
    """From which the fallback was followed."""
    steps: int
    """How long."""

    def sentence(self) -> str:
        """For people."""
        return (
            f"margin {self.value:.4g}: {SAFETY_FACTOR:g} times {self.deepest:.4g}, the depth below V = 0 down to which "
            f"{self.steps} steps of the fallback broke the constraint, from {self.states:,} states near the boundary"
        )


def needed_margin(
    chosen: LeastRestrictive, grid: Grid, *, states: int = 4096, steps: int = 200, seed: int = 0, rounds: int = 4
) -> Margin:
    """How deep inside V <= 0 the fallback can still begin and break the constraint later.

    If the fallback keeps h <= 0 from every state with V <= -e, then a filter with margin e never breaks the constraint:
    each action that passed left V <= -e, and from there on there is the fallback. Sampling, interpolation and too few
    candidates all show up in e. What follows an episode's end does not count. States are drawn uniformly in the box,
    from a layer below V = 0 that is narrowed in each round to twice the depth found; the result is an estimate,
    enlarged by `SAFETY_FACTOR`.

    Args:
        chosen: the filter; its own margin is not read.
        grid: the box.
        states: how many are tried in each round.
        steps: of the fallback from each; take an episode's.
        seed: of the draws.
        rounds: of this.

    Raises:
        ConfigError: no state of the box is safe.
    """
    generator = torch.Generator().manual_seed(seed)
    band, deepest, tried = float("inf"), 0.0, 0
    for _ in range(rounds):
        near = _layer(chosen.value, grid, band, states, generator)
        if len(near) == 0:
            if tried == 0:
                raise ConfigError("no state of the box is safe, so no filter can keep the constraint")
            break  # the box has no state in the narrowed layer
        start = chosen.value(near)
        worst, at = chosen.model.h(near), near
        alive = torch.ones(len(near), dtype=torch.bool)
        for _ in range(steps):
            actions = chosen.safest(at)
            ended = chosen.model.ends(at, actions)
            at = torch.where(alive[:, None], chosen.model(at, actions), at)
            worst = torch.maximum(worst, chosen.model.h(at))
            alive &= ~ended
            if not bool(alive.any()):
                break
        broken = worst > 0
        deepest = max(deepest, float((-start[broken]).max()) if bool(broken.any()) else 0.0)
        band, tried = (2 * deepest if deepest > 0 else 0.1 * float(-start.min())), tried + len(near)
    return Margin(SAFETY_FACTOR * deepest, deepest, tried, steps)


def _layer(value: Value, grid: Grid, band: float, states: int, generator: torch.Generator) -> Tensor:
    """At most `states` states drawn uniformly from those of the box with -band <= V <= 0."""
    low = torch.tensor([axis.low for axis in grid.axes], dtype=torch.float64)
    width = torch.tensor([axis.high - axis.low for axis in grid.axes], dtype=torch.float64)
    found: list[Tensor] = []
    for _ in range(400):
        drawn = low + width * torch.rand(1 << 13, len(low), dtype=torch.float64, generator=generator)
        values = value(drawn)
        found.append(drawn[(values <= 0) & (values >= -band)])
        if sum(map(len, found)) >= states:
            break
    return torch.cat(found)[:states]
