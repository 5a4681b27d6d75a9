"""What of a run's events is logged, by what names, and over what axis."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from surefoot.core.base.errors import MissingExtraError
from surefoot.runs.plan import agent_class
from surefoot.runs.progress_events import Event

FINALS = {"return": "per_seed_returns", "success": "per_seed_success", "cost": "per_seed_costs"}
"""Name of a last policy's mean over its episodes -> where a summary has it, one a seed."""


def require(package: str, extra: str, purpose: str) -> None:
    """Import a package, or raise MissingExtraError."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(package, extra, purpose) from error


def numbers(event: Event) -> Iterator[tuple[str, float]]:
    """(name, value) of every number of an event that belongs to a seed's step."""
    if "seed" not in event or "step" not in event:
        return
    if event["kind"] == "metrics":  # losses; evaluations have events of their own
        event = {**event["line"], "kind": event["line"]["kind"]}
        if event["kind"] != "train":
            return
    values = {**event, **(event.get("values") or {})}
    for name, value in values.items():
        if name not in ("seed", "step", "steps") and isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{event['kind']}/{name}", float(value)


def finals(summary: Mapping[str, Any], seed: int) -> dict[str, float]:
    """Name -> value of the last evaluation of a seed; empty where nothing was evaluated.

    Args:
        summary: of the run, as in summary.json.
        seed: one of its seeds.
    """
    place = list(summary["seeds"]).index(seed)
    found = {name: summary.get(key) or () for name, key in FINALS.items()}
    return {f"final/{name}": float(values[place]) for name, values in found.items() if len(values) > place}


def axis(plan: Mapping[str, Any]) -> str:
    """What a plan's steps count: environment_steps, or gradient_steps where the algorithm does not act."""
    return "environment_steps" if agent_class(plan["algorithm"]).requires.online else "gradient_steps"
