"""Whole episodes of a planner: in an exact world, or in the model of a run."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from surefoot.core.actors.memory import Memory
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import in_words
from surefoot.data import normalized_score, reference_scores
from surefoot.envs.interface import Array
from surefoot.envs.known_systems import system_of
from surefoot.envs.names import gymnasium_id
from surefoot.envs.parameters import parameter_table
from surefoot.envs.vector import describe
from surefoot.evaluation import certificate, cost_interval, evaluate, hierarchical_interval
from surefoot.play.actors import Actor
from surefoot.runs.run import Run, load_agent
from surefoot.runs.trust import require_trust
from surefoot.world_models.dynamics import Dynamics
from surefoot.world_models.futures import Objective, shares
from surefoot.world_models.known.exact import NativeDynamics
from surefoot.world_models.known.mujoco import HIDDEN, MujocoDynamics
from surefoot.world_models.planners import Planner, PlannerPolicy
from surefoot.world_models.risk import Mean


@dataclasses.dataclass(frozen=True)
class World:
    """Where plans are made, and where they are carried out."""

    dynamics: Dynamics
    env_id: str
    label: str
    """For people: `native/pendulum itself`, `dynamics, seed 0 of RUN`."""
    states_of: Callable[[Tensor], Tensor] | None = None
    """(B, O) observations -> (B, S) states, of a run's model as its algorithm normalises them; None: the world says."""
    seed: int | None = None
    """Of a run's models."""
    bounds: tuple[Tensor, Tensor] | None = None
    """(A,) each, what -1 and 1 stand for in a run's model, in the environment's units; None: the environment's own."""


def world_for(
    name: str,
    env_id: str | None,
    seed: int | None = None,
    trust: bool = False,
    threads: int | None = None,
    constants: Mapping[str, Array] | None = None,
    gap: str | None = None,
) -> World:
    """The world of an environment's id or of a run folder.

    Args:
        name: native/<system>, or a folder.
        env_id: where a run's plans are carried out; None: the run's environment, or the one that its data are of.
        seed: of the run's models; None: the first.
        trust: import modules that the run names.
        threads: of plans in native systems; None: torch's number.
        constants: of a native system, each (M,): it is M worlds then, an ensemble; None: as it is.
        gap: preset of altered dynamics of a native system, in all its worlds.

    Raises:
        ConfigError: no exact world of this environment, constants of none, a run without a model, or no environment
            known.
        CheckpointError: the run is damaged.
    """
    known = None if pathlib.Path(name).is_dir() else system_of(name)
    if (constants is not None or gap is not None) and known is None:
        raise ConfigError(f"{name}: has no constants that worlds could differ in; native systems and yours have")
    if pathlib.Path(name).is_dir():
        return _learned(pathlib.Path(name), env_id, seed, trust)
    if env_id not in (None, name):
        raise ConfigError(
            f"--env is {env_id!r}, and the exact world is {name!r}: leave --env out, or name a RUN's folder"
        )
    if seed is not None:
        raise ConfigError("--policy-seed is of a RUN's models; an exact world has none")
    if known is not None:
        altered = "" if gap is None else f" with {gap}"
        count = 1 if constants is None else len(next(iter(constants.values())))
        table = torch.from_numpy(parameter_table(known, count, gap, constants))
        label = f"{name} itself{altered}" if constants is None else f"{count} worlds of {name}{altered}"
        return World(NativeDynamics(known, table, threads=threads), name, label)
    if name.endswith("-v5"):
        return World(MujocoDynamics(name, threads=threads), name, f"{name} itself")
    raise ConfigError(
        f"{name!r} is neither a run folder nor an exact world: these are native systems, which `surefoot envs list` "
        f"shows, and {', '.join(HIDDEN)} (v5) of MuJoCo"
    )


def _learned(path: pathlib.Path, env_id: str | None, seed: int | None, trust: bool) -> World:
    run = Run.open(path)
    if env_id is None:
        env_id = run.plan.environment or run.spec.environment
        require_trust(env_id, path / "config.json", trust)
    if env_id is None:
        raise ConfigError(
            f"{path}: neither the run nor its data say of which environment they are; name it with --env ID"
        )
    if seed is not None and seed not in run.plan.seeds:
        raise ConfigError(f"{path}: has no seed {seed}; it has {list(run.plan.seeds)}")
    agent = load_agent(run, seed, trust)
    model = getattr(agent, "model", None)
    if model is None or not all(hasattr(model, part) for part in ("step", "state_dim", "members")):
        raise ConfigError(
            f"{path}: its algorithm, {run.plan.algorithm}, learns no model of the world; train one with algo=dynamics"
        )
    if model.state_dim != run.spec.observation_dim:
        raise ConfigError(
            f"{path}: the model of {run.plan.algorithm} is of states of its own, not of observations, and its policy "
            "acts by it already: run that with surefoot rollout or evaluate"
        )
    chosen = run.plan.seeds[0] if seed is None else seed
    label = f"model of {run.plan.algorithm}, seed {chosen} of {path}"
    return World(model, env_id, label, agent.normalizer, chosen, (agent.action_low, agent.action_high))


class Timed(PlannerPolicy):
    """A planner's policy that tells how long it planned, and after each plan how far it is."""

    seconds = 0.0
    notify: Callable[[str], None] | None = None
    done, wanted = 0, 0
    """Episodes."""

    def finished(self, done: int, wanted: int) -> None:
        """So many episodes are."""
        self.done, self.wanted = done, wanted

    def act(self, observations: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """As `PlannerPolicy.act`."""
        started = time.perf_counter()
        found = super().act(observations, memory)
        self.seconds += time.perf_counter() - started
        if self.notify is not None:
            rate = self.plans / max(self.seconds, 1e-9)
            self.notify(
                f"{self.plans:,} plans, {rate:,.3g} a second; {self.done:,} of {self.wanted:,} episodes finished"
            )
        return found


def planning_policy(world: World, planner: Planner, objective: Objective) -> Timed:
    """The planner as a policy.

    Raises:
        ConfigError: a model whose sizes are not the environment's, or a limit on costs in a world without any.
    """
    there, dynamics = describe(world.env_id), world.dynamics
    seen = getattr(dynamics, "observation_dim", dynamics.state_dim)
    if (seen, dynamics.action_dim) != (there.observation_dim, there.action_dim):
        raise ConfigError(
            f"{world.label} has observations of {seen} numbers and {dynamics.action_dim} actions, and {world.env_id} "
            f"{in_words(there.observations)} and {there.action_dim}: name the environment that its data are of "
            "with --env"
        )
    own = torch.from_numpy(there.action_low), torch.from_numpy(there.action_high)
    low, high = own if world.bounds is None else world.bounds  # a model's are those that it was learned with
    return Timed(planner, dynamics, low, high, objective, world.states_of)


def planning_actor(
    world: World, planner: Planner, objective: Objective, episodes: int = 0, notify: Callable[[str], None] | None = None
) -> Actor:
    """The planner as one whose `episodes` are certified; `notify` and errors as of `plan_episodes`."""
    policy = planning_policy(world, planner, objective)
    plans = f"{described(planner)}, for {objective_in_words(objective, world.dynamics)}"
    policy.notify, policy.wanted = notify, episodes
    return Actor(policy, f"{plans}, in {world.label}", world.env_id, planner.name, plans, world.seed)


def plan_episodes(
    world: World,
    planner: Planner,
    objective: Objective,
    episodes: int = 10,
    num_envs: int = 10,
    seed: int = 2,
    notify: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Whole episodes of a planner, and what they came to as JSON values, with intervals.

    `notify` is called after each plan with a sentence on how far it is.

    Raises:
        ConfigError: a model whose sizes are not the environment's, or what `evaluate` raises.
    """
    policy = planning_policy(world, planner, objective)
    policy.notify, policy.wanted = notify, episodes
    found = evaluate([policy], world.env_id, episodes, seed, min(num_envs, episodes), progress=policy.finished)[0]
    returns = hierarchical_interval([found.returns]).to_json()
    reference = reference_scores(gymnasium_id(world.env_id))
    broken = None if found.violations is None else int((found.violations > 0).sum())
    return {
        "world": world.label,
        "environment": world.env_id,
        "planner": described(planner),
        "objective": objective_in_words(objective, world.dynamics),
        "episodes": episodes,
        "length_mean": float(found.lengths.mean()),
        "returns": returns,
        "normalized": None if reference is None else float(normalized_score(returns["mean"], reference)),
        "cost": None if found.costs is None else cost_interval([found.costs]).to_json(),
        "violations": None if broken is None else certificate(broken, episodes).to_json(),
        "plans": policy.plans,
        "planning": policy.seconds,
        "plans_per_second": policy.plans / policy.seconds,
        "seed": seed,
    }


def described(planner: Planner) -> str:
    """A planner with its settings in one line."""
    settings = dataclasses.asdict(planner)  # type: ignore[call-overload]
    return f"{type(planner).__name__}: " + ", ".join(f"{name} {value}" for name, value in settings.items())


def objective_in_words(objective: Objective, dynamics: Dynamics) -> str:
    """An objective in one line, and how its futures are shared among a world's members where that is uneven."""
    risk, (members, each, more) = objective.risk, shares(dynamics, objective)
    words = [str(risk) if not isinstance(risk, Mean) else "mean", f"of {objective.futures} futures"]
    if objective.futures > 1:
        uneven = f"; {more} of {members} members have {each + 1}, the others {each}" if more else ""
        words += [f"({objective.spread} spread, {objective.propagation}{uneven})"]
    if objective.cost_limit is not None:
        words += [f"within a cost of {objective.cost_limit:g}"]
    if objective.discount < 1:
        words += [f"discounted by {objective.discount:g}"]
    return " ".join(words)
