"""Rollouts with the policy inside the native loop, and the errors of a user's mistakes."""

from __future__ import annotations

import functools
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.family import FamilyActor
from surefoot.core.actors.heads import (
    DeterministicActor,
    GaussianActor,
    MLPActor,
    SoftplusGaussianActor,
    StateDependentActor,
    UnboundedGaussianActor,
)
from surefoot.core.base.actions import middle_and_half
from surefoot.core.base.errors import CheckpointError, ConfigError, DeviceError, EnvironmentMismatchError, nearest
from surefoot.core.policy.policy import Policy
from surefoot.cuda_ext import native, twin, why_not_native
from surefoot.cuda_ext.cubin import GpuError
from surefoot.cuda_ext.gpu import is_gpu
from surefoot.cuda_ext.policy import NativePolicy, all_finite
from surefoot.cuda_ext.rollout import RECORDS, Carry, Rollout
from surefoot.cuda_ext.rollout import rollout as roll_out
from surefoot.cuda_ext.system import System
from surefoot.envs.acting.sums import EpisodeBatch
from surefoot.envs.interface import Array, Numbers, as_numpy
from surefoot.envs.parameters import parameter_table
from surefoot.envs.systems import system as find_system

NOISE_ROWS = 1 << 14
"""Rows of `policy_noise` that are computed at once on a CPU."""
ACTIVATIONS = ("relu", "tanh", "silu")
"""Of policies inside native rollouts."""
READ = ("returns", "costs", "margins", "lengths", "terminated", "diverged")
"""Results that `native_episodes` reads, in one copy."""
BLOCK = 1 << 18
"""Environments in one call of `native_episodes`: bounds its memory."""


@functools.cache
def say_twin() -> None:
    """One line on standard error, once, where the native module is missing."""
    if native() is None:
        print(
            f"surefoot: no native module ({why_not_native()}): native systems run in plain torch, slower",
            file=sys.stderr,
        )


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def native_policy(policy: Policy, sampling: bool = False) -> NativePolicy:
    """A policy in the form that native rollouts evaluate.

    Weights on a GPU are not looked at: returns of one that has weights which are not finite are NaN.

    Args:
        policy: as `Policy.load` gives it.
        sampling: draw actions instead of taking the mean ones, as a `Policy.sampled` always does; a deterministic
            policy stays so.

    Raises:
        ConfigError: an activation that native code doesn't know, a limit of normalised observations, or a policy
            that chooses among numbers.
        CheckpointError: weights that are not finite; the message names the tensor.
    """
    require_finite(policy, looks_on_gpu=False)
    actor = policy.actor
    if isinstance(actor, MLPActor) and actor.mlp.activation not in ACTIVATIONS:
        raise ConfigError(
            f"the policy's activation is {actor.mlp.activation!r}; native rollouts know relu, tanh and silu"
        )
    if not (isinstance(actor, MLPActor) and evaluates(policy, sampling)):
        raise ConfigError(
            "native rollouts don't know policies that clip normalised observations, choose among numbers, pick a "
            "coefficient for each state, draw state-dependent noise, always sample or come from a streaming agent; "
            "step such a policy from python"
        )
    mlp, sampling = actor.mlp, sampling or policy.always_samples
    weights, biases = mlp.usual([w.detach() for w in mlp.weights], [b.detach() for b in mlp.biases])
    noise: dict[str, Any] = {"squash": not isinstance(actor, UnboundedGaussianActor)}
    if isinstance(actor, (GaussianActor, UnboundedGaussianActor)):
        if sampling:
            noise["std"] = actor.log_std.detach().clamp(*actor.log_std_range).exp()
    elif not isinstance(actor, DeterministicActor):
        if sampling:
            noise["log_std_range"] = actor.log_std_range
        else:  # the second half of the outputs is the log standard deviation
            weights[-1], biases[-1] = weights[-1][: policy.action_dim], biases[-1][: policy.action_dim]
    middle, half = middle_and_half(policy.action_low, policy.action_high)
    return NativePolicy(
        weights,
        biases,
        action_middle=middle,
        action_half=half,
        activation=mlp.activation,
        gains=[scale.detach() for scale in mlp.scales],
        shifts=[shift.detach() for shift in mlp.shifts],
        mean=policy.normalizer.mean,
        scale=policy.normalizer.scale,
        **noise,
    )


def require_finite(policy: Policy, looks_on_gpu: bool = True) -> None:
    """Raise CheckpointError, which names the tensor, where a policy's weights are not finite.

    To look at one on a GPU waits for the GPU.
    """
    for name, value in policy.state_dict().items():
        if (looks_on_gpu or not is_gpu(value.device)) and not all_finite(value):
            raise CheckpointError(
                f"the policy's {name} holds NaN or infinity; train it again or take another checkpoint"
            )


def evaluates(policy: Policy, sampling: bool = False) -> bool:
    """Whether native rollouts can evaluate a policy of this kind, or draw its actions."""
    if (
        not isinstance(policy.actor, MLPActor)
        or policy.actor.always_samples
        or policy.has_memory
        or policy.encoder is not None
    ):
        return False
    mlp = policy.actor.mlp
    plain = not mlp.unit_features and mlp.layer_norm != "after"
    known = mlp.activation in ACTIVATIONS and plain and policy.normalizer.limit == math.inf
    if (sampling or policy.always_samples) and isinstance(policy.actor, StateDependentActor):
        return False
    return known and not (policy.discrete or isinstance(policy.actor, (SoftplusGaussianActor, FamilyActor)))


def policy_noise(seeds: Tensor, started: Carry, ended: Tensor, width: int) -> Tensor:
    """The standard normal numbers by which policies sampled in a rollout of many episodes: (T, N, A) float32.

    They are counted from (seed, episode, step), so they are found again instead of being recorded.

    Args:
        seeds: (N,) int64.
        started: where the environments stood before.
        ended: (T, N) bool, whether an episode ended in a step.
        width: A.
    """
    steps, count = ended.shape
    times = torch.arange(steps, device=ended.device).unsqueeze(1)
    ends = ended.long().cumsum(0) - ended.long()  # before this step
    last = torch.where(ended, times + 1, 0).cummax(0).values.roll(1, 0)
    last[0] = 0  # of the step that the present episode began in
    elapsed = times - last + torch.where(ends == 0, started.elapsed.long(), 0)
    noise = torch.empty(steps, count, width, device=ended.device)
    rows = steps if ended.device.type != "cpu" else max(1, NOISE_ROWS // count)  # a part stays in the cache
    for first in range(0, steps, rows):
        part = slice(first, first + rows)
        key = twin.episode_key(seeds.expand_as(ends[part]), started.episodes.long() + ends[part], twin.POLICY)
        drawn = twin.normal(key.reshape(-1), elapsed[part].reshape(-1), width, torch.float32)
        noise[part] = drawn.view(-1, count, width)
    return noise


def rollout(
    policy: Policy | NativePolicy | str | os.PathLike[str] | Numbers,
    env: str | System,
    envs: int | None = None,
    steps: int | None = None,
    *,
    seeds: int | Numbers = 0,
    episodes: str = "one",
    record: Sequence[str] = (),
    gap: str | Sequence[str | None] | None = None,
    parameters: Mapping[str, float | Numbers] | None = None,
    states: Numbers | None = None,
    carry: Carry | None = None,
    sampling: bool = False,
    threads: int | None = None,
    record_limit: float | None = None,
    device: str | torch.device = "cpu",
) -> Rollout:
    """N environments of a native system over many steps in one call.

    On a GPU nothing waits: results are there when they are read. Actions and policies that are there already are not
    checked before; where they are not finite, what comes of them isn't either.

    Args:
        policy: a policy or a policy file, "random" for uniform actions, or actions (T, N, A).
        env: `native/quadrotor-2d`, a gymnasium id of a native system, or a `System`.
        envs: N; needed where seeds, states or actions don't say it.
        steps: most steps; by default those of the actions, else the system's time limit. A single episode is
            truncated there.
        seeds: (N,), or a base seed.
        episodes: "one" for each environment, or "many": a new one begins at once, for all steps.
        record: of `cuda_ext.rollout.RECORDS`: (T, N, ...) tensors in `records`.
        gap: preset of altered dynamics, or a list of one (or None) for each environment.
        parameters: physical constants, each one number or (N,); they go over those of `gap`.
        states: (N, S) to begin in.
        carry: to continue from where another rollout of many episodes with these seeds stopped; of many too.
        sampling: draw actions of a stochastic policy instead of taking its mean ones.
        threads: None: all processors. No result depends on it.
        record_limit: most bytes of records; half of the free memory by default.
        device: where the results lie.

    Returns:
        Sums of each environment and what was recorded, as tensors on the device.

    Raises:
        ConfigError: an unknown name (nearest ones given) or a value out of its range; records too large for the
            memory (how much they need is reported).
        EnvironmentMismatchError: policy or actions don't fit the system.
        CheckpointError: weights that are not finite.
        DeviceError: a GPU was asked for where there is none.
    """
    say_twin()
    system = env if isinstance(env, System) else find_system(env)
    unknown = [name for name in record if name not in RECORDS]
    if unknown:
        raise ConfigError(f"{unknown[0]!r} can't be recorded; {nearest(unknown[0], RECORDS)}")
    if (envs is not None and envs < 1) or (steps is not None and steps < 1) or (threads is not None and threads < 1):
        raise ConfigError(f"envs is {envs}, steps {steps} and threads {threads}; they must be at least 1")
    given = _source(policy, system, sampling)
    if isinstance(seeds, (int, np.integer)):
        seeds = int(seeds)
    elif not isinstance(seeds, Tensor):
        seeds = torch.as_tensor(as_numpy(seeds).astype(np.int64))
    physics: Any = None
    if gap is not None or parameters:
        same = not isinstance(gap, Sequence) or isinstance(gap, str)
        shared = same and all(as_numpy(value).ndim == 0 for value in (parameters or {}).values())
        count = 1 if shared else _count(envs, seeds, states, given.get("actions"))
        physics = parameter_table(system, count, gap, parameters)
        physics = physics[0] if shared else physics
    try:
        return roll_out(
            system,
            **given,
            num_envs=envs,
            seeds=seeds,
            states=states,
            carry=carry,
            horizon=steps,
            parameters=physics,
            episodes=episodes,
            record=record,
            record_limit=record_limit,
            threads=threads or processors(),
            device=device,
        )
    except GpuError as error:
        raise DeviceError(str(error)) from error
    except ValueError as error:
        raise ConfigError(f"{system.alias}: {error}") from error


def _source(policy: Any, system: System, sampling: bool) -> dict[str, Any]:
    """The argument of the rollout that says where actions come from."""
    if isinstance(policy, str) and policy == "random":
        return {"random": True}
    if isinstance(policy, (str, os.PathLike)):
        policy = Policy.load(policy)
    if isinstance(policy, Policy):
        policy = native_policy(policy, sampling)
    width, wide = len(system.observations), len(system.actions)
    if isinstance(policy, NativePolicy):
        has = policy.widths[0], int(policy.action_middle.shape[0])
        if has != (width, wide):
            raise EnvironmentMismatchError(
                f"the policy has {has[0]} observations and {has[1]} actions, {system.alias} has {width} and {wide}; "
                "choose the environment that it was trained for"
            )
        return {"policy": policy}
    actions = torch.as_tensor(policy, dtype=torch.float32)
    if actions.dim() != 3 or actions.shape[2] != wide:
        raise EnvironmentMismatchError(
            f"actions have shape {tuple(actions.shape)}; {system.alias} takes (steps, environments, {wide})"
        )
    if not is_gpu(actions.device) and not bool(torch.isfinite(actions).all()):
        raise EnvironmentMismatchError("the actions hold NaN or infinity")
    return {"actions": actions}


def _count(envs: int | None, seeds: Any, states: Any, actions: Tensor | None) -> int:
    """N, from whichever argument says it."""
    if envs is not None:
        return envs
    for value in (None if isinstance(seeds, int) else seeds, states):
        if value is not None:
            return len(value)
    if actions is not None:
        return int(actions.shape[1])
    raise ConfigError("say how many environments: envs=N, or one seed or state for each")


def native_episodes(
    policy: Policy,
    system: System,
    seeds: Array,
    *,
    steps: int | None,
    gap: str | None,
    parameters: Mapping[str, Array] | None = None,
    threads: int | None,
    device: str,
) -> EpisodeBatch:
    """`envs.episodes.run_episodes` of a policy in a system whose equations are at hand."""
    packed = native_policy(policy)
    steps = system.max_steps if steps is None else min(steps, system.max_steps)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    batches = []
    for first in range(0, len(seeds), BLOCK):
        began = time.perf_counter()
        part = slice(first, first + BLOCK)
        own = {name: value[part] for name, value in (parameters or {}).items()}
        found = rollout(
            packed, system, steps=steps, seeds=seeds[part], gap=gap, parameters=own, threads=threads, device=device
        )
        values = dict(zip(READ, torch.stack([getattr(found, name).double() for name in READ]).cpu().numpy()))
        if np.isnan(values["returns"]).any():  # of a policy on a GPU, which was not looked at before
            require_finite(policy)
        seconds = time.perf_counter() - began
        batches.append(
            EpisodeBatch(
                **{name: values[name] for name in ("returns", "costs", "margins")},
                violated=values["costs"] > 0,  # no step's is negative
                lengths=values["lengths"].astype(np.int64),
                terminated=values["terminated"] > 0,
                diverged=values["diverged"] > 0,
                seconds=seconds,
                device=described_device(threads or processors(), device),
            )
        )
    return EpisodeBatch.join(batches)


def described_device(threads: int, device: str) -> str:
    """What computes native rollouts, in words."""
    if device == "cuda":
        return f"GPU, {torch.cuda.get_device_name()}"
    module = native()
    if module is None:
        return "CPU, plain torch (no native module)"
    return f"CPU, native code for {module.level()}, {threads} thread{'s' if threads > 1 else ''}"
