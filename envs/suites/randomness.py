"""Environments that draw from numpy's global random numbers, made exactly repeatable."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from surefoot.envs.suites.registration import quiet

Array = np.ndarray[Any, Any]


@contextlib.contextmanager
def global_numbers(state: dict[str, Any]) -> Iterator[None]:
    """Let numpy's global random numbers be those of `state["now"]` for a while, and write down where they got to."""
    before = np.random.get_state()  # noqa: NPY002  the packages draw from it
    np.random.set_state(state["now"])  # noqa: NPY002
    try:
        yield
    finally:
        state["now"] = np.random.get_state()  # noqa: NPY002
        np.random.set_state(before)  # noqa: NPY002


def seeded(seed: int | None) -> dict[str, Any]:
    """Numbers of a seed, or new ones, for `global_numbers`."""
    return {"now": np.random.RandomState(seed).get_state()}


class OwnNumbers(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose `reset(seed=)` also seeds what it draws from numpy's global generator and action space.

    No one else's global numbers are disturbed by it. Without it the start of OGBench's mazes depends on whatever else
    drew such numbers before.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], in_steps: bool) -> None:
        """Wrap an environment, which draws such numbers in resets, and in steps too where `in_steps`."""
        super().__init__(env)
        self.in_steps = in_steps
        self._numbers = seeded(None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's, from numbers that follow from `seed` alone where one is given."""
        if seed is not None:
            self._numbers = seeded(seed)
            with quiet():
                self.env.unwrapped.action_space.seed(seed)
        with global_numbers(self._numbers):
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's."""
        if not self.in_steps:
            return self.env.step(action)
        with global_numbers(self._numbers):
            return self.env.step(action)
