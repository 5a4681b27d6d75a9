"""What a run is about: the dataset, the environment, and the sizes and bounds that both agree on."""

from __future__ import annotations

import contextlib
import dataclasses
import re

import numpy as np

from surefoot.core.base.errors import ConfigError, DataError, SurefootError
from surefoot.core.engine.agent import Agent, Spec
from surefoot.data.catalogue import has_unit_actions
from surefoot.data.checks import OUTSIDE, refuse_oddities
from surefoot.data.dataset import NO_TASK, REWARDS, Array, Dataset
from surefoot.data.rewards import rewarded
from surefoot.envs.acting import spec_of
from surefoot.envs.agents import RowView
from surefoot.envs.interface import VectorEnvironment
from surefoot.envs.make import is_team, without_objective
from surefoot.envs.mujoco.step_margins import step_margins, velocity_task
from surefoot.envs.mujoco.tasks import VELOCITY_LIMITS
from surefoot.envs.names import OBJECTIVE, device_scheme, gymnasium_id
from surefoot.envs.objectives.wrapper import ObjectiveEnv
from surefoot.envs.snapshots import Snapshots
from surefoot.envs.suites.names import is_benchmark, parse
from surefoot.envs.training import make_training
from surefoot.envs.vector import action_bounds, check_spaces
from surefoot.runs.algorithms import ALGORITHMS, check_parts
from surefoot.runs.embedded import load
from surefoot.runs.machine import at_once, cores
from surefoot.runs.objective_data import for_environment
from surefoot.runs.plan import Plan, agent_class
from surefoot.runs.progress_events import Listener, say
from surefoot.runs.recorded import with_rewards
from surefoot.runs.run import Run
from surefoot.runs.run_reward import reward_of_run
from surefoot.runs.starts import starting
from surefoot.runs.success_reward import is_run, with_reward
from surefoot.runs.trust import function_of, module_of, require_trust
from surefoot.safe.constraint.signal import MARGINS_FROM

CONSTANT = 1e-3
"""Half the width of the range of an action that is the same in all the data, as a part of it, or of 1 below that."""
MOST_TOLD = 8
"""Actions whose range a note tells."""
NARROW = 0.05
"""Part of their range within which nearly all actions lie where a run says so."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a run reads, checked."""

    spec: Spec
    dataset: Dataset | None


def inputs_of(plan: Plan, dataset: Dataset | None, notify: Listener) -> Inputs:
    """Load and check what a plan names.

    Args:
        plan: of the run.
        dataset: what the plan names, where it is loaded already.
        notify: called with a sentence for each oddity that is accepted.

    Raises:
        ConfigError: the algorithm and the plan's dataset, environment or `gap` don't go together; a range of actions
            beside an environment, which has its own.
        EnvironmentMismatchError: the environment's spaces don't fit the dataset or the algorithm.
        DataError: actions outside the bounds and `plan.strict`.
    """
    kind = agent_class(plan.algorithm)
    check_parts(kind, plan.config, plan.dataset, plan.environment, plan.gap)
    if plan.environment is not None and plan.action_low is not None:
        raise ConfigError(
            f"action_low= and action_high= state the range where no simulator does, and {plan.environment} has its "
            "own: leave them out, or add env=none"
        )
    if kind.requires.gap and plan.gap is None:
        say(notify, f"{kind.name} is meant for a simulator that is wrong, and without gap= it is not")
    if dataset is not None or plan.dataset is not None:
        dataset = dataset_of(plan, dataset, notify)
        if dataset.choices is None:
            spec = Spec.of(dataset, *resolve_bounds(plan, dataset, notify))
        else:
            spec = _of_choices(plan, dataset)
        say(notify, *elsewhere(dataset.env_id, plan.environment, dataset.name))
        if kind.requires.online and is_team(plan.environment):
            raise ConfigError(
                f"{plan.environment} is acted in by several agents, which learn from their own steps alone: leave out "
                "dataset="
            )
    else:
        if plan.reward is not None and not is_run(plan.reward):
            raise ConfigError(
                f"reward={plan.reward}: a function rewards a dataset's steps, and there is none; what one acts in is "
                "rewarded by the folder of a run of algo=classifier, and there is no such folder"
            )
        env = make_training(str(plan.environment), 1, gap=plan.gap, view=row_view(kind))
        spec = spec_of(env)
        env.close()
        check_team(kind, spec, plan.environment)
    say(notify, *locked_notes(spec))
    if plan.environment is not None and device_scheme(plan.environment) is not None:
        from surefoot.envs.adapters.named import notes_on_device

        say(notify, *notes_on_device(plan.environment))
    return Inputs(spec if plan.environment is None else spec.posed_by(plan.environment), dataset)


def _of_choices(plan: Plan, dataset: Dataset) -> Spec:
    """The problem of data whose actions are discrete."""
    if plan.action_low is not None:
        raise ConfigError(f"actions of {dataset.name} are discrete, without a range: leave out action_low, action_high")
    if plan.environment is not None:
        check_spaces(
            plan.environment, dataset.arrays, dataset.action_dim, True, not agent_class(plan.algorithm).requires.online
        )
    return Spec.of(dataset)


def elsewhere(started: str | None, here: str | None, what: str) -> list[str]:
    """A warning where an environment is not the task that something comes from, whatever version or namespace."""
    if started is None or here is None or task(started) == task(here):
        return []
    return [f"warning: {what} comes from {started}, and this run is in {here}; only their sizes are known to agree"]


def locked_notes(spec: Spec) -> list[str]:
    """A sentence where some actions have one value only, as those of a locked joint."""
    if not spec.locked:
        return []
    held = ", ".join(f"action {index} is always {spec.action_low[index]:g}" for index in spec.locked)
    return [f"{held}: its lowest and highest value are equal, so nothing is learned of it"]


def task(env_id: str) -> str:
    """The name of an environment without module, namespace and version; of a benchmark, with the task that is meant."""
    env_id = without_objective(env_id)
    if is_benchmark(env_id):
        with contextlib.suppress(ConfigError):  # of a file: where a run acts is checked as it is made
            env_id = parse(env_id).gym_id
    name = gymnasium_id(env_id).rpartition(":")[2].rpartition("/")[2]
    return re.sub(r"-v\d+$", "", name)


def dataset_of(plan: Plan, dataset: Dataset | None, notify: Listener) -> Dataset:
    """The plan's dataset, loaded unless it is given, with rewards of the environment's task and margins.

    Rewards are those of the plan's function, or of a benchmark's single task, where the data have states and the
    environment says which task; margins are added where the algorithm reads them and steps give them.

    Raises:
        ConfigError, DataError: as `surefoot.load`; oddities of data that were given, with `plan.strict`; the algorithm
            learns from rewards, which the data do not have.
    """
    if dataset is None:
        dataset = load(str(plan.dataset), **plan.reading)
    environment = None if plan.environment is None else without_objective(plan.environment)
    if agent_class(plan.algorithm).requires.margins:  # made of recorded rewards, so before others take their place
        dataset, notes = with_margins(dataset, environment)
        say(notify, *notes)
    dataset, notes = with_rewards(dataset, environment)
    if plan.reward is not None:  # in place of the task's too, whose terminations stay
        require_trust(plan.functions["reward"], "the option reward")
        given = reward_of_run(plan.reward) if is_run(plan.reward) else function_of(plan.reward, "reward")
        dataset, notes = rewarded(dataset, given, plan.reward), []
    say(notify, *notes)
    if plan.environment is not None and plan.environment.startswith(OBJECTIVE):
        dataset, notes = for_environment(dataset, plan.environment)
        say(notify, *notes)
    if plan.strict:  # of data that were loaded already, or by rewards of the function's
        refuse_oddities(dataset, dataset.name)
    kind = agent_class(plan.algorithm)
    learned_from = kind.requires.rewards and {"rewards", "returns_to_go"} & set(kind.required_columns)
    if not dataset.has_rewards and learned_from:  # only cloning needs none
        task = "name a task that gives some, as env=ogbench/scene-play-singletask-task1-v0, or "
        raise ConfigError(
            f"{dataset.name} has no rewards, which {kind.name} learns from; "
            f"{task if dataset.attributes.get(REWARDS) == NO_TASK else ''}give them by a function of yours, "
            "reward=module:function (docs/own_data.md), or clone what was done: algo=bc"
        )
    if not dataset.has_rewards and not kind.requires.rewards and plan.environment is not None and plan.evaluates:
        raise ConfigError(
            f"{dataset.name} has no rewards, so that there is no task to evaluate {kind.name} with: give env=none, and "
            "write policies for rewards of yours by surefoot task RUN, or give reward=module:function"
        )
    return dataset


def resolve_bounds(plan: Plan, dataset: Dataset, notify: Listener) -> tuple[Array, Array]:
    """Lowest and highest action (A,): the environment's, or without one what states it.

    Without an environment that is, the first of these that there is: the plan's `action_low` and `action_high`; the
    range of the run that it starts from; the range that the data state (`Dataset.action_range`); that of the
    environment that they were recorded in, widened to the data; the data's least and greatest actions, with a note that
    nothing stated the range.

    A model of the world alone takes those of the environment that the data come from, where it is there, so that what
    starts from it, with a simulator, means the same by its actions.

    Raises:
        ConfigError: the plan's range has another size than the actions, or its ends are in the wrong order.
        CheckpointError: `init` is no run folder.
        EnvironmentMismatchError: the environment's spaces don't fit the dataset.
        DataError: actions outside the bounds and `plan.strict`, or a damaged statement of the data's.
    """
    if plan.environment is not None:
        scales = not agent_class(plan.algorithm).requires.online
        check_spaces(plan.environment, dataset.arrays, dataset.action_dim, scales=scales)
        low, high = action_bounds(plan.environment)
    elif plan.action_low is not None and plan.action_high is not None:
        low, high = _stated(plan.action_low, plan.action_high, dataset)
        say(notify, *_narrow(dataset, low, high))
    elif plan.init is not None and (spec := Run.open(plan.init).spec).action_dim == dataset.action_dim:
        low, high = np.array(spec.action_low), np.array(spec.action_high)
    elif dataset.action_range is not None:
        low, high = dataset.action_range
        say(notify, *_narrow(dataset, low, high))
    else:
        low, high = _recorded_range(plan, dataset, notify)
        say(notify, *_narrow(dataset, low, high))
    slack = 1e-6 * (high - low)
    outside = ((dataset.actions < low - slack) | (dataset.actions > high + slack)).any(1)
    if outside.any() and OUTSIDE not in dataset.warnings:
        text = f"{dataset.name}: {int(outside.sum())} rows with actions outside {low.tolist()} to {high.tolist()}"
        if plan.strict:
            raise DataError(f"{text}; first row {int(outside.argmax())}. Without strict=true they are clipped")
        say(notify, f"{text} (clipped when training)")
    return np.asarray(low, np.float64), np.asarray(high, np.float64)


def _stated(low: tuple[float, ...], high: tuple[float, ...], dataset: Dataset) -> tuple[Array, Array]:
    """(A,) the plan's range."""
    size, found = dataset.action_dim, []
    for name, bound in (("action_low", low), ("action_high", high)):
        if len(bound) not in (1, size):
            raise ConfigError(
                f"{name} has {len(bound)} numbers, and actions of {dataset.name} have {size}: give one for all, or one "
                "for each"
            )
        found.append(np.broadcast_to(np.asarray(bound, np.float64), (size,)).copy())
    if not (found[0] < found[1]).all():
        i = int((found[0] >= found[1]).argmax())
        raise ConfigError(
            f"action_low is {found[0][i]:g} and action_high {found[1][i]:g} for action {i}: the low end must be below "
            "the high one"
        )
    return found[0], found[1]


def _recorded_range(plan: Plan, dataset: Dataset, notify: Listener) -> tuple[Array, Array]:
    """(A,) what is known where nothing states the range: of the recorded environment, or the data alone."""
    least, most = dataset.actions.min(0).astype(np.float64), dataset.actions.max(0).astype(np.float64)
    if dataset.env_id is not None:
        found: tuple[Array, Array] | None = None
        if has_unit_actions(dataset.env_id):
            found = -np.ones_like(least), np.ones_like(most)
        if module_of(dataset.env_id) is None and (found is None or not agent_class(plan.algorithm).requires.policy):
            with contextlib.suppress(SurefootError):
                check_spaces(dataset.env_id, dataset.arrays, dataset.action_dim)
                found = action_bounds(dataset.env_id)
                if not agent_class(plan.algorithm).requires.policy:
                    return found
        if found is not None:
            return np.minimum(found[0], least), np.maximum(found[1], most)
    constant = least == most
    spare = np.where(constant, CONSTANT * np.maximum(1.0, np.abs(least)), 0.0)
    low, high = least - spare, most + spare
    names = dataset.action_names
    reported = [
        f"{names[i] if names else i} {low[i]:.4g} to {high[i]:.4g}{', constant' if constant[i] else ''}"
        for i in range(min(len(low), MOST_TOLD))
    ]
    more = f" and {len(low) - MOST_TOLD} more" if len(low) > MOST_TOLD else ""
    say(
        notify,
        f"{dataset.name}: nothing states the range of actions, so a policy commands what the data hold and no more: "
        f"action {', '.join(reported)}{more}; state the actuators' with action_low= and action_high=",
    )
    return low, high


def _narrow(dataset: Dataset, low: Array, high: Array) -> list[str]:
    """A sentence where the actions use so little of their range that noise on it, as TD3+BC's, drowns them."""
    least, most = np.quantile(dataset.actions, (0.005, 0.995), axis=0)
    few = np.flatnonzero((most > least) & (most - least < NARROW * (high - low)))
    if not len(few):
        return []
    names, i = dataset.action_names, few[0]
    which = f"{names[i] if names else i}{f' and {len(few) - 1} more' if len(few) > 1 else ''}"
    return [
        f"{dataset.name}: 99 % of action {which} lie within {least[i]:.3g} to {most[i]:.3g}, and without an "
        f"environment the range is {low[i]:.3g} to {high[i]:.3g}, of which noise on actions and deviations are parts: "
        "store actions in units of the actuator's limits, without outliers"
    ]


def training_environment(
    plan: Plan, agent: Agent, seeds: int = 1, snapshots: Snapshots | None = None
) -> VectorEnvironment:
    """What copies of an agent act in, one for each of `seeds`, with the plan's gap, and starts from snapshots if any.

    Agents whose config has no `num_envs` learn from one environment each.

    Raises:
        ConfigError: the environment has no such gap.
        EnvironmentMismatchError: the environment fails when it is made.
    """
    threads = max(1, cores() // at_once(len(plan.seeds), cores()))
    rows = getattr(agent.config, "num_envs", 1)
    count, view = rows // agent.spec.agents * seeds, row_view(type(agent))
    env = make_training(str(plan.environment), count, gap=plan.gap, threads=threads, view=view)
    return with_reward(starting(shaped(env, plan), plan, snapshots, rows), plan)


def shaped(env: VectorEnvironment, plan: Plan) -> VectorEnvironment:
    """An environment to learn in, with the shaping that a plan asks for, by its algorithm's discount.

    Raises:
        ConfigError: the algorithm has no discount below 1.
    """
    if isinstance(env, ObjectiveEnv) and plan.shaping != "none":
        discount = plan.config.get("discount")
        if discount is None or not 0 <= discount < 1:
            raise ConfigError(
                f"shaping={plan.shaping}: {plan.algorithm} has no discount in [0, 1), by which states of the objective "
                f"have values; its discount is {discount}",
                field="shaping",
                code="conflict",
            )
        env.shape(plan.shaping, float(discount))
    return env


def row_view(kind: type[Agent]) -> RowView:
    """What an algorithm's rows show where several agents act in an environment."""
    return RowView(state=kind.teams.reads_state, team_ends=kind.teams.ends_together)


def check_team(kind: type[Agent], spec: Spec, environment: str | None) -> None:
    """Refuse an algorithm that can't train teams, where several agents act in the environment.

    Raises:
        ConfigError: it can't.
    """
    if spec.team is None or kind.teams.trains:
        return
    raise ConfigError(
        f"{spec.agents} agents act in {environment}, and {kind.name} trains one: take an algorithm that trains teams, "
        f"{', '.join(name for name, other in ALGORITHMS.items() if other.teams.trains)} (docs/agents.md)"
    )


def with_margins(dataset: Dataset, environment: str | None) -> tuple[Dataset, list[str]]:
    """The dataset with `extras["margins"]` where its steps give them exactly, and notes for the user.

    Computed for the velocity-limited MuJoCo tasks, by the environment that the run names or that the data name. They
    are taken only where they have the sign of every stored cost: otherwise the costs are of another constraint. Rewards
    that a function gave, or none, say nothing of a speed.
    """
    task = velocity_task(environment) or velocity_task(dataset.env_id)
    if "margins" in dataset.extras or task is None or REWARDS in dataset.attributes:
        return dataset, []
    margins = step_margins(task, dataset.rewards, dataset.actions, dataset.terminations)
    limit = VELOCITY_LIMITS[task]
    if dataset.costs is None:
        if "Velocity" not in str(environment):  # no speed limit is known to be meant
            return dataset, []
        differing = 0
    else:
        differing = int(((margins < 0) != (dataset.costs > 0)).sum())
    if differing:
        return dataset, [
            f"{dataset.name}: the margin of {task}'s speed limit of {limit} m/s, computed from rewards and actions, "
            f"contradicts {differing} of {len(dataset)} costs, so it is not used"
        ]
    source = f"computed from rewards and actions by {task}'s speed limit of {limit} m/s"
    return dataset.replace(
        extras={**dataset.extras, "margins": margins.astype(np.float32)},
        attributes={**dataset.attributes, MARGINS_FROM: source},
    ), []
