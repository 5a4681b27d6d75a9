"""OCBench's environments on a CPU, made by name: a UR5e with a gripper under joint control, 1 where it is done."""

from __future__ import annotations

from typing import Any

import gymnasium

from surefoot.envs.suites.names import OCBenchName, parse
from surefoot.envs.suites.registration import FixedSpaces, package, quiet


def make(name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """The environment of a name that begins with `ocbench/`, without a time limit.

    Raises:
        ConfigError: the name is not understood.
        MissingExtraError: ocbench is not installed.
    """
    asked = parse(name)
    assert isinstance(asked, OCBenchName)
    package("ocbench", name)
    spec = gymnasium.spec(asked.gym_id)
    with quiet():
        creator: Any = gymnasium.envs.registration.load_env_creator(str(spec.entry_point))
        return FixedSpaces(creator(**{**spec.kwargs, **kwargs}))
