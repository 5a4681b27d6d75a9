"""Checkpoints of the seeds that one process trains together: read, and checked to be of one step."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from surefoot.core.base import checkpoint
from surefoot.core.base.errors import CheckpointError
from surefoot.core.base.schema import Many, Number, Record, Text, check
from surefoot.evaluation.runs import METRICS_LINE

STATE = Record(
    {
        "kind": Text(),
        "algorithm": Text(),
        "seed": Number(0, whole=True),
        "step": Number(0, whole=True),
        "seconds": Number(0),
        "metrics": Many(METRICS_LINE),
    },
    others=True,
)
"""What a checkpoint says of its seed."""


def together(
    paths: Mapping[int, pathlib.Path], algorithm: str
) -> list[tuple[dict[str, Tensor], dict[str, Any]]] | None:
    """Tensors and description of the checkpoint of each seed; None where no seed has one yet.

    Raises:
        CheckpointError: one is damaged, or of another run; they are of different steps, or only some are there.
    """
    there = {seed: path for seed, path in paths.items() if path.is_file()}
    if not there:
        return None
    found = []
    for seed, path in there.items():
        tensors, meta = checkpoint.load(path, kind="checkpoint")
        check(meta, STATE, path)
        if (meta["algorithm"], meta["seed"]) != (algorithm, seed):
            raise CheckpointError(
                f"{path}: is of {meta['algorithm']} seed {meta['seed']}, but {algorithm} seed {seed} is needed here; "
                "it was moved from another run"
            )
        found.append((tensors, meta))
    steps = {path: meta["step"] for path, (_, meta) in zip(there.values(), found, strict=True)}
    if len(set(steps.values())) > 1 or len(there) < len(paths):
        told = ", ".join(
            f"{path} is of step {steps[path]:,}" if path in steps else f"{path} is not there" for path in paths.values()
        )
        raise CheckpointError(
            f"seeds {', '.join(map(str, paths))} are trained together here, and can't go on from different steps: "
            f"{told}. Put back copies of one step, or go on without a GPU if the run began so, which trains each seed "
            "by itself; or delete these checkpoints to begin the seeds again"
        )
    return found
