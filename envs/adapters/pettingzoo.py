"""PettingZoo's parallel environments as teams of agents (envs/agents.py): `pettingzoo:MODULE` and `from_pettingzoo`.

A parallel environment is stepped by dicts that have an entry for each agent. Its agents may differ in the width of what
they observe and in the number of their choices; observations are flattened as gymnasium flattens them and padded with
zeros. Continuous actions are in the agents' own bounds where these are the same for all, else scaled to [-1, 1].
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, SimulatorError, SurefootError
from surefoot.core.base.spec import MASK
from surefoot.envs import make as names
from surefoot.envs.agents import AgentRows, Outcome, RowView, Scene, Teams, TeamVectorEnv, as_viewed
from surefoot.envs.interface import Array
from surefoot.envs.masks import OBSERVATION

FUNCTION = "parallel_env"
"""What a module of PettingZoo calls its maker of parallel environments."""
Made = Callable[[], Any]


def make(
    rest: str,
    num_envs: int,
    view: RowView | None = None,
    max_episode_steps: int | None = None,
    leaves: bool = False,
    **options: Any,
) -> AgentRows | TeamVectorEnv:
    """Of the name `pettingzoo:MODULE` or `pettingzoo:MODULE:FUNCTION`.

    Args:
        rest: the name without its prefix, as `mpe2.simple_spread_v3`.
        num_envs: environments, each a team.
        view: as `from_pettingzoo`.
        max_episode_steps: likewise.
        leaves: likewise.
        options: of the module's function, as `N=5`.

    Raises:
        ConfigError: no such module or function, or an option that it does not take.
        EnvironmentMismatchError: it fails, or gives no parallel environment.
    """
    name = f"pettingzoo:{rest}"
    module, _, function = rest.partition(":")
    found = getattr(names.import_module(name, module), function or FUNCTION, None)
    if not callable(found):
        raise ConfigError(
            f"environment {name!r}: {module} has no function {function or FUNCTION}; write pettingzoo:MODULE of a "
            "module that has parallel_env, as pettingzoo:mpe2.simple_spread_v3, or pettingzoo:MODULE:FUNCTION"
        )
    names.refuse_unknown(name, options, names.parameters_of(found))
    return from_pettingzoo(
        lambda: names.called(found, name, options),
        num_envs,
        view=view,
        max_episode_steps=max_episode_steps,
        leaves=leaves,
        name=name,
    )


def from_pettingzoo(
    maker: Made,
    num_envs: int,
    *,
    view: RowView | None = None,
    max_episode_steps: int | None = None,
    leaves: bool = False,
    name: str = "",
) -> AgentRows | TeamVectorEnv:
    """Parallel environments of PettingZoo side by side.

    Args:
        maker: makes one of them.
        num_envs: how many.
        view: what rows of agents show; None: a row is a team, as policies are evaluated.
        max_episode_steps: steps after which all agents are truncated; None: the environment's own end.
        leaves: whether agents may leave before the others of their environment.
        name: for messages.

    Raises:
        EnvironmentMismatchError: no parallel environment, or agents whose spaces are no vectors or of different kinds.
    """
    first = maker()
    called = name or type(first).__name__
    missing = [word for word in ("possible_agents", "reset", "step", "action_space") if not hasattr(first, word)]
    if missing:
        raise EnvironmentMismatchError(
            f"{called} gave a {type(first).__name__} without {missing[0]}: give a parallel environment of PettingZoo "
            "(of an AEC environment, pettingzoo.utils.aec_to_parallel makes one)"
        )
    state = view is not None and view.state
    teams = PettingZooTeams([first, *(maker() for _ in range(num_envs - 1))], state, max_episode_steps, leaves, called)
    return as_viewed(teams, view)


class PettingZooTeams(Teams):
    """T parallel environments of PettingZoo; see `from_pettingzoo`."""

    def __init__(self, envs: Sequence[Any], state: bool, limit: int | None, leaves: bool, name: str) -> None:
        self.envs, first = list(envs), envs[0]
        agents = list(first.possible_agents)
        self.spaces = [_without_mask(first.observation_space(agent)) for agent in agents]
        sizes = []
        for agent, space in zip(agents, self.spaces, strict=True):
            if not space.is_np_flattenable:
                raise EnvironmentMismatchError(f"{name}: {agent} observes {space}, which does not become one vector")
            sizes.append(gymnasium.spaces.flatdim(space))
        given = [first.action_space(agent) for agent in agents]
        self._middles: list[tuple[Array, Array]] = []
        action, masks = self._actions(agents, given, name)
        masked = masks is not None or _gives_masks(first, agents, name)
        self._offered = masks
        """(A, C) the choices that each agent has at all, where they differ."""
        self._has_state = state and callable(getattr(first, "state", None))
        width = _state_dim(first, agents, name) if self._has_state else 0
        self._has_state = width > 0
        super().__init__(
            [str(agent) for agent in agents],
            len(self.envs),
            max(sizes),
            action,
            state_dim=width,
            masked=masked,
            max_episode_steps=limit,
            leaves=leaves,
            name=name,
        )
        self.called_agents = agents
        self.possible = {agent: index for index, agent in enumerate(agents)}

    def _actions(self, agents: Sequence[Any], given: Sequence[Any], name: str) -> tuple[Any, Array | None]:
        """The space that stands for those of all agents, and the choices of each where they differ."""
        if all(isinstance(space, gymnasium.spaces.Discrete) for space in given):
            most = max(int(space.n) for space in given)
            self._starts = [int(space.start) for space in given]
            if all(int(space.n) == most for space in given):
                return gymnasium.spaces.Discrete(most), None
            return gymnasium.spaces.Discrete(most), np.stack([np.arange(most) < int(space.n) for space in given])
        for agent, space in zip(agents, given, strict=True):
            vector = isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1
            if not vector or not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
                raise EnvironmentMismatchError(
                    f"{name}: actions of {agent} are {space}; those of all agents must be Discrete, or bounded vectors"
                )
        first = given[0]
        if all(space == first for space in given):
            return gymnasium.spaces.Box(first.low, first.high, dtype=np.float32), None
        self._middles = [((space.high + space.low) / 2, (space.high - space.low) / 2) for space in given]
        width = max(space.shape[0] for space in given)
        return gymnasium.spaces.Box(-1.0, 1.0, (width,), np.float32), None

    def _action(self, index: int, action: Any) -> Any:
        """An agent's action as its environment takes it."""
        if isinstance(self.action_space, gymnasium.spaces.Discrete):
            return int(action) + self._starts[index]
        if not self._middles:
            return np.asarray(action, np.float32)
        middle, half = self._middles[index]
        return (middle + half * action[: len(middle)]).astype(np.float32)

    def _empty(self, count: int) -> Scene:
        """Where no one is."""
        return Scene(
            np.zeros((count, self.agents, self.observation_dim), np.float32),
            np.zeros((count, self.agents), np.bool_),
            np.zeros((count, self.own_state_dim), np.float32) if self._has_state else None,
            np.ones((count, self.agents, int(self.action_space.n)), np.float32) if self.masked else None,  # type: ignore[attr-defined]
        )

    def begin(self, teams: Array, seeds: Sequence[int | None]) -> Scene:
        """As `Teams.begin`."""
        scene = self._empty(len(teams))
        for row, (team, seed) in enumerate(zip(teams.tolist(), seeds, strict=True)):
            env = self.envs[team]
            with _own_errors(self.name, "reset"):
                observations, info = env.reset(seed=seed)
            self._see(scene, row, env, observations, info)
            scene.present[row] = [agent in env.agents for agent in self.called_agents]
            if not scene.present[row].any():
                raise SimulatorError(f"{self.name}: its reset left no agent in the environment")
        return scene

    def move(self, teams: Array, actions: Array) -> Outcome:
        """As `Teams.move`."""
        scene, shape = self._empty(len(teams)), (len(teams), self.agents)
        rewards = np.zeros(shape)
        terminations, truncations = np.zeros((2, *shape), np.bool_)
        for row, team in enumerate(teams.tolist()):
            env = self.envs[team]
            there = [(agent, self._index(agent)) for agent in env.agents]
            with _own_errors(self.name, "step"):
                chosen = {agent: self._action(index, actions[row, index]) for agent, index in there}
                observations, earned, terminated, truncated, info = env.step(chosen)
            for agent, index in there:
                with _own_errors(self.name, "step"):
                    rewards[row, index] = float(earned[agent])
                    terminations[row, index] = bool(terminated[agent])
                    truncations[row, index] = bool(truncated[agent])
            self._see(scene, row, env, observations, info)
            for agent in env.agents:
                scene.present[row, self._index(agent)] = True
        return Outcome(scene, rewards, terminations, truncations)

    def _index(self, agent: Any) -> int:
        """The row of an agent within its team."""
        if agent not in self.possible:
            raise SimulatorError(f"{self.name}: {agent} is among its agents and not among its possible_agents")
        return self.possible[agent]

    def _see(self, scene: Scene, row: int, env: Any, observations: Any, info: Any) -> None:
        """Take an environment's dicts into the row of a scene."""
        for agent, given in observations.items():
            index = self._index(agent)
            seen, mask = _parted(given, info.get(agent) if isinstance(info, Mapping) else None)
            with _own_errors(self.name, f"observation of {agent}"):
                flat = gymnasium.spaces.flatten(self.spaces[index], seen)
                scene.observations[row, index, : len(flat)] = flat
                if scene.masks is not None:
                    scene.masks[row, index] = self._mask(index, mask)
        if scene.state is not None:
            with _own_errors(self.name, "state"):
                scene.state[row] = np.asarray(env.state(), np.float32).reshape(-1)

    def _mask(self, index: int, given: Any) -> Array:
        """(C,) which choices an agent is allowed."""
        offered = np.ones(int(self.action_space.n)) if self._offered is None else self._offered[index].astype(float)  # type: ignore[attr-defined]
        if given is None:
            return offered
        mask = np.zeros_like(offered)
        flat = np.asarray(given).reshape(-1)
        mask[: len(flat)] = flat
        return mask * offered

    def close(self) -> None:
        """Close all environments."""
        for env in self.envs:
            env.close()


def _without_mask(space: Any) -> Any:
    """What an agent observes beside a mask of its actions."""
    if isinstance(space, gymnasium.spaces.Dict) and set(space.spaces) == {OBSERVATION, MASK}:
        return space[OBSERVATION]
    return space


def _parted(given: Any, info: Any) -> tuple[Any, Any]:
    """An agent's observation, and its mask or None."""
    if isinstance(given, Mapping) and set(given) == {OBSERVATION, MASK}:
        return given[OBSERVATION], given[MASK]
    return given, info.get(MASK) if isinstance(info, Mapping) else None


def _gives_masks(env: Any, agents: Sequence[Any], name: str) -> bool:
    """Whether an environment says which choices are allowed, by its first observations."""
    if not isinstance(env.action_space(agents[0]), gymnasium.spaces.Discrete):
        return False
    with _own_errors(name, "reset"):
        observations, info = env.reset(seed=0)
        return any(
            _parted(given, info.get(agent) if isinstance(info, Mapping) else None)[1] is not None
            for agent, given in observations.items()
        )


def _state_dim(env: Any, agents: Sequence[Any], name: str) -> int:
    """Numbers of an environment's state; 0 where it has none."""
    with _own_errors(name, "state"):
        env.reset(seed=0)
        try:
            return int(np.asarray(env.state()).size)
        except NotImplementedError:
            return 0


@contextlib.contextmanager
def _own_errors(name: str, call: str) -> Iterator[None]:
    """Errors of the user's environment as ours, which name it."""
    try:
        yield
    except (SurefootError, NotImplementedError):
        raise
    except Exception as error:
        raise SimulatorError(f"{name}: its {call} raised {type(error).__name__}: {error}") from error
