"""Environments whose equations are at hand: native systems, and systems of users that this process has registered."""

from __future__ import annotations

import functools

import gymnasium

from surefoot.cuda_ext.system import System
from surefoot.envs import make
from surefoot.envs.names import is_native
from surefoot.envs.systems import system

__all__ = ["registered", "system_of"]


def registered(gym_id: str) -> System | None:
    """The system that is registered by this gymnasium id in this process; None where there is none of it."""
    spec = gymnasium.registry.get(gym_id)
    entry = None if spec is None or spec.kwargs or spec.additional_wrappers else spec.vector_entry_point
    if isinstance(entry, functools.partial) and entry.args and not entry.keywords and isinstance(entry.args[0], System):
        return entry.args[0]
    return None


def system_of(env_id: str) -> System | None:
    """The system that an environment's name stands for, its module imported; None of any other environment.

    A name with arguments is of none, since they may change the dynamics.

    Raises:
        ConfigError: the module of a `module:ID` can't be imported.
    """
    base, options = make.split_options(env_id)
    if options or make.scheme_of(base) is not None:
        return None
    if is_native(base):
        return system(base)
    module, _, name = base.rpartition(":")
    if module:
        make.import_module(env_id, module)
    return registered(name)
