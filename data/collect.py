"""`Collector`: transitions from a vector environment straight into a replay buffer or on-policy (T, N) blocks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.errors import CheckpointError, ConfigError, DataError, DivergenceError, EnvironmentMismatchError
from surefoot.data.ring import RingBuffer
from surefoot.data.samplers import uniform_rows
from surefoot.data.store import Batch

Act = Callable[[Tensor], "Tensor | tuple[Tensor, Mapping[str, Tensor]]"]
"""(N, ...) observations -> (N, ...) actions in the environment's units, with more (N, ...) columns where wanted."""

CONSTRAINT_KEYS = {"costs": "cost", "margins": "margin"}  # column of a batch -> entry of the step's info


@dataclasses.dataclass(frozen=True)
class Episodes:
    """The episodes that ended since the last time they were asked for."""

    count: int
    mean_return: float
    """Undiscounted; NaN where no episode ended, as the other means."""
    mean_length: float
    mean_cost: float | None
    """Sum of the costs of an episode; None where the environment has none."""


class TransitionBuffer(RingBuffer):
    """A ring buffer that also takes rows that are no transitions, and never samples them.

    The rows of a step lie side by side, so the row that some sources insert after an episode has to be stored. It
    ends a sequence as an episode does. Arguments and errors as `RingBuffer`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._valid = torch.zeros(self.capacity, dtype=torch.bool, device=self.device)
        self._rows: Tensor | None = None  # where `_valid` is True; None when it has to be found again
        self._all_valid = True

    def add(self, batch: Mapping[str, Tensor | np.ndarray]) -> Tensor:
        """As `RingBuffer.add`; a `valid` (num_envs,) bool in the batch says which rows are transitions."""
        if "valid" not in batch:
            rows = super().add(batch)
            self._valid[rows] = True
        else:
            valid = torch.as_tensor(batch["valid"], device=self.device).bool()
            ends = torch.as_tensor(batch["truncations"], device=self.device).bool() | ~valid
            rows = super().add({**batch, "truncations": ends})
            self._valid[rows] = valid
            self._all_valid = False
        self._rows = None
        return rows

    @property
    def valid(self) -> Tensor:
        """(len,) bool: the written rows that are transitions; a view."""
        return self._valid[: len(self)]

    @property
    def all_valid(self) -> bool:
        """Whether no row that is no transition has been added since the buffer was empty."""
        return self._all_valid

    def rows(self, uniform: Tensor) -> Tensor:
        """Rows that are transitions, each equally likely.

        Args:
            uniform: (...,) float64 in [0, 1), as for `uniform_rows`.

        Returns:
            (...,) int64, for `gather`.

        Raises:
            DataError: there is no transition yet.
        """
        if self._all_valid:
            return uniform_rows(uniform, len(self))
        if self._rows is None:
            self._rows = self._valid[: len(self)].nonzero().squeeze(1)
        return self._rows[uniform_rows(uniform, len(self._rows))]

    def state_dict(self) -> dict[str, Tensor]:
        """As `RingBuffer.state_dict`, and which rows are transitions."""
        return super().state_dict() | {"valid": self._valid[: len(self)].clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """As `RingBuffer.load_state_dict`."""
        if "valid" not in state or tuple(state["valid"].shape) != tuple(state["ends"].shape):
            raise CheckpointError("the state does not say which of its rows are transitions: it is of another buffer")
        super().load_state_dict({key: value for key, value in state.items() if key != "valid"})
        self._valid.zero_()
        self._valid[: len(self)].copy_(state["valid"])
        self._all_valid = bool(self._valid[: len(self)].all())
        self._rows = None


class Collector:
    """Steps a vector environment (contract: docs/environments.md) and hands out transitions on its device.

    Args:
        env: a vector environment with SAME_STEP autoreset, numpy or torch; with `tensors="torch"` nothing leaves
            its device.
        device: where the columns are; the environment's own by default.

    Raises:
        EnvironmentMismatchError: an environment that resets at another time.
    """

    def __init__(self, env: Any, device: str | torch.device | None = None) -> None:
        mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
        if getattr(mode, "name", mode) != "SAME_STEP" or not hasattr(env, "num_envs"):
            raise EnvironmentMismatchError(
                f"{type(env).__name__} has autoreset mode {mode}, and a collector needs SAME_STEP: "
                "wrap it in surefoot.envs.adapters.adapt"
            )
        self.env = env
        self.num_envs: int = env.num_envs
        self.as_torch = getattr(env, "tensors", "numpy") == "torch"
        self.device = torch.device(getattr(env, "device", "cpu") if device is None else device)
        self.observations: Tensor | None = None
        """(N, ...) what the next actions are chosen by; None before the first reset."""
        self._block: Batch = {}
        self._running = torch.zeros(self.num_envs, 3, dtype=torch.float64, device=self.device)  # return, length, cost
        self._ended = torch.zeros(4, dtype=torch.float64, device=self.device)  # their sums over episodes, and the count
        self._has_costs = False
        self._inserts_rows = bool(getattr(env, "inserts_rows", False))
        self._said_valid = False  # whether the last step said which of its rows are transitions
        self._finite = torch.ones((), dtype=torch.bool, device=self.device)

    def reset(self, seed: int | list[int] | None = None) -> Tensor:
        """Begin new episodes in all rows; returns the (N, ...) observations."""
        observations, _ = self.env.reset(seed=seed)
        self.observations = self._tensor(observations).clone()
        self._running.zero_()
        return self.observations

    @torch.no_grad()
    def step(self, act: Act) -> Batch:
        """One step of every row: (N, ...) columns of a batch, and `truncations`, `valid`, the columns of `act`.

        Raises:
            DataError: an action or a step of another shape than the environment's.
        """
        before = self.reset() if self.observations is None else self.observations
        chosen = act(before)
        actions, more = chosen if isinstance(chosen, tuple) else (chosen, {})
        self._check_actions(actions)
        after, rewards, terminations, truncations, info = self.env.step(
            actions if self.as_torch else actions.detach().cpu().numpy()
        )
        batch = {
            "observations": before,
            "actions": actions.to(self.device),
            "rewards": self._tensor(rewards),
            "terminations": self._tensor(terminations),
            "truncations": self._tensor(truncations),
            "next_observations": self._tensor(self._final(after, info)),
            "valid": self._valid(info),
        }
        batch |= {column: self._tensor(info[key]) for column, key in CONSTRAINT_KEYS.items() if key in info}
        batch |= {key: value.to(self.device) for key, value in more.items()}
        self._said_valid = "valid" in info
        self.observations = self._tensor(after).clone()  # the environment may write into its tensors again
        self._count(batch)
        return batch

    def fill(self, buffer: RingBuffer, act: Act, steps: int) -> int:
        """Add `steps` steps of every row to a buffer made with `replay_buffer`.

        Returns:
            Number of rows written, `steps` times the number of environments.

        Raises:
            ConfigError: a buffer of another number of environments, or one that would sample rows that are none.
            DataError: a column of the buffer that the environment and `act` do not give.
            DivergenceError: `act` gave actions that are not finite; what this call has written is not to be used.
        """
        if buffer.num_envs != self.num_envs:
            raise ConfigError(f"the buffer is for {buffer.num_envs} environments, and these are {self.num_envs}")
        for _ in range(steps):
            batch = self.step(act)
            if not self._said_valid or (not self._inserts_rows and bool(batch["valid"].all())):
                del batch["valid"]
            elif not isinstance(buffer, TransitionBuffer):
                raise ConfigError(
                    f"{type(self.env).__name__} gives rows that are no transitions, and a RingBuffer would sample "
                    "them: make the buffer with surefoot.data.collect.replay_buffer"
                )
            buffer.add(batch)
        self._check_finite()
        return steps * self.num_envs

    def block(self, act: Act, horizon: int) -> Batch:
        """The next `horizon` steps: name -> (T, N, ...), each tensor written again by the next call.

        `next_observations[t]` is the final observation where an episode ended; elsewhere it equals
        `observations[t + 1]`. Rows with `valid` False are no transitions. `self.observations` follows the last step.

        Raises:
            ConfigError: a horizon below 1.
            DivergenceError: `act` gave actions that are not finite.
        """
        if horizon < 1:
            raise ConfigError(f"horizon is {horizon}; a block needs at least 1 step")
        for time in range(horizon):
            batch = self.step(act)
            if time == 0 and not self._fits(batch, horizon):
                self._block = {key: value.new_empty((horizon, *value.shape)) for key, value in batch.items()}
            for key, column in self._block.items():
                if key not in batch:
                    raise DataError(f"step {time} of the block has no {key!r}, and step 0 has: give it in every step")
                column[time].copy_(batch[key])
        self._check_finite()
        return dict(self._block)

    def episodes(self) -> Episodes:
        """Count and means of the episodes that ended since the last call (one copy from the device)."""
        total, length, cost, count = self._ended.tolist()
        self._ended.zero_()
        means = [value / count if count else math.nan for value in (total, length, cost)]
        return Episodes(int(count), means[0], means[1], means[2] if self._has_costs else None)

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(values, device=self.device)

    def _valid(self, info: Mapping[str, Any]) -> Tensor:
        valid = info.get("valid")
        if valid is None:
            return torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        return self._tensor(valid).bool()

    def _final(self, after: Any, info: Mapping[str, Any]) -> Any:
        final = info.get("final_obs")
        if isinstance(final, np.ndarray) and final.dtype == object:
            raise DataError(
                "info['final_obs'] is an array of objects, and a collector reads rows of numbers: "
                "wrap the environment in surefoot.envs.adapters.adapt"
            )
        return after if final is None else final

    def _check_actions(self, actions: Tensor) -> None:
        wanted = tuple(self.env.action_space.shape or ())
        if tuple(actions.shape) != wanted:
            raise DataError(f"the policy gave actions of shape {tuple(actions.shape)}; the environment takes {wanted}")
        if actions.is_floating_point():
            self._finite &= torch.isfinite(actions).all().to(self.device)

    def _check_finite(self) -> None:
        if not bool(self._finite):
            self._finite.fill_(True)
            raise DivergenceError("the policy gave an action that is not finite: its weights or inputs hold NaN")

    def _fits(self, batch: Batch, horizon: int) -> bool:
        """Whether the block of the last call can be written again."""
        wanted = {key: ((horizon, *value.shape), value.dtype) for key, value in batch.items()}
        return {key: (tuple(value.shape), value.dtype) for key, value in self._block.items()} == wanted

    def _count(self, batch: Batch) -> None:
        """Sums of running and finished episodes, without leaving the device."""
        valid = batch["valid"].double()
        self._running[:, 0] += batch["rewards"].double() * valid
        self._running[:, 1] += valid
        if "costs" in batch:
            self._has_costs = True
            self._running[:, 2] += batch["costs"].double() * valid
        ended = ((batch["terminations"].bool() | batch["truncations"].bool()) & batch["valid"]).double()
        self._ended[:3] += ended @ self._running
        self._ended[3] += ended.sum()
        self._running *= 1 - ended[:, None]


def replay_buffer(
    env: Any,
    capacity: int,
    device: str | torch.device | None = None,
    more: Mapping[str, tuple[int, ...]] | None = None,
    constraints: bool = False,
) -> TransitionBuffer:
    """An empty buffer whose columns are those of an environment, on the environment's device.

    Args:
        env: the contract environment that a `Collector` will step.
        capacity: rows; rounded down to a multiple of `env.num_envs`.
        device: another device than the environment's.
        more: further float columns that the policy gives, name -> shape of one row.
        constraints: also keep `costs` and `margins`.

    Raises:
        ConfigError: fewer rows than environments.
        DataError: more bytes than the device has free.
    """
    observation, action = env.single_observation_space, env.single_action_space
    shapes = {
        "observations": tuple(observation.shape), "actions": tuple(action.shape), "rewards": (), "terminations": (),
        "next_observations": tuple(observation.shape), **(more or {}),
    }  # fmt: skip
    if constraints:
        shapes |= {"costs": (), "margins": ()}
    wanted = {"observations": observation.dtype, "next_observations": observation.dtype, "actions": action.dtype}
    dtypes = {key: torch.from_numpy(np.zeros(0, kind)).dtype for key, kind in wanted.items() if kind.kind in "iu"}
    where = getattr(env, "device", "cpu") if device is None else device
    rows = capacity - capacity % env.num_envs
    if rows < 1:
        raise ConfigError(f"capacity {capacity} is below the number of environments, {env.num_envs}")
    return TransitionBuffer(rows, shapes, where, env.num_envs, dtypes)


def uniform_actions(env: Any, generator: torch.Generator) -> Act:
    """A policy that draws each action uniformly from the action space, for the first steps of a run.

    Raises:
        ConfigError: an action space without finite bounds.
    """
    space = env.single_action_space
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or high is None or not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ConfigError(f"actions can't be drawn uniformly from {space}: it has no finite bounds")
    where = generator.device
    bottom, width = torch.as_tensor(low, device=where), torch.as_tensor(high - low, device=where)

    def act(observations: Tensor) -> Tensor:
        draw = torch.rand((len(observations), *space.shape), generator=generator, device=where)
        return (bottom + width * draw).to(observations.device)

    return act
