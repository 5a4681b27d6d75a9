"""Native systems behind gymnasium's vector interface: N copies of a system, one native call a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from surefoot.core.errors import ConfigError, EnvironmentMismatchError
from surefoot.cuda_ext.simulator import Simulator
from surefoot.cuda_ext.system import System
from surefoot.envs.interface import Array, Numbers, Tensors, VectorEnvironment, as_numpy, reset_mask, row_seeds
from surefoot.envs.native_rollout import say_twin
from surefoot.envs.parameters import changed, parameter_table
from surefoot.envs.systems import system as find_system

SEEDS = 1 << 32
"""Seeds count modulo this: the native random numbers are made of 32 bits."""
STATE_FIELDS = ("states", "seeds", "episodes", "elapsed")
"""Arrays of the simulator that, with the parameters, determine all that follows."""


class NativeVectorEnv(VectorEnvironment):
    """N environments of a native system, stepped together (DESIGN.md, contract 5).

    Resets happen in the same step; `info` describes the step taken in every row: `valid` (not paused), `cost` (0 or
    1), `margin` (signed, safe if >= 0), `diverged`; where episodes ended also `final_obs` (N, O) and `final_info`.
    All random numbers are counted from (seed, episode, step) of their row, so a row's future depends on its seed and
    nothing else. A state that is not finite or beyond 1e6 ends its episode: truncated, reward 0, cost 1,
    `info["diverged"]`, counted in `diverged_episodes`.

    Args:
        system: a `System`, or a name of one: `native/quadrotor-2d`, `surefoot/Quadrotor2D-v0`.
        num_envs: N, at least 1.
        max_episode_steps: steps after which an episode is truncated; None: the system's.
        gap: preset of altered dynamics of the system, or a list of one (or None) for each environment.
        parameters: physical constants, each one number or (N,); they go over those of `gap`.
        threads: None takes one for each 4096 environments, at most the processors there are; no result depends on it.
        tensors: "numpy" or "torch".
        options: of the system's class, such as the sizes of `native/linear-quadratic`.

    Raises:
        ConfigError: unknown names (the message gives the nearest) or a value out of its range.
    """

    def __init__(
        self,
        system: str | System,
        num_envs: int = 1,
        *,
        max_episode_steps: int | None = None,
        gap: str | None | Sequence[str | None] = None,
        parameters: Mapping[str, float | Numbers] | None = None,
        threads: int | None = None,
        tensors: Tensors = "numpy",
        **options: Any,
    ) -> None:
        self.system = system if isinstance(system, System) else make_system(system, options)
        say_twin()
        super().__init__(num_envs, observation_space(self.system), action_space(self.system), tensors)
        self.max_episode_steps: int = self.system.max_steps if max_episode_steps is None else max_episode_steps
        if self.max_episode_steps < 1 or (threads is not None and threads < 1):
            raise ConfigError(f"max_episode_steps is {max_episode_steps} and threads {threads}; both must be 1 or more")
        table = parameter_table(self.system, num_envs, gap, parameters)
        self._simulator = Simulator(self.system, num_envs, parameters=table, limit=self.max_episode_steps, threads=threads)
        self.metadata = {**self.metadata, "simulator": f"surefoot {self.system.alias}"}
        self.active: Array = np.ones(num_envs, dtype=np.bool_)
        """(N,) bool: rows that `step` moves. Set it freely between steps; `reset` sets all."""
        self.next_seeds: list[int | None] = [None] * num_envs
        """Seed of each row's next automatic reset; None goes on with the row's own random numbers."""
        self.diverged_episodes = 0
        """Episodes that ended because their state diverged, since construction."""
        self._seeded = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in all rows (or those of `options["reset_mask"]`) and activate them all.

        Args:
            seed: an int seeds row i with seed + i, a sequence gives each row its own; None goes on with the row's
                own random numbers, which the operating system seeds at first.
            options: `{"reset_mask": (N,) bool}` or None.

        Returns:
            (N, O) float32 observations, and an empty info.
        """
        mask = reset_mask(options, self.num_envs)
        rows = np.arange(self.num_envs) if mask is None else np.flatnonzero(mask)
        if seed is None and not self._seeded:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        seeds = row_seeds(seed, self.num_envs)
        self._seeded = True
        self._begin(rows, [seeds[row] for row in rows])
        self.active[:] = True
        return self._give_copy(self._simulator.observations), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Advance the active rows by one control step.

        Args:
            actions: (N, A) in the system's own units; what is beyond the bounds is clipped.

        Returns:
            (N, O) float32 observations, (N,) float32 rewards, (N,) bool terminations and truncations, info.

        Raises:
            EnvironmentMismatchError: actions of another shape, or not finite; nothing has moved then.
        """
        simulator = self._simulator
        paused = None if self.active.all() else np.flatnonzero(~self.active)
        before = None if paused is None else self._rows(paused)
        simulator.step(self._actions(actions))
        rewards, margins = simulator.rewards.copy(), simulator.margins.copy()
        costs = simulator.costs.copy()
        terminations, truncations = simulator.terminated.astype(np.bool_), simulator.truncated.astype(np.bool_)
        diverged = simulator.diverged.astype(np.bool_)
        if before is not None:
            self._restore(paused, before)
            for values in (rewards, margins, costs, terminations, truncations, diverged):
                values[paused] = 0
        info: dict[str, Any] = {"cost": costs, "margin": margins, "diverged": diverged, "valid": self.active.copy()}
        ended = terminations | truncations
        if ended.any():
            self.diverged_episodes += int(diverged.sum())
            info |= self._final(ended, info)
            self._reseed(np.flatnonzero(ended))
        results = (self._give_copy(simulator.observations), *map(self.give, (rewards, terminations, truncations)))
        return (*results, self.give_info(info))

    def _final(self, ended: Array, info: Mapping[str, Any]) -> dict[str, Any]:
        """What gymnasium's users look for where episodes ended."""
        observations = self._simulator.observations.copy()
        observations[ended] = self._simulator.final_observations[ended]
        inner: dict[str, Any] = {}
        for key in ("cost", "margin", "diverged"):
            inner[key], inner[f"_{key}"] = info[key], ended
        return {"final_obs": observations, "_final_obs": ended, "final_info": inner, "_final_info": ended}

    def _actions(self, given: Any) -> Array:
        self.check_actions(given)
        actions = np.ascontiguousarray(as_numpy(given), dtype=np.float32)
        if not np.isfinite(actions).all():
            row = int(np.flatnonzero(~np.isfinite(actions).all(axis=1))[0])
            raise EnvironmentMismatchError(f"the action of environment {row} is not finite; check the policy's weights")
        return actions

    def _begin(self, rows: Array, seeds: Sequence[int | None]) -> None:
        """Begin an episode in these rows: the first of a new seed, or the next of the row's own."""
        simulator = self._simulator
        for row, seed in zip(rows.tolist(), seeds, strict=True):
            if seed is None:
                simulator.episodes[row] += 1
            else:
                simulator.seeds[row], simulator.episodes[row] = seed % SEEDS, 0
        mask = np.zeros(self.num_envs, np.uint8)
        mask[rows] = 1
        simulator.reset(mask)

    def _reseed(self, rows: Array) -> None:
        """Begin again, with their seeds, the automatic resets that have one."""
        seeded = [row for row in rows.tolist() if self.next_seeds[row] is not None]
        if seeded:
            self._begin(np.array(seeded), [self.next_seeds[row] for row in seeded])

    def _rows(self, rows: Array) -> list[Array]:
        fields = (*STATE_FIELDS, "observations")
        return [getattr(self._simulator, field)[rows].copy() for field in fields]

    def _restore(self, rows: Array, values: list[Array]) -> None:
        for field, value in zip((*STATE_FIELDS, "observations"), values, strict=True):
            getattr(self._simulator, field)[rows] = value

    def _give_copy(self, values: Array) -> Numbers:
        return self.give(values.copy())

    @property
    def state(self) -> Numbers:
        """(N, S) states of the systems, a copy; assign (N, S) to go on from other states of the same episodes."""
        return self._give_copy(self._simulator.states)

    @state.setter
    def state(self, value: Any) -> None:
        states = as_numpy(value)
        if states.shape != self._simulator.states.shape or not np.isfinite(states).all():
            raise EnvironmentMismatchError(
                f"the state has shape {states.shape}; {self._simulator.states.shape} of finite numbers is needed"
            )
        self._simulator.states[...] = states
        self._simulator.observe()

    def get_state(self) -> dict[str, Array]:
        """All that the next steps depend on, as named arrays; `set_state` of it goes on to the same bits."""
        arrays = {field: getattr(self._simulator, field).copy() for field in STATE_FIELDS}
        seeds = np.array([-1 if seed is None else seed for seed in self.next_seeds], dtype=np.int64)
        own = {"active": self.active.copy(), "next_seeds": seeds, "parameters": self._simulator.parameters.copy()}
        return {**arrays, **own, "diverged_episodes": np.array(self.diverged_episodes)}

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Go on from a state of `get_state`.

        Raises:
            EnvironmentMismatchError: it is of another system or number of environments; nothing is changed then.
        """
        for key, value in self.get_state().items():
            if key not in state or np.shape(state[key]) != value.shape:
                found = np.shape(state[key]) if key in state else "absent"
                raise EnvironmentMismatchError(f"the state's {key!r} is {found}; this environment needs {value.shape}")
        for field in (*STATE_FIELDS, "parameters"):
            getattr(self._simulator, field)[...] = state[field]
        self.active[:] = state["active"]
        self.next_seeds = [None if seed < 0 else int(seed) for seed in state["next_seeds"]]
        self.diverged_episodes, self._seeded = int(state["diverged_episodes"]), True
        self._simulator.observe()

    @property
    def parameters(self) -> dict[str, Numbers]:
        """Name -> (N,) float32 values, copies."""
        table = self._simulator.parameters
        return {p.name: self._give_copy(table[:, i]) for i, p in enumerate(self.system.parameters)}

    def set_parameters(self, **values: float | Numbers) -> None:
        """Set parameters, each to one number or to (N,), from the next step on.

        Raises:
            ConfigError: an unknown name (the nearest is given) or a value out of its range.
        """
        self._simulator.parameters[...] = changed(self.system, self._simulator.parameters.copy(), values)

    def __repr__(self) -> str:
        return f"NativeVectorEnv({self.system.alias}, num_envs={self.num_envs})"


class NativeEnv(gymnasium.Env[Array, Array]):
    """One environment of a native system, for `gymnasium.make`; arguments as those of `NativeVectorEnv`."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, system: str | System, **options: Any) -> None:
        self._rows = NativeVectorEnv(system, 1, **options)
        self.system = self._rows.system
        self.observation_space, self.action_space = self._rows.single_observation_space, self._rows.single_action_space
        self.metadata = {**self.metadata, "simulator": self._rows.metadata["simulator"]}
        self.max_episode_steps = self._rows.max_episode_steps
        """Steps after which it truncates an episode by itself."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begin an episode: (O,) observation and an empty info."""
        super().reset(seed=seed)
        if seed is None and not self._rows._seeded:
            seed = int(self.np_random.integers(SEEDS))
        return self._rows.reset(seed=seed)[0][0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One control step under an action (A,); `info` has `cost`, `margin` and `diverged`."""
        observations, rewards, terminations, truncations, info = self._rows.step(np.asarray(action)[None])
        observation = info.get("final_obs", observations)[0]
        own = {"cost": float(info["cost"][0]), "margin": float(info["margin"][0]), "diverged": bool(info["diverged"][0])}
        return observation, float(rewards[0]), bool(terminations[0]), bool(truncations[0]), own

    @property
    def state(self) -> Array:
        """(S,) state of the system, a copy; assign to it to go on from another."""
        return np.asarray(self._rows.state)[0]

    @state.setter
    def state(self, value: Any) -> None:
        self._rows.state = np.asarray(value)[None]


def make(num_envs: int = 1, *, system: str, **options: Any) -> NativeVectorEnv:
    """`NativeVectorEnv` as `gymnasium.make_vec` calls it."""
    return NativeVectorEnv(system, num_envs, **options)


def make_single(*, system: str, **options: Any) -> NativeEnv:
    """`NativeEnv` as `gymnasium.make` calls it."""
    options.pop("render_mode", None)
    return NativeEnv(system, **options)


def make_system(name: str, options: Mapping[str, Any]) -> System:
    """The system of that name, with options of its class.

    Raises:
        ConfigError: an unknown name, or an option that its class doesn't take.
    """
    try:
        return find_system(name, **options)
    except TypeError as error:
        raise ConfigError(f"{name}: takes no argument {', '.join(options)} ({error})") from error


def observation_space(system: System) -> Box:
    """(O,) float32."""
    low, high = (np.array(bound, dtype=np.float32) for bound in (system.observation_low, system.observation_high))
    return Box(low, high)


def action_space(system: System) -> Box:
    """(A,) float32."""
    return Box(np.array(system.action_low, dtype=np.float32), np.array(system.action_high, dtype=np.float32))
