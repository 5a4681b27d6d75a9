"""What runs are called in tables, legends and pages: by what tells them apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from surefoot.evaluation.label import labelled
from surefoot.evaluation.runs import LAST, RunData

OF_THE_PLAN = ("steps", "batch_size", "gap", "init", "view", "jacobian_penalty")
"""What else of a plan decides a run's numbers, beside the algorithm's options."""
USUAL = {
    "reward": None, "mixed_precision": False, "collectors": None, "workers": 1, "staleness": 0, "collect_steps": 32,
}  # fmt: skip
"""More of it, with what runs have of before it was written down."""


def settings(run: RunData) -> dict[str, Any]:
    """A run's options, and what else of its plan decides its numbers, as one flat dictionary without the seeds."""
    plan = run.config.get("plan")
    plan = dict(plan) if isinstance(plan, Mapping) else {}
    options = plan.pop("config", None)
    own = options if isinstance(options, Mapping) else {}
    return {**own, **{key: plan.get(key) for key in OF_THE_PLAN}, **{key: plan.get(key, USUAL[key]) for key in USUAL}}


def setting_key(run: RunData) -> str:
    """The same text of runs that differ in nothing but their seeds, their task and the file that they learned from."""
    return json.dumps([run.algorithm, run.preset, settings(run)], sort_keys=True, default=str)


def labels(runs: Sequence[RunData]) -> list[str]:
    """A name for each run that no other of these has.

    Of runs of one algorithm on one task the names tell the options in which they differ; of a run that has nothing to
    be distinguished from, its preset or the options that were changed. Equal ones get the names of their folders. Where
    scores are not those of the last policies, the names say of which.
    """
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for i, run in enumerate(runs):
        groups.setdefault((run.algorithm, run.dataset, run.environment), []).append(i)
    names = [""] * len(runs)
    for members in groups.values():
        for i, options in zip(members, varied([settings(runs[i]) for i in members]), strict=True):
            names[i] = labelled(runs[i].algorithm, None, options) if options else runs[i].label
    found = [
        f"{name} ({run.name})" if _twice(i, names, runs) else name for i, (name, run) in enumerate(zip(names, runs))
    ]
    found = [name if not _twice(i, found, runs) else f"{name} #{i + 1}" for i, name in enumerate(found)]
    return [name if run.policies == LAST else f"{name}, {run.policies} policies" for name, run in zip(found, runs)]


def varied(options: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each of these settings the options that are not the same in all, by their names' order."""
    differ = sorted({key for one in options for key in one if len({repr(other.get(key)) for other in options}) > 1})
    return [{key: one.get(key) for key in differ} for one in options]


def _twice(i: int, names: Sequence[str], runs: Sequence[RunData]) -> bool:
    return any(other == names[i] and runs[j].task == runs[i].task for j, other in enumerate(names) if j != i)
