"""Pairs with CORL, whose scripts are one file an algorithm."""

from __future__ import annotations

from pairs.pair import HOPPER, Pair

CORL = ("tinkoff-ai/CORL", "6afec90484bbf47dee05fdf525e26a3ebe028e9b", "paired_corl.py", "corl")
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
PAIRS: dict[str, Pair] = {
    "iql-corl": Pair("iql", {"preset": "corl"}, *CORL, *HOPPER),
    "td3bc": Pair("td3bc", {}, *CORL, *HOPPER, {"target_noise": 0.0}, networks=TD3_NETWORKS),
    "awac": Pair("awac", {}, *CORL, *HOPPER, handed=True, networks=CRITICS),
    "edac": Pair("edac", {}, *CORL, *HOPPER, handed=True, networks=SAC_NETWORKS),
    "sac_n": Pair("sac_n", {}, *CORL, *HOPPER, handed=True, networks=SAC_NETWORKS),
    "cql": Pair("cql", CQL_LIKE, *CORL, *HOPPER, FIXED, handed=True, networks=CRITICS),
    "calql": Pair(
        "calql", {**CQL_LIKE, "critic_hidden": (256, 256)}, *CORL, *HOPPER, FIXED, handed=True, networks=CRITICS
    ),
}
