"""The face of a policy for a robot: one episode at a time, its memory kept inside."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.memory import GOAL, TASK, Memory
from surefoot.core.base.errors import CheckpointError, ConfigError, EnvironmentMismatchError
from surefoot.core.base.spec import mapped

UNHEARD = "unheard"
"""() uint8 of a saved memory: 1 where `observe` is due."""
NUMBERS = "biuf"
"""Kinds of dtype that an observation may have: truth values, whole numbers and real ones."""


def as_array(observation: Any, dtype: Any = None) -> np.ndarray:
    """An observation as one array.

    Raises:
        EnvironmentMismatchError: it holds what is no number, or is not even an array.
    """
    try:
        if isinstance(observation, Tensor):
            observation = observation.detach().cpu()
        found = np.asarray(observation)
        if found.dtype.kind not in NUMBERS:  # numpy would make numbers of dates and texts, and halve complex ones
            raise TypeError(f"it holds {found.dtype}")
        return found if dtype is None else found.astype(dtype, copy=False)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        pair = isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], Mapping)
        advice = "observation, info = env.reset()" if pair else "an array of numbers"
        raise EnvironmentMismatchError(
            f"the observation is a {type(observation).__name__} that makes no array of numbers ({error}): give the "
            f"observation alone, {advice}"
        ) from error


def check_width(observations: Any, width: int) -> None:
    """Raise an EnvironmentMismatchError unless observations are rows of this width; normalising would broadcast one."""
    shape = getattr(observations, "shape", None)
    if shape is None or len(shape) == 0 or shape[-1] != width:
        found = f"a {type(observations).__name__}" if shape is None else f"of shape {tuple(shape)}"
        raise EnvironmentMismatchError(f"observations are {found}; this policy was trained on rows of {width} numbers")


def refuse_untold(memory: Memory) -> None:
    """Raise a ConfigError where a policy that is asked for a goal, or given a task, was given none."""
    if GOAL in memory and bool(memory[GOAL].isnan().any()):
        raise ConfigError("this policy is asked for a goal: begin the episode by reset(goal=...)")
    if TASK in memory and bool(memory[TASK].isnan().any()):
        raise ConfigError(
            "this policy needs a task: begin the episode by reset(task=...), give it one for all by set_task(...), or "
            "write one that has it by surefoot task RUN --reward module:function"
        )


class ControlLoop:
    """`reset()`, then by turns `select_action(observation)` and `observe(reward, cost)`, on top of a policy's memory.

    `observe` may be left out where the policy's actions do not depend on rewards and costs (`needs_outcomes`).
    """

    _seed: int
    _memory: Memory | None
    _unheard: bool

    def begin(self, rows: int, seed: int = 0) -> Memory:
        """The memory of `rows` rows at the first step of an episode."""
        raise TypeError(f"{type(self).__name__} must define begin")

    def act(self, observations: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Actions for a batch, and the new memory."""
        raise TypeError(f"{type(self).__name__} must define act")

    def observe_outcome(self, memory: Memory, rewards: Tensor, costs: Tensor, ended: Tensor) -> Memory:
        """The memory after the actions' outcomes."""
        raise TypeError(f"{type(self).__name__} must define observe_outcome")

    @property
    def observation_dim(self) -> int:
        """Width of an observation."""
        raise TypeError(f"{type(self).__name__} must define observation_dim")

    @property
    def needs_outcomes(self) -> bool:
        """Whether the next action depends on rewards or costs."""
        raise TypeError(f"{type(self).__name__} must define needs_outcomes")

    def reset(self, seed: int = 0, goal: Any = None, task: Any = None) -> None:
        """Begin an episode.

        Args:
            seed: of the noise of a policy that draws its own.
            goal: (G,) numbers in the environment's units, of a policy that is asked for a goal; None: its own, if it
                has one.
            task: (D,) numbers that stand for a reward, as `task_of` of an agent gives them, of a policy that is given
                a task; its length does not count. None: its own, if it has one.

        Raises:
            EnvironmentMismatchError: a goal or task of another shape, or not finite, or of a policy that takes none.
        """
        self._seed, self._memory, self._unheard = seed, None, False
        if goal is not None or task is not None:
            self._memory = self._told(self.begin(1, seed), {GOAL: goal, TASK: task})

    def _told(self, memory: Memory, given: Mapping[str, Any]) -> Memory:
        """The memory of one row with what is not None of a goal and a task."""
        for name, value in given.items():
            if value is not None:
                memory = {**memory, name: self._checked_aim(memory, name, value).unsqueeze(0).to(memory.get(name))}
        return memory

    def _checked_aim(self, memory: Memory, name: str, given: Any) -> Tensor:
        """(G,) a goal or (D,) a task, of length sqrt(D), or the error of `reset`."""
        if name not in memory:
            raise EnvironmentMismatchError(f"this policy was trained without {name}s: leave {name} out")
        wanted, found = tuple(memory[name].shape[1:]), as_array(given, np.float32)
        if found.shape != wanted:
            raise EnvironmentMismatchError(f"{name} has shape {found.shape}; this policy was trained on {wanted}")
        if not np.isfinite(found).all():
            index = int(np.flatnonzero(~np.isfinite(found))[0])
            raise EnvironmentMismatchError(f"{name}[{index}] is {found[index]}; a {name} is finite numbers")
        value = torch.from_numpy(found.copy())
        if name != TASK:
            return value
        if not bool(value.any()):
            raise EnvironmentMismatchError("task is 0, which says nothing: rewards that are not all 0 give another")
        return value / value.norm() * math.sqrt(len(value))

    def checked(self, observation: Any) -> Any:
        """One observation as arrays that the policy can read, or the error of `select_action`."""
        observation = as_array(observation, np.float32)
        if observation.shape != (self.observation_dim,):
            raise EnvironmentMismatchError(
                f"observation has shape {observation.shape}; this policy was trained on ({self.observation_dim},)"
            )
        if not np.isfinite(observation).all():
            index = int(np.flatnonzero(~np.isfinite(observation))[0])
            raise EnvironmentMismatchError(f"observation[{index}] is {observation[index]}; check that sensor")
        return observation

    def select_action(self, observation: Any) -> np.ndarray:
        """One action (A,) float32, or () int64 of a discrete policy, for one observation (O,): for a control loop.

        Of a policy that reads several arrays, the observation is a mapping of them by key.

        Raises:
            EnvironmentMismatchError: an observation of another shape, one that is not finite, or one so far from the
                training data that the action would not be finite; the message names its index.
            ConfigError: the policy needs to `observe` what its last action brought, and has not.
        """
        observation = self.checked(observation)
        if self._unheard:
            raise ConfigError("this policy depends on what its last action brought: call observe(reward, cost) first")
        before = self.begin(1, self._seed) if self._memory is None else self._memory
        refuse_untold(before)
        actions, self._memory = self.act(mapped(lambda part: torch.from_numpy(part).unsqueeze(0), observation), before)
        self._unheard = self.needs_outcomes
        return actions.squeeze(0).numpy()

    def observe(self, reward: float, cost: float = 0.0) -> None:
        """What the last action of `select_action` brought; `reset` begins the next episode.

        Raises:
            ConfigError: the policy needs it, and it has been given already or has not acted yet.
        """
        if not self.needs_outcomes:
            return
        if self._memory is None or not self._unheard:
            raise ConfigError("observe tells what one action brought: call select_action before it")
        one = torch.tensor([[reward], [cost]], dtype=torch.float32)
        self._memory = self.observe_outcome(self._memory, one[0], one[1], torch.zeros(1, dtype=torch.bool))
        self._unheard = False

    def state(self) -> dict[str, Tensor]:
        """The memory in the middle of an episode, as tensors that safetensors can hold; `restore` takes them."""
        memory = self.begin(1, self._seed) if self._memory is None else self._memory
        unheard = {UNHEARD: torch.tensor(self._unheard, dtype=torch.uint8)} if self.needs_outcomes else {}
        return {name: value.clone() for name, value in memory.items()} | unheard

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue in the episode from what `state` gave, of this policy or a copy of it.

        Raises:
            CheckpointError: tensors of other names, shapes or dtypes: it is the memory of another policy.
        """
        memory: dict[str, Any] = dict(state)
        unheard = memory.pop(UNHEARD, None)
        first = self.begin(1, self._seed)
        if set(memory) != set(first) or (unheard is None) == self.needs_outcomes:
            raise CheckpointError(f"this policy remembers {sorted(first) or 'nothing'}, and was given {sorted(state)}")
        for name, value in first.items():
            found = memory[name]
            if found.shape != value.shape or found.dtype != value.dtype:
                raise CheckpointError(
                    f"the memory's {name} is {found.dtype} of shape {tuple(found.shape)}; this policy's is "
                    f"{value.dtype} of shape {tuple(value.shape)}"
                )
        self._memory = {name: value.to(first[name].device, copy=True) for name, value in memory.items()}
        self._unheard = bool(unheard)
