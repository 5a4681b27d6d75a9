"""Pairs with CORL, whose scripts are one file an algorithm, and with RIQL's authors, who begin from it."""

from __future__ import annotations

import torch
from torch import Tensor

from pairs.pair import HOPPER, Pair

CORL = ("tinkoff-ai/CORL", "6afec90484bbf47dee05fdf525e26a3ebe028e9b", "paired_corl.py", "corl")
IN_JAX = (*CORL[:2], "paired_rebrac.py", "paired_jax")
RIQL = ("YangRui2015/RIQL", "cc07d81201e4cd44415560523fcd719f57bbf12c", "paired_riql.py", "corl")
TD3_NETWORKS = ("actor", "target_actor", "critic", "target_critic")
CRITICS = ("actor", "critic", "target_critic")
SAC_NETWORKS = (*CRITICS, "temperature")
CQL_LIKE = {
    "hidden": (256, 256, 256),
    "cql_weight": 10.0,
    "max_target_backup": False,
    "actor_learning_rate": 3e-5,
    "temperature_learning_rate": 3e-5,
    "log_std_range": (-20.0, 2.0),
    "normalization": "observations",
}
FIXED = {"temperature_learning_rate": 0.0}
DEAR = 900
"""Updates of a curve whose update takes 20 ms and more."""
START = {"initialization": "corl"}
SMALL_FIRST_LAYER = (
    "set by `initialization=corl`; by default the critics' first layers start as in the code of EDAC's authors, "
    "bounded by their inputs, here four times as wide (CORL's rule reads a transposed kernel)"
)
ROUNDED_LOG = (
    "the 1e-3 at steps 1 and 2 is the 1e-6 that theirs adds inside the logarithm of the tanh's slope: with it ours is "
    "at 1e-6 after 10 steps and 0.03 after 100 (the actor; measured on EDAC)"
)
SCALED_DEVIATIONS = (
    "with a constant temperature and with two numbers held still by which CORL's policy scales and shifts its log "
    "deviations, and which it trains; ours has none. CORL's temperature is exp of its parameter and follows the "
    "entropy at the observations, ours softplus and at the next ones, as zhouzypaul/wsrl"
)


def two_steps(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """Windows of two steps, which ReBRAC reads for the next action, of rows that have it as a column."""
    following = {
        "observations": rows["next_observations"],
        "actions": rows["next_actions"],
        "rewards": torch.zeros_like(rows["rewards"]),
        "terminations": torch.zeros_like(rows["terminations"]),
        "next_observations": rows["next_observations"],
    }
    found = {name: torch.stack([rows[name], value], 1) for name, value in following.items()}
    return {**found, "mask": torch.stack([torch.ones_like(rows["rewards"]), 1 - rows["terminations"]], 1)}


PAIRS: dict[str, Pair] = {
    "iql-corl": Pair(
        "iql",
        {"preset": "corl"},
        *CORL,
        *HOPPER,
        causes={
            "curves": "seeds differ as much: with another seed ours has 1.05, since a value that is higher by 0.08, or "
            "0.5 %, lowers the weight, an exponential of three times the advantage, by a fifth"
        },
    ),
    "td3bc": Pair("td3bc", {}, *CORL, *HOPPER, {"target_noise": 0.0}, networks=TD3_NETWORKS, updates=3_000),
    "rebrac-corl": Pair(
        "rebrac",
        {},
        *IN_JAX,
        *HOPPER,
        noise="by_row",
        shaped=two_steps,
        networks=TD3_NETWORKS,
        updates=1_800,
        causes={
            "rows": "after a termination CORL's loader has the next episode's first row as next observation and "
            "action, which its loss multiplies by 0",
            "steps": "CORL steps its actor at odd steps, ours at even ones; here theirs does so too",
        },
    ),
    "awac": Pair(
        "awac",
        {},
        *CORL,
        *HOPPER,
        noise="by_row",
        networks=CRITICS,
        updates=3_000,
        causes={
            "acting": "CORL hands the environment the mean as it is, which Hopper clips; ours clips it. Clipped, "
            "theirs are within 5e-4"
        },
    ),
    "edac": Pair(
        "edac",
        START,
        *CORL,
        *HOPPER,
        noise="by_row",
        steps=100,
        updates=DEAR,
        networks=SAC_NETWORKS,
        causes={"weights": SMALL_FIRST_LAYER, "steps": ROUNDED_LOG},
    ),
    "sac_n": Pair(
        "sac_n",
        START,
        *CORL,
        *HOPPER,
        noise="by_row",
        steps=100,
        updates=DEAR,
        networks=SAC_NETWORKS,
        causes={"weights": SMALL_FIRST_LAYER, "steps": ROUNDED_LOG},
    ),
    "cql": Pair(
        "cql",
        CQL_LIKE,
        *CORL,
        *HOPPER,
        FIXED,
        noise="by_row",
        steps=100,
        updates=DEAR,
        networks=CRITICS,
        causes={
            "weights": "CORL's actor starts as torch's layers do, and the last layers of all its networks at a "
            "hundredth of Glorot's rule or of an orthogonal matrix; ours starts as zhouzypaul/wsrl, all orthogonal",
            "steps": SCALED_DEVIATIONS,
        },
    ),
    "calql": Pair(
        "calql",
        {**CQL_LIKE, "critic_hidden": (256, 256)},
        *CORL,
        *HOPPER,
        FIXED,
        noise="by_row",
        steps=100,
        updates=DEAR,
        networks=CRITICS,
        causes={
            "rows": "CORL sums returns-to-go over the rows that it keeps, so that an episode that a time limit cut "
            "lacks its last reward",
            "steps": SCALED_DEVIATIONS,
        },
    ),
    "dt": Pair(
        "dt",
        {"preset": "corl"},
        *CORL,
        *HOPPER,
        networks=("actor",),
        causes={
            "rows": "CORL adds 1e-6 to the deviations that it divides observations by, ours 1e-3, as everywhere; with "
            "1e-3 theirs are within 1e-7"
        },
        left_out={
            "weights": "CORL learns an embedding of each time, squashes actions and has dropout in its attention; ours "
            "tells time by sines and cosines, clips and has none there",
            **dict.fromkeys(("steps", "acting", "curves"), "for the same reason"),
        },
    ),
    "riql": Pair("riql", START, *RIQL, *HOPPER, causes={"weights": SMALL_FIRST_LAYER}),
    "msg": Pair(
        "msg",
        START,
        *RIQL,
        *HOPPER,
        noise="by_row",
        steps=100,
        updates=DEAR,
        networks=SAC_NETWORKS,
        causes={"weights": SMALL_FIRST_LAYER, "steps": ROUNDED_LOG},
    ),
}
