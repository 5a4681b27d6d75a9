"""Single environments side by side: what each of them returns is checked before it is used."""

from __future__ import annotations

import contextlib
import enum
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from surefoot.core.base.errors import EnvironmentMismatchError, SimulatorError, SurefootError
from surefoot.envs import returned
from surefoot.envs.returned import (
    AGREE,
    CONSTRAINTS,
    EXECUTED,
    EXECUTED_WITH_FLAG,
    FLAGS,
    NUMBERS,
    Array,
    WrongReturnError,
    kind,
)
from surefoot.envs.reward_terms import DECLARED, flat
from surefoot.envs.spaces import mapped


class PausableVectorEnv(Protocol):
    """What `make_vec` returns: a `gymnasium.vector.VectorEnv` in SAME_STEP mode whose rows can be paused.

    A paused row is not stepped: it repeats its last observation with reward 0 and no flag, and
    `info["valid"]` is False there (contract: docs/environments.md). Evaluation pauses rows that have run their quota.
    """

    num_envs: int
    single_observation_space: Any
    single_action_space: Any
    metadata: dict[str, Any]
    spec: gymnasium.envs.registration.EnvSpec | None
    active: Array
    """(num_envs,) bool: rows that `step` moves. Set it freely between steps; `reset` sets all."""
    next_seeds: list[int | None]
    """Seed of each row's next automatic reset; None continues the row's own random numbers."""
    max_episode_steps: int | None
    """Time limit of an episode."""

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Observations (N, ...) and info."""
        ...

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Observations (N, ...), rewards, terminations, truncations (N,) and info."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class PausingVectorEnv(SyncVectorEnv):
    """N single environments as a `PausableVectorEnv`.

    `info` has the numbers of the steps just taken (N,), also where an episode ended with the step, with a mask (N,) of
    the rows that gave them behind `_`; objects and arrays in it are left out, but for a person's actions
    (`envs.acting.interventions`), (N, A).

    Raises, beside what the environments raise themselves:
        SimulatorError: an environment raised something, or returned what gymnasium does not allow.
        EnvironmentMismatchError: a time limit that is none.
    """

    def __init__(self, env_fns: Any) -> None:
        super().__init__(env_fns, autoreset_mode=AutoresetMode.SAME_STEP)
        self.spec = self.envs[0].spec
        self.called: str | None = None
        """What messages call it, where it is no registered id."""
        self.active = np.ones(self.num_envs, dtype=np.bool_)
        self.next_seeds: list[int | None] = [None] * self.num_envs
        self.max_episode_steps = time_limit(self.envs[0])
        """Time limit of an episode, that of the first sub-environment."""
        self._last: Any = mapped(lambda space: np.zeros(space.shape or (), space.dtype), self.observation_space)
        self.goals: Array | None = None
        """(N, G) float32: what the resets of the running episodes gave as `info["goal"]`; None where they give none."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all sub-environments (or those of `options["reset_mask"]`) and activate them all."""
        first = int(seed) if isinstance(seed, (int, np.integer)) else None
        seeds = seed if first is None else range(first, first + self.num_envs)
        options = dict(options or {})
        mask = options.pop("reset_mask", np.ones(self.num_envs, np.bool_))
        for i in np.flatnonzero(mask).tolist():
            self._reset(i, None if seeds is None or seeds[i] is None else int(seeds[i]), options or None)
        self.active[:] = True
        return mapped(np.copy, self._last), {}

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step the active rows: (N, ...) observations, (N,) rewards, terminations, truncations, and info."""
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        terminations, truncations = np.zeros((2, self.num_envs), dtype=np.bool_)
        info: dict[str, Any] = {}
        final: dict[int, Any] = {}
        for i in np.flatnonzero(self.active).tolist():
            with own_errors(self.envs[i], "step"):
                observation, reward, terminated, truncated, row = returned.step_parts(self.envs[i].step(actions[i]))
                self._see(i, observation)
                rewards[i] = returned.number("a reward of", reward, NUMBERS, "return float(reward)")
                terminations[i] = returned.number("terminated =", terminated, FLAGS, "return bool(...)")
                truncations[i] = returned.number("truncated =", truncated, FLAGS, "return bool(...)")
                self._note(info, i, row)
            if terminations[i] or truncations[i]:
                final[i] = mapped(lambda rows, row=i: rows[row].copy(), self._last)
                self._reset(i, self.next_seeds[i], None)
        if final:
            info["final_obs"], info["_final_obs"] = mapped(np.copy, self._last), terminations | truncations
            for i, observation in final.items():
                _write(info["final_obs"], i, observation)
        info["valid"] = self.active.copy()
        return mapped(np.copy, self._last), rewards, terminations, truncations, info

    @property
    def last_observations(self) -> Any:
        """(N, ...) what the rows observed last, copies; key -> each of several arrays."""
        return mapped(np.copy, self._last)

    def observe_again(self, row: int, observation: Any) -> None:
        """Take what one row observes after its state was set.

        Raises:
            SimulatorError: it is not what the space declares.
        """
        with own_errors(self.envs[row], "observation"):
            self._see(row, observation)

    def close_extras(self, **kwargs: Any) -> None:
        """Close all sub-environments."""
        for env in self.envs:
            close(env)

    def _reset(self, i: int, seed: int | None, options: dict[str, Any] | None) -> None:
        with own_errors(self.envs[i], "reset"):
            observation, info = returned.reset_parts(self.envs[i].reset(seed=seed, options=options))
            self._see(i, observation)
            if "goal" in info:
                self._aim(i, info["goal"])

    def _aim(self, i: int, goal: Any) -> None:
        """Keep the goal of row i's episode."""
        value = np.asarray(goal)
        shape = value.shape if self.goals is None else self.goals.shape[1:]
        if value.ndim != 1 or value.dtype.kind not in "biuf" or value.shape != shape:
            words = f"info['goal'] of shape {value.shape} and {value.dtype}"
            raise WrongReturnError(words, f"give {'one row of numbers' if self.goals is None else f'shape {shape}'}")
        if self.goals is None:
            self.goals = np.full((self.num_envs, *shape), np.nan, np.float32)
        self.goals[i] = value

    def _see(self, i: int, observation: Any) -> None:
        """Keep what row i observes."""
        if isinstance(self._last, dict) and not (
            isinstance(observation, Mapping) and set(observation) == set(self._last)
        ):
            what = f"an observation of {kind(observation)} where a Dict of {', '.join(self._last)} is declared"
            raise WrongReturnError(what, AGREE)
        checked = mapped(
            lambda rows, value: returned.observation_array(value, rows.shape[1:], rows.dtype), self._last, observation
        )
        _write(self._last, i, checked)

    def _note(self, info: dict[str, Any], i: int, row: Mapping[str, Any]) -> None:
        """Keep the numbers of a row's info, and declared terms of its reward as `reward/TERM`."""
        if DECLARED in row:
            row = flat(row)
        shape = self.single_action_space.shape or ()
        for key, value in row.items():
            if isinstance(key, enum.Enum):  # as LeRobot's events
                key = key.value
            if key in (EXECUTED, EXECUTED_WITH_FLAG):
                if value is not None:
                    done = returned.executed_action(key, value, shape)
                    info.setdefault(key, np.zeros((self.num_envs, *shape)))[i] = done
                    info.setdefault(f"_{key}", np.zeros(self.num_envs, np.bool_))[i] = True
                continue
            if key in CONSTRAINTS:
                value = returned.number(f"info[{key!r}] =", value, NUMBERS, "give one finite number")
            elif not isinstance(value, NUMBERS):
                continue
            if key not in info:
                flag = isinstance(value, FLAGS) and key not in CONSTRAINTS
                info[key] = np.zeros(self.num_envs, np.bool_ if flag else np.float64)
                info[f"_{key}"] = np.zeros(self.num_envs, np.bool_)
            info[key][i], info[f"_{key}"][i] = value, True


def _write(rows: Any, i: int, observation: Any) -> None:
    """Put an observation into row i."""
    mapped(lambda whole, part: whole.__setitem__(i, part), rows, observation)


def name_of(env: Any) -> str:
    """The id of an environment, or the name that it was made by, or its class."""
    spec, called = getattr(env, "spec", None), getattr(env, "called", None)
    if isinstance(called, str):
        return called
    return str(spec.id) if spec is not None else type(getattr(env, "unwrapped", env)).__name__


def time_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    """Steps after which an environment, or its wrapper, truncates an episode; None: it has no limit.

    Raises:
        EnvironmentMismatchError: a limit that is no whole number above 0.
    """
    limit = getattr(env.spec, "max_episode_steps", None)
    limit = getattr(env.unwrapped, "max_episode_steps", None) if limit is None else limit
    around: Any = env
    while limit is None and isinstance(around, gymnasium.Wrapper):
        limit, around = (
            getattr(around, "_max_episode_steps", None),
            around.env,
        )  # of TimeLimit, which tells no other way
    if limit is None or (isinstance(limit, float) and math.isinf(limit) and limit > 0):
        return None
    if not isinstance(limit, (int, np.integer)) or isinstance(limit, bool) or limit < 1:
        raise EnvironmentMismatchError(
            f"{name_of(env)}: max_episode_steps is {limit!r}; make it a whole number of steps, or None for no limit"
        )
    return int(limit)


def close(env: Any) -> None:
    """Close an environment; one that fails in it is warned of, since nothing is lost."""
    try:
        env.close()
    except Exception as error:
        words = f"{name_of(env)}: its close raised {type(error).__name__}: {error}; what it holds may not be freed"
        warnings.warn(words, RuntimeWarning, stacklevel=2)


@contextlib.contextmanager
def own_errors(env: Any, call: str) -> Iterator[None]:
    """Errors of a user's environment as ours, which name it."""
    try:
        yield
    except SurefootError:
        raise
    except WrongReturnError as wrong:
        raise SimulatorError(f"{name_of(env)}: its {call} gave {wrong} (surefoot envs check)") from wrong
    except Exception as error:
        raise SimulatorError(f"{name_of(env)}: its {call} raised {type(error).__name__}: {error}") from error
