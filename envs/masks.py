"""Environments that say which of their choices are allowed: the mask as a part of what is observed.

A mask is an array of the observation like any other, under the key `action_mask`, as PettingZoo has it: it is stored
with each step, is there for the step that follows, and is an input of the policy that leaves. An environment with a
method `action_masks()`, as sb3-contrib's MaskablePPO asks for it, or with a Dict observation that has `action_mask`, is
taken by itself; one that gives `info["action_mask"]` is wrapped by `MaskedObservation`, or made by `from_info`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.core.base.spec import MASK
from surefoot.envs.choices import DiscreteActions
from surefoot.envs.spaces import flat_vectors

METHOD = "action_masks"
"""What sb3-contrib calls a method that gives the mask of the present state."""
OBSERVATION = "observation"
"""Key of what was observed before the mask came beside it."""
Env = gymnasium.Env[Any, Any]


class MaskedObservation(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment of Discrete actions whose observation is a Dict with `action_mask`, (A,) float32 of 0 and 1.

    The mask is what the environment's `action_masks()` gives; without that method, the Dict observation's own
    `action_mask`; without that, `info["action_mask"]` of each reset and step. Of several choices at once
    (`envs.choices`), it may have one number for each choice of each, as sb3-contrib's has: a combination is allowed
    where all its choices are.

    Args:
        env: with Discrete actions.

    Raises:
        EnvironmentMismatchError: other actions, and from `reset` and `step` where there is no mask, or one of another
            size.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        if not isinstance(env.action_space, gymnasium.spaces.Discrete):
            raise EnvironmentMismatchError(
                f"{self._called()}: actions are {env.action_space}, and a mask says which of Discrete ones are allowed"
            )
        self.choices = int(env.action_space.n)
        inner = next((one for one in _chain(env) if isinstance(one, DiscreteActions)), None)
        self.sizes: tuple[int, ...] = (self.choices,) if inner is None else inner.sizes
        space: Any = env.observation_space
        parts = dict(space.spaces) if isinstance(space, gymnasium.spaces.Dict) else {OBSERVATION: space}
        mask = gymnasium.spaces.Box(0, 1, (self.choices,), np.float32)
        parts = {key: part for key, part in parts.items() if key != MASK}
        self.rest = flat_vectors(gymnasium.spaces.Dict(parts), OBSERVATION)
        self.observation_space = gymnasium.spaces.Dict({**self.rest.space.spaces, MASK: mask})

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """As the wrapped environment's, with the mask."""
        observation, info = self.env.reset(**options)
        return self._with_mask(observation, info, "reset"), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the wrapped environment's, with the mask of the next action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(observation, info, "step"), reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: dict[str, Any], call: str) -> dict[str, Any]:
        given = given_mask(self.env, observation, info)
        if given is None:
            raise EnvironmentMismatchError(
                f"{self._called()}: its {call} gave no info[{MASK!r}], and it has no method {METHOD}(): give it in "
                "every reset and step"
            )
        parts = observation if isinstance(self.env.observation_space, gymnasium.spaces.Dict) else {}
        found = {key: value for key, value in parts.items() if key != MASK} if parts else {OBSERVATION: observation}
        return {**self.rest(found), MASK: self._combined(np.asarray(given), call)}

    def _combined(self, mask: np.ndarray[Any, Any], call: str) -> np.ndarray[Any, Any]:
        """(A,) float32 of a mask of choices, or of the choices of several at once."""
        flat = mask.reshape(-1)
        if flat.dtype.kind not in "biuf" or flat.size not in (self.choices, sum(self.sizes)):
            wanted = f"({self.choices},)"
            if len(self.sizes) > 1:
                wanted += f" or, for each choice of each, ({sum(self.sizes)},)"
            raise EnvironmentMismatchError(
                f"{self._called()}: its {call} gave an action mask of shape {mask.shape} and dtype {mask.dtype}, must "
                f"be {wanted} of 0 and 1"
            )
        if flat.size == self.choices:
            return flat.astype(np.float32)
        parts = np.split(flat.astype(np.float32), np.cumsum(self.sizes)[:-1])
        return functools.reduce(np.multiply.outer, parts).reshape(math.prod(self.sizes))

    def _called(self) -> str:
        spec = self.env.spec
        return type(self.env.unwrapped).__name__ if spec is None else spec.id


def has_method(env: Env) -> bool:
    """Whether an environment, or one within it, has a method `action_masks()`."""
    return any(callable(getattr(type(one), METHOD, None)) for one in _chain(env))


def given_mask(env: Env, observation: Any, info: Any) -> Any:
    """The mask of the next action as an environment gives it, in its own layout; None where it gives none.

    Args:
        env: of Discrete actions, or others.
        observation: its last one.
        info: likewise.
    """
    if has_method(env):
        return env.get_wrapper_attr(METHOD)()
    for given in (observation, info):
        if isinstance(given, Mapping) and MASK in given:
            return given[MASK]
    return None


def with_masks(env: Env) -> Env:
    """The environment, its mask among its observations where it gives one by itself; others as they are."""
    if isinstance(env, MaskedObservation) or not isinstance(env.action_space, gymnasium.spaces.Discrete):
        return env
    space = env.observation_space
    own = isinstance(space, gymnasium.spaces.Dict) and MASK in space.spaces
    return MaskedObservation(env) if own or has_method(env) else env


def from_info(env_id: str, **options: Any) -> Env:
    """The environment of a gymnasium id that gives `info["action_mask"]`, that mask among its observations.

    From the command line: `env=surefoot.envs.masks:from_info env_options.env_id=ID`.
    """
    env: Env = gymnasium.make(env_id, disable_env_checker=True, **options)
    if isinstance(env.observation_space, gymnasium.spaces.Discrete):
        env = gymnasium.wrappers.FlattenObservation(env)
    return MaskedObservation(env)


def _chain(env: Env) -> list[Env]:
    """The environment and those within it, from the outside."""
    found = [env]
    while isinstance(found[-1], gymnasium.Wrapper):
        found.append(found[-1].env)
    return found
