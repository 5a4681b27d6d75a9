"""stable-baselines3's `VecEnv` as a contract environment, and a contract environment as its `VecEnv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch

from surefoot.core.base.errors import EnvironmentMismatchError, MissingExtraError
from surefoot.envs.interface import (
    SUCCESS,
    Array,
    Numbers,
    Tensors,
    VectorEnvironment,
    as_numpy,
    check_contract,
    final_observations,
    reset_mask,
    step_values,
)
from surefoot.envs.reward_terms import extras_terms, flat

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

TIME_LIMIT = "TimeLimit.truncated"
TERMINAL = "terminal_observation"


class FromSB3(VectorEnvironment):
    """A stable-baselines3 `VecEnv`, which resets in the same step and merges both flags, behind the contract.

    `infos[i]["TimeLimit.truncated"]` parts them again, and `terminal_observation` is the final observation. Cost,
    margin and success are read from the rows' infos, which are in `info["infos"]` as they came.

    Args:
        env: the `VecEnv`; observations must be a Box.
        tensors, device: what to give, as in `VectorEnvironment`.

    Raises:
        EnvironmentMismatchError: observations that are no Box.
    """

    def __init__(self, env: Any, tensors: Tensors = "numpy", device: str | torch.device = "cpu") -> None:
        if not isinstance(env.observation_space, gymnasium.spaces.Box):
            raise EnvironmentMismatchError(
                f"{type(env).__name__}: observations are {env.observation_space}, and surefoot reads arrays (a Box)"
            )
        super().__init__(env.num_envs, env.observation_space, env.action_space, tensors, device)
        self.env = env
        self.render_mode = env.render_mode
        self._constraints: set[str] = set()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Numbers, dict[str, Any]]:
        """Begin new episodes in all rows; an int seeds row i with seed + i.

        Raises:
            EnvironmentMismatchError: a reset of some rows, or a seed for each, which a `VecEnv` has not.
        """
        mask = reset_mask(options, self.num_envs)
        if mask is not None and not mask.all():
            raise EnvironmentMismatchError("a stable-baselines3 VecEnv can't reset some rows: reset all of them")
        if seed is not None and not isinstance(seed, int):
            raise EnvironmentMismatchError(
                "a stable-baselines3 VecEnv takes one seed and counts on from it: give an int"
            )
        if seed is not None:
            self.env.seed(seed)
        return self.give(self.env.reset()), {}

    def step(self, actions: Any) -> tuple[Numbers, Numbers, Numbers, Numbers, dict[str, Any]]:
        """One step of every row."""
        self.check_actions(actions)
        observations, rewards, dones, infos = self.env.step(as_numpy(actions))
        dones = np.asarray(dones, np.bool_)
        truncations = dones & np.array([bool(info.get(TIME_LIMIT, False)) for info in infos])
        info: dict[str, Any] = {"infos": infos}
        if dones.any():
            final = np.array(observations, copy=True)
            for row in np.flatnonzero(dones):
                final[row] = infos[row][TERMINAL]
            info |= {"final_obs": final, "_final_obs": dones}
        self._constraints |= {key for key in self.constraint_keys if any(key in row for row in infos)}
        for key in self._constraints:
            missing = 0.0 if key == "cost" else np.nan
            info[key] = np.array([float(row.get(key, missing)) for row in infos], np.float32)
        for key in SUCCESS:  # which many say at an episode's end only
            reported = np.array([key in row for row in infos])
            if reported.any():
                info |= {key: np.array([bool(row.get(key, False)) for row in infos]), f"_{key}": reported}
        if any(key.startswith("reward") for key in infos[0]):
            rows = [extras_terms(flat(row)) for row in infos]
            for key in {key: None for row in rows for key in row}:
                info[key] = np.array([float(row.get(key, 0.0)) for row in rows])
        numbers = (self.give(value) for value in (observations, rewards, dones & ~truncations, truncations))
        return *numbers, self.give_info(info)  # type: ignore[return-value]

    def close_extras(self, **kwargs: Any) -> None:
        """Close the wrapped environment."""
        self.env.close()


def from_sb3(env: Any, tensors: Tensors = "numpy", device: str | torch.device = "cpu") -> FromSB3:
    """A stable-baselines3 `VecEnv` behind the contract; errors as in `FromSB3`."""
    return FromSB3(env, tensors, device)


def to_sb3(env: Any) -> VecEnv:
    """A contract environment as a stable-baselines3 `VecEnv`: `PPO("MlpPolicy", to_sb3(env)).learn(100_000)`.

    Cost and margin are in `infos[i]`; observations and rewards are numpy.

    Raises:
        MissingExtraError: stable-baselines3 is not installed.
        EnvironmentMismatchError: an environment that resets at another time or inserts rows.
    """
    check_contract(env)
    if getattr(env, "inserts_rows", False):
        raise EnvironmentMismatchError(
            f"{type(env).__name__} inserts a row that is no transition after each episode, and stable-baselines3 "
            "would learn from it: adapt an environment of mode SAME_STEP or DISABLED"
        )
    return _vec_env_class()(env)


def _vec_env_class() -> Any:
    """The class is made here because its base exists only where stable-baselines3 does."""
    try:
        from stable_baselines3.common.vec_env import VecEnv
    except ImportError as error:
        raise MissingExtraError("stable-baselines3", "sb3", "to_sb3") from error

    class ContractVecEnv(VecEnv):
        """A contract environment as stable-baselines3 sees one."""

        def __init__(self, env: Any) -> None:
            self.env = env
            self.actions: Any = None
            super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

        def reset(self) -> Array:
            seeds, self.reset_infos = self._seeds, [{} for _ in range(self.num_envs)]
            observations, _ = self.env.reset(seed=None if seeds[0] is None else list(seeds))
            self._reset_seeds()
            self._reset_options()
            return as_numpy(observations)

        def step_async(self, actions: Array) -> None:
            self.actions = actions

        def step_wait(self) -> Any:
            torch_kind = getattr(self.env, "tensors", "numpy") == "torch"
            actions = (
                torch.as_tensor(self.actions, device=getattr(self.env, "device", "cpu")) if torch_kind else self.actions
            )
            observations, rewards, terminations, truncations, info = self.env.step(actions)
            terminations, truncations = as_numpy(terminations), as_numpy(truncations)
            dones = terminations | truncations
            infos = _row_infos(info, final_observations(observations, info), dones, truncations & ~terminations)
            return as_numpy(observations), as_numpy(rewards).astype(np.float32), dones, infos

        def close(self) -> None:
            self.env.close()

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [getattr(self.env, attr_name) for _ in self._get_indices(indices)]

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            self._all_rows(indices, f"set_attr({attr_name!r})")
            setattr(self.env, attr_name, value)

        def env_method(
            self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
        ) -> list[Any]:
            self._all_rows(indices, f"env_method({method_name!r})")
            result = getattr(self.env, method_name)(*method_args, **method_kwargs)
            return [result] * self.num_envs

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False for _ in self._get_indices(indices)]

        def get_images(self) -> Sequence[Array | None]:
            frames = self.env.render()
            return list(frames) if isinstance(frames, (tuple, list)) else [frames] * self.num_envs

        def _all_rows(self, indices: Any, call: str) -> None:
            if len(list(self._get_indices(indices))) != self.num_envs:
                raise EnvironmentMismatchError(f"{call} concerns all rows at once here: leave `indices` out")

    return ContractVecEnv


def _row_infos(info: dict[str, Any], final: Any, dones: Array, limits: Array) -> list[dict[str, Any]]:
    """An info for each row, as stable-baselines3 reads them."""
    infos: list[dict[str, Any]] = [{TIME_LIMIT: bool(limit)} for limit in limits]
    for key in VectorEnvironment.constraint_keys:
        values = step_values(info, key, len(dones))
        if values is not None:
            for row, value in enumerate(as_numpy(values).tolist()):
                infos[row][key] = value
    for key in SUCCESS:
        values = step_values(info, key, len(dones))
        if values is not None:
            reported = as_numpy(info.get(f"_{key}", np.ones(len(dones), np.bool_)))
            for row in np.flatnonzero(reported).tolist():
                infos[row][key] = infos[row]["is_success"] = bool(as_numpy(values)[row])  # the name that they read
    for row in np.flatnonzero(dones).tolist():
        infos[row][TERMINAL] = np.array(as_numpy(final)[row], copy=True)
    return infos
