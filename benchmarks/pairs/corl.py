"""Pairs with CORL, whose scripts are one file an algorithm."""

from __future__ import annotations

from pairs.pair import HOPPER, Pair

CORL = ("tinkoff-ai/CORL", "6afec90484bbf47dee05fdf525e26a3ebe028e9b", "paired_corl.py", "corl")
TD3_NETWORKS = ("actor", "target_actor", "critic", "target_critic")
PAIRS: dict[str, Pair] = {
    "iql-corl": Pair("iql", {"preset": "corl"}, *CORL, *HOPPER),
    "td3bc": Pair("td3bc", {}, *CORL, *HOPPER, {"target_noise": 0.0}, TD3_NETWORKS),
}
