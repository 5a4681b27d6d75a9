"""Data and settings of runs that take no time."""

from __future__ import annotations

import json
from typing import Any

from surefoot.data import Dataset
from surefoot.runs.embedded import generate
from surefoot.runs.run import Run

TINY = ["steps=20", "episodes=2", "evaluate_every=20", "evaluate_episodes=1", "batch_size=8", "algo.hidden=[8,8]"]

STILL = {f"{part}_learning_rate": 0.0 for part in ("actor", "critic", "temperature")}
"""Options of soft actor-critics under which nothing is learned."""


def small_dataset(seed: int = 0) -> Dataset:
    """Two episodes of the embedded task."""
    return generate("native/pendulum-mixed", seed, transitions=400)


def metrics(run: Run) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
