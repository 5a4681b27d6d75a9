"""What one of our algorithms and one official code are compared by."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

INITIALISATIONS = 100
"""Of which first weights are compared."""


@dataclasses.dataclass(frozen=True)
class Pair:
    """One of our algorithms with settings of one official code."""

    algorithm: str
    options: dict[str, Any]
    repository: str
    commit: str
    runner: str
    """File of benchmarks/peers that asks the official code."""
    venv: str
    """Environment of benchmarks/peers/setup.sh."""
    file: str
    """Name of a shared file, or of one in `SUREFOOT_PEERS`/files."""
    environment: str
    silent: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Options that take noise out of the loss, where steps are compared; the runner does so too."""
    noise: str = "by_name"
    """How both codes are handed the same random numbers where steps are compared: `by_name` or `by_row`
    (benchmarks/peers/handed.py), or `zeros`."""
    shaped: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None
    """What our losses read of a batch of the official rows, where that is not the columns themselves."""
    steps: int = 1000
    """How many steps are compared, the last one too; fewer where a step is expensive."""
    networks: tuple[str, ...] = ("actor", "value", "critic", "target_critic")
    acting_episodes: int = 50
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What the runner is given of the official code's settings, over its own."""
    updates: int = 1_200
    """Of a curve."""
    curve_episodes: int = 10
    """Of a curve's last point; a fourth of them on the way, none of fewer than four."""
    seeds: tuple[int, ...] = (0,)
    """Of the curves."""
    causes: dict[str, str] = dataclasses.field(default_factory=dict)
    """Comparison -> why the two differ there, in a sentence; without it a difference stands as open on the page."""
    package: str = ""
    """NAME==VERSION of a pip package in the environment, which stands for a repository and a commit."""
    collecting: dict[str, Any] | None = None
    """Of an algorithm that acts while it learns: options of the comparison of its collection, which is then what
    `rows` compares (benchmarks/paired_online.py)."""
    part: tuple[str, ...] = ()
    """Networks whose updates are taken from the first step on, where an algorithm has others before them."""
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    """Comparison -> why it is not run."""


CHEETAH = ("halfcheetah-v5-expert-sb3", "HalfCheetah-v5")
HOPPER = ("hopper-v5-medium-sb3", "Hopper-v5")
WHOLE_PUZZLE = ("puzzle-3x3-task1-sparse-1000", "ogbench/puzzle-3x3-play-singletask-task1-sparse-v0")
"""As `PUZZLE`, of 1,000 episodes (35 minutes of a core) and with the sparse reward, --env and names changed alike."""
PUZZLE = ("puzzle-3x3-task1-100", "ogbench/puzzle-3x3-play-singletask-task1-v0")
"""A task of OGBench on data of ours: in `SUREFOOT_PEERS`/files
surefoot datasets generate ogbench/puzzle-3x3-play --episodes 100 -o puzzle-3x3-play-100.hdf5
surefoot datasets relabel puzzle-3x3-play-100.hdf5 --env ogbench/puzzle-3x3-play-singletask-task1-v0 \
    -o puzzle-3x3-task1-100.hdf5
"""
