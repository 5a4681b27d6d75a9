"""All algorithms by name, of whatever room, and what each of them is given."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

from surefoot import model_based, offline, online, safe, streaming
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.lazy import Lazy
from surefoot.core.engine.agent import Agent

FAMILIES: dict[str, Lazy[Agent]] = {
    "offline": offline.ALGORITHMS,
    "online": online.ALGORITHMS,
    "safe": safe.ALGORITHMS,
    "streaming": streaming.ALGORITHMS,
    "model_based": model_based.ALGORITHMS,
}
"""Room -> the algorithms in it."""
ALGORITHMS: Lazy[Agent] = functools.reduce(operator.or_, FAMILIES.values())
"""Name on the command line -> agent, whose module is imported at its first use."""
AUTO = "auto"
"""Not one of them: `surefoot train algo=auto` trains several and hands over what the data support."""

FROM_DATA = {"dqn": "discrete_cql"}
"""Algorithm that learns online -> its kin that needs no environment."""


def check_parts(
    kind: type[Agent], config: Mapping[str, Any], dataset: Any, environment: str | None, gap: str | None = None
) -> None:
    """Refuse parts of a plan that an algorithm can't use, or the absence of those that it needs.

    Raises:
        ConfigError: says which part, and what to do.
    """
    name, needs = kind.name, kind.needs(config)
    data, acts = needs.data, needs.environment == "required"
    if data == "required" and dataset is None:
        raise ConfigError(f"{name} learns from data: name a dataset with dataset=")
    if data == "refused" and dataset is not None:
        without = "" if data == kind.requires.data else " with algo.offline_fraction=0"
        raise ConfigError(f"{name} takes no dataset{without}, it learns from its own steps: leave out dataset=")
    if acts and environment is None:
        alone = f", or learn from the data alone with algo={FROM_DATA[name]}" if name in FROM_DATA and dataset else ""
        raise ConfigError(
            f"{name} learns online: name an environment with env=, such as env=native/quadrotor-2d{alone}"
        )
    if not acts and gap is not None:
        raise ConfigError(f"{name} learns from data alone, and gap= alters the environment that one learns in")
