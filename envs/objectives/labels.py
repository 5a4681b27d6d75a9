"""Labels: which propositions hold in a step, by a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, nearest
from surefoot.envs.make import import_module

Array = np.ndarray[Any, Any]
Labels = Callable[[Array, Array, Array], Mapping[str, Any]]
"""(N, O) observations, (N, A) actions or (N,) choices, (N, O) next observations -> proposition -> (N,) bool."""


def labels_of(name: str) -> Labels:
    """The function that `module:function` names.

    Raises:
        ConfigError: it names none, or its module can't be imported.
    """
    module, _, function = name.partition(":")
    if not module or not all(part.isidentifier() for part in (*module.split("."), function)):
        raise ConfigError(
            f"labels={name!r} names no function: give module:function, as in my_labels:rooms", field="labels"
        )
    found = getattr(import_module(name, module), function, None)
    if not callable(found):
        raise ConfigError(f"labels={name}: {module} has no function {function!r}", field="labels")
    return found  # type: ignore[no-any-return]


def letters(
    function: Labels,
    propositions: Sequence[str],
    observations: Array,
    actions: Array,
    following: Array,
    name: str = "labels",
) -> Array:
    """(N,) int64 letters of steps: bit k is set where proposition k holds.

    Args:
        function: called once with all steps, in the environment's units; it may give more propositions.
        propositions: K names.
        observations: (N, O) float32.
        actions: (N, A) float32, or (N,) int64 choices.
        following: (N, O) float32, at an episode's end its last observation.
        name: of the function, for messages.

    Raises:
        ConfigError: it raises.
        EnvironmentMismatchError: it does not give one truth value a step for each proposition.
    """
    try:
        given = function(observations.copy(), actions.copy(), following.copy())
    except Exception as error:  # a user's own code raises what it likes
        raise ConfigError(f"{name} raised {type(error).__name__}: {error}") from error
    if not isinstance(given, Mapping):
        raise EnvironmentMismatchError(
            f"{name} gave a {type(given).__name__}; it must give a dict of proposition -> ({len(observations)},) bool"
        )
    found = np.zeros(len(observations), np.int64)
    for bit, proposition in enumerate(propositions):
        if proposition not in given:
            known = [str(one) for one in given]
            there = nearest(proposition, known) if known else "it gives none"
            raise EnvironmentMismatchError(f"{name} gives no {proposition!r}, which the objective reads; {there}")
        values = np.asarray(given[proposition])
        right = values.shape == found.shape and (
            values.dtype == np.bool_ or (values.dtype.kind in "iu" and bool(((values == 0) | (values == 1)).all()))
        )
        if not right:
            raise EnvironmentMismatchError(
                f"{name}: {proposition!r} is {values.dtype} of shape {values.shape}; it must be bool of shape "
                f"{found.shape}, one truth value a step"
            )
        found |= values.astype(np.int64) << bit
    return found
