"""Replay buffers of what a vector environment gives, some rows of which may be no transitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.data.ring import RingBuffer
from surefoot.data.samplers import uniform_rows


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
            first = self.position
            rows = super().add(batch)
            valid = self._valid if self._arrays is None else self._valid.numpy()
            valid[first : first + self.num_envs] = True
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


def replay_buffer(
    env: Any,
    capacity: int,
    device: str | torch.device | None = None,
    more: Mapping[str, tuple[int, ...]] | None = None,
    constraints: bool = False,
) -> TransitionBuffer:
    """An empty buffer whose columns are those of an environment, on the environment's device.

    Args:
        env: the contract environment that is acted in (`surefoot.envs.acting.Stepping`).
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
