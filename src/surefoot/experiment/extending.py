"""A run goes on for more steps than it was first told to take."""

from __future__ import annotations

import dataclasses
import os
import pathlib

from surefoot.core.agent import Update
from surefoot.core.errors import ConfigError
from surefoot.core.files import read_json, write_json
from surefoot.experiment import training
from surefoot.experiment.folders import claim_begun
from surefoot.experiment.run import CONFIG, Run, describe_machine
from surefoot.experiment.stopping import resumable
from surefoot.experiment.trust import demand, refuse_links
from surefoot.experiment.workers import Listener, names_in


def extend(folder: str | os.PathLike[str], steps: int, listener: Listener | None = None, trust: bool = False) -> Run:
    """Train a run, complete or not, up to more steps; its evaluations stay as far apart as they were.

    The numbers are those of a run that was told `steps` at once, and the same `evaluate_every`, but for learning rates
    with a schedule, which goes on to the new end: a note says so.

    Args:
        folder: of the run.
        steps: of each seed, all together.
        listener: called with each event.
        trust: as in `resume`.

    Raises:
        ConfigError: no more steps than the run has already; a module that is not trusted.
        FolderInUseError: it is being trained.
        CheckpointError: not a run folder, another dataset than it began with, or another machine.
    """
    run = Run.open(pathlib.Path(folder).resolve())
    notify = listener or training.silent
    if steps <= run.plan.steps:
        raise ConfigError(
            f"steps={steps:,}: {folder} takes {run.plan.steps:,} already; name how many it shall have in all, as in "
            f"steps={2 * run.plan.steps}, or resume it without steps="
        )
    refuse_links(run.folder, trust)
    for name in names_in(run.plan):
        demand(name, run.folder / "config.json", trust)
    with claim_begun(run.folder) as claim, resumable(run.folder):
        run = Run.open(run.folder)  # as it is now that nobody else writes it
        longer = dataclasses.replace(run.plan, steps=steps, evaluate_every=run.plan.interval)
        scheduled = sorted(
            entry.name
            for entry in run.agent().updates()
            if isinstance(entry, Update)
            and getattr(entry.optimizer, "schedule", "constant") not in ("constant", "adaptive")
        )
        if scheduled:
            names = ", ".join(scheduled)
            text = f"the learning rate of {names} follows a schedule, which now ends at step {steps:,}: it jumps here"
            notify({"kind": "note", "text": text})
        config = read_json(run.folder / "config.json", CONFIG)
        history = [
            *config.get("extended", []),
            {"from": run.plan.steps, "to": steps, "date": describe_machine()["date"]},
        ]
        # In this order: interrupted between two of these, what is left is the run as it was, to be resumed.
        (run.folder / "summary.json").unlink(missing_ok=True)
        for seed in run.plan.seeds:
            (run.seed_folder(seed) / "result.json").unlink(missing_ok=True)
        write_json(run.folder / "config.json", {**config, "plan": longer.to_json(), "extended": history})
        return training.go_on(Run.open(run.folder), notify, claim)
