"""Tasks of our own in which several agents act, by name: `team:NAME` (envs/agents.py has what they derive from)."""

from __future__ import annotations

import importlib
from typing import Any

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, nearest
from surefoot.envs import make as names
from surefoot.envs.agents import AgentRows, RowView, Teams, TeamVectorEnv, as_viewed

TASKS = {"spread": "spread:Spread", "two-step": "two_step:TwoStep"}
"""Name -> module and class."""


def make(rest: str, num_envs: int, view: RowView | None = None, **options: Any) -> AgentRows | TeamVectorEnv:
    """Of the name `team:NAME`, or `team:MODULE:CLASS` of a class of the user's that derives from `Teams`.

    Args:
        rest: the name without its prefix.
        num_envs: environments, each a team: the class's first argument.
        view: what rows of agents show; None: a row is a team.
        options: of the class.

    Raises:
        ConfigError: no such task, or an option that it does not take.
        EnvironmentMismatchError: it fails, or is no `Teams`.
    """
    name = f"team:{rest}"
    if ":" in rest:
        module, _, attribute = rest.partition(":")
        found = getattr(names.import_module(name, module), attribute, None)
    else:
        if rest not in TASKS:
            raise ConfigError(f"there is no task {name!r}: {nearest(rest, list(TASKS))}")
        module, _, attribute = TASKS[rest].partition(":")
        found = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    if not callable(found):
        raise ConfigError(f"environment {name!r}: {module} has no class {attribute}")
    names.refuse_unknown(name, options, names.parameters_of(found))
    teams = names.called(found, name, {"num_teams": num_envs, **options})
    if not isinstance(teams, Teams):
        raise EnvironmentMismatchError(
            f"{name} gave a {type(teams).__name__}: derive it from surefoot.envs.agents.Teams, with num_teams="
        )
    teams.name = name
    return as_viewed(teams, view)
