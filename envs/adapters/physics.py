"""A MuJoCo model on a batched engine plus a task (observations, reward, ends) as a contract environment.

MuJoCo Warp and MJX move bodies and nothing else; a `PhysicsTask` says the rest, in torch, on the engine's own tensors.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import gymnasium
import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.cuda_ext.twin import DIVERGED_MARGIN
from surefoot.envs.adapters.memory import in_memory
from surefoot.envs.adapters.pausing import PausableRows
from surefoot.envs.interface import Array, Numbers, Tensors, as_numpy, reset_mask, row_seeds


def _signed(number: int) -> int:
    """The int64 that has the bits of an unsigned number."""
    return number - (1 << 64) if number >= 1 << 63 else number


GOLDEN = _signed(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: steps of SplitMix64."""
Fields = Mapping[str, Tensor]
"""Name in MuJoCo's `mjData` -> (N, ...) tensor."""


class Outcome(NamedTuple):
    """What a task says of one step of N rows."""

    reward: Tensor
    """(N,)."""
    terminated: Tensor
    """(N,) bool."""
    margin: Tensor | None = None
    """(N,) signed, safe if >= 0, where the task has a constraint; the cost is 1 where it is negative."""


class PhysicsTask(abc.ABC):
    """Observations, reward and ends of a MuJoCo model. Methods are batched, and keep nothing between calls."""

    fields: ClassVar[tuple[str, ...]] = ("qpos", "qvel")
    """What the methods read of `mjData`; `qpos` and `qvel` are always there."""
    observation_dim: int
    substeps: int = 1
    """Physics steps of one action."""
    max_steps: int = 1000
    """Steps after which an episode is truncated."""
    uniforms: int
    """Uniform draws in [0, 1) that `begin` reads."""

    @abc.abstractmethod
    def begin(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """(n, nq) positions and (n, nv) velocities to begin episodes with, from (n, uniforms) draws."""

    @abc.abstractmethod
    def observe(self, data: Fields) -> Tensor:
        """(N, O) observations."""

    @abc.abstractmethod
    def outcome(self, before: Fields, after: Fields, actions: Tensor) -> Outcome:
        """Reward, termination and margin of a step from `before` to `after` with (N, A) actions."""


class Engine(Protocol):
    """What an adapter of a physics engine provides."""

    name: str
    device: torch.device

    def data(self) -> Fields:
        """The fields now: live tensors that the next call may change."""

    def advance(self, actions: Tensor, substeps: int) -> None:
        """Apply (N, A) controls for some physics steps."""

    def place(self, rows: Tensor, positions: Tensor, velocities: Tensor) -> None:
        """Put rows, (N,) bool, into new states, and compute their derived fields; other rows continue unchanged."""


class SavedEngine(Engine, Protocol):
    """An engine whose whole state can be saved."""

    def get_state(self) -> dict[str, Array]:
        """Everything that the next step depends on, by name."""
        ...

    def set_state(self, arrays: dict[str, Array]) -> None:
        """Continue from what `get_state` gave."""


class PhysicsVectorEnv(PausableRows):
    """A task on a physics engine, behind the contract; `from_mujoco_warp` and `from_mjx` make it.

    A row whose state stops being finite is truncated: `info["diverged"]` marks it, its reward is 0, its final
    observation is the one before, and where the task has a constraint its margin is -1e6 and its cost 1.
    """

    def __init__(self, engine: Engine, task: PhysicsTask, num_envs: int, controls: Array, tensors: Tensors) -> None:
        observations = gymnasium.spaces.Box(-np.inf, np.inf, (task.observation_dim,), np.float32)
        actions = gymnasium.spaces.Box(controls[:, 0].astype(np.float32), controls[:, 1].astype(np.float32))
        super().__init__(num_envs, observations, actions, tensors, engine.device)
        self.engine, self.task = engine, task
        self.max_episode_steps = task.max_steps
        self._seeds = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._episodes = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._steps = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._seen: Tensor | None = None
        self._draw = np.random.default_rng()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Numbers, dict[str, Any]]:
        """Begin new episodes in all rows, or in those of `options["reset_mask"]`."""
        mask = reset_mask(options, self.num_envs)
        rows = np.ones(self.num_envs, np.bool_) if mask is None or self._seen is None else mask
        seeds = enumerate(row_seeds(seed, self.num_envs))
        self._seed({
            row: int(self._draw.integers(2**63)) if one is None else one
            for row, one in seeds
            if rows[row] and (one is not None or self._seen is None)
        })  # fmt: skip
        with in_memory(self.num_envs):
            self._begin(torch.as_tensor(rows, device=self.device))
        self.all_active()
        return self.give(self._now()), {}

    def step(self, actions: Any) -> tuple[Numbers, Numbers, Numbers, Numbers, dict[str, Any]]:
        """One step of every row: `task.substeps` physics steps."""
        self.check_actions(actions)
        if self._seen is None:
            raise EnvironmentMismatchError("step was called before the first reset: call reset first")
        given = torch.as_tensor(actions, dtype=torch.float32, device=self.device)
        self._seed({row: int(self.next_seeds[row] or 0) for row in self.newly_seeded()})
        before = {key: value.clone() for key, value in self.engine.data().items()}
        with in_memory(self.num_envs):
            self.engine.advance(given, self.task.substeps)
        active = None
        if self.paused:  # the engine moves all rows: these go back
            active = torch.as_tensor(self.active.copy(), device=self.device)
            self.engine.place(~active, before["qpos"][~active], before["qvel"][~active])
        after = self.engine.data()
        finite = torch.isfinite(after["qpos"]).all(1) & torch.isfinite(after["qvel"]).all(1)
        outcome = self.task.outcome(before, after, given)
        self._steps += 1 if active is None else active.long()
        terminated = outcome.terminated & finite
        truncated = ((self._steps >= self.task.max_steps) & ~terminated) | ~finite
        rewards = torch.where(finite, outcome.reward, 0.0)
        if active is not None:
            terminated, truncated, finite = terminated & active, truncated & active, finite | ~active
            rewards = torch.where(active, rewards, 0.0)
        kept = finite if active is None else finite & active
        final = torch.where(kept[:, None], self.task.observe(after), self._seen)
        ended = terminated | truncated
        info: dict[str, Any] = {"final_obs": final, "_final_obs": ended, "diverged": ~finite}
        if active is not None:
            info["valid"] = active
        if outcome.margin is not None:
            margin = torch.where(finite, outcome.margin, DIVERGED_MARGIN)
            info |= {"margin": margin, "cost": (margin < 0).to(torch.float32)}
        self._seen = final
        if bool(ended.any()):
            self._begin(ended)
        numbers = (self.give(value) for value in (self._now(), rewards, terminated, truncated))
        return *numbers, self.give_info(info)  # type: ignore[return-value]

    def _now(self) -> Tensor:
        assert self._seen is not None
        return self._seen

    def _begin(self, rows: Tensor) -> None:
        """New episodes in some rows; only their observations are computed from fresh derived fields."""
        uniform = uniform_draws(self._seeds[rows], self._episodes[rows], self.task.uniforms)
        self._episodes += rows.long()
        positions, velocities = self.task.begin(uniform.float())
        self.engine.place(rows, positions, velocities)
        self._steps[rows] = 0
        fresh = self.task.observe(self.engine.data())
        if tuple(fresh.shape) != (self.num_envs, self.task.observation_dim):
            raise ConfigError(
                f"{type(self.task).__name__}.observe gives {tuple(fresh.shape)}; observation_dim says "
                f"({self.num_envs}, {self.task.observation_dim})"
            )
        self._seen = fresh.clone() if self._seen is None else torch.where(rows[:, None], fresh, self._seen)

    def _seed(self, seeds: Mapping[int, int]) -> None:
        """The next episode of some rows, and those after it, follow from these seeds."""
        if seeds:
            rows = torch.tensor(list(seeds), device=self.device)
            self._seeds[rows] = torch.tensor(list(seeds.values()), dtype=torch.int64, device=self.device)
            self._episodes[rows] = 0

    def close_extras(self, **kwargs: Any) -> None:
        """Nothing to close: the engine's memory is freed with it."""


class SavedPhysicsVectorEnv(PhysicsVectorEnv):
    """The same on an engine whose state can be saved and set, so that a run continues the same numbers."""

    engine: SavedEngine

    def get_state(self) -> dict[str, Array]:
        """Everything that the next step depends on, by name.

        Raises:
            EnvironmentMismatchError: before the first reset.
        """
        own = {"seeds": self._seeds, "episodes": self._episodes, "steps": self._steps, "seen": self._now()}
        return {name: as_numpy(value).copy() for name, value in own.items()} | {
            f"engine{name}": value for name, value in self.engine.get_state().items()
        }

    def set_state(self, arrays: dict[str, Array]) -> None:
        """Continue from what `get_state` gave.

        Raises:
            EnvironmentMismatchError: the state of another environment.
        """
        placed = {n: torch.as_tensor(arrays[n], device=self.device) for n in ("seeds", "episodes", "steps", "seen")}
        self._seeds, self._episodes, self._steps, self._seen = (value.clone() for value in placed.values())
        stem = "engine"
        self.engine.set_state({n.removeprefix(stem): value for n, value in arrays.items() if n.startswith(stem)})


def uniform_draws(seeds: Tensor, episodes: Tensor, count: int) -> Tensor:
    """(n, count) float64 in [0, 1) from (n,) int64 seeds and (n,) numbers of episodes, nothing else; on their device.

    Source: Steele, Lea & Flood, "Fast Splittable Pseudorandom Number Generators" (2014): SplitMix64's finaliser.
    """
    episode = _mix(seeds) + GOLDEN * (episodes + 1)
    index = GOLDEN * torch.arange(1, count + 1, dtype=torch.int64, device=seeds.device)
    return _shifted(_mix(_mix(episode)[:, None] + index), 11).double() * 2.0**-53


def control_range(model: Any) -> Array:
    """(A, 2) lowest and highest control of a MuJoCo model; infinite where the model does not limit it."""
    limited = np.asarray(model.actuator_ctrllimited, np.bool_)
    return np.where(limited[:, None], model.actuator_ctrlrange, [-np.inf, np.inf])


def checked(model: Any, task: PhysicsTask, num_envs: int) -> tuple[str, ...]:
    """The fields to hold for a task, after a look at its arguments.

    Raises:
        ConfigError: fewer rows than 1, or a model without actuators.
    """
    if num_envs < 1:
        raise ConfigError(f"num_envs is {num_envs}; a vector environment needs at least 1 row")
    if model.nu < 1:
        raise ConfigError("the model has no actuators, so there is nothing to act on: add an <actuator>")
    return tuple(dict.fromkeys(("qpos", "qvel", *task.fields)))


def _mix(x: Tensor) -> Tensor:
    """int64, which torch multiplies modulo 2^64 as the paper's unsigned numbers."""
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Moved right by `bits`, zeros coming in from the left as in unsigned numbers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
