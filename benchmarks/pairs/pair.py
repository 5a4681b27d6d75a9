"""What one of our algorithms and one official code are compared by."""

from __future__ import annotations

import dataclasses
from typing import Any


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
    networks: tuple[str, ...] = ("actor", "value", "critic", "target_critic")
    causes: dict[str, str] = dataclasses.field(default_factory=dict)
    """Comparison -> why the two differ there, in a sentence; without it a difference stands as open on the page."""
    package: str = ""
    """NAME==VERSION of a pip package in the environment, which stands for a repository and a commit."""
    zero_noise: bool = False
    """Whether our losses get zeros for normal noise where steps are compared; the runner does likewise."""
    collecting: dict[str, Any] | None = None
    """Of an algorithm that acts while it learns: options of the comparison of its collection, which is then what
    `rows` compares (benchmarks/paired_online.py)."""
    part: tuple[str, ...] = ()
    """Networks whose updates are taken from the first step on, where an algorithm has others before them."""
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    """Comparison -> why it is not run."""


CHEETAH = ("halfcheetah-v5-expert-sb3", "HalfCheetah-v5")
HOPPER = ("hopper-v5-medium-sb3", "Hopper-v5")
