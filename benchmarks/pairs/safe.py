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


DEAR = 900
"""Updates of a curve whose update takes 20 ms and more."""
ENDS = "OSRL counts a time limit as the end of an episode, where returns of rewards stop"
UNENDING = "no row ends an episode here"
MEAN_COST = (
    "with one action in the targets, since OSRL takes the largest cost of ten and ours their mean, with its minimum of "
    "two cost critics, and with one pair of critics in OSRL, which has two by default"
)


def unending(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rows of which none ends an episode, as their side has it where steps are compared."""
    return {**rows, "terminations": torch.zeros_like(rows["terminations"])}


FISOR = ("ZhengYinan-AIR/FISOR", "2097e8bbc96ef49183f22cb2a1b05948b5859ec0", "paired_fisor.py", "paired_jax")
NOISE_NETWORKS = ("noise_network", "average_noise_network")
VALUES = ("value", "critic", "target_critic", "feasible_value_network", "feasible_critic", "target_feasible_critic")
PAIRS: dict[str, Pair] = {
    "fisor": Pair(
        "fisor",
        {"preset": "official", "dropout": 0.0, "actor_rows": 256, "actor_updates": 1},
        *FISOR,
        *FILE,
        networks=(*NOISE_NETWORKS, *VALUES),
        steps=100,
        updates=DEAR,
        acting_episodes=4,
        curve_episodes=4,
    ),
    "bc_safe": Pair("bc_safe", AS_IT_IS, *OSRL, *FILE, networks=("actor",), updates=3_000),
    "cpq": Pair(
        "cpq",
        {**AS_OSRL, "penalty_gradient": False},
        *OSRL,
        *FILE,
        noise="by_row",
        shaped=unending,
        steps=100,
        updates=DEAR,
        networks=("actor", *CRITICS),
        causes={
            "rows": ENDS,
            "steps": f"with OSRL's penalty, which has no gradient to the critics, and its minimum of two cost critics; "
            f"{UNENDING}",
        },
    ),
    "bcq_lag": Pair(
        "bcq_lag",
        {**AS_OSRL, "sampled_actions": 1},
        *OSRL,
        *FILE,
        noise="by_row",
        shaped=unending,
        steps=100,
        updates=DEAR,
        networks=("perturbation", "target_perturbation", *CRITICS),
        causes={
            "rows": ENDS,
            "steps": f"{MEAN_COST}; {UNENDING}",
            "acting": "OSRL acts by a latent that it draws anew at each step, ours by the prior's mode; with that "
            "theirs are within 1e-6",
        },
    ),
    "bear_lag": Pair(
        "bear_lag",
        {**AS_OSRL, "sampled_actions": 1},
        *OSRL,
        *FILE,
        noise="by_row",
        shaped=unending,
        steps=100,
        updates=DEAR,
        networks=("actor", "target_actor", *CRITICS),
        causes={"rows": ENDS, "steps": f"{MEAN_COST}; {UNENDING}"},
    ),
    "coptidice": Pair(
        "coptidice",
        AS_IT_IS,
        *OSRL,
        *FILE,
        networks=("actor", "nu", "chi"),
        causes={"rows": ENDS},
        left_out={
            "steps": "OSRL limits an average cost by a discounted sum, takes the density before the tanh at the action "
            "after it, and has first states only where a batch holds some; safe/coptidice.py says what ours does",
            **dict.fromkeys(("acting", "curves"), "for the same reason"),
        },
    ),
}
