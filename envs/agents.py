"""Several agents in one environment: teams that are stepped together, as rows of agents or as a row for each team.

`Teams` is what steps T teams of A agents each: an adapter of another library, or a task of our own. Two contract
environments (envs/interface.py) are made of it:

* `AgentRows`, in which agents learn: a row is one agent of one environment, row t A + a agent a of team t. So an
  algorithm for one agent trains on T A rows as on T A environments, with one set of weights for all agents.
* `TeamVectorEnv`, in which policies are evaluated: a row is a team, its observation and action those of all agents one
  after another, its reward the mean over the agents, and the terms of its reward those of each agent.

An agent observes its own numbers, padded with zeros to the width of the widest, and behind them its one-hot number
where there are several. Of choices the most that an agent has are offered; where agents have different ones, or the
environment says which are allowed, there is an `action_mask` (envs/masks.py). An agent that leaves before its team's
episode ends observes zeros from then on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, SimulatorError
from surefoot.core.base.spec import MASK, Team
from surefoot.envs.adapters.pausing import PausableRows
from surefoot.envs.interface import Array, reset_mask, row_seeds
from surefoot.envs.masks import OBSERVATION


@dataclasses.dataclass(frozen=True)
class RowView:
    """What of a team the rows of its agents show, beside what each agent observes."""

    state: bool = False
    """Behind an agent's own numbers stands the team's state, which only critics and mixing networks read."""
    team_ends: bool = False
    """Every row ends with the team's episode; else with the agent's own, and is no transition after it."""


@dataclasses.dataclass
class Scene:
    """What K teams of A agents are in."""

    observations: Array
    """(K, A, O) float32; what an agent that is absent has here is not read."""
    present: Array
    """(K, A) bool."""
    state: Array | None = None
    """(K, S) float32, where the teams have a state."""
    masks: Array | None = None
    """(K, A, C) 0 or 1, where the teams are `masked`."""

    def put(self, teams: Array, other: Scene) -> None:
        """Take the rows of another scene as those of (K,) `teams`."""
        for field in dataclasses.fields(self):
            own = getattr(self, field.name)
            if own is not None:
                own[teams] = getattr(other, field.name)

    def copy(self) -> Scene:
        """One of its own arrays."""
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        return Scene(*(None if value is None else value.copy() for value in values))  # type: ignore[arg-type]


@dataclasses.dataclass
class Outcome:
    """What one step of K teams came to."""

    scene: Scene
    """After it, before any reset; an agent is present in it if it acts on."""
    rewards: Array
    """(K, A); 0 of absent agents."""
    terminations: Array
    """(K, A) bool, of agents that were present."""
    truncations: Array
    """(K, A) bool, likewise."""
    info: dict[str, Array] = dataclasses.field(default_factory=dict)
    """Name -> (K,) numbers of the team's step, such as `cost` or `success`."""


class Teams:
    """Base of what steps T teams of A agents; a subclass defines `begin` and `move`.

    Args:
        names: A names of agents, in the order of their rows.
        num_teams: T, at least 1.
        observation_dim: O, of the agent with the most numbers.
        action_space: of one agent: Discrete from 0 on, or a bounded one-dimensional Box.
        state_dim: S; 0: the teams have no state of their own, and all agents' observations stand for it.
        masked: whether scenes have masks.
        max_episode_steps: after which all agents of a team are truncated; None: the environment ends its episodes.
        leaves: whether agents may leave before the others.
        name: for messages.

    Raises:
        ConfigError: no team, no agent, or a time limit that is none.
    """

    def __init__(
        self,
        names: Sequence[str],
        num_teams: int,
        observation_dim: int,
        action_space: gymnasium.Space[Any],
        *,
        state_dim: int = 0,
        masked: bool = False,
        max_episode_steps: int | None = None,
        leaves: bool = False,
        name: str = "",
    ) -> None:
        if num_teams < 1 or not names:
            raise ConfigError(f"{name}: {num_teams} teams of {len(names)} agents were asked for; both are at least 1")
        limit = max_episode_steps
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
            raise ConfigError(f"max_episode_steps={limit!r} of {name}: must be a whole number of steps from 1 on")
        self.names, self.num_teams, self.observation_dim = tuple(names), num_teams, observation_dim
        self.action_space, self.masked, self.leaves = action_space, masked, leaves
        self.own_state_dim, self.max_episode_steps = state_dim, limit
        self.name = name or type(self).__name__

    @property
    def agents(self) -> int:
        """A."""
        return len(self.names)

    @property
    def state_dim(self) -> int:
        """Width of the team's state: its own, or that of all observations."""
        return self.own_state_dim or self.agents * self.observation_dim

    def begin(self, teams: Array, seeds: Sequence[int | None]) -> Scene:
        """New episodes of (K,) `teams`, one seed each; None continues a team's own random numbers."""
        raise TypeError(f"{type(self).__name__} must define begin")

    def move(self, teams: Array, actions: Array) -> Outcome:
        """One step of (K,) `teams` by (K, A, ...) actions; those of absent agents are not read."""
        raise TypeError(f"{type(self).__name__} must define move")

    restorable: bool = False
    """Whether `get_state` and `set_state` are there."""

    def get_state(self) -> dict[str, Array]:
        """Name -> (T, ...) numbers: everything that the next step depends on beside the scene; of some teams."""
        raise TypeError(f"{type(self).__name__} can't give its state")

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Continue from what `get_state` gave."""
        raise TypeError(f"{type(self).__name__} can't take a state")

    def close(self) -> None:
        """Free what it holds."""


class _Moved:
    """What one step of all teams came to, resets done."""

    def __init__(self, teams: Teams, scene: Scene, active: Array) -> None:
        shape = (teams.num_teams, teams.agents)
        self.acted = scene.present & active[:, None]
        """(T, A) bool: agents that took a step."""
        self.rewards = np.zeros(shape, np.float64)
        self.terminations, self.truncations = np.zeros((2, *shape), np.bool_)
        self.ended = np.zeros(teams.num_teams, np.bool_)
        """(T,) bool."""
        self.final = scene
        """After the step, before resets."""
        self.info: dict[str, Array] = {}


class _Stepper:
    """Steps teams, counts their steps, checks what they give, and begins new episodes where all agents are done."""

    def __init__(self, teams: Teams) -> None:
        self.teams = teams
        self.scene: Scene | None = None
        self.counts = np.zeros(teams.num_teams, np.int64)

    def reset(self, mask: Array, seeds: Sequence[int | None]) -> None:
        """New episodes of the teams of a (T,) mask; seeds are of all T."""
        chosen = np.flatnonzero(mask)
        first = self.teams.begin(chosen, [seeds[team] for team in chosen.tolist()])
        self._check(first, len(chosen), "reset")
        if self.scene is None:
            if not mask.all():
                raise EnvironmentMismatchError(f"{self.teams.name}: the first reset must be of all rows")
            self.scene = first
        else:
            self.scene.put(chosen, first)
        self.counts[chosen] = 0

    def step(self, actions: Array, active: Array, next_seeds: Sequence[int | None]) -> _Moved:
        """One step of the `active` teams by (T, A, ...) actions."""
        if self.scene is None:
            raise EnvironmentMismatchError(f"{self.teams.name}: step was called before the first reset")
        teams, before = self.teams, self.scene
        found, chosen = _Moved(teams, before, active), np.flatnonzero(active)
        outcome = teams.move(chosen, actions[chosen])
        self._check(outcome.scene, len(chosen), "step")
        acted = found.acted[chosen]
        self.counts[chosen] += 1
        terminated, truncated = outcome.terminations & acted, outcome.truncations & acted
        if teams.max_episode_steps is not None:
            truncated |= acted & ~terminated & (self.counts[chosen] >= teams.max_episode_steps)[:, None]
        outcome.scene.present = acted & ~(terminated | truncated)
        self._check_leaving(acted, outcome.scene.present)
        found.rewards[chosen] = np.where(acted, outcome.rewards, 0.0)
        found.terminations[chosen], found.truncations[chosen] = terminated, truncated
        found.ended[chosen] = ~outcome.scene.present.any(1)
        for key, value in outcome.info.items():
            found.info[key] = np.zeros(teams.num_teams, np.asarray(value).dtype)
            found.info[key][chosen] = value
        after = before.copy()
        after.put(chosen, outcome.scene)
        found.final, self.scene = after, after
        if found.ended.any():
            found.final = after.copy()
            self.reset(found.ended, next_seeds)
        return found

    def _check_leaving(self, acted: Array, present: Array) -> None:
        """Refuse agents that leave before the others where that is not expected."""
        alone = present.any(1) & (acted & ~present).any(1)
        if self.teams.leaves or not alone.any():
            return
        agent = self.teams.names[int(np.flatnonzero((acted & ~present)[alone][0])[0])]
        raise EnvironmentMismatchError(
            f"{self.teams.name}: {agent} left before the other agents, which is not expected of this environment: add "
            "env_options.leaves=true, so that steps without it are left out"
        )

    def _check(self, scene: Scene, count: int, call: str) -> None:
        """That arrays have the shapes that are declared."""
        teams = self.teams
        wanted: dict[str, tuple[int, ...]] = {
            "observations": (count, teams.agents, teams.observation_dim),
            "present": (count, teams.agents),
        }
        if teams.own_state_dim:
            wanted["state"] = (count, teams.own_state_dim)
        if teams.masked:
            wanted["masks"] = (count, teams.agents, int(teams.action_space.n))  # type: ignore[attr-defined]
        for name, shape in wanted.items():
            value = getattr(scene, name)
            if value is None or value.shape != shape:
                given = "none" if value is None else f"of shape {value.shape}"
                raise SimulatorError(f"{teams.name}: its {call} gave {name} {given} where {shape} is declared")

    # -- what is observed --------------------------------------------------------------------------------

    def own(self, scene: Scene) -> Array:
        """(T, A, O + A) float32 what each agent observes; without its number where it is alone."""
        teams = self.teams
        seen = np.where(scene.present[..., None], scene.observations, 0).astype(np.float32)
        if teams.agents == 1:
            return seen
        numbers = np.broadcast_to(np.eye(teams.agents, dtype=np.float32), (len(seen), teams.agents, teams.agents))
        return np.concatenate([seen, numbers], -1)

    def masks(self, scene: Scene) -> Array:
        """(T, A, C) float32; an agent that is absent may do anything, since nothing is done."""
        assert scene.masks is not None
        return np.where(scene.present[..., None], scene.masks, 1).astype(np.float32)

    def state(self, scene: Scene) -> Array:
        """(T, S) float32."""
        if scene.state is not None:
            return scene.state.astype(np.float32)
        seen = np.where(scene.present[..., None], scene.observations, 0)
        return seen.reshape(len(seen), -1).astype(np.float32)


def _last_seen(before: Scene, after: Scene, acted: Array) -> Scene:
    """The scene in which agents that have just left count as present: their last observation is one."""
    return dataclasses.replace(after, present=after.present | acted)


class AgentRows(PausableRows):
    """T teams as T A rows of agents; see the module.

    Rows can't be paused one by one. A row's seed is that of its team's first row.

    Args:
        teams: what is stepped.
        view: what rows show beside the agents' own numbers, and when they end.
    """

    def __init__(self, teams: Teams, view: RowView) -> None:
        self.stepper, self.view = _Stepper(teams), view
        width = teams.observation_dim + (teams.agents if teams.agents > 1 else 0)
        state = teams.state_dim if view.state else 0
        self.agents_team = Team(teams.names, state)
        vector = gymnasium.spaces.Box(-math.inf, math.inf, (width + state,), np.float32)
        space: gymnasium.Space[Any] = vector
        if teams.masked:
            mask = gymnasium.spaces.Box(0, 1, (int(teams.action_space.n),), np.float32)  # type: ignore[attr-defined]
            space = gymnasium.spaces.Dict({OBSERVATION: vector, MASK: mask})
        super().__init__(teams.num_teams * teams.agents, space, teams.action_space)
        self.inserts_rows = teams.leaves and not view.team_ends
        self.called, self.max_episode_steps = teams.name, teams.max_episode_steps

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """New episodes of all teams, or of those all of whose rows `options["reset_mask"]` has.

        Raises:
            ConfigError: a mask that has some rows of a team.
        """
        agents = self.agents_team.agents
        mask = reset_mask(options, self.num_envs)
        rows = np.ones(self.num_envs, np.bool_) if mask is None else mask
        whole = rows.reshape(-1, agents)
        if (whole.any(1) != whole.all(1)).any():
            raise ConfigError(f"{self.called}: reset_mask has some agents of a team: they begin together")
        seeds = row_seeds(seed, self.num_envs)
        self.stepper.reset(whole[:, 0], seeds[::agents])
        self.all_active()
        assert self.stepper.scene is not None
        return self._rows(self.stepper.scene), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of every agent."""
        self.check_actions(actions)
        teams, before = self.stepper.teams, self.stepper.scene
        every = np.ones(teams.num_teams, np.bool_)
        given = np.asarray(actions).reshape(teams.num_teams, teams.agents, *(teams.action_space.shape or ()))
        moved = self.stepper.step(given, every, self.next_seeds[:: teams.agents])
        assert before is not None
        assert self.stepper.scene is not None
        terminations, truncations, valid = moved.terminations, moved.truncations, moved.acted
        if self.view.team_ends:
            terminations, truncations = (np.repeat(flags[:, None], teams.agents, 1) for flags in _team_flags(moved))
            valid = np.ones_like(moved.acted)
        ended = terminations | truncations
        seen = self._rows(_last_seen(before, self.stepper.scene, moved.acted & ~moved.ended[:, None]))
        info: dict[str, Any] = {key: np.repeat(value, teams.agents) for key, value in moved.info.items()}
        info["valid"] = valid.reshape(-1)
        if ended.any():
            last = self._rows(_last_seen(before, moved.final, moved.acted))
            rows = ended.reshape(-1)
            info["final_obs"], info["_final_obs"] = _chosen(rows, last, seen), rows
        flat = (part.reshape(-1) for part in (moved.rewards, terminations, truncations))
        return seen, *flat, info  # type: ignore[return-value]

    def close_extras(self, **kwargs: Any) -> None:
        """Close the teams."""
        self.stepper.teams.close()

    def _rows(self, scene: Scene) -> Any:
        """(T A, ...) what the rows observe."""
        stepper, rows = self.stepper, self.num_envs
        seen = stepper.own(scene)
        if self.view.state:
            state = np.repeat(stepper.state(scene)[:, None], seen.shape[1], 1)
            seen = np.concatenate([seen, state], -1)
        seen = seen.reshape(rows, -1)
        return {OBSERVATION: seen, MASK: stepper.masks(scene).reshape(rows, -1)} if stepper.teams.masked else seen

    def __getattr__(self, name: str) -> Any:
        """`get_state` and `set_state` of teams whose state can be had."""
        if name not in ("get_state", "set_state") or not self.stepper.teams.restorable:
            raise AttributeError(name)
        return self._state if name == "get_state" else self._set_state

    def _state(self) -> dict[str, Array]:
        """Everything that the next step depends on, a row for each agent."""
        stepper, agents = self.stepper, self.agents_team.agents
        assert stepper.scene is not None
        scene, found = stepper.scene, {}
        for key, value in (("observations", scene.observations), ("present", scene.present), ("masks", scene.masks)):
            if value is not None:
                found[key] = value.reshape(self.num_envs, *value.shape[2:])
        by_team = {"counts": stepper.counts, **stepper.teams.get_state()}
        if scene.state is not None:
            by_team["state"] = scene.state
        return found | {f"team_{key}": np.repeat(value, agents, 0) for key, value in by_team.items()}

    def _set_state(self, arrays: Mapping[str, Array]) -> None:
        """Continue from what `get_state` gave."""
        stepper, agents = self.stepper, self.agents_team.agents
        teams = stepper.teams

        def shared(key: str) -> Array | None:
            value = arrays.get(key)
            return None if value is None else np.array(value).reshape(teams.num_teams, agents, *value.shape[1:])

        by_team = {key.removeprefix("team_"): np.array(value[::agents]) for key, value in arrays.items()
                   if key.startswith("team_")}  # fmt: skip
        stepper.counts = by_team.pop("counts")
        observations, present = shared("observations"), shared("present")
        assert observations is not None
        assert present is not None
        stepper.scene = Scene(observations, present, by_team.pop("state", None), shared("masks"))
        teams.set_state(by_team)


class TeamVectorEnv(PausableRows):
    """T teams as T rows; see the module. A team of one agent is that agent, as any environment.

    Args:
        teams: what is stepped.
    """

    def __init__(self, teams: Teams) -> None:
        self.stepper, self.agents_team = _Stepper(teams), Team(teams.names, 0)
        agents, width = teams.agents, teams.observation_dim + (teams.agents if teams.agents > 1 else 0)
        spaces, single = gymnasium.spaces, teams.action_space
        self.agent_observation_space: gymnasium.Space[Any] = spaces.Box(-math.inf, math.inf, (width,), np.float32)
        """Of one agent: what its policy is given, and `agent_action_space` what it gives."""
        self.agent_action_space = single
        joint: gymnasium.Space[Any] = spaces.Box(-math.inf, math.inf, (agents * width,), np.float32)
        if teams.masked:
            choices = int(single.n)  # type: ignore[attr-defined]
            vector, mask = self.agent_observation_space, spaces.Box(0, 1, (choices,), np.float32)
            self.agent_observation_space = spaces.Dict({OBSERVATION: vector, MASK: mask})
            every = spaces.Box(0, 1, (agents * choices,), np.float32)
            joint = spaces.Dict({OBSERVATION: joint, MASK: every})
        actions: gymnasium.Space[Any] = single
        if agents > 1 and isinstance(single, spaces.Discrete):
            actions = spaces.MultiDiscrete(np.full(agents, single.n))
        elif agents > 1:
            assert isinstance(single, spaces.Box)
            actions = spaces.Box(np.tile(single.low, agents), np.tile(single.high, agents), dtype=np.float32)
        super().__init__(teams.num_teams, joint, actions)
        self.called, self.max_episode_steps = teams.name, teams.max_episode_steps

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """New episodes of all teams, or of those of `options["reset_mask"]`; all become active."""
        mask = reset_mask(options, self.num_envs)
        chosen = np.ones(self.num_envs, np.bool_) if mask is None else mask
        self.stepper.reset(chosen, row_seeds(seed, self.num_envs))
        self.all_active()
        assert self.stepper.scene is not None
        return self._joint(self.stepper.scene), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of every team that is active."""
        self.check_actions(actions)
        teams, before = self.stepper.teams, self.stepper.scene
        given = np.asarray(actions).reshape(teams.num_teams, teams.agents, *(teams.action_space.shape or ()))
        moved = self.stepper.step(given, self.active, self.next_seeds)
        assert before is not None
        assert self.stepper.scene is not None
        seen = self._joint(self.stepper.scene)
        terminations, truncations = _team_flags(moved)
        info: dict[str, Any] = {**moved.info, "valid": self.active.copy()}
        if teams.agents > 1:
            info["reward_terms"] = {name: moved.rewards[:, i] for i, name in enumerate(teams.names)}
        if moved.ended.any():
            last = self._joint(_last_seen(before, moved.final, moved.acted))
            info["final_obs"], info["_final_obs"] = _chosen(moved.ended, last, seen), moved.ended
        return seen, moved.rewards.mean(1), terminations, truncations, info

    def close_extras(self, **kwargs: Any) -> None:
        """Close the teams."""
        self.stepper.teams.close()

    def _joint(self, scene: Scene) -> Any:
        """(T, A ...) what the rows observe."""
        rows = self.num_envs
        seen = self.stepper.own(scene).reshape(rows, -1)
        if not self.stepper.teams.masked:
            return seen
        return {OBSERVATION: seen, MASK: self.stepper.masks(scene).reshape(rows, -1)}


def as_viewed(teams: Teams, view: RowView | None) -> AgentRows | TeamVectorEnv:
    """Teams as rows of agents, or, without a view, as rows of teams."""
    return TeamVectorEnv(teams) if view is None else AgentRows(teams, view)


def _team_flags(moved: _Moved) -> tuple[Array, Array]:
    """(T,) bool: whether a team's episode terminated, and whether it was truncated: an agent was, as it ended."""
    truncated = moved.ended & moved.truncations.any(1)
    return moved.ended & ~truncated, truncated


def _chosen(rows: Array, first: Any, second: Any) -> Any:
    """The first in (N,) bool `rows`, else the second."""
    if isinstance(first, Mapping):
        return {key: np.where(rows[:, None], value, second[key]) for key, value in first.items()}
    return np.where(rows[:, None], first, second)
