"""Our algorithms that are paired with official code, by name; a file for each group of codes."""

from __future__ import annotations

from pairs import corl, goals, in_jax, in_torch, online, safe, zero_shot
from pairs.pair import Pair

PAIRS: dict[str, Pair] = {
    **in_jax.PAIRS,
    **goals.PAIRS,
    **zero_shot.PAIRS,
    **corl.PAIRS,
    **in_torch.PAIRS,
    **safe.PAIRS,
    **online.PAIRS,
}
