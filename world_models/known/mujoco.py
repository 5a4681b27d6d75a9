"""MuJoCo's tasks as exact worlds: rows of simulations, set to any state, stepped in threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.actions import to_environment
from surefoot.core.base.errors import ConfigError, DataError, nearest
from surefoot.envs.mujoco import library
from surefoot.envs.mujoco.task import Simulations
from surefoot.envs.mujoco.tasks import TASKS, make_task
from surefoot.envs.mujoco.vector_env import BAD_STATES
from surefoot.world_models.dynamics import Outcome, StepNoise

HIDDEN = {"Hopper": 1, "Walker2d": 1, "HalfCheetah": 1, "Swimmer": 2, "InvertedPendulum": 0}
"""Task -> first positions that its observations leave out: how far along it is, on which nothing depends."""
CLIPPED = {"Hopper": 10.0, "Walker2d": 10.0}
"""Task -> at which its observations clip velocities."""
REFUSED = {
    "Ant": "its rewards are of places as the simulator's last substep left them, which observations don't tell",
    "Humanoid": "its rewards are of places as the simulator's last substep left them, which observations don't tell",
    "InvertedDoublePendulum": "its observations hold a force of the step before, which no state tells",
    "Reacher": "an elbow bent past half a turn looks as if it were bent the other way",
    "Pusher": "its observations are of parts' places, not of all joints",
}
"""Task -> why it has no exact world by observations."""
ROWS = 4096
"""Simulations that are stepped at once; more rows take turns."""
ROWS_PER_THREAD = 64


class MujocoDynamics:
    """gymnasium's Hopper, Walker2d, HalfCheetah, Swimmer or InvertedPendulum (v5): states are positions and velocities.

    Simulations start from a state as they do after a reset, without what the solver found at the step before: the next
    state differs from that of an episode under way by rounding (1e-12). Costs are those of `velocity_limit`, where one
    is given, else 0.
    """

    members = 1
    noise_dim = 0

    def __init__(self, env_id: str, threads: int | None = None, velocity_limit: float | None = None) -> None:
        """Compile the model.

        Args:
            env_id: such as Hopper-v5.
            threads: of the physics; torch's number by default.
            velocity_limit: m/s forward, above which a step costs 1.

        Raises:
            ConfigError: another environment, or one whose states its observations don't tell; the reason is given.
            MissingExtraError: mujoco is absent.
        """
        name, _, version = env_id.partition("-")
        if version != "v5" or name not in TASKS:
            raise ConfigError(f"{env_id!r} is no exact world; {nearest(env_id, [f'{task}-v5' for task in HIDDEN])}")
        if name in REFUSED:
            raise ConfigError(f"{env_id} is no exact world: {REFUSED[name]}. Exact are {', '.join(HIDDEN)} (v5)")
        self.knows_costs = velocity_limit is not None
        limit = {} if velocity_limit is None else {"velocity_limit": velocity_limit}
        self.task, self.name, self.threads = make_task(name, limit), name, threads
        self.model = library.compile_model(self.task.xml_file)
        self.positions, self.velocities = int(self.model.nq), int(self.model.nv)
        self.state_dim, self.action_dim = self.positions + self.velocities, int(self.model.nu)
        self.observation_dim = self.state_dim - HIDDEN[name]
        bounds = torch.from_numpy(self.model.actuator_ctrlrange.astype(np.float32))
        self.low, self.high = bounds[:, 0], bounds[:, 1]
        self._made: tuple[int, Any, Simulations] | None = None

    def _simulations(self, rows: int) -> tuple[Any, Simulations]:
        """A batch of this many simulations, the last one again where the number is the same."""
        if self._made is None or self._made[0] != rows:
            mujoco = library.load()
            wanted = self.threads or torch.get_num_threads()
            threads = max(1, min(wanted, rows // ROWS_PER_THREAD))
            batch = mujoco.batch.Batch(self.model, rows, threads)
            dt = self.model.opt.timestep * self.task.frame_skip
            names = self.task.field_names(), self.task.remembered_names()
            self._made = rows, batch, Simulations(batch, *names, dt)
            batch.reset()
        return self._made[1], self._made[2]

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        """One control step of (..., S) states under (..., A) actions in [-1, 1]."""
        lead = torch.broadcast_shapes(states.shape[:-1], actions.shape[:-1])
        now = states.detach().expand(*lead, -1).reshape(-1, self.state_dim).double().numpy()
        given = to_environment(actions.detach().float().clamp(-1, 1), self.low, self.high)
        forces = given.expand(*lead, -1).reshape(-1, self.action_dim).numpy()
        parts = [self._stepped(now[i : i + ROWS], forces[i : i + ROWS]) for i in range(0, len(now), ROWS)]
        after, rewards, costs, ended = (torch.from_numpy(np.concatenate(part)) for part in zip(*parts, strict=True))
        return Outcome(
            after.to(states).view(*lead, -1),
            rewards.to(states).view(lead),
            costs.to(states).view(lead),
            ended.view(lead),
        )

    def _stepped(self, now: np.ndarray, forces: np.ndarray) -> tuple[np.ndarray, ...]:
        """Of up to `ROWS` rows; simulations that MuJoCo gives up have no number for a reward."""
        mujoco = library.load()
        batch, sim = self._simulations(len(now))
        batch.reset(None, stage=mujoco.mjtStage.mjSTAGE_NONE.value)
        sim.qpos[...], sim.qvel[...], sim.ctrl[...] = now[:, : self.positions], now[:, self.positions :], forces
        sim.remember()
        bad = ~np.isfinite(now).all(axis=1)
        try:
            batch.step(None, self.task.frame_skip)
        except mujoco.batch.SimulationError as error:  # the other rows have completed
            bad[error.ids] = True
        kinds = [mujoco.mjtWarning.__members__[name].value for name in BAD_STATES]
        bad |= (batch.warning[:, kinds, 1] > 0).any(axis=1)
        rewards, ended, info = self.task.step(sim, forces)
        after = np.concatenate((sim.qpos, sim.qvel), axis=1)
        costs = np.asarray(info.get("cost", np.zeros(len(now))), np.float64)
        return after, np.where(bad, np.nan, rewards), np.where(bad, 1.0, costs), ended | bad

    def states_of(self, observations: Tensor) -> Tensor:
        """(..., S) states of (..., O) observations, with the task at the origin.

        Raises:
            DataError: a velocity is at the bound that observations are clipped to, so that the state isn't known.
        """
        bound = CLIPPED.get(self.name)
        if bound is not None:
            speeds = observations[..., -self.velocities :].abs()
            if bool((speeds >= bound).any()):
                place = (speeds.reshape(-1, self.velocities) >= bound).any(-1).nonzero()
                raise DataError(
                    f"row {int(place[0])}: a velocity is {bound:g} or more, where {self.name}'s observations are "
                    "clipped, so that its state is not known; plan in HalfCheetah, or with a learned model"
                )
        return torch.cat([observations.new_zeros(*observations.shape[:-1], HIDDEN[self.name]), observations], -1)

    def observe(self, states: Tensor) -> Tensor:
        """(..., O) observations of (..., S) states."""
        seen = states[..., HIDDEN[self.name] :]
        bound = CLIPPED.get(self.name)
        if bound is None:
            return seen
        return torch.cat([seen[..., : -self.velocities], seen[..., -self.velocities :].clamp(-bound, bound)], -1)
