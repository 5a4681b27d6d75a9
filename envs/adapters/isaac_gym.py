"""Isaac Gym Preview tasks (anything shaped like `VecTask`) behind the contract; Isaac Gym is never imported.

Isaac Gym runs under Python 3.6 to 3.8 only, so its own tasks can't be here; what can is an object of their shape: a
task ported to another engine, or a proxy of one in another process. Types for code written against Isaac Gym are in
the package `isaacgym-stubs`.

A row that ended is reset at the start of the next `post_physics_step`, after physics moved on with the new action:
that next step mixes the last action with the reset state and is no transition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.envs.adapters.isaac_lab import constraints
from surefoot.envs.adapters.shared import OnlyOne, limit_of
from surefoot.envs.interface import Numbers, Tensors, reset_mask
from surefoot.envs.reward_terms import extras_terms

NEEDED = ("num_envs", "reset_buf", "step", "reset")


class IsaacGymVectorEnv(OnlyOne):
    """A `VecTask`-like task behind the contract, in tensors on its device by default.

    The observation after an end is the final one; the row that follows has `info["valid"]` False. Only
    `extras["time_outs"]` tells a time limit from an end: a task whose episode fails in its very last step reports a
    time-out there, and so does this.

    Args:
        task: with `num_envs`, `reset_buf`, `reset()` and `step(actions)` -> (dict, reward, reset, extras); spaces
            from `observation_space` and `action_space`, or `num_obs` and `num_actions`.
        tensors: "torch", or "numpy" for gymnasium's users.

    Raises:
        EnvironmentMismatchError: an object of another shape.
    """

    inserts_rows = True
    seeding = "none"

    def __init__(self, task: Any, tensors: Tensors = "torch") -> None:
        if missing := [name for name in NEEDED if not hasattr(task, name)]:
            raise EnvironmentMismatchError(
                f"{type(task).__name__} has no {', '.join(missing)}: from_isaac_gym takes a VecTask or one like it"
            )
        device = getattr(task, "rl_device", getattr(task, "device", "cpu"))
        super().__init__(
            task.num_envs,
            _space(task, "observation_space", "num_obs", np.inf),
            _space(task, "action_space", "num_actions", 1.0),
            tensors,
            device,
        )
        self.task = task
        self.max_episode_steps = limit_of(task)
        self._ended: Tensor | None = None

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Numbers, dict[str, Any]]:
        """Begin new episodes in all rows: marks them as ended and takes the one step in which the task resets them.

        Raises:
            EnvironmentMismatchError: a reset of some rows, or a seed, which Isaac Gym takes only when it is made.
        """
        mask = reset_mask(options, self.num_envs)
        if mask is not None and not mask.all():
            raise EnvironmentMismatchError("Isaac Gym resets all rows at once here: leave out reset_mask")
        if seed is not None:
            raise EnvironmentMismatchError(
                "an Isaac Gym task draws from torch's and numpy's global generators: seed them before it is made "
                "(isaacgymenvs: seed=...) and reset without a seed"
            )
        self.task.reset()
        self.task.reset_buf.fill_(1)
        still = torch.zeros(self.action_space.shape or (), device=self.device)
        observations, _, reset, _ = self.task.step(still)
        self._ended = reset.bool().to(self.device).clone()
        return self.give(observations["obs"]), {"observations": observations}

    def step(self, actions: Any) -> tuple[Numbers, Numbers, Numbers, Numbers, dict[str, Any]]:
        """One step of every row."""
        self.check_actions(actions)
        if self._ended is None:
            raise EnvironmentMismatchError("step was called before the first reset: call reset first")
        actions = torch.as_tensor(actions, device=self.device)
        observations, rewards, reset, extras = self.task.step(actions)
        valid = ~self._ended
        self._ended = reset.bool().to(self.device).clone()
        ended = self._ended & valid
        limits = extras.get("time_outs")
        limits = torch.zeros_like(ended) if limits is None else torch.as_tensor(limits, device=self.device).bool()
        seen = torch.as_tensor(observations["obs"], device=self.device)
        info = {
            "valid": valid, "final_obs": seen, "_final_obs": ended, "observations": observations, "extras": extras,
        } | constraints(extras, self.num_envs) | extras_terms(extras)  # fmt: skip
        rewards = torch.where(valid, torch.as_tensor(rewards, device=self.device), 0.0)
        numbers = (self.give(value) for value in (seen, rewards, ended & ~limits, ended & limits))
        return *numbers, self.give_info(info)  # type: ignore[return-value]

    def close_extras(self, **kwargs: Any) -> None:
        """Close the task where it can be closed."""
        if hasattr(self.task, "close"):
            self.task.close()


def from_isaac_gym(task: Any, tensors: Tensors = "torch") -> IsaacGymVectorEnv:
    """An Isaac Gym task behind the contract; arguments and errors as `IsaacGymVectorEnv`."""
    return IsaacGymVectorEnv(task, tensors)


def _space(task: Any, name: str, width: str, bound: float) -> gymnasium.Space[Any]:
    """A gymnasium space from the task's own, of whatever version of gym, or from its width."""
    own = getattr(task, name, None)
    if isinstance(own, gymnasium.Space):
        return own
    if own is not None and hasattr(own, "low") and hasattr(own, "high"):
        return gymnasium.spaces.Box(np.asarray(own.low, np.float32), np.asarray(own.high, np.float32))
    if not hasattr(task, width):
        raise EnvironmentMismatchError(f"{type(task).__name__} has neither {name} nor {width}: give it one of them")
    return gymnasium.spaces.Box(-bound, bound, (int(getattr(task, width)),), np.float32)
