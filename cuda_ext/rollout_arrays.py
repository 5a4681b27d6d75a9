"""Names and numbers that a rollout's python and native sides share: where actions come from, what it returns."""

from __future__ import annotations

import torch

POLICY, GIVEN, RANDOM = range(3)  # native/rollout.h's Source

SUMS: dict[str, torch.dtype] = {
    "returns": torch.float32,
    "costs": torch.float32,
    "margins": torch.float32,
    "lengths": torch.int32,
    "terminated": torch.int32,
    "truncated": torch.int32,
    "diverged": torch.int32,
    "finished": torch.int32,
    "finished_lengths": torch.int32,
    "finished_returns": torch.float32,
    "finished_costs": torch.float32,
}
"""What a rollout returns of every environment, in the operator's order, which is that of the GPU kernel's arguments."""
FLAGS = ("terminated", "truncated", "diverged")
"""Those of them, and of the records, that are yes or no."""
