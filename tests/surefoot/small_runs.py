"""Data and settings of runs that take no time."""

from __future__ import annotations

from surefoot.data import Dataset
from surefoot.generate import generate

TINY = ["steps=20", "episodes=2", "evaluate_every=20", "evaluate_episodes=1", "batch_size=8", "algo.hidden=[8,8]"]


def small_dataset(seed: int = 0) -> Dataset:
    """Two episodes of the embedded task."""
    return generate("native/pendulum-mixed", seed, transitions=400)
