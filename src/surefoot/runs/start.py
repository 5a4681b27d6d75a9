"""How a run is started and resumed: from a plan to a finished run folder, over worker processes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from surefoot.core.actors.memory import GOAL
from surefoot.core.base.counter import NAME
from surefoot.core.base.errors import CheckpointError, ConfigError, DataError, EnvironmentMismatchError
from surefoot.core.base.files import read_json, refuse_null_bytes, write_json
from surefoot.core.engine.agent import Agent, Spec, Update
from surefoot.core.engine.smoothness import check_penalty
from surefoot.data import conventions, left_out, spread
from surefoot.data.dataset import ACTION_NAMES, OBSERVATION_NAMES, Dataset
from surefoot.data.files import sha256_of
from surefoot.data.formats import repairs
from surefoot.data.formats.on_disk import is_store
from surefoot.envs.acting import check_costs, check_goals, goals_given
from surefoot.envs.acting.episodes import UNLIMITED_EPISODE_STEPS
from surefoot.envs.make import file_of, keep_as, only_here
from surefoot.envs.vector import limit_of
from surefoot.evaluation.runs import CONFIG_FORMAT
from surefoot.online.base.agents import OffPolicyAgent
from surefoot.online.base.on_policy_agent import OnPolicyAgent
from surefoot.online.loops.loop import refuse_mixed_precision
from surefoot.runs import starts
from surefoot.runs.device_choice import chosen_device
from surefoot.runs.embedded import source_name
from surefoot.runs.finishing import finished
from surefoot.runs.folders import Claim, claim_begun, claim_named, claim_new, remove_lock_of_the_dead
from surefoot.runs.inputs import dataset_of, inputs_of, training_environment
from surefoot.runs.loggers import LiveMetrics, close, loggers, to_all
from surefoot.runs.machine import check_tf32, cores, resolve_device
from surefoot.runs.plan import Plan
from surefoot.runs.processes.collectors import check_plan
from surefoot.runs.processes.here import here_note, work_here
from surefoot.runs.processes.sharing import check_learners
from surefoot.runs.processes.stopping import going_on_told, resumable
from surefoot.runs.processes.workers import in_groups, work
from surefoot.runs.progress_events import Event, Listener, Listeners, listener_of, say, silent
from surefoot.runs.run import (
    CONFIG,
    Run,
    describe_machine,
    episodes_apart,
    names_in,
    refuse_other_numbers,
    write_columns,
)
from surefoot.runs.success_reward import is_run
from surefoot.runs.summary import RESULT, sum_up
from surefoot.runs.trackers.ids import FILE as IDS_FILE
from surefoot.runs.trackers.options import check_options
from surefoot.runs.trackers.wandb import remove_links
from surefoot.runs.trust import FunctionName, allow, refuse_links, require_trust
from surefoot.runs.warm_start import initialise_from, settled, start_notes
from surefoot.streaming.agent import StreamingAgent


def train(
    plan: Plan,
    folder: str | os.PathLike[str] | Claim | None = None,
    *,
    dataset: Dataset | None = None,
    listener: Listener | None = None,
    built_for: Spec | None = None,
    trust: bool = False,
    logger: str | None = None,
    logger_options: Mapping[str, Any] | None = None,
    listener_name: str | None = None,
) -> Run:
    """Carry out a plan in a new folder: `surefoot.fit`, `learn` and the command line start their runs here.

    A bad plan leaves no folder behind.

    Args:
        plan: what to do.
        folder: where: a path that does not exist or is an empty folder, or one that is claimed already; None: a new
            one under runs/.
        dataset: what the plan names, where it is loaded already.
        listener: called with each event; where it returns False, training of the event's seed ends at its next step.
        built_for: sizes that the environment or dataset must have; None: any.
        trust: import the module of the agent in init=RUN.
        logger: tensorboard, wandb or mlflow, which hears the events too, also where the run is resumed.
        logger_options: of the logger, such as project (docs/training.md#loggers).
        listener_name: module:function of one more listener, also where the run is resumed.

    Raises:
        ConfigError: an option out of range, or a folder that exists.
        DataError: the dataset lacks what the algorithm reads.
        EnvironmentMismatchError: the environment's spaces don't fit the dataset or `built_for`.
        DivergenceError: a loss stopped being finite.
    """
    _allow_names(plan, trust)
    with contextlib.ExitStack() as stack:
        if isinstance(folder, Claim):
            claim = folder
        else:
            claim = stack.enter_context(claim_named(plan.label) if folder is None else claim_new(folder))
        named = []
        if listener_name is not None:
            allow(FunctionName(listener_name))
            named = [listener_of(listener_name)]
        heard, options = listener or silent, check_options(logger, logger_options)
        listen = to_all([heard, *named, *loggers(logger, claim.folder, options=options, notify=heard)])
        stack.enter_context(resumable(claim.folder))
        reported = {"logger": logger, **({"logger_options": options} if options else {})}
        reported |= {} if listener_name is None else {"listener": listener_name}
        run = _begin(plan, claim.folder, dataset, listen, built_for, reported, trust)
        try:
            return carry_out(run, listen, claim)
        except (ConfigError, DataError):  # that only a worker could see
            if claim.discard():
                for name in ("metrics.jsonl", IDS_FILE):
                    (run.folder / name).unlink(missing_ok=True)
            raise


def check(plan: Plan, dataset: Dataset | None, trust: bool = False) -> None:
    """Refuse a plan that `train` would refuse before its first step; nothing is written, and nothing evaluated.

    Args:
        plan: of the run.
        dataset: what the plan names, loaded; None: none is needed.
        trust: import the module of the agent in init=RUN.

    Raises:
        ConfigError, DataError, EnvironmentMismatchError, CheckpointError: as `train`.
    """
    _allow_names(plan, trust)
    inputs = inputs_of(plan, dataset, silent)
    plan, agent = _checked(plan, inputs.spec)
    if plan.init is not None:
        initialise_from(agent, Run.open(plan.init), plan.seeds[0])
    starts.checked(plan, trust)
    if agent.requires.data == "refused" or inputs.dataset is not None:
        agent.notes(inputs.dataset)
    _endless_note(plan, agent)


def _allow_names(plan: Plan, trust: bool) -> None:
    """Let modules be followed that the caller's plan names, and with `trust` those of the run that it starts from."""
    for name in (*plan.imports, plan.environment):  # the caller's
        allow(name)
    if plan.init is not None:
        for name in Run.open(plan.init).plan.imports:
            require_trust(name, plan.init, trust)


def _checked(plan: Plan, spec: Spec) -> tuple[Plan, Agent]:
    """The plan with all options settled, and an agent of it; what `inputs_of` has not refused is refused here."""
    check_tf32(plan.tf32, resolve_device(plan.device))
    plan = settled(plan)
    agent = plan.agent(spec)
    plan = plan.resolved(agent)  # all options, so that none is missing
    if plan.jacobian_penalty > 0:
        check_penalty(agent)
    if agent.needs().run and plan.init is None:
        raise ConfigError(f"{agent.name} starts from a trained run: name its folder with init=RUN")
    _check_learning(plan, agent)
    if plan.init is not None:
        plan = dataclasses.replace(plan, init=str(pathlib.Path(plan.init).resolve()))
    for name in ("starts", "vary"):
        if getattr(plan, name) is not None:
            _check_episodes(plan, agent, name)
    if plan.starts is not None:
        plan = dataclasses.replace(plan, starts=source_name(plan.starts))
    if here_note(plan) and (plan.collectors is not None or plan.learners > 1):
        raise ConfigError(
            f"environment {plan.environment} {only_here(str(plan.environment))}, and collectors and learners are other "
            "processes: put it into a module of its own and name it module:name"
        )
    if plan.collectors is not None:
        check_plan(plan, agent)
    if plan.learners > 1:
        check_learners(plan, agent)
    return plan, agent


def _check_episodes(plan: Plan, agent: Agent, name: str) -> None:
    """Refuse `starts=` or `vary=` where nothing would heed it."""
    text = f"{name}={getattr(plan, name)}"
    if not agent.requires.online:
        words = f"{text}: {agent.name} learns from data alone, and has no episodes of its own"
        raise ConfigError(words, field=name, code="conflict")
    if plan.collectors is not None:
        words = f"{text}: collectors run their episodes as the environment starts them: leave out collectors="
        raise ConfigError(words, field="collectors", code="conflict")
    if plan.curriculum != "uniform" and is_run(plan.reward):
        raise ConfigError(
            f"curriculum={plan.curriculum}: judges by the environment's own rewards, and reward={plan.reward} replaces "
            "them: leave out one of the two",
            field="curriculum",
            code="conflict",
        )


def _begin(
    plan: Plan,
    folder: pathlib.Path,
    dataset: Dataset | None,
    listen: Listener,
    built_for: Spec | None,
    listening: Mapping[str, Any],
    trust: bool,
) -> Run:
    """Check everything that can be checked before the first step, and write what the workers read.

    `listening` is what config.json says of who hears the run, so that it is heard again where it is resumed; `trust`
    lets modules be imported that the run of `starts=` names.
    """
    notes: list[str] = []

    def notify(event: Event) -> None:
        if event["kind"] == "note":
            notes.append(str(event["text"]))
        listen(event)

    inputs = inputs_of(plan, dataset, notify)
    dataset = inputs.dataset
    plan, agent = _checked(plan, inputs.spec)
    if built_for is not None:
        _check_problem(built_for, inputs.spec, plan)
        say(notify, *_range_note(built_for, inputs.spec, plan))
    say(notify, *here_note(plan), *start_notes(agent, plan))
    say(notify, *_endless_note(plan, agent))
    snapshots = starts.checked(plan, trust)
    if snapshots is not None:
        say(notify, *starts.notes(plan, snapshots))
    config: dict[str, Any] = {
        "format": CONFIG_FORMAT,
        "plan": plan.to_json(),
        "spec": inputs.spec.to_json(),
        "dataset": None,
        "random_numbers": NAME,
        **listening,
    }
    if (file := file_of(plan.environment)) is not None:
        config["environment_file"] = {"name": str(file), "sha256": sha256_of(file)}
    say(notify, *_blocks_note(plan, agent))
    if (choice := chosen_device(plan, agent, dataset)) is not None:  # kept, so that a resumed run stays on it
        say(notify, choice.because)
        plan = dataclasses.replace(plan, device=choice.device)
        config |= {"plan": plan.to_json(), "device_choice": choice.to_json()}
    say(notify, *_cores_note(plan))
    if agent.requires.data == "refused":
        say(notify, *agent.notes(dataset))
    if dataset is not None:
        say(notify, *_data_notes(dataset, plan, agent))
        names = {OBSERVATION_NAMES: dataset.observation_names, ACTION_NAMES: dataset.action_names}
        config["dataset"] = {"name": dataset.name, "sha256": dataset.sha256, "transitions": len(dataset)} | {
            key: reported for key, reported in names.items() if reported is not None
        }
    run = Run(folder, plan)
    if dataset is not None:
        write_columns(dataset, run.columns_path)
    if snapshots is not None:
        snapshots.save(folder / starts.FILE)
    write_json(folder / "environment.json", describe_machine())
    write_json(folder / "config.json", {**config, "notes": notes})
    return Run.open(folder)  # the plan as every later reader has it


def _data_notes(dataset: Dataset, plan: Plan, agent: Agent) -> Iterator[str]:
    """What the user should know of the data before the first step."""
    if counts := repairs.applied(dataset.attributes):
        yield f"{dataset.name}: {', '.join(f'{count:,} {what}' for what, count in counts.items())}"
    yield from (*left_out.notes(dataset), *agent.notes(dataset), *conventions.notes(dataset, plan.config))
    if not agent.normalizer.fixed:
        yield from spread.notes(dataset, plan.config)
    alone = not plan.evaluates and not agent.requires.online
    if alone and not len(episodes_apart(dataset, agent.required_columns)[1]):
        only = " to learn from" if len(dataset.episode_lengths) > 1 else ""
        yield f"{dataset.name} is one episode{only}: none is held out, and there are no validation losses"
    for oddity, rows in dataset.warnings.items():
        yield f"{dataset.name}: {rows} rows with {oddity} (accepted; strict=true refuses)"


def _check_problem(built_for: Spec, found: Spec, plan: Plan) -> None:
    """Refuse an agent that was made for another problem: its config alone is taken, and might not suit this one."""
    names = ("observations", "action_dim", "discrete")
    wanted, has = ([spec.described(), spec.action_dim, spec.discrete] for spec in (built_for, found))
    if wanted != has:
        what = " and ".join(f"{name} {a} against {b}" for name, a, b in zip(names, wanted, has, strict=True) if a != b)
        raise EnvironmentMismatchError(
            f"the agent was made for another problem than {plan.environment or plan.dataset}: {what}; make it from its "
            "dataset, or from spec_of(env)"
        )


def _range_note(built_for: Spec, found: Spec, plan: Plan) -> list[str]:
    """A sentence where the agent's Spec states another range of actions than the environment, whose is taken."""
    stated, has = ((spec.action_low, spec.action_high) for spec in (built_for, found))
    if plan.environment is None or built_for.range_assumed or np.allclose(stated, has):
        return []
    return [
        f"warning: the agent's Spec states actions from {list(stated[0])} to {list(stated[1])}, and {plan.environment} "
        f"takes {list(has[0])} to {list(has[1])}: the environment's range is used; env=None trains with the Spec's"
    ]


def _check_learning(plan: Plan, agent: Agent) -> None:
    """Refuse a plan whose steps are over before the first update, and engine options that nothing would heed."""
    if isinstance(agent, OffPolicyAgent):
        c = agent.config
        if c.training_steps(plan.steps // (agent.chunk if agent.acting.acts_in_chunks else 1)) < 1:
            raise ConfigError(
                f"steps is {plan.steps}, algo.initial_steps {c.initial_steps} and algo.updates_per_step "
                f"{c.updates_per_step:g}: nothing would be learned; raise steps, or lower algo.initial_steps"
            )
    if not agent.requires.online:
        order = agent.updates()
        if not order:
            raise ConfigError(f"{agent.name}: updates() gives none, so that nothing would be trained")
        after, name = max(((one.after, one.name) for one in order if isinstance(one, Update)), default=(0, ""))
        if after >= plan.steps:
            raise ConfigError(
                f"steps is {plan.steps:,}, and {agent.name} begins with {name} after {after:,} training steps: raise "
                "steps, or shorten the phases before it in the algorithm's options"
            )
    if plan.keep_best and not plan.evaluates:
        raise ConfigError("keep_best=true chooses by evaluations in a simulator, and there are none: leave it out")
    if plan.mixed_precision:
        refuse_mixed_precision(agent)
    if plan.compiled and isinstance(agent, StreamingAgent):
        raise ConfigError(f"compiled=true is not there for {agent.name}, which steps natively: leave it out")
    if isinstance(agent, OnPolicyAgent) and agent.config.rows * agent.chunk > plan.steps:
        block, chunk = agent.config, agent.chunk
        rows = "environments" if agent.spec.team is None else f"agents of {agent.spec.agents} in each environment"
        raise ConfigError(
            f"steps is {plan.steps:,}, and a block is {block.rows * chunk:,}: algo.horizon {block.length} in each of "
            f"{block.num_envs} {rows}{f', {chunk} steps each' if chunk > 1 else ''}. Raise steps, or lower envs "
            "or algo.horizon"
        )


def _endless_note(plan: Plan, agent: Agent) -> list[str]:
    """Make what is trained in, so that it fails here or not at all; a sentence where it declares no time limit.

    Raises:
        ConfigError: the algorithm reads costs, and the environment gives none.
        EnvironmentMismatchError: its policy is asked for goals, and the environment gives none.
    """
    if plan.environment is None or not (agent.requires.online or plan.evaluates):
        return []
    if agent.requires.online:
        env: Any = training_environment(plan, agent)
        try:
            limit = getattr(env, "max_episode_steps", None)
            if agent.needs().costs:
                check_costs(env, agent.name, str(plan.environment))
        finally:
            env.close()
    else:
        limit = limit_of(plan.environment)
        if agent.requires.policy and (asked := agent.actor.begin(1).get(GOAL)) is not None:
            check_goals(goals_given(plan.environment), asked.shape[1], plan.environment)
    if limit is not None:
        return []
    return [
        f"environment {plan.environment} declares no time limit: where its episodes don't end by themselves, set one, "
        f"as in max_episode_steps=1000 (evaluation needs whole ones, and gives up after {UNLIMITED_EPISODE_STEPS:,} "
        "steps)"
    ]


def _check_file(run: Run) -> None:
    """Refuse a run whose environment's file is not what it began with."""
    began = read_json(run.folder / "config.json", CONFIG).get("environment_file")
    file = file_of(run.plan.environment)
    if began is None or file is None:
        return
    if not file.is_file():
        raise CheckpointError(f"{file}: the file of the run's environment is not there; put it back")
    if began["sha256"] != sha256_of(file):
        raise CheckpointError(f"{file}: not the file that {run.folder} began with (SHA-256 differs)")


def _blocks_note(plan: Plan, agent: Agent) -> list[str]:
    """What on-policy algorithms make of a number of steps that no number of blocks is."""
    if not isinstance(agent, OnPolicyAgent) or agent.chunk > 1:
        return []
    block = agent.config.rows
    taken = -(-plan.steps // block) * block
    given = f"{agent.name} acts in blocks of {block:,} steps: {taken:,} are taken and counted, not {plan.steps:,}"
    return [] if taken == plan.steps else [given]


def _cores_note(plan: Plan) -> list[str]:
    """What learners that wait for each other at every step cost where cores are fewer than they."""
    found = cores()
    if plan.learners <= found or resolve_device(plan.device).type != "cpu":
        return []
    return [
        f"learners={plan.learners} wait for each other at every step and have {found} core{'s' if found > 1 else ''}: "
        f"two on one core take about five times as long as one learner; choose learners={found} or fewer"
    ]


def resume(
    folder: str | os.PathLike[str], listener: Listener | None = None, trust: bool = False, *, env: Any = None
) -> Run:
    """Continue a run that was interrupted; the numbers are those of an uninterrupted one.

    Args:
        folder: of the run.
        listener: called with each event.
        trust: import modules that the run's configuration names, and follow symbolic links in the folder.
        env: the class, function or environment of a run that was given one which only that python had.

    Raises:
        ConfigError: its algorithm or environment is neither surefoot's nor gymnasium's, and not trusted.
        FolderInUseError: it is still being trained.
        CheckpointError: not a run folder, another dataset than it began with, or another machine.
    """
    refuse_null_bytes(pathlib.Path(folder), ConfigError)
    run = Run.open(pathlib.Path(folder).resolve())
    notify = listener or silent
    if env is not None:
        keep_as(env, str(run.plan.environment))
    if not run.complete:
        remove_links(run.folder)
        refuse_links(run.folder, trust)
        demand_names(run, trust)
        with claim_begun(run.folder) as claim, resumable(run.folder):
            if not run.complete:  # nor made so by whoever held it until now
                return go_on(run, notify, claim)
    remove_lock_of_the_dead(run.folder)
    say(notify, f"{run.folder} is complete already")
    return run


def demand_names(run: Run, trust: bool) -> None:
    """Let what a run's configuration names be followed, if the user trusts it.

    Raises:
        ConfigError: he does not say so.
    """
    named = read_json(run.folder / "config.json", CONFIG).get("listener")
    for name in (*names_in(run.plan), None if named is None else FunctionName(named)):
        require_trust(name, run.folder / "config.json", trust)


def go_on(run: Run, notify: Listener, claim: Claim) -> Run:
    """Train the seeds that have no result yet, heard by the logger that the run began with."""
    notify = with_logger(run, notify)
    read_again(run, notify)
    return carry_out(run, notify, claim)


def with_logger(run: Run, notify: Listener) -> Listener:
    """A listener, the logger and the named listener that a run began with; `demand_names` has asked for trust.

    Raises:
        MissingExtraError: the logger is not installed.
    """
    config = read_json(run.folder / "config.json", CONFIG)
    named = [] if config.get("listener") is None else [listener_of(str(config["listener"]))]
    options = config.get("logger_options")
    return to_all([notify, *named, *loggers(config.get("logger"), run.folder, True, options, notify)])


def read_again(run: Run, notify: Listener) -> None:
    """Write what the workers read of a run's dataset, where it is not there any more; a store is looked at again.

    Raises:
        ConfigError, DataError: the dataset can't be loaded.
        CheckpointError: it is another one than the run began with.
    """
    if run.plan.dataset is not None and (is_store(pathlib.Path(run.plan.dataset)) or not run.columns_path.is_file()):
        began = read_json(run.folder / "config.json", CONFIG).get("dataset") or {}
        dataset = dataset_of(run.plan, None, notify)
        if began.get("sha256") not in (None, dataset.sha256):  # runs of LeRobot folders had none once
            raise CheckpointError(f"{run.plan.dataset}: not the file that {run.folder} began with (SHA-256 differs)")
        if len(dataset) != began.get("transitions"):
            differ = f"{began.get('transitions')} transitions, not the {len(dataset)} of view={run.plan.view}"
            raise CheckpointError(f"{run.folder}: began with {differ}, of {run.plan.dataset}; train it again")
        write_columns(dataset, run.columns_path)


def carry_out(run: Run, notify: Listener, claim: Claim) -> Run:
    """Train all seeds that have no whole result yet, then sum up."""
    waiting = [seed for seed in run.plan.seeds if not finished(run, seed)]
    if waiting:
        refuse_other_numbers(run)
    heard = to_all([LiveMetrics(run.folder), notify])
    device = resolve_device(run.plan.device)
    try:
        return _carry_out(run, heard, waiting, device, claim)
    finally:
        close(heard)


def _carry_out(run: Run, heard: Listeners, waiting: list[int], device: torch.device, claim: Claim) -> Run:
    notify: Listener = heard
    started = {"kind": "start", "folder": str(run.folder), "plan": run.plan.to_json(), "device": device.type}
    if notify(started) is False:
        notify = _all_false(notify)
    if run.plan.learners > 1:
        notify = _unstoppable(notify)
    _check_file(run)
    with going_on_told(run.folder):
        if here_note(run.plan):
            work_here(run, in_groups(waiting, device), notify)
        else:
            work(run, in_groups(waiting, device), notify, claim.descriptor)
        if heard.stopped_by is not None and run.plan.learners == 1:
            run = _stopped(run, heard.stopped_by, notify)
        notify({"kind": "summary", "folder": str(run.folder), "summary": sum_up(run)})
    return run


def _all_false(notify: Listener) -> Listener:
    """The same where a listener ended all seeds as they began."""

    def heard(event: Event) -> bool:
        notify(event)
        return False

    return heard


def _unstoppable(notify: Listener) -> Listener:
    """The same where processes share each batch, so that none can end before the others: it returns nothing."""
    reported = False

    def heard(event: Event) -> None:
        nonlocal reported
        if notify(event) is False and not reported:
            reported = True
            say(notify, "a listener returned False, and learners= can't end early: interrupt the run instead (Ctrl-C)")

    return heard


def _stopped(run: Run, who: str, notify: Listener) -> Run:
    """The run with as many steps as were taken, where a listener has ended it: complete, and to be extended as any."""
    taken = {seed: int(read_json(run.seed_folder(seed) / "result.json", RESULT)["steps"]) for seed in run.plan.seeds}
    if min(taken.values()) >= run.plan.steps:
        return run  # it spoke after the last step
    steps = min(run.plan.steps, max(1, *taken.values()))
    config = read_json(run.folder / "config.json", CONFIG)
    plan = dataclasses.replace(run.plan, steps=steps, evaluate_every=run.plan.interval)
    reported = {"by": who, "steps": {str(seed): count for seed, count in taken.items()}, "planned": run.plan.steps}
    history = [*config.get("stopped", []), {**reported, "date": describe_machine()["date"]}]
    write_json(run.folder / "config.json", {**config, "plan": plan.to_json(), "stopped": history})
    reached = " and ".join(f"{count:,}" for count in sorted(set(taken.values())))
    say(
        notify,
        f"stopped by {who} at step {reached} of {run.plan.steps:,}; to continue: "
        f"{run.resume_command} steps={run.plan.steps}",
    )
    return Run.open(run.folder)
