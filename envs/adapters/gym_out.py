"""A contract environment as plain gymnasium: one environment, or a vector of another autoreset mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.envs.interface import (
    Array,
    as_autoreset_mode,
    as_numpy,
    check_contract,
    final_observations,
    reset_mask,
    step_values,
)

CONSTRAINT_KEYS = ("cost", "margin")
FINAL_KEYS = ("final_obs", "_final_obs", "final_info", "_final_info", "valid", "_valid")


class SingleEnv(gymnasium.Env[Any, Any]):
    """One row of a contract environment as `gymnasium.Env`: it does not reset by itself, and rows are numpy.

    Args:
        env: a contract environment with `num_envs` 1 that inserts no rows.

    Raises:
        EnvironmentMismatchError: another environment; the message says why.
    """

    def __init__(self, env: Any) -> None:
        check_contract(env)
        if env.num_envs != 1:
            raise EnvironmentMismatchError(
                f"{type(env).__name__} has {env.num_envs} rows, and a single gymnasium environment is one row: "
                "make it with num_envs=1"
            )
        _refuse_inserted_rows(env)
        self.env = env
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self.metadata = {key: value for key, value in env.metadata.items() if key != "autoreset_mode"}
        self.render_mode = env.render_mode
        self.called, self.max_episode_steps = (getattr(env, name, None) for name in ("called", "max_episode_steps"))
        self._fresh: tuple[Any, dict[str, Any]] | None = None  # first observation of an episode started by autoreset
        self._running = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; after an end and without a seed, the one that the vector environment has started."""
        super().reset(seed=seed)
        if self._fresh is None or seed is not None or options is not None:
            observations, info = self.env.reset(seed=seed, options=options)
            self._fresh = as_numpy(observations)[0], _row(info, 0)
        fresh, self._fresh, self._running = self._fresh, None, True
        return fresh

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; the observation after the last one is final, as in any `gymnasium.Env`."""
        if not self._running:
            raise EnvironmentMismatchError("step was called before reset, or after the end of an episode: reset first")
        observations, reward, terminated, truncated, info = self.env.step(_like(self.env, np.asarray(action)[None]))
        final = as_numpy(final_observations(observations, info))[0]
        ended = bool(terminated[0]) or bool(truncated[0])
        row = _row(info, 0)
        if ended:
            self._fresh, self._running = (as_numpy(observations)[0], {}), False
        return final, float(reward[0]), bool(terminated[0]), bool(truncated[0]), row

    def render(self) -> Any:
        """The vector environment's picture of its only row."""
        frames = self.env.render()
        return frames[0] if isinstance(frames, (tuple, list)) else frames

    def close(self) -> None:
        """Close the vector environment."""
        self.env.close()


class OtherModeVectorEnv(VectorEnv[Any, Any, Any]):
    """A contract environment, in numpy, with gymnasium's NEXT_STEP or DISABLED autoreset.

    Args:
        env: a contract environment that inserts no rows and can reset some rows (`options["reset_mask"]`).
        mode: NEXT_STEP or DISABLED.

    Raises:
        EnvironmentMismatchError: an environment that can't be seen so.
        ConfigError: another mode.
    """

    def __init__(self, env: Any, mode: AutoresetMode | str) -> None:
        check_contract(env)
        _refuse_inserted_rows(env)
        self.mode = as_autoreset_mode(mode)
        if self.mode is AutoresetMode.SAME_STEP:
            raise ConfigError("a contract environment has mode SAME_STEP already: use it as it is")
        self.env = env
        self.num_envs = env.num_envs
        self.single_observation_space, self.observation_space = env.single_observation_space, env.observation_space
        self.single_action_space, self.action_space = env.single_action_space, env.action_space
        self.metadata = dict(env.metadata) | {"autoreset_mode": self.mode}
        self.spec, self.render_mode = env.spec, env.render_mode
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin new episodes in all rows, or in those of `options["reset_mask"]`."""
        mask = reset_mask(options, self.num_envs)
        observations, info = self.env.reset(seed=seed, options=options)
        self._ended[slice(None) if mask is None else mask] = False
        return as_numpy(observations), _numpy_info(info)

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """One step of every row; rows that have ended wait for their reset as gymnasium's mode says."""
        if self.mode is AutoresetMode.DISABLED and self._ended.any():
            rows = np.flatnonzero(self._ended).tolist()
            raise EnvironmentMismatchError(
                f"the episodes of rows {rows} have ended: call reset(options={{'reset_mask': ...}}) first"
            )
        observations, rewards, terminations, truncations, info = self.env.step(_like(self.env, actions))
        final = np.array(as_numpy(final_observations(observations, info)), copy=True)
        rewards, terminations, truncations = (
            np.array(as_numpy(value), copy=True) for value in (rewards, terminations, truncations)
        )
        numbers = _numpy_info(info)
        if self._ended.any():  # only in NEXT_STEP; the row began its episode a step ago, unseen: begin it again
            fresh, _ = self.env.reset(options={"reset_mask": self._ended.copy()})
            final[self._ended] = as_numpy(fresh)[self._ended]
            rewards[self._ended], terminations[self._ended], truncations[self._ended] = 0, False, False
            numbers = _without(numbers, self._ended)
        self._ended = terminations | truncations
        return final, rewards, terminations, truncations, numbers

    def render(self) -> Any:
        """As the wrapped environment renders."""
        return self.env.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the wrapped environment."""
        self.env.close(**kwargs)


def to_gymnasium(env: Any) -> SingleEnv:
    """A contract environment of one row as a plain `gymnasium.Env`; errors as in `SingleEnv`."""
    return SingleEnv(env)


def to_gymnasium_vector(env: Any, mode: AutoresetMode | str = AutoresetMode.NEXT_STEP) -> VectorEnv[Any, Any, Any]:
    """A contract environment as gymnasium's vector environment of any mode, in numpy.

    In NEXT_STEP and DISABLED the observation after an end is the final one. NEXT_STEP begins a row's episode with a
    partial reset, so those rows draw other initial states than the same seed gives in SAME_STEP, from the same law;
    their info has no entries (`_cost` is False), as gymnasium's.

    Raises:
        EnvironmentMismatchError, ConfigError: as `OtherModeVectorEnv`.
    """
    if as_autoreset_mode(mode) is not AutoresetMode.SAME_STEP:
        return OtherModeVectorEnv(env, mode)
    from surefoot.envs.adapters.gym_in import adapt

    return adapt(env)


def _refuse_inserted_rows(env: Any) -> None:
    if getattr(env, "inserts_rows", False):
        raise EnvironmentMismatchError(
            f"{type(env).__name__} inserts a row that is no transition after each episode, which gymnasium's users "
            "can't see: use the environment that it wraps"
        )


def _like(env: Any, actions: Any) -> Any:
    """Actions as the environment takes them."""
    if getattr(env, "tensors", "numpy") == "numpy":
        return as_numpy(actions)
    import torch

    return torch.as_tensor(as_numpy(actions), device=getattr(env, "device", "cpu"))


def _numpy_info(info: dict[str, Any]) -> dict[str, Any]:
    """The entries of an info that mean the same without autoreset in the step, in numpy."""
    kept = {key: value for key, value in info.items() if key not in FINAL_KEYS}
    return {key: as_numpy(value) if hasattr(value, "detach") else value for key, value in kept.items()}


def _without(info: dict[str, Any], rows: Array) -> dict[str, Any]:
    """A numpy info without the entries of some rows: 0 there, and `_key` False, as gymnasium's resets have them."""
    there = ~rows
    found: dict[str, Any] = {}
    for key, value in info.items():
        if isinstance(value, dict):
            found[key] = _without(value, rows)
        elif isinstance(value, np.ndarray) and value.shape[:1] == rows.shape:
            found[key] = np.array(value, copy=True)
            found[key][rows] = None if value.dtype == object else np.zeros((), value.dtype)
            if not key.startswith("_"):
                found.setdefault(f"_{key}", there.copy())
        else:
            found[key] = value
    return found


def _row(info: dict[str, Any], row: int) -> dict[str, Any]:
    """One row of a vector info: numbers become python numbers; entries marked absent in that row are left out."""
    single: dict[str, Any] = {}
    for key, value in _numpy_info(info).items():
        here = info.get(f"_{key}")
        if key.startswith("_") or (here is not None and not bool(here[row])):
            continue
        if isinstance(value, dict) and key != "final_info":  # such as `episode`
            single[key] = _row(value, row)
            continue
        taken = value[row] if isinstance(value, np.ndarray) and value.ndim else value
        single[key] = taken.item() if isinstance(taken, np.generic) else taken
    for key in CONSTRAINT_KEYS:
        values = step_values(info, key, 1)
        if values is not None:
            single[key] = float(as_numpy(values)[row])
    return single
