"""`Simulator`: the step interface. Buffers are bound once; a step is one native call."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from surefoot.cuda_ext.operation import (
    NO_LIMIT,
    batch_maker,
    constants_of,
    default_backend,
    is_noisy,
    sizes_of,
)
from surefoot.cuda_ext.rollout import Carry, Numbers, seed_tensor
from surefoot.cuda_ext.rollout_arrays import FLAGS, GIVEN, SUMS
from surefoot.cuda_ext.system import System
from surefoot.cuda_ext.twin import Task, TwinLoop


class Transition(NamedTuple):
    """What a step of N environments gives: the simulator's own buffers, overwritten by the next step."""

    observations: Any
    """(N, O) float32: where an episode ended, the first of the next one."""
    rewards: Any
    """(N,) float32."""
    terminated: Any
    """(N,) bool."""
    truncated: Any
    """(N,) bool: by the time limit, or because the state diverged."""
    final_observations: Any
    """(N, O) float32: the last of the episode where it ended, else `observations`."""
    costs: Any
    """(N,) float32, 1 where the margin is negative."""
    margins: Any
    """(N,) float32 signed margin, of the state before the next episode begins."""
    diverged: Any
    """(N,) bool."""


RECORDED = ("actions", "rewards", "next_observations", "terminated", "truncated", "diverged", "costs", "margins")


class Simulator:
    """N environments of one system that step together, each beginning a new episode in the step that ends one."""

    def __init__(
        self,
        system: System,
        num_envs: int,
        *,
        seeds: int | Numbers = 0,
        parameters: Numbers | None = None,
        max_steps: int | None = None,
        tensors: str = "numpy",
        threads: int = 1,
        backend: str | None = None,
    ) -> None:
        """Allocate everything; call `reset` before the first step.

        Args:
            system: what to simulate.
            num_envs: N.
            seeds: a base seed, or (N,) one for each environment.
            parameters: (P,) or (N, P) of the dynamics; the system's own by default.
            max_steps: steps after which an episode is truncated; the system's own by default, 0 for no limit.
            tensors: what steps return, "numpy" or "torch"; either is accepted as actions.
            threads: of the processor; more than one pays from about 100,000 environments on.
            backend: "native" or "twin"; by default native where it was built.

        Raises:
            ValueError: arguments that do not fit each other or the system.
        """
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}; there must be at least one environment")
        if tensors not in ("numpy", "torch"):
            raise ValueError(f"tensors is {tensors!r}, must be 'numpy' or 'torch'")
        self.system, self.num_envs, self.threads, self.tensors = system, num_envs, threads, tensors
        self.max_steps = system.max_steps if max_steps is None else max_steps or NO_LIMIT
        self.backend = backend or default_backend(torch.device("cpu"), system)
        states, actions, observations = len(system.states), len(system.actions), len(system.observations)
        self._seeds = seed_tensor(seeds, num_envs, torch.device("cpu"))
        self._given = torch.zeros(1, num_envs, actions)
        self._observations = torch.zeros(num_envs, observations)
        self._carry = Carry(
            torch.zeros(num_envs, states),
            torch.zeros(num_envs, dtype=torch.int32),
            torch.zeros(num_envs, dtype=torch.int32),
        )
        widths = {"actions": (actions,), "next_observations": (observations,)}
        self._records = {
            name: torch.zeros(num_envs, *widths.get(name, ()), dtype=torch.uint8 if name in FLAGS else torch.float32)
            for name in RECORDED
        }
        self._sums = {name: torch.zeros(num_envs, dtype=dtype) for name, dtype in SUMS.items()}
        self._begun = torch.zeros(num_envs, dtype=torch.bool)
        self._action_view = self._given[0].numpy()
        self._transition = self._bound()
        self.set_parameters(system.default_parameters() if parameters is None else parameters)

    def _bound(self) -> Transition:
        values = {**self._records, **{name: self._records[name].view(torch.bool) for name in FLAGS}}
        values["final_observations"] = values["next_observations"]
        values["observations"] = self._observations
        chosen = (values[name] for name in Transition._fields)
        return Transition(*(value if self.tensors == "torch" else value.numpy() for value in chosen))

    @property
    def parameters(self) -> Tensor:
        """(P,) or (N, P) float32, a copy."""
        return self._parameters.clone()

    def set_parameters(self, parameters: Numbers) -> None:
        """Use other dynamics from the next step on: (P,) for all or (N, P), one row per environment."""
        table = torch.as_tensor(parameters, dtype=torch.float32).contiguous().clone()
        width = len(self.system.parameters)
        if table.shape not in ((width,), (self.num_envs, width)):
            names = ", ".join(parameter.name for parameter in self.system.parameters)
            fitting = f"({width},) or ({self.num_envs}, {width})"
            raise ValueError(f"parameters have shape {tuple(table.shape)}, must have {fitting}: {names}")
        self._parameters = table
        self._bind()

    def _bind(self) -> None:
        noisy = is_noisy(self.system, self._parameters)
        if self.backend == "twin":
            table = self._parameters.expand(self.num_envs, -1)
            task = Task(self.system, self._seeds, table, 1, self.max_steps, True, noisy, given=self._given)
            self._loop = TwinLoop(task, self._carry.states, self._carry.episodes, self._carry.elapsed)
            return
        make_batch = batch_maker(torch.device("cpu"), self.system)
        arrays = {
            **constants_of(self.system),
            "seeds": self._seeds,
            "parameters": self._parameters,
            "given": self._given,
            "states": self._carry.states,
            "episodes": self._carry.episodes,
            "elapsed": self._carry.elapsed,
            "last_observations": self._observations,
            **self._sums,
            **{"record_" + name: value for name, value in self._records.items()},
        }
        views = {name: value.numpy() for name, value in arrays.items()}
        sizes = sizes_of(self.system)
        self._batch = make_batch(sizes, self.num_envs, 1, self.max_steps, True, noisy, GIVEN, [], views)

    def reset(self, seeds: int | Numbers | None = None, mask: Numbers | None = None) -> Any:
        """Begin an episode in every environment, or in those that the (N,) bool `mask` chooses.

        Args:
            seeds: new seeds; every environment then begins with its first episode.
            mask: which ones; the others stay where they are.

        Returns:
            (N, O) observations: the simulator's own buffer.
        """
        chosen = torch.ones(self.num_envs, dtype=torch.bool)
        if mask is not None:
            chosen = torch.as_tensor(mask).to(torch.bool)
            if chosen.shape != (self.num_envs,):
                raise ValueError(f"mask has shape {tuple(chosen.shape)}, must have ({self.num_envs},)")
        episodes, elapsed = self._carry.episodes, self._carry.elapsed
        episodes += chosen & self._begun
        if seeds is not None:
            self._seeds.copy_(torch.where(chosen, seed_tensor(seeds, self.num_envs, self._seeds.device), self._seeds))
            episodes.masked_fill_(chosen, 0)
        elapsed.masked_fill_(chosen, 0)
        self._begun |= chosen
        if self.backend == "native":
            self._batch.reset(chosen.to(torch.uint8).numpy(), self.threads)
        else:
            fresh = self._loop.initial(self._seeds, episodes)
            self._carry.states.copy_(torch.where(chosen[:, None], fresh, self._carry.states))
            self._observe_twin()
        return self._transition.observations

    def step(self, actions: Any) -> Transition:
        """Advance every environment by one control step under (N, A) actions, clipped to the bounds.

        Raises:
            ValueError: actions of another shape.
        """
        if tuple(actions.shape) != self._action_view.shape:
            raise ValueError(f"actions have shape {tuple(actions.shape)}, must have {self._action_view.shape}")
        if isinstance(actions, Tensor):
            self._given[0].copy_(actions)
        else:
            np.copyto(self._action_view, actions, casting="same_kind")
        if self.backend == "native":
            self._batch.run(self.threads)
        else:
            self._step_twin()
        return self._transition

    @property
    def state(self) -> Carry:
        """Where every environment stands, copied: set it again to go back there, random numbers included."""
        return self._carry.map(torch.clone)

    @state.setter
    def state(self, value: Carry) -> None:
        for name in ("states", "episodes", "elapsed"):
            mine, theirs = getattr(self._carry, name), getattr(value, name)
            if mine.shape != theirs.shape:
                raise ValueError(f"{name} have shape {tuple(theirs.shape)}, must have {tuple(mine.shape)}")
            mine.copy_(theirs)
        self._begun.fill_(True)
        if self.backend == "native":  # resets nothing, but observes
            self._batch.reset(np.zeros(self.num_envs, np.uint8), self.threads)
        else:
            self._observe_twin()

    @property
    def observations(self) -> Any:
        """(N, O) of the present states: the simulator's own buffer."""
        return self._transition.observations

    def _observe_twin(self) -> None:
        loop, carry = self._loop, self._carry
        loop.states, loop.episodes, loop.elapsed = carry.states.clone(), carry.episodes.long(), carry.elapsed.long()
        self._observations.copy_(loop.observe())

    def _step_twin(self) -> None:
        self._observe_twin()
        found = self._loop.run(RECORDED)
        for name, buffer in self._records.items():
            buffer.copy_(found["record_" + name][0])
        for name in ("states", "episodes", "elapsed"):
            getattr(self._carry, name).copy_(getattr(self._loop, name))
        self._observations.copy_(self._loop.observe())
