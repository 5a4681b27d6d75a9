"""Pairs with CORL, whose scripts are one file an algorithm."""

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
START = {"initialisation": "corl"}
FIXED = {"temperature_learning_rate": 0.0}


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
    "iql-corl": Pair("iql", {"preset": "corl"}, *CORL, *HOPPER),
    "td3bc": Pair("td3bc", {}, *CORL, *HOPPER, {"target_noise": 0.0}, networks=TD3_NETWORKS),
    "awac": Pair("awac", {}, *CORL, *HOPPER, handed=True, networks=CRITICS),
    "edac": Pair("edac", START, *CORL, *HOPPER, handed=True, steps=100, networks=SAC_NETWORKS),
    "sac_n": Pair("sac_n", START, *CORL, *HOPPER, handed=True, steps=100, networks=SAC_NETWORKS),
    "cql": Pair("cql", CQL_LIKE, *CORL, *HOPPER, FIXED, handed=True, steps=100, networks=CRITICS),
    "calql": Pair(
        "calql", {**CQL_LIKE, "critic_hidden": (256, 256)}, *CORL, *HOPPER, FIXED, handed=True, steps=100, networks=CRITICS
    ),
    "rebrac": Pair("rebrac", {}, *IN_JAX, *HOPPER, handed=True, shaped=two_steps, networks=TD3_NETWORKS),
    "riql": Pair("riql", START, *RIQL, *HOPPER),
    "msg": Pair("msg", START, *RIQL, *HOPPER, handed=True, steps=100, networks=SAC_NETWORKS),
}
