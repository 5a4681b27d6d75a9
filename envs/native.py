"""Native systems behind gymnasium's vector interface: N copies of a system, one native call a step."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, nearest
from surefoot.core.policy.policy import Policy
from surefoot.cuda_ext.resident import on_device
from surefoot.cuda_ext.rollout import Carry
from surefoot.cuda_ext.rollout import rollout as roll_out
from surefoot.cuda_ext.simulator import Simulator
from surefoot.cuda_ext.system import System
from surefoot.envs.interface import (
    Array,
    Numbers,
    PolicyBlock,
    Tensors,
    VectorEnvironment,
    as_numpy,
    reset_mask,
    row_seeds,
)
from surefoot.envs.names import refuse_to_draw
from surefoot.envs.native_rollout import evaluates, native_policy, policy_noise, processors, say_twin
from surefoot.envs.parameters import changed, parameter_table
from surefoot.envs.systems import system as find_system

SEEDS = 1 << 32
"""Seeds count modulo this: the native random numbers are made of 32 bits."""
ROWS_PER_THREAD = 1 << 16
"""Fewer than this and another thread costs more than it brings."""


class NativeVectorEnv(VectorEnvironment):
    """N environments of a native system, stepped together (contract: docs/environments.md).

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
        threads: None takes one for each 65,536 environments, at most all processors; no result depends on it.
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
        gap: str | Sequence[str | None] | None = None,
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
        if threads is None:
            threads = max(1, min(num_envs // ROWS_PER_THREAD, processors()))
        self._table = parameter_table(self.system, num_envs, gap, parameters)
        self._simulator = Simulator(
            self.system, num_envs, parameters=_rows(self._table), max_steps=self.max_episode_steps, threads=threads
        )
        self.metadata = {**VectorEnvironment.metadata, "simulator": f"surefoot {self.system.alias}"}
        self.active: Array = np.ones(num_envs, dtype=np.bool_)
        """(N,) bool: rows that `step` moves. Set it freely between steps; `reset` sets all."""
        self.next_seeds: list[int | None] = [None] * num_envs
        """Seed of each row's next automatic reset; None continues the row's own random numbers."""
        self.diverged_episodes = 0
        """Episodes that ended because their state diverged, since construction; those of rollouts on a GPU are counted
        when the environments are next used on the CPU."""
        self._seeds = np.zeros(num_envs, np.int64)
        self.started = False
        """Whether there was a reset; steps before the first one are refused."""
        self._threads = threads
        self._away: Carry | None = None
        """Where the environments stand after a rollout on a GPU, until they are next used on the CPU."""
        self._diverged_away: torch.Tensor | int = 0
        """Episodes that diverged there and are not yet counted: reading them sooner would wait for the GPU."""

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in all rows (or those of `options["reset_mask"]`; the first time all) and activate them all.

        Args:
            seed: an int seeds row i with seed + i, a sequence gives each row its own; None continues the row's
                own random numbers, which the operating system seeds at first.
            options: `{"reset_mask": (N,) bool}` or None.

        Returns:
            (N, O) float32 observations, and an empty info.
        """
        mask = reset_mask(options, self.num_envs)
        seeds = row_seeds(seed, self.num_envs)
        self._come_home()
        if not self.started:
            mask, drawn = None, int(np.random.SeedSequence().generate_state(1)[0])
            seeds = [drawn + row if one is None else one for row, one in enumerate(seeds)]
        if seed is None and self.started:
            self._simulator.reset(mask=mask)
        else:
            rows = np.arange(self.num_envs) if mask is None else np.flatnonzero(mask)
            own = np.array([seeds[row] is None for row in rows])
            if own.any():
                self._simulator.reset(mask=np.isin(np.arange(self.num_envs), rows[own]))
            self._begin(rows, [seeds[row] for row in rows])
        self.started = True
        self.active[:] = True
        return self._given(self._simulator.observations), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Advance the active rows by one control step.

        Args:
            actions: (N, A) in the system's own units; what is beyond the bounds is clipped.

        Returns:
            (N, O) float32 observations, (N,) float32 rewards, (N,) bool terminations and truncations, info.

        Raises:
            EnvironmentMismatchError: before the first reset; actions of another shape, or not finite; nothing has moved
                then.
        """
        self._check_begun("step")
        self._come_home()
        simulator = self._simulator
        given = self._actions(actions)
        paused = None if self.active.all() else ~self.active
        before = None if paused is None else simulator.state
        done = simulator.step(given)
        rewards, costs, margins = done.rewards.copy(), done.costs.copy(), done.margins.copy()
        terminations, truncations, diverged = done.terminated.copy(), done.truncated.copy(), done.diverged.copy()
        if paused is not None and before is not None:
            simulator.state = _mixed(torch.from_numpy(paused), before, simulator.state)
            for values in (rewards, costs, margins, terminations, truncations, diverged):
                values[paused] = 0
        info: dict[str, Any] = {"cost": costs, "margin": margins, "diverged": diverged, "valid": self.active.copy()}
        ended = terminations | truncations
        if ended.any():
            self.diverged_episodes += int(diverged.sum())
            info |= _final(ended, np.where(ended[:, None], done.final_observations, done.observations), info)
            rows = np.flatnonzero(ended)
            self._begin(rows, [self.next_seeds[row] for row in rows])
        given_back = self._given(done.observations), self.give(rewards), self.give(terminations), self.give(truncations)
        return (*given_back, self.give_info(info))

    def _check_begun(self, what: str) -> None:
        if not self.started:
            raise EnvironmentMismatchError(f"{what} was called before the first reset: call reset first")

    def _actions(self, given: Any) -> Array:
        self.check_actions(given)
        actions = np.ascontiguousarray(as_numpy(given), dtype=np.float32)
        if not np.isfinite(actions).all():
            row = int(np.flatnonzero(~np.isfinite(actions).all(axis=1))[0])
            raise EnvironmentMismatchError(f"the action of environment {row} is not finite; check the policy's weights")
        return actions

    def _begin(self, rows: Array, seeds: Sequence[int | None]) -> None:
        """Begin the first episode of a new seed in those of the rows that are given one."""
        mask = np.zeros(self.num_envs, np.bool_)
        for row, seed in zip(rows.tolist(), seeds, strict=True):
            if seed is not None:
                self._seeds[row], mask[row] = seed % SEEDS, True
        if mask.any():
            self._simulator.reset(self._seeds, mask)

    def _given(self, values: Array) -> Numbers:
        return self.give(values.copy())

    @property
    def state(self) -> Numbers:
        """(N, S) states of the systems, a copy; assign (N, S) to continue from other states of the same episodes."""
        self._come_home()
        return self.give(self._simulator.state.states.numpy())

    @state.setter
    def state(self, value: Any) -> None:
        self._come_home()
        now, states = self._simulator.state, as_numpy(value)
        if states.shape != tuple(now.states.shape) or not np.isfinite(states).all():
            raise EnvironmentMismatchError(
                f"the state has shape {states.shape}; {tuple(now.states.shape)} of finite numbers is needed"
            )
        chosen = torch.from_numpy(states.astype(np.float32))
        self._simulator.state = Carry(chosen, now.episodes, now.elapsed)

    @property
    def observations(self) -> Numbers:
        """(N, O) of the present states, a copy."""
        self._come_home()
        return self._given(self._simulator.observations)

    def get_state(self) -> dict[str, Array]:
        """All that the next steps depend on, as named arrays; `set_state` of it continues to the same bits."""
        self._come_home()
        now = self._simulator.state
        seeds = np.array([-1 if seed is None else seed for seed in self.next_seeds], dtype=np.int64)
        return {
            "states": now.states.numpy(),
            "episodes": now.episodes.numpy(),
            "elapsed": now.elapsed.numpy(),
            "seeds": self._seeds.copy(),
            "parameters": self._table.copy(),
            "active": self.active.copy(),
            "next_seeds": seeds,
            "diverged_episodes": np.array(self.diverged_episodes),
        }

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Continue from a state of `get_state`.

        Raises:
            EnvironmentMismatchError: it is of another system or number of environments; nothing is changed then.
        """
        for key, value in self.get_state().items():
            if key not in state or np.shape(state[key]) != value.shape:
                found = np.shape(state[key]) if key in state else "absent"
                raise EnvironmentMismatchError(f"the state's {key!r} is {found}; this environment needs {value.shape}")
        self._seeds[:], self._table, self.started = state["seeds"], np.array(state["parameters"], np.float32), True
        self._away, self._diverged_away = None, 0
        self._simulator.set_parameters(_rows(self._table))
        self._simulator.reset(self._seeds)
        parts = (torch.from_numpy(np.array(state[name])) for name in ("states", "episodes", "elapsed"))
        self._simulator.state = Carry(*parts)
        self.active[:] = state["active"]
        self.next_seeds = [None if seed < 0 else int(seed) for seed in state["next_seeds"]]
        self.diverged_episodes = int(state["diverged_episodes"])

    @property
    def parameters(self) -> dict[str, Numbers]:
        """Name -> (N,) float32 values, copies."""
        return {p.name: self._given(self._table[:, i]) for i, p in enumerate(self.system.parameters)}

    def set_parameters(self, **values: float | Numbers) -> None:
        """Set parameters, each to one number or to (N,), from the next step on.

        Raises:
            ConfigError: an unknown name (the nearest is given) or a value out of its range; nothing is changed then.
        """
        self._table = changed(self.system, self._table.copy(), values)
        self._simulator.set_parameters(_rows(self._table))

    def rolls_out(self, policy: Policy) -> bool:
        """Whether native rollouts can draw the actions of a policy of this kind."""
        return evaluates(policy, sampling=True)

    def roll_out(self, policies: Sequence[Policy], horizon: int, device: str | torch.device = "cpu") -> PolicyBlock:
        """The next `horizon` steps with the policies inside the native loop, from where the environments stand.

        Args:
            policies: S of them, which sample the actions of N / S rows each, in the order of the rows.
            horizon: T, at least 1.
            device: where it is computed and the tensors are.

        Raises:
            EnvironmentMismatchError: before the first reset.
            ConfigError: S doesn't divide N, rows are paused or wait for another seed, or a policy doesn't fit.
        """
        self._check_begun("roll_out")
        if self.num_envs % len(policies) or not self.active.all() or any(seed is not None for seed in self.next_seeds):
            raise ConfigError(f"{len(policies)} policies can't act in {self.num_envs} rows, all active and seeded once")
        device = torch.device(device)
        started = self._away or self._simulator.state
        if device != started.states.device:
            started = started.map(lambda values: values.to(device))
        seeds = on_device(torch.from_numpy(self._seeds), device)
        found = roll_out(
            self.system,
            policy=[native_policy(policy, sampling=True) for policy in policies],
            seeds=seeds,
            carry=started,
            horizon=horizon,
            parameters=_rows(self._table),
            episodes="many",
            max_steps=self.max_episode_steps,
            record=BLOCK_RECORDS,
            threads=self._threads,
            device=device,
        )
        joined = {name: found.records[name] for name in BLOCK_RECORDS}
        joined |= {name: getattr(found, name) for name in BLOCK_SUMS}
        carry, diverged = found.carry, found.diverged.sum()
        if device.type == "cpu":
            self._simulator.state = carry
            self.diverged_episodes += int(diverged)
        else:
            self._away, self._diverged_away = carry, self._diverged_away + diverged
        terminations, truncations = joined.pop("terminated"), joined.pop("truncated")
        noise = policy_noise(seeds, started, terminations | truncations, len(self.system.actions))
        return PolicyBlock(terminations=terminations, truncations=truncations, noise=noise, **joined)

    def _come_home(self) -> None:
        """Continue here from where a rollout on a GPU stopped, and count what diverged there."""
        if self._away is not None:
            away, self._away = self._away, None
            self._simulator.state = away.map(torch.Tensor.cpu)
            self.diverged_episodes, self._diverged_away = self.diverged_episodes + int(self._diverged_away), 0

    def __repr__(self) -> str:
        return f"NativeVectorEnv({self.system.alias}, num_envs={self.num_envs})"


BLOCK_RECORDS = ("observations", "rewards", "next_observations", "terminated", "truncated", "costs")
BLOCK_SUMS = ("finished", "finished_lengths", "finished_returns", "finished_costs", "returns")


def _rows(table: Array) -> Array:
    """The (N, P) table, or (P,) where all rows are the same: native code is faster then."""
    return table[0] if (table == table[0]).all() else table


def _mixed(rows: torch.Tensor, first: Carry, second: Carry) -> Carry:
    """Where the environments of `rows` stand in `first` and the others in `second`."""
    return first.map(lambda a, b: torch.where(rows.view(-1, *[1] * (a.ndim - 1)), a, b), second)


def _final(ended: Array, observations: Array, info: Mapping[str, Any]) -> dict[str, Any]:
    """What gymnasium's users look for where episodes ended."""
    inner: dict[str, Any] = {}
    for key in ("cost", "margin", "diverged"):
        inner[key], inner[f"_{key}"] = info[key], ended
    return {"final_obs": observations, "_final_obs": ended, "final_info": inner, "_final_info": ended}


def make(num_envs: int = 1, *, system: str, render_mode: str | None = None, **options: Any) -> NativeVectorEnv:
    """`NativeVectorEnv` as `gymnasium.make_vec` calls it."""
    refuse_to_draw(render_mode, system)
    return NativeVectorEnv(system, num_envs, **options)


def make_system(name: str, options: Mapping[str, Any]) -> System:
    """The system of that name, with options of its class.

    Raises:
        ConfigError: an unknown name, or an option that its class doesn't take.
    """
    system = find_system(name)
    if not options:
        return system
    taken = inspect.signature(type(system).__init__).parameters if "__init__" in vars(type(system)) else {}
    unknown = [option for option in options if option not in taken]
    if unknown:
        raise ConfigError(f"{system.alias} takes no argument {unknown[0]!r}; {nearest(unknown[0], [*taken][1:])}")
    return find_system(name, **options)


def observation_space(system: System) -> Box:
    """(O,) float32."""
    low, high = (np.array(bound, dtype=np.float32) for bound in (system.observation_low, system.observation_high))
    return Box(low, high)


def action_space(system: System) -> Box:
    """(A,) float32."""
    return Box(np.array(system.action_low, dtype=np.float32), np.array(system.action_high, dtype=np.float32))
