"""Environments to learn in: contract environments, with altered dynamics where asked for."""

from __future__ import annotations

import contextlib
from typing import Any

from surefoot.core.base.errors import ConfigError
from surefoot.envs.adapters.gym_in import adapt
from surefoot.envs.agents import RowView
from surefoot.envs.interface import VectorEnvironment
from surefoot.envs.make import is_team, no_gaps, split_options
from surefoot.envs.names import gymnasium_id
from surefoot.envs.vector import batched, behind, is_mujoco, make_vec


def gaps_of(env_id: str) -> dict[str, str]:
    """Preset -> what it does, of those that change anything in one of gymnasium's MuJoCo tasks; else none.

    Native systems list theirs themselves.
    """
    from surefoot.envs.mujoco.gaps import GAPS

    found: dict[str, str] = {}
    if not is_mujoco(gymnasium_id(env_id)):
        return found
    for name, what in GAPS.items():
        with contextlib.suppress(ConfigError):  # it has nothing that this one changes
            make_training(env_id, 1, gap=name).close()
            found[name] = what
    return found


def make_training(
    env_id: str,
    num_envs: int,
    *,
    gap: str | None = None,
    threads: int = 1,
    view: RowView | None = None,
) -> VectorEnvironment:
    """`num_envs` copies of an environment: numpy arrays, or tensors on the device of a simulator that has one.

    Args:
        env_id: as for `make_vec`.
        num_envs: at least 1. An environment of A agents has as many rows, one after another.
        gap: preset of altered dynamics, as "gravity2"; what the policy is evaluated in is not altered by it.
        threads: of our own batched simulators; no result depends on it.
        view: of an environment of several agents, what the agents' rows show and when they end.

    Raises:
        ConfigError: unknown id, or an environment without that gap.
        EnvironmentMismatchError: the environment fails when it is made.
    """
    if num_envs < 1:
        raise ConfigError(f"num_envs is {num_envs}; training needs at least 1 environment")
    name, options = split_options(env_id)
    hints: dict[str, Any] = {"threads": threads} | ({} if gap is None else {"gap": gap})
    if is_team(name):
        hints["view"] = view or RowView()
    for made in (behind, batched):
        found: Any = made(gymnasium_id(name), num_envs, options, **hints)
        if found is not None:
            return found if hasattr(found, "tensors") else adapt(found)  # type: ignore[no-any-return]
    if gap is not None:
        raise no_gaps(env_id, gap)
    return adapt(make_vec(env_id, num_envs))  # type: ignore[no-any-return]
