"""Model fields with a value of its own in each simulation: gravity, friction, masses, damping, ..."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, nearest

Array = np.ndarray[Any, Any]

NOT_NEGATIVE = (
    "body_mass",
    "body_inertia",
    "geom_friction",
    "dof_damping",
    "dof_armature",
    "dof_frictionloss",
    "jnt_stiffness",
    "opt.density",
    "opt.viscosity",
)
FIXED = {"opt.timestep": "it sets the length of a step: change the model instead"}


class DomainParameters:
    """`parameters[name]` is a copy of the (N, ...) values; `parameters[name] = values` sets them, broadcast.

    Names are those of `MjModel`'s arrays ("geom_friction", "body_mass", "dof_damping") and of its options
    ("opt.gravity", "opt.wind"). Constants that MuJoCo derives from a field follow it.
    """

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._set: dict[str, Array] = {}

    @property
    def changed(self) -> bool:
        """Whether any field has been set."""
        return bool(self._set)

    def __getitem__(self, name: str) -> Array:
        self._check_name(name)
        if name in self._set:
            return self._set[name].copy()
        model = self._batch.model
        shared = np.asarray(getattr(model.opt, name[4:]) if name.startswith("opt.") else getattr(model, name))
        return np.broadcast_to(shared, (self._batch.nsim, *shared.shape)).copy()

    def __setitem__(self, name: str, values: Any) -> None:
        """Set a field in all simulations.

        Raises:
            ConfigError: no such field; values of another shape, not finite, or negative where that means nothing.
        """
        own = self[name]
        try:
            new = np.broadcast_to(np.asarray(values, own.dtype), own.shape)
        except ValueError as error:
            raise ConfigError(f"{name} has shape {own.shape}, and the values {np.shape(values)} don't fit") from error
        if own.dtype.kind == "f" and not np.isfinite(new).all():
            raise ConfigError(f"{name} must be finite; simulation {_first(~np.isfinite(new))} is not")
        if name in NOT_NEGATIVE and (new < 0).any():
            raise ConfigError(f"{name} must not be negative; simulation {_first(new < 0)} is")
        self._write(name, new)
        if name in self._batch.model._setconst_inputs:
            self._batch.set_const()

    def get_state(self) -> dict[str, Array]:
        """The fields that were set, copied."""
        return {name: values.copy() for name, values in self._set.items()}

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Set the fields of `state`, and those that were set here but not there back to the model's own."""
        shared = DomainParameters(self._batch)
        for name in [name for name in self._set if name not in state]:
            self[name] = shared[name]
            del self._set[name]
        for name, values in state.items():
            self[name] = values

    def _write(self, name: str, values: Array) -> None:
        expanded = self._batch.expand(name)
        expanded[...] = values.reshape(expanded.shape)
        self._set[name] = values.copy()

    def _check_name(self, name: str) -> None:
        from mujoco import batch

        if name in FIXED:
            raise ConfigError(f"{name} can't differ between simulations: {FIXED[name]}")
        if name not in batch.MODEL_FIELDS:
            raise ConfigError(f"no domain parameter is called {name!r}; {nearest(name, sorted(batch.MODEL_FIELDS))}")


def _first(bad: Array) -> int:
    return int(np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))[0])
