"""Who acts in `surefoot rollout` and `surefoot certify`: a run's policy, a behaviour by name, or a planner."""

from __future__ import annotations

import dataclasses
import os
import pathlib

import numpy as np

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.policy.control_loop import ControlLoop
from surefoot.core.policy.policy import Policy
from surefoot.envs.episodes import Act
from surefoot.envs.known_systems import system_of
from surefoot.envs.names import gymnasium_id
from surefoot.envs.vector import action_bounds, check_spaces
from surefoot.runs.run import Run
from surefoot.runs.trust import require_trust

SCRIPTED_SEED = 0
"""Of the noise of behaviours."""


@dataclasses.dataclass(frozen=True)
class Actor:
    """A policy or behaviour, and where it acts."""

    policy: ControlLoop | Act
    label: str
    """For people: `seed 0 of RUN`, `behaviour expert`."""
    env_id: str
    planner: str | None = None
    """The planner's name, where it plans."""
    plans: str | None = None
    """How, and what for, in words."""
    seed: int | None = None
    """Of a run's policies or models."""
    sampled: bool = False
    """Whether it draws its actions, where it has a mean one too."""


def actor(
    run: str | os.PathLike[str] | None,
    behaviour: str | None,
    env_id: str | None,
    policy_seed: int | None = None,
    trust: bool = False,
    sample: bool = False,
) -> Actor:
    """The one that a command names by RUN (a run folder or a policy file) or by --policy, never by both.

    With `sample`, RUN's policy draws its actions instead of taking the mean ones.

    Raises:
        ConfigError: both or neither; a behaviour that the environment doesn't have; no environment known, or one of a
            module that the run names and `trust` does not allow; samples of a behaviour or of a deterministic policy.
        EnvironmentMismatchError: the policy's observations or actions are not the environment's.
        CheckpointError: there is no such run or policy, or it is damaged.
    """
    if (run is None) == (behaviour is None):
        raise ConfigError("say who acts: a RUN, or --policy with random or a system's behaviour, such as expert")
    if run is not None:
        found = _trained(pathlib.Path(run), env_id, policy_seed, trust)
        return drawing(found) if sample else found
    if env_id is None:
        raise ConfigError("say where: --env ID, such as native/quadrotor-2d; `surefoot envs list` shows all")
    if policy_seed is not None:
        raise ConfigError("--policy-seed is of a RUN's policies; a behaviour has none")
    if sample:
        raise ConfigError("--sample is of a RUN's policy; a behaviour acts as it does")
    assert behaviour is not None
    return Actor(_behaviour(behaviour, env_id), f"behaviour {behaviour}", env_id)


def can_draw(acting: Actor) -> bool:
    """Whether its policy has a distribution that actions are drawn from."""
    return isinstance(acting.policy, Policy) and acting.policy.noise_dim > 0


def drawing(acting: Actor) -> Actor:
    """The same with a policy that draws its actions; one that always does stays as it is.

    Raises:
        ConfigError: the policy is deterministic.
    """
    assert isinstance(acting.policy, Policy)
    if acting.policy.always_samples:
        return acting
    policy = acting.policy.sampled()
    return dataclasses.replace(acting, policy=policy, label=f"{acting.label}, actions drawn", sampled=True)


def _trained(path: pathlib.Path, env_id: str | None, seed: int | None, trust: bool) -> Actor:
    if not path.is_dir():
        policy = Policy.load(path)
        if seed is not None:
            raise ConfigError(f"{path}: is one policy, and --policy-seed chooses among a RUN's; leave it out")
        if env_id is None:
            raise ConfigError(f"{path}: is one policy; say where it acts with --env ID")
        check_spaces(gymnasium_id(env_id), policy.arrays, policy.action_dim, policy.discrete)
        return Actor(policy, str(path), env_id)
    run = Run.open(path)
    if env_id is None:
        env_id = run.plan.environment
        require_trust(env_id, path / "config.json", trust)
    if env_id is None:
        raise ConfigError(f"{path}: was trained without a simulator; name one with --env ID")
    seed = run.plan.seeds[0] if seed is None else seed
    policy = run.policy(seed)
    check_spaces(gymnasium_id(env_id), policy.arrays, policy.action_dim, policy.discrete)
    return Actor(policy, f"{run.plan.algorithm}, seed {seed} of {path}", env_id, seed=seed)


def _behaviour(name: str, env_id: str) -> Act:
    generator = np.random.default_rng(SCRIPTED_SEED)
    known = system_of(env_id)
    if known is not None:
        behaviours = known.behaviours
        if name not in behaviours:
            raise ConfigError(f"{env_id} has no behaviour {name!r}; {nearest(name, list(behaviours))}")
        return lambda observations: behaviours[name](observations, generator)
    if name != "random":
        raise ConfigError(f"{env_id} has no behaviour {name!r}; --policy random is the only one outside native systems")
    low, high = action_bounds(env_id)
    return lambda observations: generator.uniform(low, high, (len(observations), len(low))).astype(np.float32)
