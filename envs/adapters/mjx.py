"""MJX (MuJoCo in JAX) as an engine of `PhysicsVectorEnv`, its arrays read as tensors by DLPack.

On a CPU it is far slower than MuJoCo itself: there for tests only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.envs.adapters.dlpack import from_torch, require, to_torch
from surefoot.envs.adapters.jax_state import arrays_of_tree, tree_of_arrays
from surefoot.envs.adapters.memory import in_memory
from surefoot.envs.adapters.physics import Fields, PhysicsTask, SavedPhysicsVectorEnv, checked, control_range
from surefoot.envs.interface import Array, Tensors


class MjxEngine:
    """N copies of one model, moved by jitted, vmapped functions."""

    name = "mjx"

    def __init__(self, model: Any, num_envs: int, fields: tuple[str, ...], device: str) -> None:
        jax, mjx = require("jax", "MJX"), require("mujoco.mjx", "MJX")
        self.device = torch.device(device)
        self._names = fields
        # impl="jax": the Warp implementation inside MJX has an adapter of its own here.
        placed = mjx.put_model(model, impl="jax")
        one = mjx.make_data(placed)
        if missing := [name for name in fields if not hasattr(one, name)]:
            raise ConfigError(f"MJX's data has no {', '.join(missing)}: the task can't read it")
        fresh = jax.vmap(lambda position: one.replace(qpos=position))(jax.numpy.tile(one.qpos, (num_envs, 1)))
        step = jax.vmap(mjx.step, in_axes=(None, 0))
        forward = jax.vmap(mjx.forward, in_axes=(None, 0))

        def advance(data: Any, controls: Any, substeps: int) -> Any:
            return jax.lax.fori_loop(0, substeps, lambda _, moved: step(placed, moved), data.replace(ctrl=controls))

        def place(data: Any, rows: Any, positions: Any, velocities: Any) -> Any:
            started = forward(placed, fresh.replace(qpos=positions, qvel=velocities))

            def choose(new: Any, old: Any) -> Any:
                return jax.numpy.where(rows.reshape(-1, *[1] * (new.ndim - 1)), new, old)

            return jax.tree.map(choose, started, data)

        self._advance, self._place = jax.jit(advance, static_argnums=2), jax.jit(place)
        self._data = fresh

    def data(self) -> Fields:
        """Tensors over jax's arrays; not to be written."""
        return {name: to_torch(getattr(self._data, name)) for name in self._names}

    def advance(self, actions: Tensor, substeps: int) -> None:
        """Apply controls for some physics steps."""
        self._data = self._advance(self._data, from_torch(actions, like=None), substeps)

    def get_state(self) -> dict[str, Array]:
        """Everything that the next step depends on: path in MJX's data -> numbers."""
        return arrays_of_tree(self._data)

    def set_state(self, arrays: dict[str, Array]) -> None:
        """Continue from what `get_state` gave."""
        self._data = tree_of_arrays(self._data, arrays)

    def place(self, rows: Tensor, positions: Tensor, velocities: Tensor) -> None:
        """Put some rows into new states."""
        full = self.data()
        new = []
        for name, values in (("qpos", positions), ("qvel", velocities)):
            target = full[name].clone()
            target[rows] = values.to(target.dtype)
            new.append(from_torch(target, like=None))
        self._data = self._place(self._data, from_torch(rows, like=None), *new)


def from_mjx(
    model: Any, task: PhysicsTask, num_envs: int, device: str = "cpu", tensors: Tensors = "torch"
) -> SavedPhysicsVectorEnv:
    """A MuJoCo model on MJX, behind the contract. The first step compiles.

    Args:
        model: `mujoco.MjModel`.
        task: observations, reward and ends.
        num_envs: copies N.
        device: torch's name of the device that jax computes on.
        tensors: "torch" or "numpy".

    Raises:
        MissingExtraError: jax or mujoco-mjx is not installed.
        ConfigError: no actuators, no rows, or a field that the task reads and MJX has not.
    """
    fields = checked(model, task, num_envs)
    with in_memory(num_envs):
        engine = MjxEngine(model, num_envs, fields, device)
    return SavedPhysicsVectorEnv(engine, task, num_envs, control_range(model), tensors)
