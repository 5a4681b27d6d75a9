"""Whether a checkpoint is of the run that would continue from it: by the settings that decide what it learns."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from surefoot.core.base.errors import CheckpointError

CHANGEABLE = (
    *("steps", "learning_rate", "max_gradient_norm", "rows_at_once", "checkpoint_every", "evaluate_every", "samples"),
    *("critic_learning_rate", "solved", "keep_best", "method.title", "method.source"),
)
"""What a run may continue changed: how long, how fast, in which parts, how it is watched and what it is called."""


def deciding(method: Any, config: Any) -> dict[str, Any]:
    """Settings of a method and of a loop (dataclasses) that decide a run, as plain values by the names of users."""
    found = {f"method.{name}": value for name, value in dataclasses.asdict(method).items()}
    kept = {name: value for name, value in (found | dataclasses.asdict(config)).items() if name not in CHANGEABLE}
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in kept.items()}


def check_same(path: pathlib.Path, there: Any, here: Mapping[str, Any]) -> None:
    """Refuse a file of a run with other settings.

    Args:
        path: of the file.
        there: settings that it tells. Those that it does not are not compared: files from before they were given.
        here: of the run that would continue.

    Raises:
        CheckpointError: names the first that differs.
    """
    for name, value in here.items():
        if isinstance(there, dict) and name in there and there[name] != value:
            raise CheckpointError(
                f"{path}: is of a run with {name}={there[name]}, and this one has {name}={value}: give it a folder of "
                "its own, or continue the settings of that run"
            )
