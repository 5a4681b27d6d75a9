"""The interval quasimetric: a case by hand, what makes it a quasimetric, its gradient."""

from __future__ import annotations

import pytest
import torch

from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.quasimetric import IntervalQuasimetric, union_length


def test_a_case_by_hand() -> None:
    """[0, 1.5], [2, 2.5] and [-1, 0] cover 3; [.5, 1], [0, 1] and [1, 4] cover 4: half the mean, half the largest."""
    x = torch.tensor([0, 1, 2, -1, 0.5, 0, 3, 1], dtype=torch.float64)
    y = torch.tensor([1.5, 0, 2.5, 0, 1, 1, 2, 4], dtype=torch.float64)
    lengths = union_length(x.unflatten(0, (2, 4)), y.unflatten(0, (2, 4)))
    assert lengths.tolist() == [3, 4]
    metric = IntervalQuasimetric(8, 4).double()
    assert metric(x, y).item() == pytest.approx(3.75)
    assert metric(y, x).item() == pytest.approx(1.0)  # not the same way back


def test_it_is_a_quasimetric() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y, z = (torch.randn(500, 24, generator=generator, dtype=torch.float64) for _ in range(3))
    metric = IntervalQuasimetric(24, 8).double()
    metric.balance.data.fill_(0.7)
    assert bool((metric(x, z) <= metric(x, y) + metric(y, z) + 1e-12).all())
    assert bool((metric(x, x) == 0).all())
    assert bool((metric(x, y) >= 0).all())


def test_its_gradient_is_that_of_differences() -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(3, 16, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(IntervalQuasimetric(16, 8).double(), (x, y))


def test_groups_must_divide_it() -> None:
    with pytest.raises(ConfigError, match="12 numbers has no groups of 8"):
        IntervalQuasimetric(12, 8)
