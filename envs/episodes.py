"""One whole episode of each of N environments: by native code with the policy in the loop, or step by step."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

from surefoot.core.errors import ConfigError, DeviceError, EnvironmentMismatchError, nearest
from surefoot.core.memory import Memory, PolicyLike, Reactive
from surefoot.core.policy import Policy
from surefoot.envs.interface import Array, as_numpy, step_values
from surefoot.envs.names import gymnasium_id, is_native
from surefoot.envs.vector import check_spaces, make_vec

Act = Callable[[Array], Array]
"""(N, O) observations -> (N, A) actions in the environment's units."""
DEVICES = ("auto", "cpu", "cuda")


@dataclasses.dataclass(frozen=True)
class EpisodeBatch:
    """What N episodes came to, in the order of their seeds."""

    returns: Array
    """(N,) float64, undiscounted sum of rewards."""
    lengths: Array
    """(N,) int64, steps."""
    costs: Array | None
    """(N,) float64, sum of the costs, or None where the environment has no constraint."""
    margins: Array | None
    """(N,) float64, lowest safety margin, or None."""
    terminated: Array
    """(N,) bool."""
    diverged: Array
    """(N,) bool: the simulation broke down, which ended the episode."""
    seconds: float
    """Wall-clock time of the episodes."""
    device: str
    """What computed them, in words."""

    @property
    def steps(self) -> int:
        """Steps of all episodes together."""
        return int(self.lengths.sum())

    @property
    def violations(self) -> int | None:
        """Episodes with any cost in them; None where there is no constraint."""
        return None if self.costs is None else int((self.costs > 0).sum())

    @classmethod
    def join(cls, batches: Sequence[EpisodeBatch]) -> EpisodeBatch:
        """The episodes of several batches as one."""
        joined: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            values = [getattr(batch, field.name) for batch in batches]
            joined[field.name] = None if values[0] is None else values[0]
            if isinstance(values[0], np.ndarray):
                joined[field.name] = np.concatenate(values)
        return cls(**{**joined, "seconds": sum(batch.seconds for batch in batches)})


def episode_seeds(seed: int, first: int, count: int) -> Array:
    """(count,) int64 seeds of the episodes `first`, `first` + 1, ...: the same however they are batched."""
    start = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return (start + first + np.arange(count, dtype=np.int64)) % (1 << 32)


def run_episodes(
    policy: Policy | Act,
    env_id: str,
    seeds: Array,
    *,
    steps: int | None = None,
    gap: str | None = None,
    threads: int | None = None,
    device: str = "auto",
) -> EpisodeBatch:
    """One episode of `policy` from each seed, all side by side; an episode ends at its first end or after `steps`.

    Args:
        policy: a `Policy` (in native systems it runs inside the native loop), or a function.
        env_id: any id that `make_vec` takes.
        seeds: (N,) of the environments' resets; N at least 1.
        steps: cut episodes off after this many; None: the environment's own limit.
        gap: preset of altered dynamics, or None.
        threads: of native code; None: all processors.
        device: "cpu", "cuda" or "auto", of a policy in a native system; auto takes a GPU where there is one.

    Raises:
        ConfigError: unknown id or gap, no environments, steps below 1 or missing.
        EnvironmentMismatchError: the policy doesn't fit, or gives actions that are not finite.
        DeviceError: a GPU was asked for where there is none, or where no policy runs inside a native system.
    """
    if len(seeds) < 1 or (steps is not None and steps < 1):
        raise ConfigError(f"{len(seeds)} environments and {steps} steps were asked for; both must be at least 1")
    if device not in DEVICES:
        raise ConfigError(f"device {device!r} is unknown; {nearest(device, DEVICES)}")
    if isinstance(policy, Policy):
        check_spaces(gymnasium_id(env_id), policy.observation_dim, policy.action_dim, policy.discrete)
        if is_native(env_id):
            from surefoot.envs.native_rollout import evaluates, native_episodes

            if not evaluates(policy):
                return _stepped(policy, env_id, seeds, steps, gap)
            return native_episodes(policy, env_id, seeds, steps=steps, gap=gap, threads=threads, device=device)
    if device == "cuda":
        raise DeviceError("only a trained policy in a native system runs on a GPU; use device cpu or auto")
    return _stepped(policy, env_id, seeds, steps, gap)


def _stepped(policy: Policy | Act, env_id: str, seeds: Array, steps: int | None, gap: str | None) -> EpisodeBatch:
    """Episodes by `step` calls, with the policy between them."""
    env: Any = make_vec(env_id, len(seeds), **({} if gap is None else {"gap": gap}))
    try:
        if steps is None and env.max_episode_steps is None:
            raise ConfigError(f"{env_id} has no time limit; say after how many steps an episode is cut off")
        limit = min(value for value in (steps, env.max_episode_steps) if value is not None)
        seed = int(seeds[0])  # of the policy's own noise, where it has some: these seeds give these episodes
        acting = policy if isinstance(policy, Policy) else Function(policy)
        memory = policy.begin(len(seeds), seed) if isinstance(policy, Policy) else {}
        return Stepper(env, limit, env_id).run(acting, memory, [int(seed) for seed in seeds])
    finally:
        env.close()


class Function(Reactive):
    """A function of observations with the face of a policy."""

    def __init__(self, function: Act) -> None:
        self.function = function

    def actions(self, observations: torch.Tensor) -> torch.Tensor:
        """What the function gives."""
        return torch.as_tensor(self.function(observations.numpy()))


class Stepper:
    """Steps a vector environment until each row's episode has ended, and sums up what happens."""

    def __init__(self, env: Any, limit: int, env_id: str) -> None:
        count = env.num_envs
        self.env, self.limit, self.env_id = env, limit, env_id
        self.returns, self.lengths = np.zeros(count), np.zeros(count, np.int64)
        self.costs, self.margins = np.zeros(count), np.full(count, np.inf)
        self.terminated, self.diverged = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        self.constrained = True

    def run(self, policy: PolicyLike, memory: Memory, seeds: list[int]) -> EpisodeBatch:
        """Step until every row's episode has ended; `memory` is the policy's at the first step."""
        env, began = self.env, time.perf_counter()
        observations, _ = env.reset(seed=seeds)
        space = env.single_action_space
        discrete = isinstance(space, gymnasium.spaces.Discrete)
        for _ in range(self.limit):
            chosen, memory = policy.act(torch.from_numpy(np.asarray(observations, np.float32)), memory)
            actions = chosen.cpu().numpy()
            if not discrete:
                actions = np.clip(actions.astype(np.float32), space.low, space.high)
            if not np.isfinite(actions).all():
                raise EnvironmentMismatchError(f"{self.env_id}: an action is not finite; check the policy's weights")
            moved = env.active.copy()
            observations, rewards, terminations, truncations, info = env.step(actions)
            costs = self._add(moved, as_numpy(rewards), info)
            earned, spent = (torch.from_numpy(np.asarray(value)).float() for value in (as_numpy(rewards), costs))
            ended = torch.from_numpy(np.asarray(terminations | truncations, np.bool_))
            memory = policy.hear(memory, earned, spent, ended)
            self.terminated |= moved & terminations
            env.active[:] = moved & ~(terminations | truncations)
            if not env.active.any():
                break
        seconds = time.perf_counter() - began
        margins = self.margins if np.isfinite(self.margins).all() else None
        device = f"CPU, {env.metadata.get('simulator') or self.env_id}, stepped from python"
        return EpisodeBatch(
            returns=self.returns,
            lengths=self.lengths,
            costs=self.costs if self.constrained else None,
            margins=margins if self.constrained else None,
            terminated=self.terminated,
            diverged=self.diverged,
            seconds=seconds,
            device=device,
        )

    def _add(self, moved: Array, rewards: Array, info: dict[str, Any]) -> Array:
        """Add a step; its costs (N,), zeros where there are none."""
        count = len(moved)
        self.returns += np.where(moved, rewards, 0.0)
        self.lengths += moved
        cost, margin = (step_values(info, key, count) for key in ("cost", "margin"))
        self.constrained &= cost is not None
        if cost is not None:
            self.costs += np.where(moved, cost, 0.0)
        if margin is not None:
            self.margins = np.where(moved, np.minimum(self.margins, margin), self.margins)
        self.diverged |= moved & np.asarray(info.get("diverged", np.zeros(count, np.bool_)))
        return np.zeros(count) if cost is None else np.asarray(cost)
