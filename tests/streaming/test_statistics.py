"""Normalisers against numbers worked out by hand, and against two passes over the same samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.streaming import statistics
from surefoot.streaming.statistics import deviation, discounted_sum, welford


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float64)


def test_observations_are_normalised_by_statistics_that_know_them() -> None:
    count, mean, squares, outputs = zeros(1), zeros(1, 1), zeros(1, 1), []
    for value in (1.0, 3.0, 2.0, 6.0):
        x = torch.full((1, 1), value).double()
        count, mean, squares = welford(count, mean, squares, x)
        outputs.append(float((x - mean) / deviation(count, squares)))
    assert outputs == pytest.approx([0, 0.7071068, 0, 1.3887302], abs=1.5e-7)


@pytest.mark.parametrize(
    ("clear_before_add", "traces", "scaled"),
    [
        (True, (1, 1.99, 2.0, 2.98), (1.0, 1.4284985, 3.4813772, 1.2370924)),
        # The sum at the third step is 3.9701, and nothing of it is left for the fourth.
        (False, (1, 1.99, 3.9701, 1.0), None),
    ],
)
def test_rewards_are_divided_by_the_deviation_of_their_discounted_sum(
    clear_before_add: bool, traces: tuple[float, ...], scaled: tuple[float, ...] | None
) -> None:
    kept, count, mean, squares = zeros(1), zeros(1), zeros(1), zeros(1)
    totals, outputs = [], []
    for reward, done in ((1.0, False), (1.0, False), (2.0, True), (1.0, False)):
        r = torch.tensor([reward]).double()
        total, kept = discounted_sum(kept, r, torch.tensor([done]), 0.99, clear_before_add)
        count, mean, squares = welford(count, mean, squares, total)
        totals.append(float(total))
        outputs.append(float(r / deviation(count, squares)))
    assert totals == pytest.approx(traces)
    expected = [r / np.sqrt((np.var(totals[: n + 1], ddof=1) if n else 1) + 1e-8) for n, r in enumerate((1, 1, 2, 1))]
    assert outputs == pytest.approx(expected)
    if scaled is not None:
        assert outputs == pytest.approx(scaled, abs=1.5e-7)


def test_welford_is_exact_far_from_zero() -> None:
    samples = np.random.default_rng(0).normal(1e6, 2.0, 20_000)
    count, mean, squares = zeros(1), zeros(1), zeros(1)
    for sample in torch.from_numpy(samples).unsqueeze(-1):
        count, mean, squares = welford(count, mean, squares, sample)
    assert float(mean) == pytest.approx(samples.mean(), rel=1e-12)
    assert float(deviation(count, squares)) == pytest.approx(
        np.sqrt(samples.var(ddof=1) + statistics.EPSILON), rel=1e-9
    )
