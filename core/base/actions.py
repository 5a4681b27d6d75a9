"""Actions in the units of agents, [-1, 1], and in those of an environment; for arrays and tensors alike."""

from __future__ import annotations

from typing import Any


def middle_and_half(low: Any, high: Any) -> tuple[Any, Any]:
    """(A,) middle and half width of bounds: what 0 stands for, and how far 1 is from it."""
    return (high + low) / 2, (high - low) / 2


def to_environment(actions: Any, low: Any, high: Any) -> Any:
    """(..., A) actions in [-1, 1] in the units of bounds (A,)."""
    middle, half = middle_and_half(low, high)
    return middle + half * actions


def to_bounds(actions: Any, low: Any, high: Any) -> Any:
    """(..., A) tensor of actions, clipped to [-1, 1], in the units of bounds (A,), none of which it leaves.

    Middle + half width is rounded, and may be the next float beyond the bound: those are clipped a second time.
    """
    return to_environment(actions.clamp(-1, 1), low, high).clamp(low, high)


def to_agent(actions: Any, low: Any, high: Any) -> Any:
    """The inverse of `to_environment`; 0 where the lowest and the highest action are one, as of a locked joint."""
    middle, half = middle_and_half(low, high)
    return (actions - middle) / (half + (half == 0))
