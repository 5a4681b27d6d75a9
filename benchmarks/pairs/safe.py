"""Pairs of safe offline algorithms with OSRL's; the file's costs are of a velocity limit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pairs.pair import Pair

OSRL = ("liuzuxin/OSRL", "03a4586463690566ec8d7830ca4027b46d4ad02f", "paired_osrl.py", "corl")
FILE = ("halfcheetah-v5-velocity-cost", "HalfCheetah-v5")
AS_IT_IS = {"normalization": "none"}
AS_OSRL: dict[str, Any] = {**AS_IT_IS, "careful_costs": False}
CRITICS = ("critic", "target_critic", "cost_critic", "target_cost_critic", "vae")


def unending(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rows of which none ends an episode, as their side has it where steps are compared."""
    return {**rows, "terminations": torch.zeros_like(rows["terminations"])}


PAIRS: dict[str, Pair] = {
    "bc_safe": Pair("bc_safe", AS_IT_IS, *OSRL, *FILE, networks=("actor",)),
    "cpq": Pair(
        "cpq",
        {**AS_OSRL, "penalty_gradient": False},
        *OSRL,
        *FILE,
        handed=True,
        shaped=unending,
        networks=("actor", *CRITICS),
    ),
    "bcq_lag": Pair(
        "bcq_lag",
        {**AS_OSRL, "sampled_actions": 1},
        *OSRL,
        *FILE,
        handed=True,
        shaped=unending,
        networks=("perturbation", "target_perturbation", *CRITICS),
    ),
    "bear_lag": Pair(
        "bear_lag",
        {**AS_OSRL, "sampled_actions": 1},
        *OSRL,
        *FILE,
        handed=True,
        shaped=unending,
        networks=("actor", "target_actor", *CRITICS),
    ),
}
