"""Pairs with authors' codes in JAX."""

from __future__ import annotations

from typing import Any

from pairs.pair import CHEETAH, PUZZLE, Pair

IQL = ("ikostrikov/implicit_q_learning", "09d700248117881a75cb21f0adb95c6c8a694cb2", "paired_iql.py", "paired_jax")
FQL = ("seohongpark/fql", "719d04417cb0b206deddbc7d761b3e710c3d750c", "paired_flow.py", "paired_jax")
QC = ("ColinQiyangLi/qc", "48283b4f662bd1c127ec9fa80647b49759f10653", "paired_flow.py", "paired_jax")
QAM = ("ColinQiyangLi/qam", "f93efd22520a79f6819f458dffe9c075eacc786f", "paired_flow.py", "paired_jax")
SMALL: dict[str, Any] = {"hidden": (256, 256, 256, 256)}
"""Sizes of peers/paired_flow.py, half the published ones."""
CRITICS = ("critic", "target_critic")
PAIRS: dict[str, Pair] = {
    "iql": Pair("iql", {"preset": "official"}, *IQL, *CHEETAH),
    "fql": Pair("fql", {**SMALL, "alpha": 300.0}, *FQL, *PUZZLE, {}, ("velocity", "student", *CRITICS)),
    "ifql": Pair("ifql", SMALL, *FQL, *PUZZLE, {}, ("velocity", "value", *CRITICS)),
    "rebrac": Pair(
        "rebrac",
        {"preset": "fql", **SMALL, "actor_penalty": 0.1, "critic_penalty": 0.01},
        *FQL,
        *PUZZLE,
        {},
        ("actor", "target_actor", *CRITICS),
    ),
    "qc": Pair("qc", {**SMALL, "samples": 8}, *QC, *PUZZLE, {}, ("velocity", *CRITICS)),
    "qc_fql": Pair("qc_fql", {**SMALL, "alpha": 300.0}, *QC, *PUZZLE, {}, ("velocity", "student", *CRITICS)),
    "qam": Pair("qam", {**SMALL, "chunk": 5}, *QAM, *PUZZLE, {}, ("velocity", "improved", "average_velocity", *CRITICS)),
}
