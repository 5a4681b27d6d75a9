"""`Chunked`: an environment that takes C actions at once, for agents that decide once a chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.core.base.spec import mapped
from surefoot.envs.interface import (
    Array,
    Numbers,
    Tensors,
    VectorEnvironment,
    as_numpy,
    check_contract,
    final_observations,
    is_numeric,
    step_values,
)
from surefoot.envs.reward_terms import DECLARED, PREFIXES, reward_terms
from surefoot.envs.side_by_side import name_of

PASSED_ON = ("get_state", "set_state", "parameters", "set_parameters", "diverged_episodes", "unsaved")
"""What is the environment's own, where it has it."""
OWN = (
    "final_obs",
    "_final_obs",
    "final_info",
    "_final_info",
    "cost",
    "_cost",
    "margin",
    "_margin",
    "diverged",
    "valid",
)
"""Entries of an info that are summed up in a way of their own."""


class Chunked(VectorEnvironment):
    """N environments whose action is a chunk: C actions of A numbers, one after another (C A numbers, in time order).

    Where an episode ends inside a chunk, the rest of the chunk is not played: the row is paused until the others are
    done, so that no action of one episode reaches the next one. Of such a row `step` gives what really happened: its
    final observation, whether it terminated or was truncated, and as the next observation the first of its new episode.

    Rewards and costs are sums over the steps that were taken, margins the lowest, `info["diverged"]` whether any did;
    other numbers in `info` are those of each row's last step. `info["steps"]` (N,) int64 counts the steps taken in the
    environment by this chunk, from 1 to C and 0 of paused rows, and `steps_taken` those since construction.

    Args:
        env: contract environment (`envs.interface`) that can pause rows (`PausableVectorEnv`), of vector actions.
        chunk: C, at least 1.
        discount: of rewards inside a chunk: the k-th counts discount^k; 1 for their plain sum.

    Raises:
        ConfigError: a chunk below 1, or a discount out of (0, 1].
        EnvironmentMismatchError: the environment can't pause rows, or its actions are no vectors.
    """

    def __init__(self, env: Any, chunk: int, discount: float = 1.0) -> None:
        check_contract(env)
        if chunk < 1 or not 0 < discount <= 1:
            raise ConfigError(f"chunk is {chunk} and discount {discount:g}; at least 1 action, and a number in (0, 1]")
        space = env.single_action_space
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise EnvironmentMismatchError(f"{name_of(env)}: actions are {space}, and chunks are made of vectors")
        if not hasattr(env, "active") or getattr(env, "inserts_rows", False):
            raise EnvironmentMismatchError(
                f"{name_of(env)} ({type(env).__name__}) can't pause single rows, and a chunk of {chunk} actions has to "
                "stop where its episode ends: make the environment by its id (surefoot.envs.make_vec), or set "
                "algo.chunk=1"
            )
        actions = Box(np.tile(space.low, chunk), np.tile(space.high, chunk), dtype=space.dtype.type)
        tensors: Tensors = getattr(env, "tensors", "numpy")
        device = getattr(env, "device", "cpu")
        super().__init__(env.num_envs, env.single_observation_space, actions, tensors, device)
        self.env, self.chunk, self.discount = env, chunk, discount
        self.spec, self.metadata, self.render_mode = env.spec, env.metadata, getattr(env, "render_mode", None)
        self.exact_final_obs = getattr(env, "exact_final_obs", True)
        self.active: Array = np.ones(env.num_envs, np.bool_)
        """(N,) bool: rows that `step` moves. Set it freely between steps; `reset` sets all."""
        self.steps_taken: Array = np.zeros(env.num_envs, np.int64)
        """(N,) steps taken in the environment so far."""
        limit = env.max_episode_steps if hasattr(env, "max_episode_steps") else None
        self.max_episode_steps: int | None = None if limit is None else -(-limit // chunk)
        """Decisions of the longest episode."""

    def __getattr__(self, name: str) -> Any:
        """Domain parameters and the simulator's state are the environment's, where it has them."""
        if name not in PASSED_ON:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.env, name)

    @property
    def next_seeds(self) -> list[int | None]:
        """Seed of each row's next automatic reset; None continues the row's own random numbers."""
        return self.env.next_seeds

    @next_seeds.setter
    def next_seeds(self, seeds: Sequence[int | None]) -> None:
        self.env.next_seeds = list(seeds)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment resets; all rows are active then."""
        observations, info = self.env.reset(seed=seed, options=options)
        self.active[:] = True
        return observations, info

    def step(self, actions: Any) -> tuple[Any, Numbers, Numbers, Numbers, dict[str, Any]]:
        """Play a chunk in the active rows.

        Args:
            actions: (N, C A) in the environment's own units, the first action first.

        Returns:
            (N, O) observations that the next chunks are chosen by, (N,) summed rewards, (N,) bool terminations and
            truncations, and info.
        """
        self.check_actions(actions)
        env, count = self.env, self.num_envs
        played = as_numpy(actions).reshape(count, self.chunk, -1)
        env.active[:] = self.active
        rewards, costs, margins = np.zeros(count), np.zeros(count), np.full(count, np.inf)
        terminations, truncations, diverged = np.zeros((3, count), np.bool_)
        steps, info = np.zeros(count, np.int64), dict[str, Any]()
        final: Any = None
        for place in range(self.chunk):
            moved = as_numpy(env.active).copy()
            if place > 0 and not moved.any():
                break
            now = played[:, place]
            observations, reward, terminated, truncated, reported = env.step(
                now if self.tensors == "numpy" else self.give(now)
            )
            rewards[moved] += self.discount**place * as_numpy(reward)[moved]
            terminations |= moved & as_numpy(terminated)
            truncations |= moved & as_numpy(truncated)
            steps += moved
            given = {key: step_values(reported, key, count) for key in ("cost", "margin", "diverged")}
            if given["cost"] is not None:
                costs[moved] += as_numpy(given["cost"])[moved]
                info["cost"] = costs
            if given["margin"] is not None:
                margins[moved] = np.minimum(margins[moved], as_numpy(given["margin"])[moved])
                info["margin"] = margins
            if given["diverged"] is not None:
                diverged |= moved & as_numpy(given["diverged"]).astype(np.bool_)
                info["diverged"] = diverged
            _note(info, reported, moved)
            for name, term in reward_terms(reported, count).items():
                summed = info.setdefault(DECLARED, {}).setdefault(name, np.zeros(count))
                summed[moved] += as_numpy(term)[moved]
            over = moved & (terminations | truncations)
            if over.any():
                after = mapped(as_numpy, final_observations(observations, reported))
                final = mapped(np.zeros_like, after) if final is None else final
                mapped(lambda kept, new, rows=over: kept.__setitem__(rows, new[rows]), final, after)
                env.active[over] = False
        env.active[:] = self.active
        self.steps_taken += steps
        following = mapped(lambda values: np.array(as_numpy(values)), observations)
        ended = terminations | truncations
        if final is not None:
            mapped(lambda kept, new: kept.__setitem__(~ended, new[~ended]), final, following)
            info["final_obs"], info["_final_obs"] = mapped(self.give, final), ended
        kind = as_numpy(reward).dtype
        for name in ("cost", "margin"):
            if name in info:
                info[name] = info[name].astype(kind)
        info |= {"valid": self.active.copy(), "steps": steps}
        numbers = self.give(rewards.astype(kind)), self.give(terminations), self.give(truncations)
        return mapped(self.give, following), *numbers, self.give_info(info)

    def render(self) -> Any:
        """As the environment renders."""
        return self.env.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environment."""
        self.env.close(**kwargs)


def _note(info: dict[str, Any], reported: Mapping[str, Any], moved: Array) -> None:
    """Keep the numbers (N, ...) of an inner step's info in the rows that it moved."""
    for key, value in reported.items():
        if key in OWN or key.startswith(PREFIXES) or not is_numeric(value) or np.shape(value)[:1] != moved.shape:
            continue
        new = as_numpy(value)
        if key not in info:
            info[key] = np.zeros_like(new)
        info[key][moved] = new[moved]
