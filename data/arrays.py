"""`from_arrays`: a checked `Dataset` from arrays in memory, by the rules by which files of the same arrays are read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, DataError, nearest
from surefoot.core.base.spec import VECTOR, named
from surefoot.data.checks import check_id, refuse_oddities
from surefoot.data.choices import CHOICES
from surefoot.data.dataset import ACTION_HIGH, ACTION_LOW, NO_REWARDS, REWARDS, Dataset
from surefoot.data.formats.flat import KEYS, Source
from surefoot.data.formats.npz import ALIASES, EXTRAS, of_names

Array = np.ndarray[Any, Any]


def from_arrays(
    observations: Any,
    actions: Any,
    rewards: Any = None,
    terminals: Any = None,
    timeouts: Any = None,
    *,
    terminations: Any = None,
    truncations: Any = None,
    next_observations: Any = None,
    costs: Any = None,
    env_id: str | None = None,
    max_episode_steps: int | None = None,
    action_low: Any = None,
    action_high: Any = None,
    choices: int | None = None,
    name: str = "arrays",
    strict: bool = False,
    **others: Any,
) -> Dataset:
    """The dataset of N steps in the order of time, episode after episode, as of an NPZ file of these arrays.

    Numbers of any type become float32; arrays that are float32 already are not copied. What that loses of 64-bit
    numbers with a large offset is counted in the warnings, which name the column and the offset to subtract
    (`core.base.precision`). Give at least one of `terminals`, `timeouts` and `max_episode_steps`, so that episodes end.
    What followed the last step of an episode that was cut off is known from `next_observations` alone: without it that
    row is learned from by algorithms that read no next observation, such as clones. Pairs without an order in time are
    episodes of one step each: max_episode_steps=1.

    Args:
        observations: (N, O) numbers, (N, ...) images of uint8 or bool, or a mapping of such arrays by name.
        actions: (N, A) in the environment's units.
        rewards: (N,); None: the log has none, and can only be cloned.
        terminals: (N,) 0 or 1: the task itself ended at this step; None: it never did.
        timeouts: (N,) 0 or 1: the episode was cut off after this step.
        terminations: another name of `terminals`.
        truncations: another name of `timeouts`.
        next_observations: as `observations`: what followed each step.
        costs: (N,) of constraints.
        env_id: gymnasium id of the environment that they were recorded in.
        max_episode_steps: the time limit, where `timeouts` are not there.
        action_low: lowest action that the actuators take, one number or one for each of the A: what a policy without
            a simulator may command at least; None: nothing states it.
        action_high: highest action, likewise.
        choices: how many discrete actions there are, of which `actions` hold the number, from 0 on, or one-hot rows;
            None: as many as the highest says, where they are a few whole numbers of an integer type, else continuous.
        name: what errors and runs call the data.
        strict: refuse what is otherwise accepted and counted in `Dataset.warnings`.
        others: further arrays under the names of docs/data.md: `margins`, `valid`, `extras/NAME`, ...

    Raises:
        ConfigError: a name that is not read, or an environment in place of its id.
        DataError: nothing says where episodes end, or arrays are no numbers, inconsistent or not finite; it names the
            array and the first such row. With `strict`, oddities.
    """
    check_id(env_id)
    columns = {"actions": actions, "rewards": rewards, "terminals": terminals, "timeouts": timeouts, "costs": costs}
    given = columns | {"terminations": terminations, "truncations": truncations} | others
    for key, parts in ((VECTOR, observations), (f"next_{VECTOR}", next_observations)):
        given |= named(key, parts)
    for key in others:
        if key not in KEYS and not key.startswith(EXTRAS):
            known = [*KEYS, *ALIASES]
            raise ConfigError(
                f"from_arrays reads no {key!r}: {nearest(key, known)}; a further column is given as {EXTRAS + key!r}"
            )
    arrays = {key: _array(name, key, value) for key, value in given.items() if value is not None}
    attributes: dict[str, Any] = {} if env_id is None else {"env_id": env_id}
    if not {"terminals", "timeouts", *ALIASES} & set(arrays) and max_episode_steps is None:
        raise DataError(
            f"{name}: nothing says where episodes end: give 'terminals' (1 where the task itself ended), 'timeouts' (1 "
            "where an episode was cut off) or both, or max_episode_steps, which is 1 for pairs without an order"
        )
    if not {"terminals", "terminations"} & set(arrays):
        arrays["terminals"] = np.zeros(arrays["actions"].shape[:1], bool)
    if "rewards" not in arrays:
        arrays["rewards"] = np.zeros(arrays["actions"].shape[:1], np.float32)
        attributes[REWARDS] = NO_REWARDS
    for key, bound in ((ACTION_LOW, action_low), (ACTION_HIGH, action_high)):
        if bound is not None:
            attributes[key] = json.dumps(np.asarray(bound).tolist(), default=str)
    if choices is not None:
        attributes[CHOICES] = choices
    source = Source(name, max_episode_steps=max_episode_steps).with_attributes(attributes)
    dataset = of_names(arrays, source, names=arrays)
    _ = dataset.action_range  # refused here, where it is stated
    if strict:
        refuse_oddities(dataset, name)
    return dataset


def _array(name: str, key: str, value: Any) -> Array:
    """What is given as an array.

    Raises:
        DataError: it is none.
    """
    if np.ma.is_masked(value):  # an array of it would hold whatever lies below the mask
        row = int(np.nonzero(np.ma.getmaskarray(value))[0][0])
        raise DataError(
            f"{name}: {key!r} is masked in row {row} and {np.ma.count_masked(value)} values in all; fill them in "
            "(value.filled) or leave those episodes out"
        )
    try:
        found = np.asarray(value)
        return found.view(np.uint8) if found.dtype == np.bool_ and found.ndim > 2 else found  # masks, planes
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; tensors on a GPU, or with a gradient
        raise DataError(f"{name}: {key!r} is no array of numbers: {error}") from error
