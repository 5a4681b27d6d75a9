"""Several choices at once as one number: MultiDiscrete, MultiBinary, and Discrete that is not counted from 0."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import EnvironmentMismatchError

MOST = 4096
"""Combinations that a policy chooses among: each is an output of its network."""
Env = gymnasium.Env[Any, Any]


class DiscreteActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """An environment whose actions are numbers 0 to K - 1, each a combination of the wrapped one's choices.

    The last choice varies fastest, as numpy's `unravel_index` counts: of MultiDiscrete([2, 3]), 4 is (1, 1).

    Args:
        env: with actions of a MultiDiscrete, MultiBinary or Discrete.

    Raises:
        EnvironmentMismatchError: there are more than `MOST` combinations.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        space: Any = env.action_space
        self.sizes: tuple[int, ...]
        self.shape: tuple[int, ...]
        if isinstance(space, gymnasium.spaces.Discrete):
            self.sizes, self.first, self.shape = (int(space.n),), np.array([int(space.start)]), ()
        elif isinstance(space, gymnasium.spaces.MultiBinary):
            self.shape = tuple(space.shape)
            self.sizes, self.first = (2,) * math.prod(self.shape), np.zeros(math.prod(self.shape), int)
        else:
            self.shape = tuple(space.shape)
            self.sizes = tuple(int(size) for size in space.nvec.reshape(-1))
            self.first = np.asarray(space.start).reshape(-1)
        count = math.prod(self.sizes)
        if count > MOST:
            raise EnvironmentMismatchError(
                f"actions are {space}, {count:,} combinations of choices, and agents choose among {MOST:,} at most: "
                "offer fewer, or a version with a Box action space"
            )
        self.dtype = space.dtype
        self.action_space = gymnasium.spaces.Discrete(count)

    def action(self, action: Any) -> Any:
        """The wrapped environment's action of a number."""
        choices = np.asarray(np.unravel_index(int(action), self.sizes)) + self.first
        return int(choices[0]) if self.shape == () else choices.astype(self.dtype).reshape(self.shape)


def numbered(env: Env) -> Env:
    """The environment with its choices as one number from 0 on, where they are not that already."""
    space: Any = env.action_space
    several = isinstance(space, gymnasium.spaces.MultiDiscrete | gymnasium.spaces.MultiBinary)
    if several or (isinstance(space, gymnasium.spaces.Discrete) and int(space.start) != 0):
        return DiscreteActions(env)
    return env
