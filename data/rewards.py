"""Rewards of a log by a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.precision import beginning, warnings_of
from surefoot.core.base.spec import mapped
from surefoot.data.checks import check_finite
from surefoot.data.dataset import BEST_RETURN, NAMED, REWARDS, Dataset

Array = np.ndarray[Any, Any]
Reward = Callable[[Any, Array, Any], Any]
"""(observations, actions, next observations), all N rows of each -> (N,) rewards. Several arrays come as a dict."""


@runtime_checkable
class EndsToo(Protocol):
    """A reward that says where episodes end too."""

    name: str

    def labelled(self, dataset: Dataset) -> Dataset:
        """The dataset with its rewards and ends."""
        ...


def name_of(reward: Reward | EndsToo) -> str:
    """`module:function`, as attributes keep it."""
    if isinstance(reward, EndsToo):
        return reward.name
    return f"{getattr(reward, '__module__', '?')}:{getattr(reward, '__qualname__', type(reward).__name__)}"


def rewarded(dataset: Dataset, reward: Reward | EndsToo, name: str) -> Dataset:
    """The dataset with the rewards that a function gives to all its steps at once.

    Args:
        dataset: whose rewards, if it has any, are replaced.
        reward: called once with copies of (N, O) observations, (N, A) actions and (N, O) next observations, numpy
            float32 in the log's units; of images and named arrays with dicts of them. Where the next observation is
            not known, it is the observation itself. Or one that says where episodes end too.
        name: of the function, kept in the attributes.

    Raises:
        ConfigError: it raises.
        DataError: it gives anything but N finite numbers.
    """
    if isinstance(reward, EndsToo):
        return reward.labelled(dataset)
    observations, following = _both(dataset)
    try:
        given = reward(mapped(np.copy, observations), dataset.actions.copy(), mapped(np.copy, following))
        values = np.asarray(given)
    except Exception as error:  # a user's own code raises what it likes
        raise ConfigError(f"reward={name} raised {type(error).__name__}: {error}") from error
    if values.shape != (len(dataset),) or values.dtype.kind not in "biuf":
        raise DataError(
            f"reward={name} gave {values.dtype} of shape {values.shape} for {len(dataset)} steps; it must give one "
            f"number a step, ({len(dataset)},)"
        )
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(values, np.float32)
    check_finite(f"reward={name}", "rewards", single)
    warnings = {what: count for what, count in dataset.warnings.items() if not what.startswith(beginning("rewards"))}
    warnings |= warnings_of({"rewards": values})
    attributes = {key: value for key, value in dataset.attributes.items() if key != BEST_RETURN}  # of other rewards
    attributes[REWARDS] = name
    return dataset.replace(rewards=single, attributes=attributes, warnings=warnings)


def _both(dataset: Dataset) -> tuple[Any, Any]:
    if dataset.observation_dim:
        return dataset.observations, dataset.next_observations
    keys = [key.removeprefix(NAMED) for key in dataset.extras if key.startswith(NAMED)]
    before, after = ({key: dataset.extras[f"{which}{NAMED}{key}"] for key in keys} for which in ("", "next_"))
    return before, after
