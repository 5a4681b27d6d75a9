"""Several objectives at once: a reward of each, and weights that the agent sees and that say what counts.

`weighted:NAME?objectives=2` is an environment whose `info["objectives"]` has m rewards a row; its reward is their sum
by weights, which stand behind the observation. Weights are drawn anew for each episode, uniformly on the simplex, so
that one policy learns all of them (Q_w of Abels et al., "Dynamic Weights in Multi-Objective Deep Reinforcement
Learning", ICML 2019), or fixed, as in `weighted:NAME?objectives=2&weights=[0.3,0.7]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, MissingExtraError
from surefoot.envs.around import Around
from surefoot.envs.interface import Array, Numbers, as_numpy, final_observations, reset_mask, row_seeds
from surefoot.envs.make import with_options
from surefoot.envs.names import WEIGHTED
from surefoot.envs.reward_terms import DECLARED
from surefoot.envs.side_by_side import name_of

MOST_OBJECTIVES = 16
KEY = "objectives"
"""Entry of a step's info: (N, m); single environments give m numbers `objectives/0`, `objectives/1`, ..."""


class WeightedEnv(Around):
    """The weighted sum of an environment's objectives as reward, and the weights behind the observation.

    The info has the terms of the reward `objective/0`, ..., each objective unweighted, so that evaluations give the sum
    of each over an episode.

    Args:
        env: contract environment of vectors, with `objectives` in the info.
        objectives: m, at least 2.
        weights: m numbers from 0 on that sum to 1; None: new ones for each episode.

    Raises:
        ConfigError: weights of another kind, or m out of range.
        EnvironmentMismatchError: observations that are no vector.
    """

    def __init__(self, env: Any, objectives: int, weights: Sequence[float] | None = None) -> None:
        space = env.single_observation_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise EnvironmentMismatchError(
                f"{name_of(env)}: weights are put behind observations that are one vector, and here they are {space}"
            )
        whole = isinstance(objectives, int) and not isinstance(objectives, bool)
        if not whole or not 2 <= objectives <= MOST_OBJECTIVES:
            raise ConfigError(f"objectives is {objectives!r}, must be a whole number from 2 to {MOST_OBJECTIVES}")
        self.fixed = None if weights is None else checked_weights(weights, objectives)
        low, high = (np.asarray(bound, np.float32) for bound in (space.low, space.high))
        zeros, ones = np.zeros(objectives, np.float32), np.ones(objectives, np.float32)
        wider = gymnasium.spaces.Box(np.concatenate([low, zeros]), np.concatenate([high, ones]), dtype=np.float32)
        super().__init__(env, wider)
        self.objectives = objectives
        self.weights = np.full((env.num_envs, objectives), 1 / objectives)
        """(N, m) of the running episodes."""
        self._sources = [np.random.default_rng(row) for row in range(env.num_envs)]

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment resets, with new weights in these rows."""
        observations, info = self.env.reset(seed=seed, options=options)
        mask = reset_mask(options, self.num_envs)
        self._draw(np.ones(self.num_envs, np.bool_) if mask is None else mask, row_seeds(seed, self.num_envs))
        return self._seen(observations), info

    def step(self, actions: Any) -> tuple[Any, Numbers, Numbers, Numbers, dict[str, Any]]:
        """One step, its reward by the weights of each row's episode.

        Raises:
            EnvironmentMismatchError: the info has no such objectives.
        """
        planned = list(getattr(self.env, "next_seeds", None) or [None] * self.num_envs)
        observations, _, terminations, truncations, info = self.env.step(actions)
        values, before = self._values(info), self.weights.copy()
        rewards = (values * before).sum(1).astype(np.float32)
        ended = as_numpy(terminations).astype(np.bool_) | as_numpy(truncations).astype(np.bool_)
        own = {key: value for key, value in info.items() if not key.removeprefix("_").startswith(f"{KEY}/")}
        terms = {**dict(info.get(DECLARED) or {})}
        terms |= {f"objective/{i}": self.give(values[:, i].astype(np.float32)) for i in range(self.objectives)}
        info = {**own, KEY: self.give(values.astype(np.float32)), DECLARED: terms}
        if ended.any():
            following = np.asarray(as_numpy(final_observations(observations, info)), np.float32)
            info["final_obs"] = self.give(np.concatenate([following, before.astype(np.float32)], 1))
            info["_final_obs"] = ended
            self._draw(ended, planned)
        return self._seen(observations), self.give(rewards), terminations, truncations, info

    def _values(self, info: Mapping[str, Any]) -> Array:
        """(N, m) of a step."""
        parts = [info.get(f"{KEY}/{i}") for i in range(self.objectives)]
        given = info.get(KEY)
        if given is None and all(part is not None for part in parts) and f"{KEY}/{self.objectives}" not in info:
            given = np.stack([as_numpy(part) for part in parts], 1)
        shape = (self.num_envs, self.objectives)
        values = None if given is None else np.asarray(as_numpy(given))
        if values is None or values.shape != shape or values.dtype.kind not in "biuf" or not np.isfinite(values).all():
            what = "nothing" if values is None else f"{values.dtype} of shape {values.shape}"
            raise EnvironmentMismatchError(
                f"{name_of(self.env)}: info['{KEY}'] must be {shape} finite numbers (single environments: "
                f"info['{KEY}/0'] to info['{KEY}/{self.objectives - 1}']), and is {what}"
            )
        return values.astype(np.float64)

    def _draw(self, rows: Array, seeds: Sequence[int | None]) -> None:
        """New weights in (N,) bool `rows`, from their own streams or those of new seeds."""
        for row in np.flatnonzero(rows).tolist():
            seed = seeds[row]
            if seed is not None:
                self._sources[row] = np.random.default_rng([int(seed), self.objectives])
            drawn = self._sources[row].dirichlet(np.ones(self.objectives))
            self.weights[row] = drawn if self.fixed is None else self.fixed

    def _seen(self, observations: Any) -> Numbers:
        seen = np.asarray(as_numpy(observations), np.float32)
        return self.give(np.concatenate([seen, self.weights.astype(np.float32)], 1))

    def __getattr__(self, name: str) -> Any:
        """As of `Around`; the state would lack the streams of weights, so that it can't be saved."""
        if name in ("get_state", "set_state"):
            raise AttributeError(name)
        return super().__getattr__(name)


def checked_weights(weights: Any, objectives: int) -> Array:
    """(m,) float64 weights.

    Raises:
        ConfigError: they are no m numbers from 0 on that sum to 1.
    """
    try:
        found = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        found = np.zeros(0)
    if found.shape != (objectives,) or not (found >= 0).all() or not abs(found.sum() - 1) < 1e-6:
        raise ConfigError(
            f"weights are {weights!r}, must be {objectives} numbers from 0 on that sum to 1", field="weights"
        )
    return found


def simplex(objectives: int, parts: int) -> Array:
    """(W, m) all weights that are multiples of 1 / `parts`, from the last objective alone to the first alone.

    >>> simplex(2, 2).tolist()
    [[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]
    """

    def split(left: int, count: int) -> list[list[int]]:
        if count == 1:
            return [[left]]
        return [[first, *rest] for first in range(left + 1) for rest in split(left - first, count - 1)]

    return np.array(split(parts, objectives), np.float64) / parts


def make(
    rest: str,
    num_envs: int,
    objectives: Any = None,
    weights: Any = None,
    gap: str | None = None,
    threads: int = 1,
    tensors: str | None = None,
    **options: Any,
) -> WeightedEnv:
    """The environments of a name `weighted:...` (`envs.make`); arguments as of `WeightedEnv`, and the environment's.

    Raises:
        ConfigError, EnvironmentMismatchError: it can't be made; the message says why.
    """
    from surefoot.envs.training import make_training
    from surefoot.envs.vector import make_vec

    name = with_options(rest, options)
    if tensors == "numpy":
        env: Any = make_vec(name, num_envs)
    else:
        env = make_training(name, num_envs, gap=gap, threads=threads)
    made = WeightedEnv(env, objectives, weights)
    made.called = WEIGHTED + name
    return made


class ScalarRewards(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A single environment whose reward is a vector, as MO-Gymnasium's: it goes into the info, and the reward is 0."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step."""
        seen, rewards, terminated, truncated, info = self.env.step(action)
        values = np.asarray(rewards, np.float64).reshape(-1)
        own = {f"{KEY}/{i}": float(value) for i, value in enumerate(values)}
        return seen, 0.0, bool(terminated), bool(truncated), {**info, **own}


def make_mo_gymnasium(rest: str, num_envs: int, **options: Any) -> list[gymnasium.Env[Any, Any]]:
    """Environments of MO-Gymnasium by name, `mo:deep-sea-treasure-v0`.

    Raises:
        MissingExtraError: MO-Gymnasium is not installed.
        ConfigError: it has none of this id.
    """
    try:
        import mo_gymnasium
    except ImportError as error:
        raise MissingExtraError("mo-gymnasium", None, f"mo:{rest}") from error
    try:
        return [ScalarRewards(mo_gymnasium.make(rest, **options)) for _ in range(num_envs)]
    except gymnasium.error.Error as error:
        raise ConfigError(f"mo:{rest}: MO-Gymnasium has no such environment ({error})") from error
