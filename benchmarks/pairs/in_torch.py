"""Pairs with authors' codes in PyTorch, each from a repository of its own."""

from __future__ import annotations

from pairs.pair import Pair

PAIRS: dict[str, Pair] = {}
