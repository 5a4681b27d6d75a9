"""Checks of what environments return, for runs, which stop at an error, and for the checker, which reports all.

Each function raises a `WrongReturnError` where gymnasium does not allow the value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

FLAGS = (bool, np.bool_)
NUMBERS = (float, int, np.floating, np.integer, *FLAGS)
CONSTRAINTS = ("cost", "margin")
"""Entries of a step's info that must be a number where they are."""
EXECUTED, EXECUTED_FLAG, EXECUTED_WITH_FLAG = "intervene_action", "is_intervention", "teleop_action"
"""Entries of a step's info by which a person's action is given (`envs.acting.interventions`)."""
AGREE = "make the observation space and the observations agree"


class WrongReturnError(Exception):
    """What an environment returned, and what it should return; the caller adds which environment and call it was."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(f"{what}; {advice}")
        self.what, self.advice = what, advice


def reset_parts(result: Any) -> tuple[Any, Mapping[str, Any]]:
    """Observation and info of a single environment's `reset`."""
    if not (isinstance(result, tuple) and len(result) == 2):
        raise WrongReturnError(kind(result), "return observation and info")
    return result[0], _info(result[1])


def step_parts(result: Any) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
    """Observation, reward, both flags and info of `step`; a vector environment's are of all rows."""
    if not (isinstance(result, tuple) and len(result) == 5):
        advice = "return observation, reward, terminated, truncated (once done) and info"
        raise WrongReturnError(kind(result), advice)
    return (*result[:4], _info(result[4]))


def _info(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise WrongReturnError(f"an info of {kind(value)}", "return a dict, {} where there is nothing to say")
    return value


def observation_array(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An observation that is declared to have this shape and dtype, as an array of numbers."""
    found = np.asarray(value)
    if found.shape != shape:
        raise WrongReturnError(f"an observation of shape {found.shape} where {shape} is declared", AGREE)
    fractions = dtype.kind in "iu" and found.dtype.kind == "f" and (found % 1 != 0).any()
    if found.dtype.kind not in "biuf" or fractions:
        raise WrongReturnError(f"observations that are {found.dtype} where {dtype} is declared", AGREE)
    return found


def number(what: str, value: Any, kinds: tuple[type, ...], advice: str) -> Any:
    """A value that is of one of these types or a zero-dimensional array of a number."""
    if isinstance(value, kinds):
        return value
    found = np.asarray(value)
    if found.shape != () or found.dtype.kind not in "biuf":
        raise WrongReturnError(f"{what} {kind(value)}", advice)
    return found


def executed_action(key: str, value: Any, shape: tuple[int, ...]) -> Array:
    """A person's action of this shape, as an array of numbers; of one number, with or without its dimension."""
    found = np.asarray(value)
    if found.dtype.kind not in "biuf" or (found.shape != shape and found.size != 1) or found.size != math.prod(shape):
        wanted = f"give the action that was carried out, of shape {shape}"
        raise WrongReturnError(f"info[{key!r}] = {kind(value)}", wanted)
    return found.reshape(shape)


def kind(value: Any) -> str:
    """A value in a few words: of what type it is, and of what shape."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    if isinstance(value, tuple):
        return f"{len(value)} values"
    return repr(value) if value is None or isinstance(value, NUMBERS) else type(value).__name__
