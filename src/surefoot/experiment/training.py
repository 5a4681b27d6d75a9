"""The experiment: from a plan to a finished run folder, over worker processes, resumable at any moment."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.actions import to_agent
from surefoot.core.agent import Agent, Spec, Update
from surefoot.core.errors import CheckpointError, ConfigError, DataError, DeviceError, EnvironmentMismatchError, nearest
from surefoot.core.files import read_json, write_json
from surefoot.core.policy import Policy
from surefoot.core.smoothness import check_penalty
from surefoot.data import conventions, validate
from surefoot.data.dataset import ACTION_NAMES, OBSERVATION_NAMES, Dataset
from surefoot.evaluation.runs import CONFIG_FORMAT
from surefoot.experiment.collectors import check_plan
from surefoot.experiment.finishing import finished
from surefoot.experiment.folders import Claim, claim_begun, claim_named, claim_new, remove_lock_of_the_dead
from surefoot.experiment.initialise import settled, start_notes
from surefoot.experiment.inputs import dataset_of, inputs_of, training_environment
from surefoot.experiment.live import LiveMetrics
from surefoot.experiment.loggers import loggers, to_all
from surefoot.experiment.plan import OPTIONS, Plan, name_of, seeds_of
from surefoot.experiment.run import CONFIG, IN_MEMORY, Run, describe_machine, load_agent, names_in, write_columns
from surefoot.experiment.sharing import check_learners
from surefoot.experiment.stopping import going_on_told, resumable
from surefoot.experiment.summary import sum_up
from surefoot.experiment.trust import allow, demand, refuse_links
from surefoot.experiment.workers import Event, Listener, in_groups, say, work
from surefoot.online.agents import OffPolicyAgent
from surefoot.online.loop import refuse_mixed_precision
from surefoot.online.on_policy_agent import OnPolicyAgent
from surefoot.streaming.agent import StreamingAgent
from surefoot.tools.generate import environment_of


def fit(
    agent: Agent,
    dataset: Dataset | None = None,
    *,
    env: str | None = "auto",
    steps: int = Plan.steps,
    seeds: int | Sequence[int] = Plan.seeds,
    out: str | os.PathLike[str] | None = None,
    progress: bool = True,
    listener: Listener | None = None,
    trust: bool = False,
    logger: str | None = None,
    **options: Any,
) -> Run:
    """Train copies of `agent` from several seeds and evaluate them.

    Args:
        agent: gives algorithm and config; its weights are drawn anew from each seed.
        dataset: what `surefoot.data.load` returned, or a `Dataset` of your own; none where the agent learns by
            acting.
        env: gymnasium id; "auto": the one that the dataset says it was recorded in; None or "none": no simulator.
        steps: training steps, or steps in the environment where the agent acts; for each seed.
        seeds: how many (0, 1, ...), or which.
        out: run folder; by default a new one under runs/.
        progress: show bars, or lines where the output is not a terminal.
        listener: called with each event (progress, evaluations, notes) instead.
        trust: import the module of an environment that the dataset's file names, or of the agent in init=RUN.
        logger: tensorboard or wandb, beside the run folder's own metrics.jsonl.
        options: further fields of `Plan`, e.g. episodes=100.

    Raises:
        ConfigError: an option out of range, a folder that exists, or env="auto" where the dataset says none.
        DataError: the dataset breaks what `Dataset` promises, or lacks what the algorithm reads.
        EnvironmentMismatchError: the environment's spaces don't fit the dataset.
        DivergenceError: a loss stopped being finite.
    """
    for name in options:
        if name == "envs":
            raise ConfigError("fit takes no envs=: make the agent with num_envs=, which is the same")
        if name not in OPTIONS:
            raise ConfigError(f"fit has no option {name!r}; {nearest(name, ['env', *OPTIONS])}")
    if dataset is not None:
        validate(dataset)
    plan = Plan(
        algorithm=name_of(type(agent)),
        config=dataclasses.asdict(agent.config),
        dataset=None if dataset is None else _source(dataset, str(options.get("view", "corrected"))),
        environment=environment_of(dataset, None if env == "auto" else "none" if env is None else env, trust),
        steps=steps,
        seeds=seeds_of(seeds if isinstance(seeds, int) else list(seeds)),
        **options,
    )
    with claim_new(out) if out is not None else claim_named(plan.label) as claim:
        given: dict[str, Any] = {
            "dataset": dataset,
            "built_for": agent.environment_spec,
            "trust": trust,
            "logger": logger,
        }
        if listener is not None or not progress:
            return train(plan, claim, listener=listener, **given)
        from surefoot.cli.output import PlainConsole
        from surefoot.cli.progress import Watcher

        with Watcher(PlainConsole()) as watcher:
            return train(plan, claim, listener=watcher, **given)


def _source(dataset: Dataset, view: str) -> str:
    """What a plan calls a dataset: the absolute path that gives it again, or that it is in memory alone."""
    there = dataset.as_read == view and pathlib.Path(dataset.name).exists()
    return str(pathlib.Path(dataset.name).resolve()) if there else IN_MEMORY


def train(
    plan: Plan,
    folder: str | os.PathLike[str] | Claim,
    *,
    dataset: Dataset | None = None,
    listener: Listener | None = None,
    built_for: Spec | None = None,
    trust: bool = False,
    logger: str | None = None,
) -> Run:
    """Carry out a plan in a new folder. Errors as in `fit`; a bad plan leaves no folder behind.

    Args:
        plan: what to do.
        folder: where: a path that does not exist or is an empty folder, or one that is claimed already.
        dataset: what the plan names, where it is loaded already.
        listener: called with each event.
        built_for: sizes that the environment or dataset must have; None: any.
        trust: import the module of the agent in init=RUN.
        logger: tensorboard or wandb, which hears the events too, also where the run is resumed.
    """
    for name in (*plan.imports, plan.environment):  # the caller's
        allow(name)
    if plan.init is not None:
        for name in Run.open(plan.init).plan.imports:
            demand(name, plan.init, trust)
    with contextlib.ExitStack() as stack:
        claim = folder if isinstance(folder, Claim) else stack.enter_context(claim_new(folder))
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
    check_plan(plan, agent)
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
    return run


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


def resolve_device(name: str) -> torch.device:
    """The device that a plan's word means here.

    Raises:
        DeviceError: a GPU was asked for and there is none.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise DeviceError("device=cuda: torch finds no CUDA GPU on this machine; use device=cpu or auto")
    return torch.device("cuda" if name in {"auto", "cuda"} and available else "cpu")


class _Victim:
    """An agent in the dataset's own units, for adversarial corruption."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.policy_module: Policy = agent.policy()

    def q_values(self, observations: Tensor, actions: Tensor) -> Tensor:
        scaled = to_agent(actions, self.agent.action_low, self.agent.action_high)
        pairs = torch.cat([self.agent.normalizer(observations), scaled], -1)
        return self.agent.critic(pairs)  # type: ignore[operator, no-any-return]

    def policy(self, observations: Tensor) -> Tensor:
        return self.policy_module(observations)  # type: ignore[no-any-return]


def victim(folder: str | os.PathLike[str], seed: int | None = None, trust: bool = False) -> _Victim:
    """A trained agent as the victim of `data.corrupt`: `q_values(observations, actions)` and `policy(observations)`.

    Raises:
        ConfigError: the run's algorithm has no critics, or they read a history.
    """
    run = Run.open(folder)
    agent = load_agent(run, seed, trust)
    if agent.spec != agent.environment_spec:
        raise ConfigError(
            f"{run.folder}: {agent.name} reads a history of observations; attack one that reads a single one"
        )
    if not hasattr(agent, "critic"):
        raise ConfigError(f"{folder}: {run.plan.algorithm} has no critics to attack; train riql, iql or td3bc")
    return _Victim(agent)


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


def silent(event: Event) -> None:
    """Listen to nothing."""
