"""How a run is started and resumed: from a plan to a finished run folder, over worker processes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from typing import Any

from surefoot.core.base.errors import CheckpointError, ConfigError, DataError, EnvironmentMismatchError
from surefoot.core.base.files import read_json, refuse_null_bytes, write_json
from surefoot.core.engine.agent import Agent, Spec, Update
from surefoot.core.engine.smoothness import check_penalty
from surefoot.data import conventions
from surefoot.data.dataset import ACTION_NAMES, OBSERVATION_NAMES, Dataset
from surefoot.evaluation.runs import CONFIG_FORMAT
from surefoot.online.base.agents import OffPolicyAgent
from surefoot.online.base.on_policy_agent import OnPolicyAgent
from surefoot.online.loops.loop import refuse_mixed_precision
from surefoot.runs.finishing import finished
from surefoot.runs.folders import Claim, claim_begun, claim_named, claim_new, remove_lock_of_the_dead
from surefoot.runs.inputs import dataset_of, inputs_of, training_environment
from surefoot.runs.loggers import LiveMetrics, loggers, to_all
from surefoot.runs.machine import resolve_device
from surefoot.runs.plan import Plan
from surefoot.runs.processes.collectors import check_plan
from surefoot.runs.processes.sharing import check_learners
from surefoot.runs.processes.stopping import going_on_told, resumable
from surefoot.runs.processes.workers import in_groups, work
from surefoot.runs.progress_events import Event, Listener, say, silent
from surefoot.runs.run import CONFIG, Run, describe_machine, names_in, write_columns
from surefoot.runs.summary import sum_up
from surefoot.runs.trust import allow, demand, refuse_links
from surefoot.runs.warm_start import settled, start_notes
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
) -> Run:
    """Carry out a plan in a new folder: `surefoot.fit`, `learn` and the command line start their runs here.

    A bad plan leaves no folder behind.

    Args:
        plan: what to do.
        folder: where: a path that does not exist or is an empty folder, or one that is claimed already; None: a new
            one under runs/.
        dataset: what the plan names, where it is loaded already.
        listener: called with each event.
        built_for: sizes that the environment or dataset must have; None: any.
        trust: import the module of the agent in init=RUN.
        logger: tensorboard or wandb, which hears the events too, also where the run is resumed.

    Raises:
        ConfigError: an option out of range, or a folder that exists.
        DataError: the dataset lacks what the algorithm reads.
        EnvironmentMismatchError: the environment's spaces don't fit the dataset or `built_for`.
        DivergenceError: a loss stopped being finite.
    """
    for name in (*plan.imports, plan.environment):  # the caller's
        allow(name)
    if plan.init is not None:
        for name in Run.open(plan.init).plan.imports:
            demand(name, plan.init, trust)
    with contextlib.ExitStack() as stack:
        if isinstance(folder, Claim):
            claim = folder
        else:
            claim = stack.enter_context(claim_named(plan.label) if folder is None else claim_new(folder))
        listen = to_all([listener or silent, *loggers(logger, claim.folder)])
        stack.enter_context(resumable(claim.folder))
        run = _begin(plan, claim.folder, dataset, listen, built_for, logger)
        try:
            return carry_out(run, listen, claim)
        except (ConfigError, DataError):  # that only a worker could see
            if claim.take_back():
                (run.folder / "metrics.jsonl").unlink(missing_ok=True)
            raise


def _begin(
    plan: Plan,
    folder: pathlib.Path,
    dataset: Dataset | None,
    listen: Listener,
    built_for: Spec | None,
    logger: str | None = None,
) -> Run:
    """Check everything that can be checked before the first step, and write what the workers read."""
    notes: list[str] = []

    def notify(event: Event) -> None:
        if event["kind"] == "note":
            notes.append(str(event["text"]))
        listen(event)

    inputs = inputs_of(plan, dataset, notify)
    dataset = inputs.dataset
    resolve_device(plan.device)
    plan = settled(plan)
    agent = plan.agent(inputs.spec)
    plan = dataclasses.replace(plan, config=dataclasses.asdict(agent.config))  # all options, so that none is missing
    if built_for is not None:
        _check_problem(built_for, inputs.spec, plan)
    if plan.jacobian_penalty > 0:
        check_penalty(agent)
    if agent.needs_init and plan.init is None:
        raise ConfigError(f"{agent.name} starts from a trained run: name its folder with init=RUN")
    _check_learning(plan, agent)
    if plan.init is not None:
        plan = dataclasses.replace(plan, init=str(pathlib.Path(plan.init).resolve()))
    say(notify, *start_notes(agent, plan))
    if plan.collectors is not None:
        check_plan(plan, agent)
    if plan.learners > 1:
        check_learners(plan, agent)
    if agent.acts:
        training_environment(plan, agent).close()
    config: dict[str, Any] = {
        "format": CONFIG_FORMAT,
        "plan": plan.to_json(),
        "spec": inputs.spec.to_json(),
        "dataset": None,
        "logger": logger,
    }
    say(notify, *_blocks_note(plan, agent))
    if agent.data == "refused":
        say(notify, *agent.notes(dataset))
    if dataset is not None:
        say(notify, *agent.notes(dataset), *conventions.notes(dataset, plan.config))
        if not plan.evaluates and not agent.acts and len(dataset.episode_lengths) < 2:
            say(notify, f"{dataset.name} is one episode: none is held out, and there are no validation losses")
        for oddity, rows in dataset.warnings.items():
            say(notify, f"{dataset.name}: {rows} rows with {oddity} (accepted; strict=true refuses)")
        names = {OBSERVATION_NAMES: dataset.observation_names, ACTION_NAMES: dataset.action_names}
        config["dataset"] = {"name": dataset.name, "sha256": dataset.sha256, "transitions": len(dataset)} | {
            key: told for key, told in names.items() if told is not None
        }
    run = Run(folder, plan)
    if dataset is not None:
        write_columns(dataset, run.columns_path)
    write_json(folder / "environment.json", describe_machine())
    write_json(folder / "config.json", {**config, "notes": notes})
    return Run.open(folder)  # the plan as every later reader has it


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


def _check_learning(plan: Plan, agent: Agent) -> None:
    """Refuse a plan whose steps are over before the first update, and engine options that nothing would heed."""
    if isinstance(agent, OffPolicyAgent):
        c = agent.config
        if c.training_steps(plan.steps // (agent.chunk if agent.decides else 1)) < 1:
            raise ConfigError(
                f"steps is {plan.steps}, algo.initial_steps {c.initial_steps} and algo.updates_per_step "
                f"{c.updates_per_step:g}: nothing would be learned; raise steps, or lower algo.initial_steps"
            )
    if not agent.acts:
        order = agent.updates()
        if not order:
            raise ConfigError(f"{agent.name}: updates() gives none, so that nothing would be trained")
        after, name = max(((one.after, one.name) for one in order if isinstance(one, Update)), default=(0, ""))
        if after >= plan.steps:
            raise ConfigError(
                f"steps is {plan.steps:,}, and {agent.name} begins with {name} after {after:,} training steps: raise "
                "steps, or shorten the phases before it in the algorithm's options"
            )
    if plan.mixed_precision:
        refuse_mixed_precision(agent)
    if plan.compiled and isinstance(agent, StreamingAgent):
        raise ConfigError(f"compiled=true is not there for {agent.name}, which steps natively: leave it out")
    if isinstance(agent, OnPolicyAgent) and agent.config.rows * agent.chunk > plan.steps:
        block, chunk = agent.config, agent.chunk
        raise ConfigError(
            f"steps is {plan.steps:,}, and a block is {block.rows * chunk:,}: algo.horizon {block.length} in each of "
            f"{block.num_envs} environments{f', {chunk} steps each' if chunk > 1 else ''}. Raise steps, or lower envs "
            "or algo.horizon"
        )


def _blocks_note(plan: Plan, agent: Agent) -> list[str]:
    """What on-policy algorithms make of a number of steps that no number of blocks is."""
    if not isinstance(agent, OnPolicyAgent) or agent.chunk > 1:
        return []
    block = agent.config.rows
    taken = -(-plan.steps // block) * block
    said = f"{agent.name} acts in blocks of {block:,} steps: {taken:,} are taken and counted, not {plan.steps:,}"
    return [] if taken == plan.steps else [said]


def resume(folder: str | os.PathLike[str], listener: Listener | None = None, trust: bool = False) -> Run:
    """Go on with a run that was interrupted; the numbers are those of an uninterrupted one.

    Args:
        folder: of the run.
        listener: called with each event.
        trust: import modules that the run's configuration names, and follow symbolic links in the folder.

    Raises:
        ConfigError: its algorithm or environment is neither surefoot's nor gymnasium's, and not trusted.
        FolderInUseError: it is still being trained.
        CheckpointError: not a run folder, another dataset than it began with, or another machine.
    """
    refuse_null_bytes(pathlib.Path(folder), ConfigError)
    run = Run.open(pathlib.Path(folder).resolve())
    notify = listener or silent
    if not run.complete:
        refuse_links(run.folder, trust)
        for name in names_in(run.plan):
            demand(name, run.folder / "config.json", trust)
        with claim_begun(run.folder) as claim, resumable(run.folder):
            if not run.complete:  # nor made so by whoever held it until now
                return go_on(run, notify, claim)
    remove_lock_of_the_dead(run.folder)
    say(notify, f"{run.folder} is complete already")
    return run


def go_on(run: Run, notify: Listener, claim: Claim) -> Run:
    """Train the seeds that have no result yet, heard by the logger that the run began with."""
    notify = with_logger(run, notify)
    read_again(run, notify)
    return carry_out(run, notify, claim)


def with_logger(run: Run, notify: Listener) -> Listener:
    """A listener and the logger that a run began with.

    Raises:
        MissingExtraError: the logger is not installed.
    """
    logger = read_json(run.folder / "config.json", CONFIG).get("logger")
    return to_all([notify, *loggers(logger, run.folder, resumed=True)])


def read_again(run: Run, notify: Listener) -> None:
    """Write what the workers read of a run's dataset, where it is not there any more.

    Raises:
        ConfigError, DataError: the dataset can't be loaded.
        CheckpointError: it is another one than the run began with.
    """
    if run.plan.dataset is not None and not run.columns_path.is_file():
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
    notify = to_all([LiveMetrics(run.folder), notify])
    waiting = [seed for seed in run.plan.seeds if not finished(run, seed)]
    device = resolve_device(run.plan.device)
    notify({"kind": "start", "folder": str(run.folder), "plan": run.plan.to_json(), "device": device.type})
    with going_on_told(run.folder):
        work(run, in_groups(waiting, device), notify, claim.descriptor)
        notify({"kind": "summary", "folder": str(run.folder), "summary": sum_up(run)})
    return run
