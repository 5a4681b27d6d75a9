"""Restless bandits whose arms are coupled: which of the feasible sets of arms to act on, step by step.

Each of J arms moves whether it is acted on or not. A set of arms is feasible where A a <= b for its 0-1 vector a: a
budget, capacities, or any other linear rules. Small problems are solved exactly, by value iteration over the joint
states and all feasible sets. Of larger ones the set with the greatest sum of scores is found, of Whittle's indices or
of what acting earns at once, by enumeration or as an integer program (HiGHS), and policies are compared by simulation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.unpacking import read_npz
from surefoot.evaluation.statistics import Interval, hierarchical_interval
from surefoot.evaluation.whittle import Index, check_arm, whittle_index

Array = np.ndarray[Any, Any]
NAMES = ("transitions", "rewards", "discount", "budget", "matrix", "bounds", "start")
MOST_SETS = 200_000
"""Feasible sets that are enumerated; more are searched by an integer program."""
MOST_JOINT = 2_000_000
"""Joint states times feasible sets that are solved exactly."""
SLACK = 1e-9
"""Of a constraint."""
SWEEPS = 100_000


@dataclasses.dataclass(frozen=True)
class RestlessBandit:
    """J arms of S states each.

    Raises:
        DataError: tables that don't fit each other; no set is feasible.
    """

    transitions: Array
    """(J, 2, S, S) probabilities: of resting and of acting."""
    rewards: Array
    """(J, 2, S)."""
    discount: float
    """In [0, 1)."""
    matrix: Array
    """(C, J) A."""
    bounds: Array
    """(C,) b."""
    start: Array
    """(J,) int states."""

    def __post_init__(self) -> None:
        """Check everything."""
        if self.transitions.ndim != 4 or len(self.transitions) != len(self.rewards) or len(self.transitions) < 1:
            raise DataError(
                f"transitions have shape {self.transitions.shape} and rewards {self.rewards.shape}; they must be "
                "(arms, 2, states, states) and (arms, 2, states)"
            )
        for arm in range(self.arms):
            try:
                check_arm(self.transitions[arm], self.rewards[arm])
            except DataError as error:
                raise error.inside(f"arm {arm}", DataError) from error
        if not 0 <= self.discount < 1:
            raise DataError(f"discount is {self.discount:g}; it must be in [0, 1)", field="discount")
        if self.matrix.shape != (len(self.bounds), self.arms) or not np.isfinite(self.matrix).all():
            raise DataError(
                f"matrix has shape {self.matrix.shape} and bounds {self.bounds.shape}; they must be (constraints, "
                f"{self.arms}) and (constraints,) finite numbers",
                field="matrix",
            )
        if self.start.shape != (self.arms,) or not ((self.start >= 0) & (self.start < self.states)).all():
            raise DataError(f"start must be {self.arms} states, 0 to {self.states - 1}", field="start")

    @property
    def arms(self) -> int:
        """J."""
        return len(self.transitions)

    @property
    def states(self) -> int:
        """S."""
        return int(self.rewards.shape[-1])

    def indices(self) -> list[Index]:
        """Whittle's, arm by arm."""
        return [whittle_index(p, r, self.discount) for p, r in zip(self.transitions, self.rewards, strict=True)]

    def feasible(self, most: int = MOST_SETS) -> Array | None:
        """(F, J) bool: all feasible sets; None where there may be more than `most`.

        Raises:
            DataError: there is none.
        """
        if 2**self.arms > most:
            return None
        every = np.array(list(itertools.product((False, True), repeat=self.arms)))
        found = every[(every @ self.matrix.T <= self.bounds + SLACK).all(1)]
        if len(found) == 0:
            raise DataError("no set of arms satisfies the constraints, not even the empty one")
        return found

    def best_set(self, scores: Array, sets: Array | None = None) -> Array:
        """(J,) bool: the feasible set with the greatest sum of (J,) scores.

        Args:
            scores: of acting on each arm.
            sets: (F, J) as `feasible` gave them; None: an integer program is solved.

        Raises:
            DataError: no set is feasible, or the program was not solved.
        """
        if sets is not None:
            return np.asarray(sets[(sets @ scores).argmax()])
        from scipy.optimize import Bounds, LinearConstraint, milp

        ones = np.ones(self.arms)
        rule = LinearConstraint(self.matrix, -np.inf, self.bounds)
        with _without_lines():
            found = milp(-scores, integrality=ones, bounds=Bounds(0 * ones, ones), constraints=rule)
        if found.x is None:
            raise DataError(f"no set of arms was found: {found.message}")
        return np.asarray(found.x > 0.5)


@contextlib.contextmanager
def _without_lines() -> Iterator[None]:
    """Lead standard output to nowhere inside: HiGHS writes lines of its own there, whatever it is asked."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


@dataclasses.dataclass(frozen=True)
class Solved:
    """The joint problem, solved."""

    values: Array
    """(S,) * J optimal values."""
    policy: Array
    """(S,) * J numbers of feasible sets."""
    sets: Array
    """(F, J) bool."""


def solve(bandit: RestlessBandit) -> Solved | None:
    """Value iteration over joint states and feasible sets; None where there are too many (`MOST_JOINT`)."""
    sets = bandit.feasible()
    if sets is None or bandit.states**bandit.arms * len(sets) > MOST_JOINT:
        return None
    values = np.zeros((bandit.states,) * bandit.arms)
    earned = np.stack([_earned(bandit, chosen) for chosen in sets])
    largest = max(1.0, float(np.abs(earned).max()) / (1 - bandit.discount))
    for _ in range(SWEEPS):
        q = earned + bandit.discount * np.stack([_expected(bandit, chosen, values) for chosen in sets])
        before, values = values, q.max(0)
        if np.abs(values - before).max() <= 1e-12 * largest:
            return Solved(values, q.argmax(0), sets)
    raise DataError(f"values have not converged after {SWEEPS:,} sweeps: take a smaller discount")


def values_of(bandit: RestlessBandit, solved: Solved, scores: Callable[[Array], Array]) -> Array:
    """(S,) * J values of acting on the feasible set with the greatest sum of scores.

    Args:
        bandit: the problem.
        solved: of it.
        scores: (J,) states -> (J,) scores.
    """
    chosen = np.empty(solved.values.shape, np.int64)
    for states in np.ndindex(*chosen.shape):
        chosen[states] = (solved.sets @ scores(np.array(states))).argmax()
    earned = np.stack([_earned(bandit, one) for one in solved.sets])
    values = np.zeros_like(solved.values)
    scale = max(1.0, float(np.abs(solved.values).max()))
    for _ in range(SWEEPS):
        q = earned + bandit.discount * np.stack([_expected(bandit, one, values) for one in solved.sets])
        before, values = values, np.take_along_axis(q, chosen[None], 0)[0]
        if np.abs(values - before).max() <= 1e-12 * scale:
            break
    return values


def _earned(bandit: RestlessBandit, chosen: Array) -> Array:
    """(S,) * J summed rewards of a set."""
    total = np.zeros((bandit.states,) * bandit.arms)
    for arm, acted in enumerate(chosen):
        shape = [1] * bandit.arms
        shape[arm] = bandit.states
        total = total + bandit.rewards[arm, int(acted)].reshape(shape)
    return total


def _expected(bandit: RestlessBandit, chosen: Array, values: Array) -> Array:
    """(S,) * J expected values after a set: the arms move apart from each other."""
    for arm, acted in enumerate(chosen):
        values = np.moveaxis(np.tensordot(bandit.transitions[arm, int(acted)], values, (1, arm)), 0, arm)
    return values


def policies(bandit: RestlessBandit, indices: list[Index]) -> dict[str, Callable[[Array], Array]]:
    """Name -> (J,) states to (J,) scores: Whittle's indices; what acting earns more at once; nothing."""
    arms = np.arange(bandit.arms)
    table = np.stack([one.values for one in indices])
    gain = bandit.rewards[:, 1] - bandit.rewards[:, 0]
    return {
        "index": lambda states: table[arms, states],
        "myopic": lambda states: gain[arms, states] + myopic_gain(bandit)[arms, states],
        "rest": lambda states: np.full(bandit.arms, -1.0),
    }


def myopic_gain(bandit: RestlessBandit) -> Array:
    """(J, S) by how much acting raises the reward of resting one step later, discounted."""
    after = np.einsum("jast,jt->jas", bandit.transitions, bandit.rewards[:, 0])
    return np.asarray(bandit.discount * (after[:, 1] - after[:, 0]))


def simulate(
    bandit: RestlessBandit, scores: Callable[[Array], Array], episodes: int, steps: int, seed: int = 0
) -> Interval:
    """Discounted return of acting on the best feasible set by scores, over episodes from the start.

    Args:
        bandit: the problem.
        scores: (J,) states -> (J,) scores.
        episodes: at least 1.
        steps: of each.
        seed: of the arms' moves, which are the same for all policies that act alike.

    Raises:
        ConfigError: fewer than one episode or step.
    """
    if episodes < 1 or steps < 1:
        raise ConfigError(f"{episodes} episodes of {steps} steps; give 1 or more of each")
    sets, known = bandit.feasible(), {}
    states = np.tile(bandit.start, (episodes, 1))
    arms, returns = np.arange(bandit.arms), np.zeros(episodes)
    generator = np.random.default_rng(seed)
    summed = np.cumsum(bandit.transitions, -1)
    for step in range(steps):
        actions = np.empty((episodes, bandit.arms), np.int64)
        for row, here in enumerate(states):
            key = here.tobytes()
            if key not in known:
                known[key] = bandit.best_set(scores(here), sets).astype(np.int64)
            actions[row] = known[key]
        returns += bandit.discount**step * bandit.rewards[arms, actions, states].sum(1)
        draws = generator.uniform(size=(episodes, bandit.arms, 1))
        states = np.minimum((draws >= summed[arms, actions, states]).sum(-1), bandit.states - 1)
    made = hierarchical_interval([returns])
    return dataclasses.replace(made, method="Student's t over episodes")


def load_bandit(
    path: str | os.PathLike[str], discount: float | None = None, budget: int | None = None
) -> RestlessBandit:
    """A problem of an .npz file.

    `transitions` (J, 2, S, S), `rewards` (J, S) or (J, 2, S), and where there are any `discount`, `budget` (how many
    arms at most), `matrix` (C, J) with `bounds` (C,), and `start` (J,).

    Args:
        path: of the file.
        discount: in place of the file's; 0.99 where neither says.
        budget: in place of the file's.

    Raises:
        DataError: no such file, a damaged one, or wrong tables; names the file.
        ConfigError: a budget below 0, or neither a budget nor a matrix.
    """
    path = pathlib.Path(path)
    try:
        arrays, names = read_npz(path, NAMES.__contains__, DataError, as_is=lambda name: True)
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file") from error
    for name in NAMES[:2]:
        if name not in arrays:
            raise DataError(f"{path}: has no {name!r}, it holds {', '.join(sorted(names)) or 'nothing'}", field=name)
    if ("matrix" in arrays) != ("bounds" in arrays):
        raise DataError(f"{path}: matrix and bounds belong together; it has one of them", field="matrix")
    transitions, rewards = (np.asarray(arrays[name], np.float64) for name in NAMES[:2])
    if rewards.ndim == 2:
        rewards = np.repeat(rewards[:, None], 2, 1)
    arms = len(transitions)
    rows, bounds = [], []
    if "matrix" in arrays:
        matrix, limits = np.asarray(arrays["matrix"]), np.asarray(arrays["bounds"])
        if matrix.shape != (len(limits) if limits.ndim == 1 else -1, arms):
            raise DataError(
                f"{path}: matrix has shape {matrix.shape} and bounds {limits.shape}; they must be (constraints, "
                f"{arms}) and (constraints,)",
                field="matrix",
            )
        rows, bounds = list(matrix), list(limits)
    allowed = budget if budget is not None else (int(arrays["budget"]) if "budget" in arrays else None)
    if allowed is not None:
        if allowed < 0:
            raise ConfigError(f"budget is {allowed}; it must be 0 or more", field="budget", code="range")
        rows, bounds = [*rows, np.ones(arms)], [*bounds, allowed]
    if not rows:
        raise ConfigError(f"{path}: has neither a budget nor a matrix: say how many arms may be acted on at once")
    given = discount if discount is not None else float(arrays["discount"]) if "discount" in arrays else 0.99
    start = np.asarray(arrays.get("start", np.zeros(arms)), np.int64)
    try:
        return RestlessBandit(
            transitions, rewards, given, np.asarray(rows, np.float64), np.asarray(bounds, np.float64), start
        )
    except (DataError, ValueError) as error:
        raise DataError(f"{path}: {error}") from error
