"""Seeds of other libraries' logs as finished run folders: summary.json, metrics.jsonl and config.json."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.files import write_json
from surefoot.data import normalized_score, reference_scores
from surefoot.evaluation import hierarchical_interval
from surefoot.evaluation.runs import CONFIG_FORMAT, METRICS_FORMAT, SUMMARY_FORMAT
from surefoot.interop.training_logs.seed_log import EVALUATION, SeedLog
from surefoot.runs.plan import Plan
from surefoot.runs.run import IMPORTED, describe_machine

RETURNS = {"evaluation": "evaluation", "training": "training return"}
"""What a seed is judged by -> how tables say it, behind the algorithm's name."""


def stated(
    logs: Sequence[SeedLog], algorithm: str | None = None, environment: str | None = None,
    seeds: Sequence[int] | None = None,
) -> list[SeedLog]:  # fmt: skip
    """The logs with what the user says of them in place of what their names say.

    Args:
        logs: as they were found.
        algorithm, environment: of all of them.
        seeds: one for each, in their order.

    Raises:
        ConfigError: neither says something that is needed, or another number of seeds.
    """
    if seeds is not None and len(seeds) != len(logs):
        listed = ", ".join(str(log.source) for log in logs)
        raise ConfigError(f"--seeds names {len(seeds)} seeds, and there are {len(logs)} logs: {listed}")
    ready = []
    for place, log in enumerate(logs):
        log = dataclasses.replace(
            log,
            algorithm=algorithm or log.algorithm,
            environment=environment or log.environment,
            seed=log.seed if seeds is None else seeds[place],
        )
        for option, value in (("--algorithm", log.algorithm), ("--env", log.environment), ("--seeds", log.seed)):
            if value is None:
                raise ConfigError(f"{log.source}: neither its name nor what it holds says so: give {option}")
        ready.append(log)
    return ready


def groups(logs: Sequence[SeedLog]) -> dict[tuple[str, str, str], list[SeedLog]]:
    """(algorithm, environment, score) -> its seeds, in order.

    Raises:
        ConfigError: two logs are of one seed.
    """
    found: dict[tuple[str, str, str], list[SeedLog]] = {}
    for log in logs:
        found.setdefault((str(log.algorithm), str(log.environment), log.score), []).append(log)
    for (algorithm, environment, _), some in found.items():
        some.sort(key=lambda log: int(log.seed or 0))
        for first, second in itertools.pairwise(some):
            if first.seed == second.seed:
                raise ConfigError(
                    f"{first.source} and {second.source} are both seed {first.seed} of {algorithm} in {environment}: "
                    "leave one out, or name the seeds with --seeds"
                )
    return found


def write(logs: Sequence[SeedLog], folder: str | os.PathLike[str]) -> list[pathlib.Path]:
    """A run folder for each algorithm and environment; the folders.

    Args:
        logs: with algorithm, environment and seed each.
        folder: where; its run folders must not be there yet.

    Raises:
        ConfigError: one is there, or two logs are of one seed.
    """
    ready = []
    for (algorithm, environment, score), some in groups(logs).items():
        name = "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-.") for part in (algorithm, environment, score))
        place = pathlib.Path(folder) / name
        if place.exists():
            raise ConfigError(f"{place}: exists already; remove it, or give another folder with -o")
        ready.append((place, some))
    for place, some in ready:
        _write_one(place, some)
    return [place for place, _ in ready]


def _write_one(place: pathlib.Path, logs: Sequence[SeedLog]) -> None:
    first, seeds = logs[0], [int(log.seed or 0) for log in logs]
    by_episode = first.score == EVALUATION and all(len(log.last) > 1 for log in logs)
    episodes = min(len(log.last) for log in logs) if by_episode else 0
    judged = [np.asarray(log.last if by_episode else [log.final]) for log in logs]
    interval = hierarchical_interval(judged, shared_episodes=False).to_json()
    reference = reference_scores(str(first.environment))
    normalized = None
    if reference is not None:
        normalized = {**interval, **{key: None if interval[key] is None else float(normalized_score(
            interval[key], reference)) for key in ("mean", "low", "high")}}  # fmt: skip
    solved = [log.points[-1].successes for log in logs]
    rates = [float(np.mean(one)) for one in solved] if all(solved) else []
    success = None
    if rates:
        success = hierarchical_interval([np.asarray(one) for one in solved], bounds=(0.0, 1.0), shared_episodes=False)
    plan = Plan(
        algorithm=f"{first.algorithm} ({RETURNS[first.score]})",
        config={},
        environment=first.environment,
        steps=max(1, *(log.steps for log in logs)),
        seeds=tuple(seeds),
        episodes=max(1, episodes),
    )
    about, judged_by = describe_machine(), " or ".join(sorted({log.judged for log in logs}))
    summary: dict[str, Any] = {
        "format": SUMMARY_FORMAT,
        "algorithm": plan.algorithm,
        "dataset": None,
        "environment": plan.environment,
        "steps": plan.steps,
        "steps_of": "environment steps",
        "seeds": seeds,
        "episodes": episodes,
        "per_seed_returns": [log.final for log in logs],
        "returns": interval,
        "normalized": normalized,
        "behaviour": None,
        "cost": None,
        "success": None if success is None else success.to_json(),
        "per_seed_success": rates,
        "updates_per_second": None,
        "versions": {},
        "date": about["date"],
        "judged": judged_by,
    }
    place.mkdir(parents=True)
    lines = [{"format": METRICS_FORMAT, **line} for log in logs for line in _lines(log)]
    text = "".join(json.dumps(line) + "\n" for line in sorted(lines, key=lambda line: (line["step"], line["seed"])))
    (place / "metrics.jsonl").write_text(text, encoding="utf-8")
    sources = [str(log.source.resolve()) for log in logs]
    config = {"format": CONFIG_FORMAT, "kind": IMPORTED, "plan": plan.to_json(), "judged": judged_by}
    write_json(place / "config.json", {**config, "sources": sources})
    write_json(place / "summary.json", summary)  # last: with it the folder is a finished run


def _lines(log: SeedLog) -> list[dict[str, Any]]:
    """A seed's lines of metrics.jsonl: evaluations as ours, training episodes as what was measured while training."""
    found = []
    for point in log.points:
        if log.score == EVALUATION:
            values: dict[str, Any] = {"return_mean": point.mean}
            if point.returns:
                values["returns"] = list(point.returns)
            if point.lengths:
                values["length_mean"] = float(np.mean(point.lengths))
            if point.successes:
                values |= {"success_mean": float(np.mean(point.successes)), "successes": list(point.successes)}
        else:
            values = {"episode_return": point.mean}
        kind = "eval" if log.score == EVALUATION else "train"
        found.append({"seed": log.seed, "step": point.step, "kind": kind, "values": values})
    return found
