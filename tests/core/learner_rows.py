"""What tests of learner share."""

from __future__ import annotations

import torch

from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform


def drawn_rows(seeds: list[int], population: int, rows: int) -> Uniform:
    """The rows that a `Learner` draws uniformly."""
    source = Uniform(lambda indices: {}, population)
    source.bind(seeds, rows, torch.device("cpu"))
    return source


Y = torch.tensor([3.0] * 8, dtype=torch.float64)  # every batch is the same: a is pulled to 3
EXACT = {"rel": 1e-6}


def values(trained: Learner) -> dict[str, float]:
    return {name: network.value.item() for name, network in trained.networks.items()}
