"""A run continues for more steps than it was first given to take."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import pathlib
from collections.abc import Iterator

import torch

from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.files import read_json, refuse_null_bytes, write_json
from surefoot.core.engine.agent import Update
from surefoot.online.base.agents import OffPolicyAgent
from surefoot.runs import start as training
from surefoot.runs.folders import claim_begun
from surefoot.runs.machine import resolve_device
from surefoot.runs.plan import agent_class
from surefoot.runs.processes.stopping import resumable
from surefoot.runs.processes.workers import in_groups
from surefoot.runs.progress_events import Listener, say, silent
from surefoot.runs.run import CONFIG, Run, describe_machine, refuse_other_numbers
from surefoot.runs.trackers.wandb import remove_links
from surefoot.runs.trainers.choose import seed_trainer
from surefoot.runs.trust import refuse_links
from surefoot.streaming.agent import StreamingAgent


def extend(folder: str | os.PathLike[str], steps: int, listener: Listener | None = None, trust: bool = False) -> Run:
    """Train a run, complete or not, up to more steps; its evaluations stay as far apart as they were.

    The numbers are those of a run that was given `steps` at once, and the same `evaluate_every`, but for learning
    rates, exploration and weights with a schedule, which continues to the new end: a note says so. The evaluation at
    the old end stays among the others, also where it is between two of that run's. A run that can't be extended is left
    as it was.

    Args:
        folder: of the run.
        steps: of each seed, all together.
        listener: called with each event.
        trust: as in `resume`.

    Raises:
        ConfigError: no more steps than the run has already; a module that is not trusted.
        FolderInUseError: it is being trained.
        CheckpointError: not a run folder, another dataset than it began with, checkpoints that are not there or can't
            continue to so many steps, or another machine.
    """
    refuse_null_bytes(pathlib.Path(folder), ConfigError)
    run = Run.open(pathlib.Path(folder).resolve())
    notify = listener or silent
    if steps <= run.plan.steps:
        raise ConfigError(
            f"steps={steps:,}: {folder} takes {run.plan.steps:,} already; name how many it shall have in all, as in "
            f"steps={2 * run.plan.steps}, or resume it without steps="
        )
    remove_links(run.folder)
    refuse_links(run.folder, trust)
    training.demand_names(run, trust)
    refuse_other_numbers(run)
    ended = read_json(run.folder / "config.json", CONFIG).get("stopped", [])
    planned = max((int(one["planned"]) for one in ended), default=0)
    if steps < planned and issubclass(agent_class(run.plan.algorithm), OffPolicyAgent):
        raise ConfigError(
            f"steps={steps:,}: {folder} was started for {planned:,} and a listener ended it; its replay buffer is "
            f"of that size, so name as many or more, as in steps={planned}"
        )
    with claim_begun(run.folder) as claim, resumable(run.folder):
        run = Run.open(run.folder)  # as it is now that no one else writes it
        longer = Run(run.folder, dataclasses.replace(run.plan, steps=steps, evaluate_every=run.plan.interval))
        with _as_before(run):
            training.read_again(run, notify)
            _check(longer)
            heard = training.with_logger(run, notify)
        say(notify, *schedule_notes(run, steps))
        config = read_json(run.folder / "config.json", CONFIG)
        history = [
            *config.get("extended", []),
            {"from": run.plan.steps, "to": steps, "date": describe_machine()["date"]},
        ]
        # In this order: interrupted between two of these, what is left is the run as it was, to be resumed.
        (run.folder / "summary.json").unlink(missing_ok=True)
        for seed in run.plan.seeds:
            (run.seed_folder(seed) / "result.json").unlink(missing_ok=True)
        write_json(run.folder / "config.json", {**config, "plan": longer.plan.to_json(), "extended": history})
        return training.carry_out(Run.open(run.folder), heard, claim)


@contextlib.contextmanager
def _as_before(run: Run) -> Iterator[None]:
    """What the block writes for the workers of a run is removed again where it fails."""
    absent = [path for path in (run.columns_path, run.folder / "kernels.json") if not path.exists()]
    try:
        yield
    except BaseException:
        for path in absent:
            path.unlink(missing_ok=True)
        raise


def _check(longer: Run) -> None:
    """Build what the workers are going to train, and let it take up the checkpoints.

    Raises:
        SurefootError: whatever the workers would end with before their first step.
    """
    plan, device = longer.plan, resolve_device(longer.plan.device)
    for seed in plan.seeds:
        path = longer.checkpoint_path(seed)
        if (longer.seed_folder(seed) / "result.json").is_file() and not path.is_file():
            raise CheckpointError(f"{path}: there is no such file, so that seed {seed} can't continue; put it back")
    alone = dataclasses.replace(plan, kernels=plan.kernels and plan.learners == 1)
    for seeds in in_groups(plan.seeds, device):
        seed_trainer(Run(longer.folder, alone), seeds, silent).close()
    if device.type == "cuda":  # the workers need the memory
        gc.collect()
        torch.cuda.empty_cache()


def schedule_notes(run: Run, steps: int) -> list[str]:
    """What follows a schedule that ends with the run, in sentences."""
    agent = run.agent()
    if isinstance(agent, StreamingAgent):
        if not hasattr(agent.config, "exploration_fraction"):
            return []
        return [
            f"the random choices of {agent.name} become fewer over a fraction of all steps, which now end at step "
            f"{steps:,}: their share jumps here unless it is at its end in both"
        ]
    scheduled = sorted(
        entry.name
        for entry in agent.updates()
        if isinstance(entry, Update) and getattr(entry.optimizer, "schedule", "constant") in ("cosine", "linear")
    )
    found = []
    if scheduled:
        names = ", ".join(scheduled)
        found.append(
            f"the learning rate of {names} follows a schedule, which now ends at step {steps:,}: it jumps here"
        )
    if getattr(agent, "anneals", False):
        found.append(
            f"{agent.name} changes its noise, or the weight of its divergence, with the part of the run that is over, "
            f"which now ends at step {steps:,}: that jumps here"
        )
    return found
