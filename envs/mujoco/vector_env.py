"""N simulations of one MuJoCo model behind gymnasium's vector interface, stepped by `mujoco.batch.Batch`."""

from __future__ import annotations

import os
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.envs.mujoco import gaps, generators, library
from surefoot.envs.mujoco.domain import DomainParameters
from surefoot.envs.mujoco.task import Array, Info, MjcfTask, Simulations, Task

BAD_STATES = ("mjWARN_BADQPOS", "mjWARN_BADQVEL", "mjWARN_BADQACC")
ROWS_PER_THREAD = 4  # fewer than this and a thread costs more than it brings


class MujocoVectorEnv(VectorEnv[Any, Any, Any]):
    """N simulations of a task, or of any MJCF with functions for observation, reward and end.

    Autoreset is SAME_STEP. `info` after a step describes the step taken, in every row: `valid` (not paused),
    `diverged`, the task's own arrays, `cost` and `margin` where there is a constraint; where episodes ended
    also `final_obs` (N, observation dim; rows of `_final_obs` only) and `final_info`. Resets draw from one
    PCG64 generator per row exactly as gymnasium's environments do, so a seed gives the same initial state.

    A simulation whose state MuJoCo calls bad (NaN, infinite, beyond 1e10) or whose observation or reward is
    not finite ends its episode: truncated, reward 0, `final_obs` the last good observation, where the task
    has a constraint cost 1 and margin -1e6, `info["diverged"]`, counted in `diverged_episodes`, and a
    RuntimeWarning at the first.

    Args:
        task: a `Task`, or path or text of an MJCF, with `options` those of `MjcfTask` (observation=..., ...).
        num_envs: N, at least 1.
        max_episode_steps: time limit in control steps; "task" is the task's own, None is none.
        gap: preset of `gaps.GAPS` ("gravity2", "wind", ...), or a list of one for each simulation.
        threads: of the physics; None takes the available CPUs. Results are the same for any number.
        tensors: "numpy" (float64 observations, as gymnasium) or "torch" (float32, on the CPU).
        options: of `MjcfTask`, where `task` is an MJCF.

    Raises:
        MissingExtraError, ConfigError: mujoco absent or below 3.17; arguments out of range.
    """

    def __init__(
        self,
        task: Task | str | pathlib.Path,
        num_envs: int = 1,
        *,
        max_episode_steps: int | str | None = "task",
        gap: str | Sequence[str | None] | None = None,
        threads: int | None = None,
        tensors: str = "numpy",
        **options: Any,
    ) -> None:
        if isinstance(task, Task) and options:
            raise ConfigError(f"{sorted(options)} are arguments of the task: give them to {type(task).__name__}(...)")
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}; it must be at least 1")
        if tensors not in ("numpy", "torch"):
            raise ConfigError(f"tensors={tensors!r}; it must be 'numpy' or 'torch'")
        self.task = task if isinstance(task, Task) else _mjcf_task(task, options)
        limit = self.task.episode_steps() if max_episode_steps == "task" else max_episode_steps
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise ConfigError(f"max_episode_steps is {limit!r}; it must be at least 1, or None")
        self.num_envs, self.max_episode_steps, self.tensors = num_envs, limit, tensors
        self.called: str | None = None
        """What messages call it, where it is no registered id."""
        self._simulate(threads)
        self._declare()
        self._set_gaps(gap)
        self.active = np.ones(num_envs, dtype=np.bool_)
        """(N,) bool: rows that `step` moves. Set it freely between steps; `reset` sets all."""
        self.next_seeds: list[int | None] = [None] * num_envs
        """Seed of each row's next automatic reset; None continues the row's own random numbers."""
        self.diverged_episodes = 0
        """Episodes that ended because their simulation diverged, since construction."""
        self._generators: list[np.random.Generator | None] = [None] * num_envs
        self._noise_generators: list[np.random.Generator | None] = [None] * num_envs
        self._elapsed = np.zeros(num_envs, np.int64)
        self._begun = False

    def _simulate(self, threads: int | None) -> None:
        """Compile the model and make the batch; all fields are bound before the first call, or they read 0."""
        mujoco = library.load()
        self.model = library.compile_model(self.task.xml_file)
        if threads is None:
            threads = min(_processors(), max(1, self.num_envs // ROWS_PER_THREAD))
        if threads < 1:
            raise ConfigError(f"threads is {threads}; it must be at least 1, or None for the available CPUs")
        self._contact = self.task.contact_forces()
        self.batch = mujoco.batch.Batch(self.model, self.num_envs, threads, persistent=self._contact)
        """The `mujoco.batch.Batch`: read it freely; `get_data(row)` and `get_model(row)` are for rendering."""
        self.dt: float = self.model.opt.timestep * self.task.frame_skip
        names = self.task.field_names(), self.task.remembered_names()
        self.sim = Simulations(self.batch, *names, self.dt)
        self.domain = DomainParameters(self.batch)
        """Model fields of each simulation: `domain["geom_friction"]`, `domain["body_mass"] = ...`."""
        self._bad = np.array([mujoco.mjtWarning.__members__[name].value for name in BAD_STATES])
        self._simulation_error = mujoco.batch.SimulationError
        self._scratch: Any = mujoco.MjData(self.model) if self._contact else None

    def _declare(self) -> None:
        """Spaces and metadata."""
        self.batch.reset()
        self.sim.remember()
        self._last: Array = np.array(self.task.observe(self.sim), dtype=np.float64)
        bounds = self.model.actuator_ctrlrange.astype(np.float32)
        free = ~self.model.actuator_ctrllimited.astype(np.bool_)
        low, high = np.where(free, -np.inf, bounds[:, 0]), np.where(free, np.inf, bounds[:, 1])
        dtype: Any = np.float32 if self.tensors == "torch" else np.float64
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self._last.shape[1:], dtype)
        self.single_action_space = gymnasium.spaces.Box(low.astype(np.float32), high.astype(np.float32))
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, self.num_envs)
        self.metadata = {
            "autoreset_mode": AutoresetMode.SAME_STEP,
            "render_modes": [],
            "simulator": library.version(),
        }

    def _set_gaps(self, gap: str | Sequence[str | None] | None) -> None:
        chosen = gaps.parse_all(gap if gap is None or isinstance(gap, str) else list(gap), self.num_envs)
        self._noise = np.array([one.noise for one in chosen])
        self._noisy = bool(self._noise.any())
        found = {one: one.changes(self.model) for one in set(chosen)}
        changes = [found[one] for one in chosen]
        for name in sorted({name for change in changes for name in change}):
            values = self.domain[name]
            for row, change in enumerate(changes):
                values[row] = change.get(name, values[row])
            self.domain[name] = values

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all rows (or those of `options["reset_mask"]`) and activate them all.

        Args:
            seed: one per row; an integer s means s, s + 1, ...; None continues the row's random numbers.
            options: `{"reset_mask": (N,) bool}` or None.
        """
        if seed is None or isinstance(seed, (int, np.integer)):
            seeds = [None if seed is None else int(seed) + i for i in range(self.num_envs)]
        else:
            seeds = list(seed)
        if len(seeds) != self.num_envs:
            raise ConfigError(f"seed= lists {len(seeds)} seeds for {self.num_envs} environments")
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_)))
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise ConfigError(f"reset_mask must be ({self.num_envs},) bool with a True in it")
        rows = np.flatnonzero(mask)
        self._reset_rows(rows, [seeds[row] for row in rows])
        self.active[:] = True
        self._begun = None not in self._generators
        info = {key: np.where(_broadcast(mask, value), value, 0) for key, value in self._positions().items()}
        return self._out(self._last.copy()), self._out({**info, **{f"_{key}": mask.copy() for key in info}})

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Advance the active rows by one control step of `frame_skip` substeps.

        Args:
            actions: (N, action dim) numpy array or torch tensor, in the environment's own units.

        Raises:
            EnvironmentMismatchError: actions of another shape, or not finite.
        """
        if not self._begun:
            raise EnvironmentMismatchError("step before reset: call reset() on all environments first")
        moving = self.active.copy()
        everyone = bool(moving.all())
        actions = self._actions(actions, moving)
        self.sim.remember()
        if everyone:
            self.sim.ctrl[...] = actions
        else:
            self.sim.ctrl[moving] = actions[moving]
        diverged = self._advance(moving, everyone)
        rewards, terminations, info = self.task.step(self.sim, actions)
        observations = np.array(self.task.observe(self.sim), dtype=np.float64)
        if not (np.isfinite(observations).all() and np.isfinite(rewards).all()):
            diverged |= moving & ~(np.isfinite(observations).all(axis=1) & np.isfinite(rewards))
        still = None if everyone and not diverged.any() else ~moving | diverged
        if still is not None:
            observations[still] = self._last[still]
            rewards = np.where(still, 0.0, rewards)
            terminations &= ~still
        self._elapsed += moving
        truncations = diverged.copy()  # a failure of the simulator is no end of the task
        if self.max_episode_steps is not None:
            truncations |= moving & (self._elapsed >= self.max_episode_steps)
        info = self._complete(info, still, moving, diverged)
        ended = terminations | truncations
        self._last = observations
        if ended.any():
            info |= self._autoreset(ended, info)
        return (
            self._out(self._last.copy()),
            self._out(rewards),
            self._out(terminations),
            self._out(truncations),
            self._out(info),
        )

    def _actions(self, given: Any, moving: Array) -> Array:
        """(N, action dim) in their own float precision, checked, with the gap's noise."""
        if hasattr(given, "detach"):
            given = given.detach().cpu().numpy()
        actions = np.asarray(given)
        if actions.dtype.kind != "f":
            actions = actions.astype(np.float32)
        if actions.shape != self.action_space.shape:
            raise EnvironmentMismatchError(
                f"actions have shape {actions.shape}; this environment takes {self.action_space.shape}"
            )
        if not np.isfinite(actions).all():
            row = int(np.flatnonzero(~np.isfinite(actions).all(axis=1))[0])
            raise EnvironmentMismatchError(f"the action of environment {row} is not finite; check the policy's weights")
        if self._noisy:
            noisy = np.flatnonzero(moving & (self._noise > 0))
            actions = actions.copy()
            low, high = self.single_action_space.low, self.single_action_space.high  # type: ignore[attr-defined]
            for row in noisy.tolist():
                generator = self._noise_generators[row]
                assert generator is not None  # reset gave it
                actions[row] = gaps.noisy(actions[row], self._noise[row], generator, low, high)
        return actions

    def _advance(self, moving: Array, everyone: bool) -> Array:
        """The physics; (N,) bool of rows that diverged or in which MuJoCo raised an error."""
        ids = None if everyone else np.flatnonzero(moving).astype(np.int32)
        diverged = np.zeros(self.num_envs, np.bool_)
        try:
            if ids is None or len(ids):
                self.batch.step(ids, self.task.frame_skip)
        except self._simulation_error as error:  # the other rows have completed
            diverged[error.ids] = True
        self.sim.ran(moving)
        warned = self.batch.warning
        if np.count_nonzero(warned):  # of any kind; numpy's indexing takes longer than this
            diverged |= moving & (warned[:, self._bad, 1] > 0).any(axis=1)
        if self._contact:
            self._read_contact_forces(moving & ~diverged)
        return diverged

    def _read_contact_forces(self, rows: Array) -> None:
        """`cfrc_ext`, which `mj_step` doesn't compute; `mj_rnePostConstraint` on a copy of each simulation's data.

        No sensor gives the same (with RK4 sensors see the first stage only), and Python can't call `mjb_apply`.
        """
        mujoco = library.load()
        model = self.model
        for row in np.flatnonzero(rows).tolist():
            if self.domain.changed:
                model = self.batch.get_model(row)
            self.batch.get_data(row, self._scratch)
            mujoco.mj_rnePostConstraint(model, self._scratch)
            self.sim.contact_forces[row] = self._scratch.cfrc_ext

    def _complete(self, info: Info, still: Array | None, moving: Array, diverged: Array) -> dict[str, Any]:
        """The task's info with 0 in the rows that are `still`, if any, masks as gymnasium has them, and ours.

        Where a simulation diverged the cost is 1 and the margin as low as other engines' there.
        """
        complete: dict[str, Any] = {}
        for key, value in info.items():
            if still is not None:
                value = np.where(_broadcast(still, value), 0, value).astype(value.dtype)
            complete[key] = value
            complete[f"_{key}"] = moving.copy()
        complete["valid"], complete["diverged"] = moving, diverged
        if still is not None and diverged.any():
            from surefoot.cuda_ext.twin import DIVERGED_MARGIN  # with torch, which registering must not import

            for key, unsafe in (("cost", 1.0), ("margin", DIVERGED_MARGIN)):  # an unknown state is no safe one
                if key in complete:
                    complete[key][diverged] = unsafe
            if self.diverged_episodes == 0:
                row = int(np.flatnonzero(diverged)[0])
                warnings.warn(
                    f"simulation {row} diverged {self._elapsed[row]} steps into its episode (state not finite or "
                    "beyond 1e10); such episodes end there, and env.diverged_episodes counts them",
                    RuntimeWarning,
                    stacklevel=3,
                )
            self.diverged_episodes += int(diverged.sum())
        return complete

    def _autoreset(self, ended: Array, info: dict[str, Any]) -> dict[str, Any]:
        """Reset the rows that ended; their last observation and info."""
        final_info: dict[str, Any] = {}
        for key in [key for key in info if not key.startswith("_")]:
            final_info[key], final_info[f"_{key}"] = info[key], ended.copy()
        final = {
            "final_obs": self._last.copy(),
            "_final_obs": ended.copy(),
            "final_info": final_info,
            "_final_info": ended.copy(),
        }
        rows = np.flatnonzero(ended)
        self._last = self._last.copy()
        self._reset_rows(rows, [self.next_seeds[row] for row in rows])
        return final

    def _reset_rows(self, rows: Array, seeds: Sequence[int | None]) -> None:
        """Begin episodes in these rows as gymnasium's `MujocoEnv.reset` does."""
        import mujoco

        self.batch.reset(rows, stage=mujoco.mjtStage.mjSTAGE_NONE.value)
        for row, seed in zip(rows.tolist(), seeds, strict=True):
            generator = self._generators[row]
            if seed is not None or generator is None:
                generator, drawn = seeding.np_random(seed)
                self._noise_generators[row] = gaps.noise_generator(drawn)
                self._generators[row] = generator
            self.sim.qpos[row], self.sim.qvel[row] = self.task.reset(self.model, generator)
        self.batch.forward(rows)
        self.sim.ran(rows)
        self.sim.contact_forces[rows] = 0.0
        self._elapsed[rows] = 0
        self._last[rows] = self.task.observe(self.sim)[rows]

    def _positions(self) -> Info:
        return self.task.positions(self.sim)

    @property
    def state(self) -> Any:
        """(N, S) the simulations' states (MuJoCo's mjSTATE_INTEGRATION), a copy.

        Assign (N, S) to continue from other states of the same episodes: the rows whose numbers change are computed
        anew, with contact forces of 0 until their next step, as after a reset. Raises EnvironmentMismatchError at
        another shape, or numbers that are not finite.
        """
        return self._out(np.array(self.batch.state))

    @state.setter
    def state(self, value: Any) -> None:
        states = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value, np.float64)
        if states.shape != self.batch.state.shape or not np.isfinite(states).all():
            raise EnvironmentMismatchError(
                f"the state has shape {states.shape}; {self.batch.state.shape} of finite numbers is needed"
            )
        rows = np.flatnonzero((states != self.batch.state).any(axis=1))
        if len(rows) == 0:
            return
        self.batch.state[rows] = states[rows]
        self.batch.forward(rows)
        self.batch.state[rows] = states[rows]  # with the warm start that was given, not that of `forward`
        self.batch.warning[rows] = 0
        self.sim.ran(rows)
        self.sim.contact_forces[rows] = 0.0
        self._last = self._last.copy()
        self._last[rows] = self.task.observe(self.sim)[rows]

    @property
    def observations(self) -> Any:
        """(N, O) of the present states, a copy."""
        return self._out(self._last.copy())

    def state_from(self, qpos: Array, qvel: Array | None = None) -> Array:
        """(K, S) states at time 0 of (K, nq) positions and (K, nv) velocities, at rest where there are none.

        Raises:
            EnvironmentMismatchError: another width than the model's.
        """
        import mujoco

        velocities = np.zeros((len(qpos), self.model.nv)) if qvel is None else np.asarray(qvel, np.float64)
        for name, found, width in (("qpos", np.asarray(qpos), self.model.nq), ("qvel", velocities, self.model.nv)):
            if found.shape != (len(qpos), width):
                raise EnvironmentMismatchError(f"{name} has shape {found.shape}; ({len(qpos)}, {width}) is needed")
        kind = mujoco.mjtState.mjSTATE_INTEGRATION.value
        data, made = mujoco.MjData(self.model), np.empty((len(qpos), self.batch.nstate))
        for row in range(len(qpos)):
            data.qpos[:], data.qvel[:] = qpos[row], velocities[row]
            mujoco.mj_getState(self.model, data, made[row], kind)
        return made

    def get_state(self) -> dict[str, Array]:
        """All that the next steps depend on, as named arrays: simulations, generators, domain parameters.

        `set_state` of it, here or in an environment made alike, continues to the same bits (docs/mujoco.md).
        """
        state = {
            "simulations": self.batch.state.copy(),
            "elapsed": self._elapsed.copy(),
            "observations": self._last.copy(),
            "active": self.active.copy(),
            "next_seeds": np.array([-1 if seed is None else seed for seed in self.next_seeds], np.int64),
            "generators": generators.pack(self._generators),
            "noise_generators": generators.pack(self._noise_generators),
            "noise": self._noise.copy(),
            "diverged_episodes": np.array(self.diverged_episodes),
        }
        state |= {f"fields/{name}": self.sim.now(name).copy() for name in vars(self.sim.before)}
        return state | {f"domain/{name}": values for name, values in self.domain.get_state().items()}

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Continue from a state of `get_state`.

        Raises:
            EnvironmentMismatchError: it is of another model or number of environments; nothing is changed then.
        """
        own = self.get_state()
        for key, value in own.items():
            if not key.startswith("domain/") and (key not in state or np.shape(state[key]) != value.shape):
                found = np.shape(state[key]) if key in state else "absent"
                raise EnvironmentMismatchError(
                    f"the state's {key!r} is {found}, and this environment needs {value.shape}: "
                    "make it with the same task, num_envs and options"
                )
        self.domain.set_state({key[7:]: state[key] for key in state if key.startswith("domain/")})
        self.batch.state[:] = state["simulations"]
        self.batch.warning[:] = 0
        self._elapsed[:], self.active[:] = state["elapsed"], state["active"]
        self._last, self._noise = np.array(state["observations"]), np.array(state["noise"])
        self._noisy = bool(self._noise.any())
        self.next_seeds = [None if seed < 0 else int(seed) for seed in state["next_seeds"]]
        self._generators = generators.unpack(state["generators"])
        self._noise_generators = generators.unpack(state["noise_generators"])
        self._begun = None not in self._generators
        self.diverged_episodes = int(state["diverged_episodes"])
        self.sim.restore({key[7:]: state[key] for key in state if key.startswith("fields/")})

    def _out(self, value: Any) -> Any:
        """The value in the kind of tensors that was asked for."""
        if self.tensors == "numpy":
            return value
        if isinstance(value, dict):
            return {key: self._out(part) for key, part in value.items()}
        import torch

        tensor = torch.from_numpy(np.ascontiguousarray(value))
        return tensor.float() if tensor.dtype == torch.float64 else tensor

    def __repr__(self) -> str:
        return f"MujocoVectorEnv({type(self.task).__name__}, num_envs={self.num_envs}, {self.metadata['simulator']})"


def _mjcf_task(source: str | pathlib.Path, options: dict[str, Any]) -> MjcfTask:
    if "observation" not in options:
        raise ConfigError("an MJCF needs observation=, a function of all simulations: observation(sim) -> (N, dim)")
    try:
        return MjcfTask(xml_file=source, **options)
    except TypeError as error:
        raise ConfigError(f"MujocoVectorEnv: {error}; MjcfTask lists the arguments of an MJCF") from error


def _broadcast(mask: Array, value: Array) -> Array:
    return mask.reshape(-1, *[1] * (np.ndim(value) - 1))


def _processors() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
