"""Pairwise cover: few cases in which every two values of different arguments meet.

A fault of a kernel nearly always needs one or two of its arguments' values together; the whole product of six arguments
costs ten times as many cases and finds no more of those.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def pairwise(*choices: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows with one value of each argument, so that each pair of values of two arguments is in one of them.

    Greedy, always the same for the same arguments: the next row is the first of the product that has the most pairs not
    met yet.
    """
    product = list(itertools.product(*(range(len(values)) for values in choices)))
    pairs = [frozenset(itertools.combinations(enumerate(row), 2)) for row in product]
    missing = set().union(*pairs)
    rows = []
    while missing:
        best = max(range(len(product)), key=lambda number: len(pairs[number] & missing))
        missing -= pairs[best]
        rows.append(tuple(values[index] for values, index in zip(choices, product[best], strict=True)))
    return rows
