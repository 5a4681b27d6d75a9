"""A problem with few states and actions, written out: its tables, their file, and its exact optimal values."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

import numpy as np

from surefoot.core.base.errors import DataError
from surefoot.core.base.unpacking import read_npz

Array = np.ndarray[Any, Any]
TABLES = ("transitions", "rewards", "start", "discount", "horizon")
"""Names of the arrays in a file; the first two are needed."""
ROUNDING = 1e-6
"""How far probabilities may be from adding up to 1."""
MOST_SWEEPS = 300_000


@dataclasses.dataclass(frozen=True)
class FiniteMDP:
    """S states, A actions in each, and what follows.

    Raises:
        DataError: tables of other shapes, a number that is not finite or out of range, with its place.
    """

    transitions: Array
    """(S, A) whole numbers: the state that follows, -1 where the episode ends; or (S, A, S) probabilities, what is
    missing to 1 being that of an end."""
    rewards: Array
    """(S, A) float64: expected reward of a step."""
    start: Array | None = None
    """(S,) probabilities of an episode's first state; None: it is state 0."""
    discount: float | None = None
    """In [0, 1]; None where the file has none."""
    horizon: int | None = None
    """Steps after which every episode ends; None: it has none."""

    def __post_init__(self) -> None:
        """Check everything, and hold float64 and int64."""
        rewards, transitions = np.asarray(self.rewards), np.asarray(self.transitions)
        if rewards.ndim != 2 or 0 in rewards.shape:
            raise DataError(
                f"rewards have shape {rewards.shape}; they must be (states, actions), at least one of each",
                field="rewards",
            )
        states, actions = rewards.shape
        _finite("rewards", rewards)
        if transitions.shape == rewards.shape and transitions.dtype.kind in "iu":
            outside = np.argwhere((transitions < -1) | (transitions >= states))
            if len(outside):
                s, a = map(int, outside[0])
                raise DataError(
                    f"transitions[{s}, {a}] is {transitions[s, a]}; it must be a state, 0 to {states - 1}, or -1 "
                    "where the episode ends",
                    field="transitions",
                )
            object.__setattr__(self, "transitions", transitions.astype(np.int64))
        elif transitions.shape == (states, actions, states):
            _finite("transitions", transitions)
            total = transitions.sum(-1)
            bad = np.argwhere((transitions.min(-1) < 0) | (total > 1 + ROUNDING))
            if len(bad):
                s, a = map(int, bad[0])
                raise DataError(
                    f"transitions[{s}, {a}] adds up to {total[s, a]:g}, with {transitions[s, a].min():g} as the least; "
                    "probabilities are 0 or more and add up to 1, or to less where episodes end",
                    field="transitions",
                )
            object.__setattr__(self, "transitions", transitions.astype(np.float64))
        else:
            raise DataError(
                f"transitions are {transitions.dtype} of shape {transitions.shape}, rewards of {rewards.shape}: give "
                f"{(states, actions)} whole numbers, the states that follow, or {(states, actions, states)} "
                "probabilities",
                field="transitions",
            )
        object.__setattr__(self, "rewards", rewards.astype(np.float64))
        if self.start is not None:
            start = np.asarray(self.start, np.float64)
            if start.shape != (states,) or not (start >= 0).all() or abs(start.sum() - 1) > ROUNDING:
                raise DataError(
                    f"start has shape {start.shape} and adds up to {start.sum():g}; it must be {states} probabilities "
                    "that add up to 1",
                    field="start",
                )
            object.__setattr__(self, "start", start)
        if self.discount is not None and not 0 <= self.discount <= 1:
            raise DataError(f"discount is {self.discount:g}; it must be in [0, 1]", field="discount")
        if self.horizon is not None and self.horizon < 1:
            raise DataError(f"horizon is {self.horizon}; it must be at least 1", field="horizon")

    @property
    def states(self) -> int:
        """S."""
        return int(self.rewards.shape[0])

    @property
    def actions(self) -> int:
        """A."""
        return int(self.rewards.shape[1])

    @property
    def deterministic(self) -> bool:
        """Whether `transitions` are states; probabilities of 0 and 1 are taken as `as_deterministic` takes them."""
        return self.transitions.ndim == 2

    @property
    def first(self) -> Array:
        """(S,) probabilities of an episode's first state."""
        if self.start is not None:
            return self.start
        return np.eye(1, self.states)[0]

    def as_deterministic(self) -> FiniteMDP:
        """The same with states that follow in place of probabilities, where all of these are 0 or 1.

        Raises:
            DataError: a step may lead to several states.
        """
        if self.deterministic:
            return self
        sure = np.isin(self.transitions, (0.0, 1.0)).all(-1)
        if not sure.all():
            s, a = map(int, np.argwhere(~sure)[0])
            raise DataError(f"action {a} of state {s} leads to one of several states: the table is not deterministic")
        following = np.where(self.transitions.sum(-1) > 0, self.transitions.argmax(-1), -1)
        return dataclasses.replace(self, transitions=following)

    def expected(self, values: Array) -> Array:
        """(S, A) expected value of the state that follows, of (S,) values; an end is worth 0."""
        if self.deterministic:
            return np.append(values, 0.0)[self.transitions]
        found: Array = self.transitions @ values
        return found

    def reachable(self, policy: Array | None = None) -> Array:
        """(S,) bool: states that an episode can come to from its start.

        Args:
            policy: (S, A) bool of the actions that may be taken; None: all.
        """
        taken = np.ones_like(self.rewards, bool) if policy is None else policy
        found = self.first > 0
        while True:
            here = taken & found[:, None]
            if self.deterministic:
                after = found.copy()
                after[np.unique(self.transitions[here & (self.transitions >= 0)])] = True
            else:
                after = found | (self.transitions[here] > 0).any(0)
            if (after == found).all():
                return found
            found = after


def optimal_values(mdp: FiniteMDP, discount: float, temperature: float = 0.0, tolerance: float = 1e-12) -> Array:
    r"""(S, A) fixed point of :math:`Q = R + \gamma P v(Q)`.

    With temperature 0, v is the maximum over actions; above it, :math:`\alpha \log \sum_a e^{Q(s, a) / \alpha}`, whose
    optimal policy is the softmax of :math:`Q / \alpha` (Haarnoja et al., 2017).

    Args:
        mdp: the problem; its own discount and horizon are not read.
        discount: in [0, 1); 1 where every episode ends by itself.
        temperature: alpha >= 0, in the unit of rewards.
        tolerance: of the greatest change in a sweep, as a share of the largest value.

    Raises:
        DataError: it does not converge, as with a discount of 1 where an episode never ends.
    """
    q = mdp.rewards
    for _ in range(MOST_SWEEPS):
        before, q = q, mdp.rewards + discount * mdp.expected(soft_maximum(q, temperature))
        if np.abs(q - before).max() <= tolerance * max(1.0, np.abs(q).max()):
            return q
    raise DataError(
        f"values have not converged after {MOST_SWEEPS:,} sweeps at a discount of {discount:g}: take a smaller one"
    )


def soft_maximum(q: Array, temperature: float) -> Array:
    """(S,) maximum over actions, or with a temperature above 0 its soft form, of (S, A) values."""
    top = q.max(-1)
    if temperature == 0:
        return np.asarray(top)
    return np.asarray(top + temperature * np.log(np.exp((q - top[:, None]) / temperature).sum(-1)))


def softmax_policy(q: Array, temperature: float) -> Array:
    """(S, A) probabilities proportional to exp(Q / temperature), which is above 0."""
    weights = np.exp((q - q.max(-1, keepdims=True)) / temperature)
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def policy_values(mdp: FiniteMDP, policy: Array, discount: float) -> Array:
    """(S,) values of a policy of (S, A) probabilities, solved exactly.

    Raises:
        DataError: with a discount of 1, an episode that never ends.
    """
    rewards = (policy * mdp.rewards).sum(-1)
    if mdp.deterministic:
        following = np.zeros((mdp.states, mdp.states + 1))
        rows = np.repeat(np.arange(mdp.states), mdp.actions)
        np.add.at(following, (rows, mdp.transitions.reshape(-1)), policy.reshape(-1))
        following = following[:, :-1]
    else:
        following = np.einsum("sa,sat->st", policy, mdp.transitions)
    try:
        return np.linalg.solve(np.eye(mdp.states) - discount * following, rewards)
    except np.linalg.LinAlgError as error:
        raise DataError(f"at a discount of {discount:g} a policy never ends: take a smaller one") from error


def load_mdp(path: str | os.PathLike[str]) -> FiniteMDP:
    """The tables of an .npz file: `transitions`, `rewards`, and where they are known `start`, `discount`, `horizon`.

    `start` is (S,) probabilities, or the number of the first state.

    Raises:
        DataError: there is no such file, it is damaged, lacks a table, or a table is wrong; names both.
    """
    path = pathlib.Path(path)
    try:
        arrays, names = read_npz(path, lambda name: name in TABLES, DataError, as_is=lambda name: True)
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file") from error
    for name in TABLES[:2]:
        if name not in arrays:
            held = ", ".join(sorted(names)) or "nothing"
            raise DataError(
                f"{path}: has no {name!r}, it holds {held}; a table has transitions and rewards", field=name
            )
    given: dict[str, Any] = {name: arrays[name] for name in TABLES[:2]}
    for name in TABLES[2:]:
        if name not in arrays:
            continue
        value = arrays[name]
        if name != "start" or value.ndim == 0:
            if value.size != 1 or value.dtype.kind not in "iuf" or (name != "discount" and value.dtype.kind == "f"):
                kind = "a number" if name == "discount" else "a whole number"
                raise DataError(
                    f"{path}: {name!r} is {value.dtype} of shape {value.shape}; it must be {kind}", field=name
                )
            value = value.reshape(()).item()
        if name == "start" and isinstance(value, int):
            states = len(given["rewards"]) if given["rewards"].ndim else 0
            if not 0 <= value < states:
                raise DataError(f"{path}: start is {value}; it must be a state, 0 to {states - 1}", field=name)
            value = np.eye(states)[value]
        given[name] = value
    try:
        return FiniteMDP(**given)
    except DataError as error:
        raise error.inside(path, DataError) from error


def _finite(name: str, values: Array) -> None:
    if values.dtype.kind not in "biuf":
        raise DataError(f"{name} are of type {values.dtype}; they must be numbers", field=name)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        place = ", ".join(map(str, bad[0]))
        raise DataError(f"{name}[{place}] is {values[tuple(bad[0])]}; it must be a finite number", field=name)
