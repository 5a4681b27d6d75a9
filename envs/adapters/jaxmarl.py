"""JaxMARL's environments as teams of agents (envs/agents.py): `jaxmarl:NAME` and `from_jaxmarl`.

JaxMARL's own `step` resets by itself and so loses the last observation; here `step_env` and `reset` are called apart,
and last observations are exact. JaxMARL has one flag for ends. Where an environment has `max_steps` and an episode has
reached it, the agents that are still there are truncated, as elsewhere, and not terminated.

JaxMARL pulls in gymnax, which asks for gymnasium below 1.4: install it into an environment of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, nearest
from surefoot.envs import make as names
from surefoot.envs.adapters.dlpack import require
from surefoot.envs.adapters.jax_state import arrays_of_tree, tree_of_arrays
from surefoot.envs.agents import AgentRows, Outcome, RowView, Scene, Teams, TeamVectorEnv, as_viewed
from surefoot.envs.interface import Array

STATE = "world_state"
"""Key of JaxMARL's observations that is the team's state, where an environment gives one."""
EVERYONE = "__all__"


def make(
    rest: str,
    num_envs: int,
    view: RowView | None = None,
    max_episode_steps: int | None = None,
    leaves: bool = False,
    **options: Any,
) -> AgentRows | TeamVectorEnv:
    """Of the name `jaxmarl:NAME`, as `jaxmarl:MPE_simple_spread_v3`.

    Args:
        rest: JaxMARL's own name.
        num_envs: environments, each a team.
        view: as `from_jaxmarl`.
        max_episode_steps: likewise.
        leaves: likewise.
        options: of the environment's class.

    Raises:
        ConfigError: JaxMARL has no such environment.
        MissingExtraError: JaxMARL is not installed.
        EnvironmentMismatchError: it fails as it is made.
    """
    jaxmarl, name = require("jaxmarl", "JaxMARL"), f"jaxmarl:{rest}"
    known = list(require("jaxmarl.registration", "JaxMARL").registered_envs)
    if rest not in known:
        raise ConfigError(f"JaxMARL has no environment {rest!r}: {nearest(rest, known)}")
    env = names.called(functools.partial(jaxmarl.make, rest), name, options)
    return from_jaxmarl(env, num_envs, view=view, max_episode_steps=max_episode_steps, leaves=leaves, name=name)


def from_jaxmarl(
    env: Any,
    num_envs: int,
    *,
    view: RowView | None = None,
    max_episode_steps: int | None = None,
    leaves: bool = False,
    name: str = "",
) -> AgentRows | TeamVectorEnv:
    """An environment of JaxMARL, batched and compiled.

    Args:
        env: a `MultiAgentEnv`, without wrappers.
        num_envs: how many side by side.
        view: what rows of agents show; None: a row is a team, as policies are evaluated.
        max_episode_steps: steps after which all agents are truncated; None: the environment's own `max_steps`.
        leaves: whether agents may leave before the others.
        name: for messages.

    Raises:
        EnvironmentMismatchError: no such environment, or agents whose spaces are no vectors or of different kinds.
    """
    return as_viewed(JaxTeams(env, num_envs, max_episode_steps, leaves, name or type(env).__name__), view)


class JaxTeams(Teams):
    """T copies of a JaxMARL environment, stepped by two compiled functions; see `from_jaxmarl`."""

    restorable = True

    def __init__(self, env: Any, num_teams: int, limit: int | None, leaves: bool, name: str) -> None:
        missing = [word for word in ("agents", "reset", "step_env", "action_space") if not hasattr(env, word)]
        if missing:
            raise EnvironmentMismatchError(f"{name}: {type(env).__name__} has no {missing[0]}: give one of JaxMARL's")
        self.env, agents = env, list(env.agents)
        widths = [int(np.prod(env.observation_space(agent).shape)) for agent in agents]
        action, choices = _actions(env, agents, name)
        self._jax = jax = require("jax", "JaxMARL")
        self._widths = widths
        self._choices = choices
        first, _ = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
        self._has_state = STATE in first
        says = choices is not None and _gives_masks(env, jax)
        masked = says or (choices is not None and len(set(choices)) > 1)
        own_limit = getattr(env, "max_steps", None)
        super().__init__(
            agents,
            num_teams,
            max(widths),
            action,
            state_dim=int(np.prod(first[STATE].shape)) if self._has_state else 0,
            masked=masked,
            max_episode_steps=limit if limit is not None or own_limit is None else int(own_limit),
            leaves=leaves,
            name=name,
        )
        self._reset, self._step = jax.jit(jax.vmap(env.reset)), jax.jit(self._stepped)
        self._masks = jax.jit(jax.vmap(env.get_avail_actions)) if says else None
        self._state: Any = None
        self._keys: Any = None
        self._draw = np.random.default_rng()
        self._counts = np.zeros(num_teams, np.int64)

    def _stepped(self, keys: Any, state: Any, actions: Any, active: Any) -> Any:
        """One step of the active teams; the others stay as they are."""
        jax = self._jax
        pairs = jax.vmap(jax.random.split)(keys)
        seen, after, rewards, dones, _ = jax.vmap(self.env.step_env)(pairs[:, 0], state, actions)

        def chosen(new: Any, old: Any) -> Any:
            return jax.numpy.where(active.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        return seen, jax.tree.map(chosen, after, state), rewards, dones, chosen(pairs[:, 1], keys)

    def begin(self, teams: Array, seeds: Sequence[int | None]) -> Scene:
        """As `Teams.begin`."""
        jax = self._jax
        given = np.zeros(self.num_teams, np.uint32)
        fresh = np.zeros(self.num_teams, np.bool_)
        for team, seed in zip(teams.tolist(), seeds, strict=True):
            if seed is not None or self._keys is None:
                given[team] = int(self._draw.integers(2**31)) if seed is None else seed
                fresh[team] = True
        seeded = jax.vmap(jax.random.PRNGKey)(given)
        keys = seeded if self._keys is None else jax.numpy.where(fresh[:, None], seeded, self._keys)
        pairs = jax.vmap(jax.random.split)(keys)
        seen, state = self._reset(pairs[:, 0])
        chosen = np.zeros(self.num_teams, np.bool_)
        chosen[teams] = True

        def taken(new: Any, old: Any) -> Any:
            return jax.numpy.where(chosen.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        self._state = state if self._state is None else jax.tree.map(taken, state, self._state)
        self._keys = pairs[:, 1] if self._keys is None else taken(pairs[:, 1], self._keys)
        self._counts[teams] = 0
        return self._scene(teams, seen, np.ones((len(teams), self.agents), np.bool_))

    def move(self, teams: Array, actions: Array) -> Outcome:
        """As `Teams.move`."""
        whole = np.zeros((self.num_teams, *actions.shape[1:]), actions.dtype)
        whole[teams] = actions
        active = np.zeros(self.num_teams, np.bool_)
        active[teams] = True
        given = {agent: self._jax.numpy.asarray(whole[:, i]) for i, agent in enumerate(self.names)}
        seen, self._state, rewards, dones, self._keys = self._step(self._keys, self._state, given, active)
        self._counts[teams] += 1
        earned = np.stack([np.asarray(rewards[agent])[teams] for agent in self.names], 1)
        over = np.asarray(dones[EVERYONE])[teams]
        ended = np.stack([np.asarray(dones[agent])[teams] for agent in self.names], 1) | over[:, None]
        limit = self.max_episode_steps
        late = np.zeros(len(teams), np.bool_) if limit is None else self._counts[teams] >= limit
        cut = ended & late[:, None]
        return Outcome(self._scene(teams, seen, ~ended), earned, ended & ~cut, cut)

    def _scene(self, teams: Array, seen: Mapping[str, Any], present: Array) -> Scene:
        """What (K,) `teams` are in."""
        observations = np.zeros((len(teams), self.agents, self.observation_dim), np.float32)
        for index, agent in enumerate(self.names):
            observations[:, index, : self._widths[index]] = np.asarray(seen[agent])[teams].reshape(len(teams), -1)
        state = np.asarray(seen[STATE])[teams].reshape(len(teams), -1) if self._has_state else None
        masks = None
        if self.masked:
            assert self._choices is not None
            most = max(self._choices)
            masks = np.stack([np.arange(most) < count for count in self._choices]).astype(np.float32)
            masks = np.repeat(masks[None], len(teams), 0)
            if self._masks is not None:
                allowed = self._masks(self._state)
                for index, agent in enumerate(self.names):
                    own = np.asarray(allowed[agent])[teams]
                    masks[:, index, : own.shape[1]] *= own
        return Scene(observations, present, state, masks)

    def get_state(self) -> dict[str, Array]:
        """As `Teams.get_state`."""
        return {**arrays_of_tree({"state": self._state, "keys": self._keys}), "steps": self._counts.copy()}

    def set_state(self, state: Mapping[str, Array]) -> None:
        """As `Teams.set_state`."""
        arrays = dict(state)
        self._counts = np.array(arrays.pop("steps"))
        found = tree_of_arrays({"state": self._state, "keys": self._keys}, arrays)
        self._state, self._keys = found["state"], found["keys"]


def _actions(env: Any, agents: Sequence[str], name: str) -> tuple[gymnasium.Space[Any], list[int] | None]:
    """The space that stands for those of all agents, and the number of choices of each; None of continuous actions."""
    spaces = [env.action_space(agent) for agent in agents]
    if all(hasattr(space, "n") for space in spaces):
        choices = [int(space.n) for space in spaces]
        return gymnasium.spaces.Discrete(max(choices)), choices
    bounds = [(np.asarray(getattr(s, "low", None)), np.asarray(getattr(s, "high", None)), s.shape) for s in spaces]
    low, high, shape = bounds[0]
    same = all(np.array_equal(one[0], low) and np.array_equal(one[1], high) and one[2] == shape for one in bounds)
    if any(hasattr(space, "n") for space in spaces) or not same or len(shape) != 1:
        raise EnvironmentMismatchError(
            f"{name}: actions of its agents are {', '.join(map(str, spaces))}; must be choices, or vectors of one size "
            "within the same bounds"
        )
    box = gymnasium.spaces.Box(
        np.broadcast_to(low, shape).astype(np.float32), np.broadcast_to(high, shape).astype(np.float32)
    )
    return box, None


def _gives_masks(env: Any, jax: Any) -> bool:
    """Whether an environment says which choices are allowed."""
    try:
        _, state = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
        jax.eval_shape(env.get_avail_actions, state)
    except (NotImplementedError, AttributeError):
        return False
    return True
