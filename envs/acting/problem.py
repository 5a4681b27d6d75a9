"""What problem a vector environment poses to an agent: its `Spec`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.core.base.spec import Team
from surefoot.core.engine.agent import Spec
from surefoot.envs.side_by_side import name_of
from surefoot.envs.spaces import arrays_of
from surefoot.envs.vector import check_actions


def spec_of(env: Any) -> Spec:
    """The problem that a vector environment poses to an agent.

    Raises:
        EnvironmentMismatchError: observations that are neither vectors, uint8 images nor a Dict of them; actions that
            are neither bounded vectors nor choices counted from 0.
    """
    observations, action = arrays_of(env.single_observation_space), env.single_action_space
    spec = _spec_of(env, observations, action)
    team = getattr(env, "agents_team", None)
    return spec if not isinstance(team, Team) else dataclasses.replace(spec, team=team)


def _spec_of(env: Any, observations: Any, action: Any) -> Spec:
    """The same without a team."""
    if isinstance(action, gymnasium.spaces.Discrete):
        if int(action.start) != 0:
            raise EnvironmentMismatchError(f"the choices of {action} must be counted from 0: wrap the environment")
        return Spec.of_choices(observations, int(action.n))
    width = check_actions(name_of(env), action)
    return Spec(observations, width, tuple(action.low.tolist()), tuple(action.high.tolist()))


def check_rows(env: Any, seeds: int, each: int) -> None:
    """Make sure that an environment has `each` rows for each seed.

    Raises:
        ConfigError: it has others.
    """
    if env.num_envs != seeds * each:
        raise ConfigError(
            f"{seeds} seeds of {each} environments each need {seeds * each} rows, and the environment has "
            f"{env.num_envs}: set algo.num_envs, or make as many"
        )


def check_spec(env: Any, spec: Spec, name: str) -> None:
    """Make sure that an environment poses the problem that an agent was made for.

    Raises:
        EnvironmentMismatchError: it poses another; the message says both.
    """
    found = spec_of(env)
    for what, wanted, has in (
        ("kind of actions", _kind(spec), _kind(found)),
        ("observation", spec.described(), found.described()),
        ("team", _in_words(spec.team), _in_words(found.team)),
        ("number of actions", spec.action_dim, found.action_dim),
        ("lowest action", _rounded(spec.action_low), _rounded(found.action_low)),
        ("highest action", _rounded(spec.action_high), _rounded(found.action_high)),
    ):
        if wanted != has:
            raise EnvironmentMismatchError(
                f"the {what} of this {name} agent is {wanted}, and of the environment {has}: make the agent from "
                "surefoot.online.spec_of(env)"
            )


def _in_words(team: Team | None) -> str:
    """A team in words, for messages."""
    if team is None:
        return "none"
    state = f" with a state of {team.state_dim} numbers" if team.state_dim else ""
    return f"{', '.join(team.names)}{state}"


def _kind(spec: Spec) -> str:
    return "discrete" if spec.discrete else "continuous"


def _rounded(bound: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(np.float32(value)) for value in bound)
