"""MuJoCo Warp as an engine of `PhysicsVectorEnv`: its arrays are tensors, on the CPU or a CUDA GPU."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.envs.adapters.dlpack import require
from surefoot.envs.adapters.memory import in_memory
from surefoot.envs.adapters.physics import Fields, PhysicsTask, PhysicsVectorEnv, checked, control_range
from surefoot.envs.interface import Tensors


class WarpEngine:
    """N worlds of one model. On a GPU the physics steps of an action are captured into one CUDA graph."""

    name = "mujoco_warp"

    def __init__(
        self, model: Any, num_envs: int, fields: tuple[str, ...], device: str, contacts: int | None, rows: int | None
    ) -> None:
        self.warp, self.mjw = require("warp", "MuJoCo Warp"), require("mujoco_warp", "MuJoCo Warp")
        self.device = torch.device(device)
        self._graphs: dict[int, Any] = {}
        with self._scope():
            self._model = self.mjw.put_model(model)
            self._data = self.mjw.make_data(model, nworld=num_envs, nconmax=contacts, njmax=rows)
        if missing := [name for name in fields if not hasattr(self._data, name)]:
            raise ConfigError(f"MuJoCo Warp's data has no {', '.join(missing)}: the task can't read it")
        # Warp's arrays and these tensors are the same memory: nothing is copied between them.
        self._fields = {name: self.warp.to_torch(getattr(self._data, name)) for name in fields}
        self._control = self.warp.to_torch(self._data.ctrl)
        self._warm = self.warp.to_torch(self._data.qacc_warmstart)

    def data(self) -> Fields:
        """Live tensors of the fields."""
        return self._fields

    def advance(self, actions: Tensor, substeps: int) -> None:
        """Apply controls for some physics steps."""
        self._control.copy_(actions)
        with self._scope():
            if substeps in self._graphs:
                self.warp.capture_launch(self._graphs[substeps])
                return
            for _ in range(substeps):
                self.mjw.step(self._model, self._data)
            if self.device.type == "cuda":  # the kernels are loaded now, so the next action can be one graph
                with self.warp.ScopedCapture() as capture:
                    for _ in range(substeps):
                        self.mjw.step(self._model, self._data)
                self._graphs[substeps] = capture.graph

    def place(self, rows: Tensor, positions: Tensor, velocities: Tensor) -> None:
        """Put some rows into new states; the solver's warm start of the other rows is kept."""
        warm = self._warm.clone()
        mask = rows.to(torch.bool).contiguous()
        with self._scope():
            self.mjw.reset_data(self._model, self._data, reset=self.warp.from_torch(mask, dtype=self.warp.bool))
            self._fields["qpos"][rows] = positions
            self._fields["qvel"][rows] = velocities
            self.mjw.forward(self._model, self._data)
        self._warm.copy_(torch.where(rows[:, None], 0.0, warm))

    @contextlib.contextmanager
    def _scope(self) -> Any:
        """Warp's calls on this device, in order with torch's."""
        if self.device.type != "cuda":
            with self.warp.ScopedDevice("cpu"):
                yield
            return
        with torch.cuda.device(self.device):
            stream = self.warp.stream_from_torch(torch.cuda.current_stream(self.device))
            with self.warp.ScopedDevice(f"cuda:{self.device.index or 0}"), self.warp.ScopedStream(stream):
                yield


def from_mujoco_warp(
    model: Any,
    task: PhysicsTask,
    num_envs: int,
    device: str = "cpu",
    tensors: Tensors = "torch",
    contacts: int | None = None,
    rows: int | None = None,
) -> PhysicsVectorEnv:
    """A MuJoCo model on MuJoCo Warp, behind the contract. The first step compiles kernels (cached on disk after).

    Args:
        model: `mujoco.MjModel`.
        task: observations, reward and ends.
        num_envs: worlds N.
        device: "cpu" (for tests: slower than `mujoco.batch`) or "cuda".
        tensors: "torch" or "numpy".
        contacts: contacts that a world may have at most (`nconmax`); the library's guess by default. More are lost.
        rows: constraint rows that a world may have at most (`njmax`), likewise.

    Raises:
        MissingExtraError: warp-lang or mujoco-warp is not installed.
        ConfigError: no actuators, no rows, or a field that the task reads and Warp has not.
    """
    fields = checked(model, task, num_envs)
    with in_memory(num_envs):
        engine = WarpEngine(model, num_envs, fields, device, contacts, rows)
    return PhysicsVectorEnv(engine, task, num_envs, control_range(model), tensors)
