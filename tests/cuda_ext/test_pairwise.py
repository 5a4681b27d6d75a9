"""The cases that the kernels' tests run cover every pair."""

from __future__ import annotations

import itertools

from pairwise import pairwise


def test_every_two_values_meet_in_far_fewer_rows_than_the_product() -> None:
    choices = (range(5), "abc", range(4), (None, False, True), (False, True))
    rows = pairwise(*choices)
    for (i, first), (j, second) in itertools.combinations(enumerate(choices), 2):
        met = {(row[i], row[j]) for row in rows}
        assert met == set(itertools.product(first, second))
    assert 20 <= len(rows) <= 30  # 5 x 4 pairs at least; the product has 360
    assert rows == pairwise(*choices)
