"""A task on a MuJoCo model: reset law, observation, reward and end of all simulations at once."""

from __future__ import annotations

import abc
import dataclasses
import pathlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from surefoot.core.base.errors import ConfigError

Array = np.ndarray[Any, Any]
Info = dict[str, Array]


class Simulations:
    """What a task sees of N simulations: live arrays whose first dimension is the simulation.

    `qpos`, `qvel`, `ctrl`, `time` and the derived fields that the task declares, named as in MuJoCo's `MjData`.
    Derived fields (`xpos`, `site_xpos`, ...) lag one substep behind after a step, as after `mj_step`.
    """

    def __init__(self, batch: Any, fields: tuple[str, ...], remember: tuple[str, ...], dt: float) -> None:
        self.batch, self.model, self.dt = batch, batch.model, dt
        self.num_envs: int = batch.nsim
        self._restored: dict[str, Array] = {}
        self._stale = np.zeros(self.num_envs, np.bool_)
        self.fields = ("qpos", "qvel", "ctrl", "time", *fields)
        for name in self.fields:
            try:
                setattr(self, name, batch.bind(name))
            except ValueError as error:
                raise ConfigError(f"the task's field {name!r} can't be read: {error}") from error
        self.contact_forces: Array = np.zeros((self.num_envs, self.model.nbody, 6))
        """`cfrc_ext` after `mj_rnePostConstraint`, as gymnasium reads it; zeros unless the task asks for it."""
        self.before = SimpleNamespace(**{name: getattr(self, name).copy() for name in remember})
        """The fields to remember, as they were before the step."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the task reads {name!r}: name it in reads=(...) of the MJCF, or in `fields` of a Task")

    def remember(self) -> None:
        """Let `before` be now."""
        for name, values in vars(self.before).items():
            values[...] = self.now(name)

    def now(self, name: str) -> Array:
        """A field's present values, those of a restored state included."""
        values = getattr(self, name)
        return (
            np.where(_like(self._stale, values), self._restored[name], values)
            if self._stale.any()
            else np.asarray(values)
        )

    def restore(self, values: dict[str, Array]) -> None:
        """Let `before` of the next step be these: derived fields can't be written into the batch."""
        self._restored = {name: np.array(value) for name, value in values.items()}
        self._stale[:] = True

    def ran(self, rows: Any) -> None:
        """These rows were simulated: their fields are live again."""
        self._stale[rows] = False

    def body(self, name: int | str) -> int:
        """Index of a body in `xpos`, `xipos`, ..., by its name."""
        return int(self.model.body(name).id)

    def body_masses(self) -> Array:
        """(N, bodies): each simulation's own masses."""
        expanded = self.batch.expanded("body_mass")
        if expanded is not None:
            return np.asarray(expanded)
        return np.broadcast_to(self.model.body_mass, (self.num_envs, self.model.nbody))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """Base of all tasks; its keywords are those of gymnasium's class of the same name."""

    xml_file: str | pathlib.Path
    frame_skip: int = 1

    max_episode_steps: ClassVar[int | None] = 1000
    fields: ClassVar[tuple[str, ...]] = ()
    """Derived fields of `MjData` that the task reads."""
    remembered: ClassVar[tuple[str, ...]] = ("qpos",)
    """Fields of which `step` also needs the value before the step."""

    def field_names(self) -> tuple[str, ...]:
        """The derived fields that this configuration reads."""
        return self.fields

    def remembered_names(self) -> tuple[str, ...]:
        """The fields of which this configuration needs the value before the step."""
        return self.remembered

    def contact_forces(self) -> bool:
        """Whether `Simulations.contact_forces` must be filled after each step."""
        return False

    def episode_steps(self) -> int | None:
        """The time limit that comes with the task, in control steps."""
        return self.max_episode_steps

    @abc.abstractmethod
    def reset(self, model: Any, generator: np.random.Generator) -> tuple[Array, Array]:
        """Draw one initial state: (nq,) positions and (nv,) velocities."""

    @abc.abstractmethod
    def observe(self, sim: Simulations) -> Array:
        """(N, observation dim)."""

    @abc.abstractmethod
    def step(self, sim: Simulations, actions: Array) -> tuple[Array, Array, Info]:
        """After the physics: (N,) rewards, (N,) terminations, and further (N, ...) arrays for `info`."""

    def positions(self, sim: Simulations) -> Info:
        """What `info` says after a reset."""
        return {}


Observe = Callable[[Simulations], Array]
Reward = Callable[[Simulations, Array], Array]
Reset = Callable[[Any, np.random.Generator], tuple[Array, Array]]


def reset_to_default(model: Any, generator: np.random.Generator) -> tuple[Array, Array]:
    """The model's `qpos0` at rest, without noise."""
    return model.qpos0.copy(), np.zeros(model.nv)


def _nothing(sim: Simulations, actions: Array) -> Array:
    return np.zeros(sim.num_envs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MjcfTask(Task):
    """Any MJCF, with plain functions of all simulations at once.

    Args:
        xml_file: path to the model, or the MJCF itself.
        observation: sim -> (N, observation dim).
        reward: (sim, actions) -> (N,); default 0.
        terminated: sim -> (N,) bool; default never.
        margin: sim -> (N,) signed margin, safe if >= 0; gives `info["margin"]` and `info["cost"]` (1 where < 0).
        cost: (sim, actions) -> (N,), at least 0, 0 on a safe step; gives `info["cost"]`, in place of the margin's.
        initial: (MjModel, generator) -> ((nq,), (nv,)); default the model's `qpos0` at rest.
        reads: derived fields of `MjData` that the functions read, such as ("xpos", "sensordata").
        remembers: fields that they read from `sim.before`.
        cfrc_ext: whether they read `sim.contact_forces`; keeps one MjData per simulation.
        episode: time limit in control steps, None for none.
    """

    observation: Observe
    reward: Reward = _nothing
    terminated: Observe | None = None
    margin: Observe | None = None
    cost: Reward | None = None
    initial: Reset = dataclasses.field(default=reset_to_default)
    reads: tuple[str, ...] = ()
    remembers: tuple[str, ...] = ("qpos",)
    cfrc_ext: bool = False
    episode: int | None = None

    def field_names(self) -> tuple[str, ...]:
        """`reads`."""
        return self.reads

    def remembered_names(self) -> tuple[str, ...]:
        """`remembers`."""
        return self.remembers

    def contact_forces(self) -> bool:
        """`cfrc_ext`."""
        return self.cfrc_ext

    def episode_steps(self) -> int | None:
        """`episode`."""
        return self.episode

    def reset(self, model: Any, generator: np.random.Generator) -> tuple[Array, Array]:
        """`initial`."""
        return self.initial(model, generator)

    def observe(self, sim: Simulations) -> Array:
        """`observation`, checked for its shape."""
        return _rows("observation", self.observation(sim), sim, dimensions=2)

    def step(self, sim: Simulations, actions: Array) -> tuple[Array, Array, Info]:
        """`reward`, `terminated`, `margin` and `cost`, checked for their shapes."""
        rewards = _rows("reward", self.reward(sim, actions), sim)
        ended = np.zeros(sim.num_envs, np.bool_)
        if self.terminated is not None:
            ended = _rows("terminated", self.terminated(sim), sim).astype(np.bool_)
        info = {} if self.margin is None else constraint(_rows("margin", self.margin(sim), sim))
        if self.cost is not None:
            info["cost"] = np.array(_rows("cost", self.cost(sim, actions), sim), np.float64)
        return rewards, ended, info


def constraint(margin: Array) -> Info:
    """`info` of a constraint: signed margin (safe if >= 0) and 0/1 cost, both (N,) float64."""
    margin = np.array(margin, dtype=np.float64)  # a copy: it may be a live view of the state
    return {"cost": (margin < 0).astype(np.float64), "margin": margin}


def _rows(name: str, values: Any, sim: Simulations, dimensions: int = 1) -> Array:
    values = np.asarray(values)
    if values.ndim != dimensions or len(values) != sim.num_envs:
        wanted = f"({sim.num_envs}, observation dim)" if dimensions == 2 else f"({sim.num_envs},)"
        raise ConfigError(
            f"{name}= gave an array of shape {values.shape} for {sim.num_envs} simulations; it must be {wanted}, "
            "one row a simulation"
        )
    return values


def _like(mask: Array, values: Array) -> Array:
    return mask.reshape(-1, *[1] * (values.ndim - 1))
