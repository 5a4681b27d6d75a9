r"""Whittle's index: what acting on an arm is worth in each of its states, arm by arm.

With a subsidy :math:`\lambda` for resting, an arm alone is a decision problem of two actions,

.. math:: V_\lambda(s) = \max\big( r_0(s) + \lambda + \gamma P_0 V_\lambda, \; r_1(s) + \gamma P_1 V_\lambda \big)(s),

and the index of s is the :math:`\lambda` at which both are worth the same there. The policy acts on the arms with the
highest indices. It makes sense where an arm is indexable: the states in which resting is best only become more as
:math:`\lambda` grows. Source: Whittle, "Restless bandits: activity allocation in a changing world" (1988).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from surefoot.core.base.errors import ConfigError, DataError

Array = np.ndarray[Any, Any]
STEPS = 200
"""Bisections at most; each halves the interval."""
TOLERANCE = 1e-12
"""Of an index, as a share of the largest value."""
GRID = 200
"""Subsidies at which the resting states are compared, beside those between the indices."""
POLICIES = 1000
"""Policy iterations at most."""


class Index(NamedTuple):
    """Of one arm."""

    values: Array
    """(S,) in the unit of rewards."""
    indexable: bool
    """Whether the resting states only become more; where not, `values` is a point where acting and resting tie."""


def whittle_index(transitions: Array, rewards: Array, discount: float) -> Index:
    """The indices of an arm's states.

    Args:
        transitions: (2, S, S) probabilities, of resting and of acting.
        rewards: (2, S) of resting and of acting.
        discount: in [0, 1).

    Raises:
        ConfigError: a discount outside of that.
        DataError: tables of other shapes, or rows that are no probabilities.
    """
    check_arm(transitions, rewards)
    if not 0 <= discount < 1:
        raise ConfigError(f"discount is {discount:g}; indices need one in [0, 1)", field="discount", code="range")
    states = rewards.shape[1]
    most = 2 * float(np.abs(rewards).max()) / (1 - discount) + 1.0
    found = np.empty(states)
    for state in range(states):
        low, high = -most, most
        for _ in range(STEPS):
            middle = (low + high) / 2
            if _advantage(transitions, rewards, discount, middle)[state] > 0:
                low = middle
            else:
                high = middle
            if high - low <= TOLERANCE * most:
                break
        found[state] = (low + high) / 2
    ordered = np.sort(found)
    span = max(1e-9, float(ordered[-1] - ordered[0]))
    between = np.concatenate(
        [np.linspace(ordered[0] - span, ordered[-1] + span, GRID), (ordered[1:] + ordered[:-1]) / 2]
    )
    between = np.sort(between[np.abs(between[:, None] - found).min(1) > 1e-9 * most])
    resting = np.stack([_advantage(transitions, rewards, discount, subsidy) <= 0 for subsidy in between])
    indexable = bool((resting == (between[:, None] >= found)).all())
    return Index(found, indexable)


def _advantage(transitions: Array, rewards: Array, discount: float, subsidy: float) -> Array:
    """(S,) value of acting less that of resting with a subsidy, by policy iteration."""
    paid = rewards + np.array([[subsidy], [0.0]])
    states = np.arange(rewards.shape[1])
    policy = np.zeros(len(states), np.int64)
    for _ in range(POLICIES):
        following = transitions[policy, states]
        values = np.linalg.solve(np.eye(len(states)) - discount * following, paid[policy, states])
        q = paid + discount * transitions @ values
        better = np.where(q.max(0) > q[policy, states] + 1e-13 * (1 + np.abs(values)), q.argmax(0), policy)
        if (better == policy).all():
            break
        policy = better
    return np.asarray(q[1] - q[0])


def check_arm(transitions: Array, rewards: Array) -> None:
    """Raise DataError for the tables of an arm that are none."""
    if rewards.ndim != 2 or len(rewards) != 2 or rewards.shape[1] < 1:
        raise DataError(
            f"rewards of an arm have shape {rewards.shape}; they must be (2, states): of resting and acting"
        )
    if transitions.shape != (2, rewards.shape[1], rewards.shape[1]):
        raise DataError(
            f"transitions of an arm have shape {transitions.shape}; they must be {(2, *[rewards.shape[1]] * 2)}"
        )
    if not (np.isfinite(transitions).all() and np.isfinite(rewards).all()):
        raise DataError("transitions or rewards of an arm hold a number that is not finite")
    off = np.abs(transitions.sum(-1) - 1) > 1e-6
    bad = np.argwhere(off | (transitions < 0).any(-1))
    if len(bad):
        action, state = map(int, bad[0])
        raise DataError(
            f"transitions of action {action} in state {state} add up to {transitions[action, state].sum():g}: they "
            "must be probabilities that add up to 1"
        )
