"""brax and mujoco_playground environments behind the contract, their arrays as tensors by DLPack.

Both libraries step a `State` (obs, reward, done, info) with pure functions.

* A bare environment (`envs.get_environment(...)`, `registry.load(...)`) is stepped side by side, given a time limit
  and reset here, each episode from a fresh draw: final observations are exact.
* One wrapped for training (`training.wrap`, `wrapper.wrap_for_brax_training`) resets itself: its `AutoResetWrapper`
  overwrites the final observation, by default with the *first* state of that row again. It is taken as it
  is, with `exact_final_obs` False. Prefer the bare one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, nearest
from surefoot.envs.adapters.dlpack import from_torch, require, to_torch
from surefoot.envs.adapters.jax_state import arrays_of_tree, tree_of_arrays
from surefoot.envs.adapters.memory import in_memory
from surefoot.envs.adapters.pausing import PausableRows
from surefoot.envs.interface import Array, Numbers, Tensors, VectorEnvironment, costs_of, reset_mask, row_seeds
from surefoot.envs.reward_terms import extras_terms

Keys = Callable[[list[int]], Any]


class WrappedBraxVectorEnv(VectorEnvironment):
    """An environment that brax's or playground's training wrappers reset; see `from_brax`."""

    exact_final_obs = False

    def __init__(
        self, env: Any, num_envs: int, group: str, tensors: Tensors, device: str, keys: Keys | None, jit: bool
    ) -> None:
        super().__init__(num_envs, *_spaces(env, group), tensors, device)
        self.env = env
        self.group = group
        self._keys = keys or jax_keys
        self._reset, self._step = (env.reset, env.step) if not jit else map(_jit, (env.reset, env.step))
        self._draw = np.random.default_rng()
        self._state: Any = None

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Numbers, dict[str, Any]]:
        """Begin new episodes in all rows.

        Raises:
            EnvironmentMismatchError: a reset of some rows, which the wrappers have not.
        """
        mask = reset_mask(options, self.num_envs)
        if mask is not None and not mask.all():
            raise EnvironmentMismatchError(
                f"{type(self.env).__name__} can't reset some rows: give from_brax the environment without its wrappers"
            )
        self._state = self._reset(self._keys(_seeds(seed, self.num_envs, self._draw)))
        return self.give(to_torch(_choose(self._state.obs, self.group))), {}

    def step(self, actions: Any) -> tuple[Numbers, Numbers, Numbers, Numbers, dict[str, Any]]:
        """One step of every row."""
        self.check_actions(actions)
        if self._state is None:
            raise EnvironmentMismatchError("step was called before the first reset: call reset first")
        before = to_torch(_choose(self._state.obs, self.group))
        actions = from_torch(torch.as_tensor(actions, dtype=torch.float32), like=_choose(self._state.obs, self.group))
        self._state = self._step(self._state, actions)
        seen, done = to_torch(_choose(self._state.obs, self.group)), to_torch(self._state.done) > 0
        limits = to_torch(self._state.info["truncation"]) > 0
        info = {
            "final_obs": torch.where(done.reshape(-1, *[1] * (seen.ndim - 1)), before, seen), "_final_obs": done
        } | _constraints(self._state) | _terms(self._state)  # fmt: skip
        numbers = (self.give(x) for x in (seen, to_torch(self._state.reward), done & ~limits, done & limits))
        return *numbers, self.give_info(info)  # type: ignore[return-value]


class BraxVectorEnv(PausableRows):
    """A bare brax or playground environment, stepped, limited and reset here; see `from_brax`.

    A row whose observation or reward stops being finite is truncated: `info["diverged"]` marks it, its reward is 0 and
    its final observation is the one before.
    """

    def __init__(self, env: Any, num_envs: int, episode_length: int, group: str, tensors: Tensors, device: str) -> None:
        super().__init__(num_envs, *_spaces(env, group), tensors, device)
        self.env = env
        self.group = group
        self.episode_length = self.max_episode_steps = episode_length
        self._functions = _batched(env, episode_length, group)
        self._draw = np.random.default_rng()
        self._state: Any = None
        self._counts: Any = None  # (N,) steps of the running episodes
        self._keys: Any = None  # (N, ...) one key a row, so that a row's episodes follow from its own seed

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Numbers, dict[str, Any]]:
        """Begin new episodes in all rows, or in those of `options["reset_mask"]`, each from a fresh draw."""
        mask = reset_mask(options, self.num_envs)
        keys = jax_keys(_seeds(seed, self.num_envs, self._draw))
        with in_memory(self.num_envs):
            if mask is None or self._state is None:
                self._state, self._counts, self._keys = self._functions.begin(keys)
            else:
                running = (self._state, self._counts, self._keys)
                self._state, self._counts, self._keys = self._functions.begin_some(mask, *running, keys)
            observations = self.give(to_torch(_choose(self._state.obs, self.group)))
        self.all_active()
        return observations, {}

    def step(self, actions: Any) -> tuple[Numbers, Numbers, Numbers, Numbers, dict[str, Any]]:
        """One step of every row that is active."""
        self.check_actions(actions)
        if self._state is None:
            raise EnvironmentMismatchError("step was called before the first reset: call reset first")
        if rows := self.newly_seeded():
            self._keys = self._keys.at[np.asarray(rows)].set(jax_keys([int(self.next_seeds[row] or 0) for row in rows]))
        given = from_torch(torch.as_tensor(actions, dtype=torch.float32, device=self.device), like=None)
        running = (self._state, self._counts, self._keys, given)
        with in_memory(self.num_envs):
            if self.paused:
                outcome, (self._state, self._counts, self._keys) = self._functions.step_some(self.active, *running)
            else:
                outcome, (self._state, self._counts, self._keys) = self._functions.step(*running)
            found = {name: to_torch(value) for name, value in outcome.items()}
            seen = to_torch(_choose(self._state.obs, self.group))
        terminations, truncations = found.pop("terminated"), found.pop("truncated")
        info = found | {"_final_obs": terminations | truncations}
        if self.paused:
            info["valid"] = torch.as_tensor(self.active.copy(), device=self.device)
        if "margin" in info and "cost" not in info:
            info["cost"] = costs_of(info["margin"])
        numbers = (self.give(x) for x in (seen, info.pop("reward"), terminations, truncations))
        return *numbers, self.give_info(info)  # type: ignore[return-value]

    def get_state(self) -> dict[str, Array]:
        """Everything that the next step depends on: path in the state -> numbers.

        Raises:
            EnvironmentMismatchError: before the first reset.
        """
        if self._state is None:
            raise EnvironmentMismatchError("there is no state before the first reset: call reset first")
        return arrays_of_tree({"state": self._state, "counts": self._counts, "keys": self._keys})

    def set_state(self, arrays: dict[str, Array]) -> None:
        """Continue from what `get_state` gave.

        Raises:
            EnvironmentMismatchError: before the first reset, or the state of another environment.
        """
        if self._state is None:
            raise EnvironmentMismatchError("a state is set after the first reset: call reset first")
        tree = tree_of_arrays({"state": self._state, "counts": self._counts, "keys": self._keys}, arrays)
        self._state, self._counts, self._keys = tree["state"], tree["counts"], tree["keys"]


def from_brax(
    env: Any,
    num_envs: int,
    episode_length: int | None = None,
    group: str = "state",
    tensors: Tensors = "torch",
    device: str = "cpu",
    keys: Keys | None = None,
    jit: bool = True,
) -> VectorEnvironment:
    """A brax or mujoco_playground environment behind the contract.

    Actions lie in [-1, 1], as both libraries expect. An environment's `info["cost"]`, `info["margin"]` are passed on.

    Args:
        env: bare, or wrapped for training.
        num_envs: rows.
        episode_length: steps after which a bare environment's episode is truncated; a wrapped one knows its own.
        group: which observations to give, where the environment has several.
        tensors: "torch" or "numpy".
        device: torch's name of the device that jax computes on.
        keys: of a wrapped environment, list of N seeds -> its random keys; jax's by default.
        jit: of a wrapped environment: compile its functions.

    Raises:
        ConfigError: no time limit, or a group that is not there.
        EnvironmentMismatchError: wrappers that neither reset nor can be looked through.
        MissingExtraError: jax is not installed.
    """
    wrappers = _wrappers(env)
    if any("AutoReset" in name for name in wrappers):
        if episode_length is not None:
            raise ConfigError("this environment's EpisodeWrapper knows its time limit: leave episode_length out")
        return WrappedBraxVectorEnv(env, num_envs, group, tensors, device, keys, jit)
    if batched := [name for name in wrappers if "Vmap" in name or "Episode" in name]:
        raise EnvironmentMismatchError(
            f"the environment is wrapped in {', '.join(batched)} but not in AutoResetWrapper: give from_brax the bare "
            "environment with episode_length, or one wrapped for training"
        )
    if episode_length is None or episode_length < 1:
        raise ConfigError(
            f"episode_length is {episode_length}: a bare environment never ends by time, so say after how many steps "
            "its episodes are truncated (playground: registry.get_default_config(name).episode_length)"
        )
    return BraxVectorEnv(env, num_envs, episode_length, group, tensors, device)


def jax_keys(seeds: list[int]) -> Any:
    """(N, ...) random keys of jax from N seeds."""
    jax = require("jax", "brax")
    return jax.vmap(jax.random.PRNGKey)(np.asarray(seeds, np.uint32))


def _jit(function: Any) -> Any:
    return require("jax", "brax").jit(function)


class _Functions(NamedTuple):
    """What moves all rows of an environment, compiled."""

    begin: Any
    begin_some: Any
    step: Any
    step_some: Any


@functools.lru_cache(maxsize=8)  # a run evaluates in the same environment again and again, and compiling takes long
def _batched(env: Any, episode_length: int, group: str) -> _Functions:
    """Compiled functions: begin all rows, begin some, and step all or some with reset of the rows that ended."""
    jax = require("jax", "brax")
    numpy, reset, move = jax.numpy, jax.vmap(env.reset), jax.vmap(env.step)

    def chosen(mask: Any, new: Any, old: Any) -> Any:
        def choose(new: Any, old: Any) -> Any:
            if new.shape[:1] != mask.shape:  # MuJoCo Warp keeps some arrays, such as contacts, for all rows together
                return old
            return numpy.where(mask.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        return jax.tree.map(choose, new, old)

    def begin(keys: Any) -> Any:
        pairs = jax.vmap(jax.random.split)(keys)
        return reset(pairs[:, 0]), numpy.zeros(len(keys), numpy.int32), pairs[:, 1]

    def begin_some(mask: Any, state: Any, counts: Any, keys: Any, new_keys: Any) -> Any:
        return chosen(mask, begin(new_keys), (state, counts, keys))

    def step(state: Any, counts: Any, keys: Any, actions: Any) -> Any:
        return moved(None, state, counts, keys, actions)

    def moved(active: Any, state: Any, counts: Any, keys: Any, actions: Any) -> Any:
        after, before, counts_after = move(state, actions), _choose(state.obs, group), counts + 1
        if active is not None:
            after, counts_after = chosen(active, (after, counts_after), (state, counts))
        final = _choose(after.obs, group)
        finite = numpy.isfinite(final).reshape(len(counts), -1).all(1) & numpy.isfinite(after.reward)
        on = numpy.ones_like(finite) if active is None else active
        terminated = (after.done > 0) & finite & on
        truncated = ((counts_after >= episode_length) & ~terminated | ~finite) & on
        outcome = {
            "terminated": terminated,
            "truncated": truncated,
            "reward": numpy.where(finite & on, after.reward, 0.0),
            "final_obs": numpy.where(finite.reshape(-1, *[1] * (final.ndim - 1)), final, before),
            "diverged": ~finite & on,
        } | {key: after.info[key] for key in VectorEnvironment.constraint_keys if key in after.info}
        outcome |= {key: numpy.where(finite & on, value, 0.0) for key, value in extras_terms(after.metrics).items()}
        ended = terminated | truncated
        started = jax.lax.cond(
            ended.any(),
            lambda: begin_some(ended, after, counts_after, keys, keys),
            lambda: (after, counts_after, keys),
        )
        return outcome, started

    return _Functions(*map(jax.jit, (begin, begin_some, step, moved)))


def _wrappers(env: Any) -> list[str]:
    """Class names from the environment inwards."""
    names = [type(env).__name__]
    while (env := vars(env).get("env")) is not None:
        names.append(type(env).__name__)
    return names


def _spaces(env: Any, group: str) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.Box]:
    size = env.observation_size
    if isinstance(size, Mapping):
        if group not in size:
            raise ConfigError(f"there are no observations {group!r}: {nearest(group, list(size))}")
        size = size[group]
    shape = tuple(size) if isinstance(size, Sequence) else (int(size),)
    return (
        gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32),
        gymnasium.spaces.Box(-1.0, 1.0, (int(env.action_size),), np.float32),
    )


def _choose(observations: Any, group: str) -> Any:
    return observations[group] if isinstance(observations, Mapping) else observations


def _seeds(seed: int | Sequence[int | None] | None, num_envs: int, draw: np.random.Generator) -> list[int]:
    """A seed for each row; drawn where none is given."""
    return [int(draw.integers(2**31)) if one is None else one for one in row_seeds(seed, num_envs)]


def _terms(state: Any) -> dict[str, Tensor]:
    """Terms of the reward among the metrics of a state, where it has some."""
    return {key: to_torch(value) for key, value in extras_terms(getattr(state, "metrics", None)).items()}


def _constraints(state: Any) -> dict[str, Tensor]:
    found = {key: to_torch(state.info[key]) for key in VectorEnvironment.constraint_keys if key in state.info}
    if "margin" in found and "cost" not in found:
        found["cost"] = costs_of(found["margin"])
    return found
