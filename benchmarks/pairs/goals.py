"""Pairs with OGBench's goal-conditioned agents."""

from __future__ import annotations

from typing import Any

from pairs.pair import Pair

CODE = ("seohongpark/ogbench", "1d4140997f60c52c6fb0702ec100dc988b18c548", "paired_goals.py", "paired_jax")
MAZE = ("pointmaze-medium-200", "ogbench/pointmaze-medium-navigate-v0")
"""In `SUREFOOT_PEERS`/files
surefoot datasets generate ogbench/pointmaze-medium-navigate --episodes 200 -o pointmaze-medium-200.hdf5
"""
SMALL: dict[str, Any] = {"hidden": (64, 64, 64)}
LEFT = {
    "acting": "the kit hands policies no goals",
    "curves": "the kit hands policies no goals; whole runs beside the published ones are in goal_conditioned.md",
}


def in_maze(algorithm: str, *networks: str, **options: Any) -> Pair:
    """A pair in the point maze."""
    return Pair(algorithm, {**SMALL, **options}, *CODE, *MAZE, networks=("actor", *networks), left_out=LEFT)


PAIRS: dict[str, Pair] = {
    "gcbc": in_maze("gcbc"),
    "gcivl": in_maze("gcivl", "value", "target_value"),
    "gciql": in_maze("gciql", "value", "critic", "target_critic"),
    "crl": in_maze("crl", "critic", latent=64),
    "qrl": in_maze("qrl", "distance", latent=64),
    "hiql": in_maze("hiql", "phi", "value", "target_value"),
}
