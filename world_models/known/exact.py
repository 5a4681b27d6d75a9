"""Exact worlds as `Dynamics`: native systems, thousands of rows in a native call, and worlds seen by observations."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from surefoot import cuda_ext
from surefoot.core.base.actions import to_environment
from surefoot.core.base.errors import ConfigError
from surefoot.cuda_ext.operation import is_noisy
from surefoot.cuda_ext.rows import call_rows
from surefoot.cuda_ext.system import System
from surefoot.cuda_ext.twin import LARGEST_STATE
from surefoot.envs.systems import system as native_system
from surefoot.world_models.dynamics import Dynamics, Outcome, StepNoise


class ExactDynamics(Dynamics, Protocol):
    """A world whose states an environment's observations tell."""

    observation_dim: int
    """O."""

    def states_of(self, observations: Tensor) -> Tensor:
        """(..., S) states of (..., O) observations; raises ConfigError or DataError where they don't tell."""
        ...

    def observe(self, states: Tensor) -> Tensor:
        """(..., O) observations of (..., S) states."""
        ...


class NativeDynamics:
    """A native system: states as it has them, actions in [-1, 1] of its range, cost 1 where the margin is negative.

    Several rows of parameters make an ensemble: a member is a world with other masses, winds or friction, and a plan
    that is good under all of them is robust to what is not known of the robot. Without a member, it is their mean.
    A state that is no number or too large gives a reward that is NaN, and no plan that goes there is taken.
    """

    def __init__(
        self,
        system: System | str,
        parameters: Tensor | None = None,
        backend: str | None = None,
        threads: int | None = None,
    ) -> None:
        """Make the world.

        Args:
            system: the system, or its name, such as native/cartpole-swingup.
            parameters: (P,) or (M, P) of its dynamics; its own by default.
            backend: "native", or "twin" (plain torch, differentiable, any dtype and device); native where it was built.
                States on a GPU are stepped in torch by both, and whole plans there are one kernel with the first.
            threads: of whole plans in native code; torch's number by default.

        Raises:
            ConfigError: no such system, or parameters of another shape or that are no numbers.
        """
        self.system = native_system(system) if isinstance(system, str) else system
        width = len(self.system.parameters)
        table = self.system.default_parameters() if parameters is None else torch.as_tensor(parameters).double()
        if table.dim() not in (1, 2) or table.shape[-1] != width:
            names = ", ".join(parameter.name for parameter in self.system.parameters)
            raise ConfigError(
                f"parameters of {self.system.alias} have shape {tuple(table.shape)}; they are ({width},), or a row of "
                f"them for each member: {names}"
            )
        self.parameters, self.threads = table.reshape(-1, width), threads
        if not bool(self.parameters.isfinite().all()):
            member, which = (~self.parameters.isfinite()).nonzero()[0].tolist()
            raise ConfigError(
                f"parameters of {self.system.alias}: {self.system.parameters[which].name} of member {member} is "
                f"{float(self.parameters[member, which])}; give finite numbers"
            )
        if backend not in (None, "native", "twin"):
            raise ConfigError(f"backend is {backend!r}; it is native or twin")
        usable = cuda_ext.native() is not None and self.system.batch(torch.device("cpu")) is None
        if backend == "native" and not usable:
            raise ConfigError(
                f"{self.system.alias} has no native form here: {cuda_ext.why_not_native() or 'no header'}"
            )
        self.backend = backend or ("native" if usable else "twin")
        self.state_dim, self.action_dim = len(self.system.states), len(self.system.actions)
        self.observation_dim = len(self.system.observations)
        self.members = len(self.parameters)
        self.noise_dim = self.system.normals if is_noisy(self.system, self.parameters.float()) else 0
        bounds = (self.system.action_low, self.system.action_high)
        self.low, self.high = (torch.tensor(bound, dtype=torch.float64) for bound in bounds)

    def differentiable(self) -> NativeDynamics:
        """The same world in plain torch, for planners that ask for derivatives."""
        return self if self.backend == "twin" else NativeDynamics(self.system, self.parameters, "twin")

    def nominal(self) -> Tensor:
        """(P,) float64 mean of the members' parameters."""
        return self.parameters.mean(0)

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        """One control step of (..., S) states under (..., A) actions in [-1, 1], in float32 or float64."""
        lead = torch.broadcast_shapes(states.shape[:-1], actions.shape[:-1])
        now = states.expand(*lead, -1).reshape(-1, self.state_dim)
        forces = to_environment(actions.clamp(-1, 1), self.low.to(actions), self.high.to(actions))
        forces = forces.expand(*lead, -1).reshape(-1, self.action_dim)
        width = max(1, self.system.normals)
        if self.noise_dim and noise.normal is not None:
            normals = noise.normal.expand(*lead, -1).reshape(-1, width).to(now)
        else:
            normals = now.new_zeros(1, width).expand(len(now), -1)
        physics = self.parameters.to(now)
        if noise.member is None:
            table = physics.mean(0, keepdim=True).expand(len(now), -1)
        else:
            table = physics[noise.member.expand(lead).reshape(-1)]
        work = self._twin if self.backend == "twin" or not now.is_cpu else self._native
        after, rewards, margins, ended = work(now, forces, table, normals)
        wild = ~(after.detach().abs().sum(-1) <= LARGEST_STATE)  # NaN too
        rewards = torch.where(wild, torch.nan, rewards)
        costs = (~(margins >= 0)).to(rewards.dtype)
        return Outcome(after.view(*lead, -1), *(part.view(lead) for part in (rewards, costs, ended | wild)))

    def _twin(self, now: Tensor, forces: Tensor, table: Tensor, normals: Tensor) -> tuple[Tensor, ...]:
        step = self.system.step(now, forces, table, normals)
        return step.state, step.reward, step.margin, step.terminated

    def _native(self, now: Tensor, forces: Tensor, table: Tensor, normals: Tensor) -> tuple[Tensor, ...]:
        found = call_rows(self.system, "step", states=now, actions=forces, parameters=table, normals=normals)
        rewards, margins, ends = (found[name][:, 0] for name in ("rewards", "margins", "terminated"))
        return found["states"], rewards, margins, ends > 0.5

    def states_of(self, observations: Tensor) -> Tensor:
        """(..., S) states of (..., O) observations, by the nominal parameters.

        Raises:
            ConfigError: the system does not say how.
        """
        rows = observations.reshape(-1, observations.shape[-1])
        table = self.nominal().to(rows).expand(len(rows), -1)
        try:
            return self.system.state_of(rows, table).view(*observations.shape[:-1], -1)
        except NotImplementedError as error:
            raise ConfigError(f"{error}, so that nothing can be planned from its observations") from error

    def observe(self, states: Tensor) -> Tensor:
        """(..., O) observations of (..., S) states."""
        rows = states.reshape(-1, self.state_dim)
        return self.system.observe(rows, self.nominal().to(rows).expand(len(rows), -1)).view(*states.shape[:-1], -1)


class Observed:
    """An exact world as a world of observations: where a learned model of observations could stand, this can too."""

    def __init__(self, world: ExactDynamics) -> None:
        """Take a world; its `states_of` is asked at each step."""
        self.world = world
        self.state_dim, self.action_dim = world.observation_dim, world.action_dim
        self.noise_dim, self.members = world.noise_dim, world.members
        self.knows_costs: bool = getattr(world, "knows_costs", True)

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        """One step of (..., O) observations."""
        found = self.world.step(self.world.states_of(states), actions, noise)
        return found._replace(states=self.world.observe(found.states))
