"""Hamilton-Jacobi reachability by value iteration on a grid: the safety Bellman equation, discounted or not.

In the sign of this room, h(x) > 0 where the constraint is broken:

    avoid        V(x) = (1 - g) h(x) + g max(h(x), min_a max_d V(f(x, a, d)))
    reach-avoid  V(x) = (1 - g) max(l(x), h(x)) + g max(h(x), min(l(x), min_a max_d V(f(x, a, d))))

V <= 0 is the set from which the constraint can be kept for ever, for g = 1 (with l: from which the target {l <= 0} can
be reached, keeping it on the way). Without discount any constant above max h is a solution too, so the iteration
begins at V = h and rises to the smallest one (with l it falls from max(l, h)). V between the points is interpolated: a
semi-Lagrangian scheme. The controlled step f is a whole control period, as exact as the caller makes it: the result is
the value of the sampled system, which a filter that acts once a period needs.

Sources: Fisac et al., "Bridging Hamilton-Jacobi Safety Analysis and Reinforcement Learning", ICRA 2019; Hsu et al.,
"Safety and Liveness Guarantees through Reach-Avoid Reinforcement Learning", RSS 2021; Falcone and Ferretti,
"Semi-Lagrangian Approximation Schemes for Linear and Hamilton-Jacobi Equations", 2013.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator

import psutil
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.data.store import checked_device
from surefoot.safe.reachability.grid import Grid, GridValue

Progress = Callable[[int, float], None]
"""Called after each sweep with its number, from 1, and the largest change of a value."""
SHARE = 0.5
"""Of the free memory that a solution may take."""
BLOCK = 1 << 14
"""Points worked on at once on a CPU: their numbers fit into a core's cache, and torch starts no threads for them."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """What can happen, and what must not."""

    step: Callable[..., Tensor]
    """(N, S) states and (N, A) actions, with disturbances also (N, D), -> (N, S) states one period later."""
    h: Callable[[Tensor], Tensor]
    """(N, S) states -> (N,) constraint, broken where it is > 0."""
    actions: Tensor
    """(K, A) actions to choose among; both extremes suffice for dynamics that are affine in the action."""
    disturbances: Tensor | None = None
    """(M, D) what the worst is taken of, after the action is known."""
    target: Callable[[Tensor], Tensor] | None = None
    """(N, S) states -> (N,) l, <= 0 where the goal is reached; None: avoid for ever."""
    ends: Callable[[Tensor, Tensor], Tensor] | None = None
    """(N, S) states and (N, A) actions -> (N,) bool: the step ends the episode there: V is h, or max(l, h)."""


@dataclasses.dataclass(frozen=True)
class Solution:
    """A value function on a grid, and how it was made."""

    value: GridValue
    h: Tensor
    """The constraint on the points, of the grid's shape."""
    discount: float
    sweeps: int
    change: float
    """Largest change of a value in the last sweep."""
    converged: bool
    """Whether that is within the tolerance."""
    seconds: float

    @property
    def grid(self) -> Grid:
        """Its grid."""
        return self.value.grid

    @property
    def values(self) -> Tensor:
        """On the points, of the grid's shape."""
        return self.value.values


def memory_needed(grid: Grid, choices: int, dtype: torch.dtype) -> int:
    """Bytes that a solution takes with `choices` pairs of an action and a disturbance."""
    number = dtype.itemsize
    steps = grid.size * choices * (4 + len(grid.axes) * number)
    working = grid.size * (8 + 2 ** len(grid.axes) + 2 * len(grid.axes) + 6) * number
    return steps + working


def free_memory(device: torch.device) -> int:
    """Bytes free on a device."""
    return int(torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available)


def check_size(grid: Grid, choices: int, dtype: torch.dtype, memory: float) -> None:
    """Refuse a grid that takes more than `memory` bytes.

    Raises:
        ConfigError: it does; the message says how much it takes and names a grid that fits.
    """
    needed = memory_needed(grid, choices, dtype)
    if needed <= memory and grid.size < 2**31:
        return
    fitting = grid
    while memory_needed(fitting, choices, dtype) > memory or fitting.size >= 2**31:
        points = [max(2, int(count * 0.95)) for count in fitting.shape]
        if points == list(fitting.shape):
            raise ConfigError(f"{memory / 1e9:.2g} GB of memory are too little for any grid of {len(points)} axes")
        fitting = fitting.with_points(points)
    raise ConfigError(
        f"a grid of {' x '.join(map(str, grid.shape))} = {grid.size:,} points with {choices} actions takes "
        f"{needed / 1e9:,.1f} GB, and {memory / 1e9:,.1f} GB may be used; "
        f"{' x '.join(map(str, fitting.shape))} points ({memory_needed(fitting, choices, dtype) / 1e9:,.1f} GB) fit"
    )


class Transitions:
    """Where every point of a grid goes by every action and disturbance: cells and places in them, found once.

    The points are worked on in blocks that stay in a core's cache, side by side on torch's number of threads.
    """

    def __init__(self, problem: Problem, grid: Grid, states: Tensor) -> None:
        """`states` are the grid's, in the dtype and on the device to work on.

        Raises:
            ConfigError: the dynamics give a state of another width, or one that is not finite.
        """
        self.grid = grid
        rows = BLOCK if states.device.type == "cpu" else len(states)
        self._blocks = [_Block(problem, grid, part) for part in states.split(rows)]
        self._threads = min(len(self._blocks), torch.get_num_threads()) if states.device.type == "cpu" else 1

    def backed_up(self, values: Tensor, at_end: Tensor, combine: Callable[[Iterator[Tensor]], Tensor]) -> Tensor:
        """(size,) of what `combine` makes of the next values, an iterator of (rows,) tensors, one for each action.

        A next value is that of the worst disturbance, from (size,) `values`; after a step that ends, from `at_end`.
        """
        padded, padded_end = self.grid.padded(values), self.grid.padded(at_end)

        def one(block: _Block) -> Tensor:
            return combine(block.next_values(padded, padded_end))

        if self._threads == 1:
            return torch.cat([one(block) for block in self._blocks])
        with concurrent.futures.ThreadPoolExecutor(self._threads) as pool:
            return torch.cat(list(pool.map(one, self._blocks)))


class _Block:
    """The transitions of some of the points."""

    def __init__(self, problem: Problem, grid: Grid, states: Tensor) -> None:
        self.grid = grid
        self._steps: list[list[tuple[Tensor, list[Tensor]]]] = []
        self._ends: list[Tensor | None] = []
        disturbances = [None] if problem.disturbances is None else list(problem.disturbances.to(states))
        for action in problem.actions.to(states):
            actions = action.expand(len(states), -1)
            self._steps.append([self._located(problem, states, actions, what) for what in disturbances])
            ended = None if problem.ends is None else problem.ends(states, actions)
            self._ends.append(ended if ended is not None and bool(ended.any()) else None)

    def _located(
        self, problem: Problem, states: Tensor, actions: Tensor, disturbance: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        given = () if disturbance is None else (disturbance.expand(len(states), -1),)
        after = problem.step(states, actions, *given)
        if after.shape != states.shape:
            raise ConfigError(f"the dynamics turn states {tuple(states.shape)} into {tuple(after.shape)}")
        broken = ~after.isfinite().all(-1)
        if bool(broken.any()):
            row = int(broken.nonzero()[0])
            raise ConfigError(
                f"from state {states[row].tolist()} by action {actions[row].tolist()} the dynamics give "
                f"{after[row].tolist()}; choose a box in which they stay finite"
            )
        base, places = self.grid.locate(after)
        return base.to(torch.int32), [place.to(states.dtype) for place in places]

    def next_values(self, padded: Tensor, at_end: Tensor) -> Iterator[Tensor]:
        for reached, ended in zip(self._steps, self._ends):
            worst = _largest(self.grid.interpolate(padded, *step) for step in reached)
            if ended is not None:
                worst = torch.where(ended, _largest(self.grid.interpolate(at_end, *step) for step in reached), worst)
            yield worst


def smallest(values: Iterator[Tensor]) -> Tensor:
    """The smallest of tensors of one shape, element by element."""
    least = next(values)
    for value in values:
        least = torch.minimum(least, value)
    return least


def _largest(values: Iterator[Tensor]) -> Tensor:
    largest = next(values)
    for value in values:
        largest = torch.maximum(largest, value)
    return largest


def avoid_backup(h: Tensor, following: Tensor, discount: float) -> Tensor:
    """(1 - g) h + g max(h, V'): the discounted safety Bellman equation (Fisac et al. 2019, equation 7, sign turned)."""
    return (1 - discount) * h + discount * torch.maximum(h, following)


def reach_avoid_backup(h: Tensor, target: Tensor, following: Tensor, discount: float) -> Tensor:
    """(1 - g) max(l, h) + g max(h, min(l, V')) (Hsu et al. 2021, equation 13)."""
    return (1 - discount) * torch.maximum(target, h) + discount * torch.maximum(h, torch.minimum(target, following))


def solve(
    problem: Problem,
    grid: Grid,
    *,
    discount: float = 1.0,
    tolerance: float = 1e-6,
    max_sweeps: int = 10_000,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    memory: float | None = None,
    progress: Progress | None = None,
) -> Solution:
    """The value of a problem on a grid.

    Args:
        problem: dynamics, constraint, actions.
        grid: should reach beyond the safe set; what leaves its box has the value of its edge.
        discount: g in [0, 1].
        tolerance: stop at a sweep in which no value changes by more.
        max_sweeps: stop after so many: a finite horizon, in control periods, of a problem without discount.
        dtype: float64 or float32.
        device: where to compute.
        memory: bytes that may be taken; None: half of what is free on the device.
        progress: called after each sweep.

    Raises:
        ConfigError: a number out of range, a grid too large for the memory, dynamics or a constraint that don't fit.
        DeviceError: no such device.
    """
    if not 0 <= discount <= 1:
        raise ConfigError(f"discount is {discount}; it must lie in [0, 1]")
    if max_sweeps < 1 or not tolerance >= 0:
        raise ConfigError(f"max_sweeps is {max_sweeps} and tolerance {tolerance}; at least 1 and 0 are needed")
    place = checked_device(device)
    choices = len(problem.actions) * (1 if problem.disturbances is None else len(problem.disturbances))
    check_size(grid, choices, dtype, SHARE * free_memory(place) if memory is None else memory)
    began = time.perf_counter()
    states = grid.states(dtype, place)
    h = _on_points(problem.h, states, "the constraint h")
    target = None if problem.target is None else _on_points(problem.target, states, "the target l")
    transitions = Transitions(problem, grid, states)
    del states
    values = at_end = h if target is None else torch.maximum(h, target)
    change = float("inf")
    for sweep in itertools.count(1):
        following = transitions.backed_up(values, at_end, smallest)
        if target is None:
            new = avoid_backup(h, following, discount)
        else:
            new = reach_avoid_backup(h, target, following, discount)
        change = float((new - values).abs().max())
        values = new
        if progress is not None:
            progress(sweep, change)
        if change <= tolerance or sweep == max_sweeps:
            break
    return Solution(
        value=GridValue(grid, values.reshape(grid.shape)),
        h=h.reshape(grid.shape),
        discount=discount,
        sweeps=sweep,
        change=change,
        converged=change <= tolerance,
        seconds=time.perf_counter() - began,
    )


def _on_points(function: Callable[[Tensor], Tensor], states: Tensor, what: str) -> Tensor:
    values = function(states)
    if values.shape != states.shape[:1]:
        raise ConfigError(
            f"{what} gives shape {tuple(values.shape)} for {len(states)} states; it must be one number each"
        )
    if not bool(values.isfinite().all()):
        row = int((~values.isfinite()).nonzero()[0])
        raise ConfigError(f"{what} is {float(values[row])} at state {states[row].tolist()}; it must be finite")
    return values
