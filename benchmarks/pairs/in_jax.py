"""Pairs with authors' codes in JAX."""

from __future__ import annotations

from pairs.pair import CHEETAH, Pair

IQL = ("ikostrikov/implicit_q_learning", "09d700248117881a75cb21f0adb95c6c8a694cb2", "paired_iql.py", "paired_jax")
PAIRS: dict[str, Pair] = {
    "iql": Pair("iql", {"preset": "official"}, *IQL, *CHEETAH),
}
