"""One whole episode of each of N environments: by native code with the policy in the loop, or step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from surefoot.core.actors.memory import DRAWS, Memory, PolicyLike, Reactive
from surefoot.core.base.errors import ConfigError, DeviceError, nearest
from surefoot.core.policy.control_loop import ControlLoop
from surefoot.core.policy.policy import Policy
from surefoot.cuda_ext.twin import mix
from surefoot.envs.acting.episodes import EpisodeRunner
from surefoot.envs.acting.sums import EpisodeBatch
from surefoot.envs.acting.team_policy import TeamPolicy, for_team
from surefoot.envs.interface import Array
from surefoot.envs.names import gymnasium_id
from surefoot.envs.vector import check_spaces, make_vec

Act = Callable[[Array], Array]
"""(N, O) observations -> (N, A) actions in the environment's units."""
DEVICES = ("auto", "cpu", "cuda")


def episode_seeds(seed: int, first: int, count: int) -> Array:
    """(count,) int64 seeds of the episodes `first`, `first` + 1, ...: the same however they are batched.

    They are not the episodes that `evaluation.evaluate` runs from this seed.

    Raises:
        ConfigError: a seed below 0.
    """
    if seed < 0:
        raise ConfigError(f"the seed of the episodes is {seed}; it must be 0 or more")
    start = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return (start + first + np.arange(count, dtype=np.int64)) % (1 << 32)


def run_episodes(
    policy: ControlLoop | Act,
    env_id: str,
    seeds: Array,
    *,
    steps: int | None = None,
    gap: str | None = None,
    parameters: Mapping[str, Array] | None = None,
    threads: int | None = None,
    device: str = "auto",
) -> EpisodeBatch:
    """One episode of `policy` from each seed, all side by side; an episode ends at its first end or after `steps`.

    Args:
        policy: a `Policy` (in native systems it runs inside the native loop), another one with a memory, such as a
            planner's, or a function.
        env_id: any id that `make_vec` takes.
        seeds: (N,) of the environments' resets; N at least 1.
        steps: cut episodes off after this many; None: the environment's own limit.
        gap: preset of altered dynamics, or None.
        parameters: physical constants of a native system, each (N,); they go over those of `gap`.
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
        check_spaces(gymnasium_id(env_id), policy.arrays, policy.action_dim, policy.discrete)
        from surefoot.envs.known_systems import system_of
        from surefoot.envs.native_rollout import evaluates, native_episodes

        known = system_of(env_id) if evaluates(policy) else None
        if known is not None:
            return native_episodes(
                policy, known, seeds, steps=steps, gap=gap, parameters=parameters, threads=threads, device=device
            )
    if device == "cuda":
        raise DeviceError(
            "only a trained policy of a kind that the native loop knows, in a native system, runs on a GPU; "
            "use device cpu or auto"
        )
    return _stepped(policy, env_id, seeds, steps, gap, parameters)


def _stepped(
    policy: ControlLoop | Act,
    env_id: str,
    seeds: Array,
    steps: int | None,
    gap: str | None,
    parameters: Mapping[str, Array] | None = None,
) -> EpisodeBatch:
    """Episodes by `step` calls, with the policy between them."""
    given: dict[str, Any] = {
        name: value for name, value in (("gap", gap), ("parameters", parameters)) if value is not None
    }
    env: Any = make_vec(env_id, len(seeds), **given)
    try:
        if steps is None and env.max_episode_steps is None:
            raise ConfigError(
                f"{env_id} has no time limit: say after how many steps an episode is cut off (steps=, --steps), or "
                "register it with max_episode_steps"
            )
        limit = min(value for value in (steps, env.max_episode_steps) if value is not None)
        acting, memory = acting_policy(policy, seeds)
        acting = for_team(acting, env)
        if isinstance(acting, TeamPolicy):
            memory = acting.begin(len(seeds), int(seeds[0]))
        return run(EpisodeRunner(env, [acting], env_id, len(seeds), limit=limit), memory, seeds)
    finally:
        env.close()


def acting_policy(policy: ControlLoop | Act, seeds: Array) -> tuple[PolicyLike, Memory]:
    """A policy or function as a policy, and its memory at the first step of the episodes of these seeds."""
    if isinstance(policy, Policy):
        return policy, policy.begin(len(seeds), int(seeds[0]))  # of its own noise: these seeds give these episodes
    if isinstance(policy, ControlLoop):
        memory = policy.begin(len(seeds))
        if DRAWS in memory:  # those of each row if it acted alone, so that an episode does not depend on its neighbours
            own = mix(mix(torch.from_numpy(seeds.astype(np.int64))))
            memory = {**memory, DRAWS: torch.stack([own, torch.zeros_like(own)], 1)}
        return policy, memory
    return Function(policy), {}


def run(runner: EpisodeRunner, memory: Memory, seeds: Array) -> EpisodeBatch:
    """The episodes of a runner of one policy."""
    began = time.perf_counter()
    sums = runner.run(seeds.tolist(), [memory])
    costs, margins = bool(sums.has_costs[0]), bool(np.isfinite(sums.margins).all())
    simulator = runner.vector.metadata.get("simulator") or runner.env_id
    return EpisodeBatch(
        returns=sums.returns[0],
        lengths=sums.lengths[0],
        costs=sums.costs[0] if costs else None,
        violated=sums.violations[0] > 0 if costs else None,
        margins=sums.margins[0] if costs and margins else None,
        terminated=sums.terminated[0],
        diverged=sums.diverged[0],
        seconds=time.perf_counter() - began,
        device=f"CPU, {simulator}, stepped from python",
    )


class Function(Reactive):
    """A function of observations with the face of a policy."""

    def __init__(self, function: Act) -> None:
        self.function = function

    def actions(self, observations: torch.Tensor) -> torch.Tensor:
        """What the function gives."""
        return torch.as_tensor(self.function(observations.numpy()))
