"""Any gymnasium environment, single or vector, of any autoreset mode, as a contract environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.envs.interface import (
    Array,
    Numbers,
    Tensors,
    VectorEnvironment,
    as_autoreset_mode,
    as_numpy,
    autoreset_mode,
    check_contract,
    costs_of,
    final_observations,
    is_numeric,
    reset_mask,
    row_seeds,
    step_values,
)
from surefoot.envs.side_by_side import name_of
from surefoot.envs.spaces import arrays_of, mapped

Step = tuple[Any, Any, Any, Any, dict[str, Any]]
READ_KEYS = ("final_obs", "_final_obs", "final_info", "_final_info", "cost", "_cost", "margin", "_margin", "valid")


class GymnasiumVectorEnv(VectorEnvironment):
    """A gymnasium vector environment behind the contract; `adapt` chooses its arguments.

    * SAME_STEP: the array of final observations becomes dense, and numbers of the info those of the step.
    * DISABLED: ended rows are reset at once through `reset(options={"reset_mask": ...})`.
    * NEXT_STEP: rows stay where they are; the row after an end has `info["valid"]` False (`inserts_rows`).

    Args:
        env: the environment; observations must be a Box, or a Dict of them.
        autoreset: where `env.metadata` does not say it (or says it wrongly).
        tensors, device: what to give, as in `VectorEnvironment`.

    Raises:
        EnvironmentMismatchError: observations that are no Box or Dict of them, or a mode that can't be found out.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        autoreset: AutoresetMode | str | None = None,
        tensors: Tensors = "numpy",
        device: str | torch.device = "cpu",
    ) -> None:
        mode = autoreset_mode(env) if autoreset is None else as_autoreset_mode(autoreset)
        name = name_of(env)
        if mode is None:
            raise EnvironmentMismatchError(
                f"{name} does not say in metadata['autoreset_mode'] when it resets: "
                "pass autoreset='NEXT_STEP', 'SAME_STEP' or 'DISABLED'"
            )
        if not isinstance(env.single_observation_space, gymnasium.spaces.Box):
            arrays_of(env.single_observation_space, name)  # a Dict of vectors and images, or refused
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space, tensors, device)
        self.env = env
        self.mode = mode
        self.inserts_rows = mode is AutoresetMode.NEXT_STEP
        self.spec, self.called = env.spec, getattr(env, "called", None)
        self.render_mode = getattr(env, "render_mode", None)
        self.metadata = dict(env.metadata or {}) | {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)
        self._constraints: set[str] = set()
        self._began = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Numbers, dict[str, Any]]:
        """Begin new episodes in all rows, or in those of `options["reset_mask"]`."""
        mask = reset_mask(options, self.num_envs)
        if mask is not None and not mask.any():
            raise ConfigError("reset_mask selects no row: leave the call out")
        given = None if options is None else dict(options)  # gymnasium takes the mask out of it
        observations, info = self.env.reset(seed=self._seeds(seed), options=given)
        self._ended[slice(None) if mask is None else mask] = False
        self._began = True
        return self.give(observations), self.give_info(info)

    def step(self, actions: Any) -> tuple[Numbers, Numbers, Numbers, Numbers, dict[str, Any]]:
        """One step of every row: (N, ...) observations, (N,) rewards, terminations, truncations, and info."""
        if not self._began:
            raise EnvironmentMismatchError("step was called before the first reset: call reset first")
        self.check_actions(actions)
        observations, rewards, terminations, truncations, info = self.env.step(as_numpy(actions))
        terminations, truncations = np.asarray(terminations, np.bool_), np.asarray(truncations, np.bool_)
        ended = terminations | truncations
        ours = {key: value for key, value in info.items() if key not in READ_KEYS}
        if ended.any():
            ours |= _of_the_step(info, ended)
        ours |= self._constraint(info)
        if ended.any():
            ours["final_obs"] = final_observations(observations, info)
            ours["_final_obs"] = ended
        if self.mode is AutoresetMode.DISABLED and ended.any():
            ours["final_obs"] = mapped(
                lambda rows: np.array(rows, copy=True), observations
            )  # the next line may write into the same memory
            observations, _ = self.env.reset(options={"reset_mask": ended})
        if self.inserts_rows:
            ours["valid"] = self._valid(info)
            self._ended = ended
        numbers = (self.give(value) for value in (observations, rewards, terminations, truncations))
        return *numbers, self.give_info(ours)  # type: ignore[return-value]

    @property
    def active(self) -> Array:
        """(N,) bool: rows that `step` moves, of environments that can pause rows; no others have the attribute."""
        return self.env.active  # type: ignore[attr-defined]

    @property
    def next_seeds(self) -> list[int | None]:
        """Of the same environments: seed of each row's next automatic reset."""
        return self.env.next_seeds  # type: ignore[attr-defined]

    @property
    def max_episode_steps(self) -> int | None:
        """Of the same environments: time limit of an episode."""
        return self.env.max_episode_steps  # type: ignore[attr-defined]

    def render(self) -> Any:
        """As the wrapped environment renders."""
        return self.env.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the wrapped environment."""
        self.env.close(**kwargs)

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Any:
        """What the wrapped environment accepts: an int as it is, a list only where it has rows of its own."""
        return seed if seed is None or isinstance(seed, int) else row_seeds(seed, self.num_envs)

    def _valid(self, info: Mapping[str, Any]) -> Array:
        valid = ~self._ended
        given = info.get("valid")
        return valid if given is None else valid & as_numpy(given).astype(np.bool_)

    def _constraint(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Cost and margin of the step, in every step from the first in which one appears."""
        found = {key: step_values(info, key, self.num_envs) for key in self.constraint_keys}
        self._constraints |= {key for key, value in found.items() if value is not None}
        missing = {"cost": 0.0, "margin": np.nan}  # a cost that is not spoken of is none; a margin is unknown
        given: dict[str, Any] = {key: np.full(self.num_envs, missing[key], np.float32) for key in self._constraints}
        given |= {key: value for key, value in found.items() if value is not None}
        if "margin" in given and "cost" not in given:
            margin = found["margin"]
            given["cost"] = np.zeros(self.num_envs, np.float32) if margin is None else costs_of(as_numpy(margin))
        return given


def _of_the_step(info: Mapping[str, Any], ended: Array) -> dict[str, Any]:
    """Numbers of `final_info` in the rows that ended, beside what `info` has in the others, with gymnasium's masks.

    In those rows `info` itself is the reset's. Dicts of numbers, such as `episode`, are taken by the same rule.
    """
    given, found = info.get("final_info"), dict[str, Any]()
    final: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    for key, value in final.items():
        before, reported = info.get(key), as_numpy(final.get(f"_{key}", ended)).astype(np.bool_) & ended
        if key.startswith("_") or key in READ_KEYS:
            continue
        if isinstance(value, Mapping):
            here = before if isinstance(before, Mapping) else {}
            found[key] = {**here, **_of_the_step({**here, "final_info": value}, ended)}
        elif is_numeric(value) and value.shape[:1] == ended.shape:
            values = as_numpy(value)
            same = is_numeric(before) and before.shape == value.shape  # type: ignore[union-attr]
            base = as_numpy(before) if same else np.zeros_like(values)
            found[key] = np.where(reported.reshape(-1, *[1] * (values.ndim - 1)), values, base)
        else:
            continue
        others = as_numpy(info.get(f"_{key}", np.full(len(ended), before is not None))).astype(np.bool_)
        found[f"_{key}"] = np.where(ended, reported, others)
    return found


class ConvertedVectorEnv(VectorEnvironment):
    """A contract environment that gives another kind of numbers: numpy for tensors, or tensors for numpy."""

    def __init__(self, env: Any, tensors: Tensors, device: str | torch.device = "cpu") -> None:
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space, tensors, device)
        self.env = env
        self.exact_final_obs = getattr(env, "exact_final_obs", True)
        self.inserts_rows = getattr(env, "inserts_rows", False)
        self.spec, self.metadata, self.render_mode = env.spec, env.metadata, env.render_mode

    def __getattr__(self, name: str) -> Any:
        """Anything else is the wrapped environment's, e.g. `parameters` and `set_parameters`."""
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def state(self) -> Any:
        """The wrapped environment's state, in the kind of numbers given here."""
        return self.give(self.env.state)

    @state.setter
    def state(self, value: Any) -> None:
        self.env.state = self._take(value)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Numbers, dict[str, Any]]:
        """As the wrapped environment resets."""
        observations, info = self.env.reset(seed=seed, options=options)
        return self.give(observations), self.give_info(info)

    def step(self, actions: Any) -> tuple[Numbers, Numbers, Numbers, Numbers, dict[str, Any]]:
        """As the wrapped environment steps."""
        *numbers, info = self.env.step(self._take(actions))
        return *(self.give(value) for value in numbers), self.give_info(info)  # type: ignore[return-value]

    def render(self) -> Any:
        """As the wrapped environment renders."""
        return self.env.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the wrapped environment."""
        self.env.close(**kwargs)

    def _take(self, values: Any) -> Numbers:
        """Values of either kind as the wrapped environment takes them."""
        if self.env.tensors == "numpy":
            return as_numpy(values)
        return torch.as_tensor(values, device=getattr(self.env, "device", "cpu"))


def adapt(
    env: Any,
    autoreset: AutoresetMode | str | None = None,
    tensors: Tensors = "numpy",
    device: str | torch.device = "cpu",
) -> VectorEnvironment:
    """Put any gymnasium environment behind the contract of `surefoot.envs.interface`.

    Args:
        env: a vector environment of any autoreset mode, a single environment (one row then), or a sequence of
            functions that each make a single environment (a row each).
        autoreset: mode of a vector environment whose metadata does not give it.
        tensors, device: what the result gives; a contract environment that gives it already is returned as it is.

    Raises:
        EnvironmentMismatchError: no gymnasium environment, or one that can't be adapted; the message says why.
        ConfigError: an empty sequence, an unknown mode or kind of numbers.
    """
    if hasattr(env, "tensors"):  # a contract environment already
        check_contract(env)
        same = (env.tensors, torch.device(getattr(env, "device", "cpu"))) == (tensors, torch.device(device))
        return env if same else ConvertedVectorEnv(env, tensors, device)
    if isinstance(env, gymnasium.Env):
        return GymnasiumVectorEnv(_side_by_side([lambda: env]), None, tensors, device)
    if isinstance(env, Sequence) and not isinstance(env, str):
        if not env:
            raise ConfigError("no environment was given: a vector environment needs at least 1 row")
        return GymnasiumVectorEnv(_side_by_side(env), None, tensors, device)
    if not isinstance(env, VectorEnv):
        raise EnvironmentMismatchError(
            f"{type(env).__name__} is no gymnasium environment (an id is made with gymnasium.make_vec); "
            "surefoot.envs.adapters has from_sb3, from_brax, from_isaac_lab and from_isaac_gym for others"
        )
    return GymnasiumVectorEnv(env, autoreset, tensors, device)


def _side_by_side(makers: Sequence[Callable[[], Any]]) -> SyncVectorEnv:
    try:
        return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    except Exception as error:
        raise EnvironmentMismatchError(
            f"the environments can't be put side by side ({type(error).__name__}: {error}); "
            "every row needs the same spaces"
        ) from error
