"""Symlog, two-hot targets over bins and simplicial norms against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.simplices import simplicial_norm
from surefoot.core.nn.two_hot import cross_entropy, even_bins, mean_of_bins, symexp, symlog, two_hot

EVEN = even_bins(-10, 10, 101)
WIDE = symexp(even_bins(-20, 20, 255))


def test_symlog_of_five_and_its_inverse() -> None:
    assert float(symlog(torch.tensor(5.0, dtype=torch.float64))) == pytest.approx(math.log(6), abs=1e-12)
    assert float(symlog(torch.tensor(-5.0))) == pytest.approx(-1.7917595, abs=1e-6)
    values = torch.tensor([-1e6, -3.0, -1e-9, 0.0, 1e-9, 0.5, 2e4], dtype=torch.float64)
    torch.testing.assert_close(symexp(symlog(values)), values, rtol=1e-12, atol=0)


def test_five_lies_between_bins_58_and_59_of_101() -> None:
    found = two_hot(symlog(torch.tensor([5.0], dtype=torch.float64)), EVEN)[0]
    assert found.nonzero().flatten().tolist() == [58, 59]
    assert found[58:60].tolist() == pytest.approx([0.0412027, 0.9587973], abs=1e-7)


@pytest.mark.parametrize("bins", [EVEN, WIDE, torch.tensor([-1.0, 0.5, 4.0], dtype=torch.float64)])
def test_weights_are_a_distribution_whose_mean_is_the_number(bins: torch.Tensor) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(200, generator=generator, dtype=torch.float64) * (bins[-1] - bins[0]) + bins[0]
    values = torch.cat([values, bins, torch.tensor([0.0, 0.3], dtype=torch.float64)])
    weights = two_hot(values, bins)
    assert bool((weights >= 0).all())
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(values), rtol=1e-9, atol=1e-9)
    assert int((weights > 0).sum(-1).max()) <= 2
    torch.testing.assert_close((weights * bins).sum(-1), values, rtol=1e-9, atol=1e-9)


def test_numbers_beyond_the_bins_are_put_on_the_last_one() -> None:
    found = two_hot(torch.tensor([-99.0, 99.0], dtype=torch.float64), EVEN)
    assert found.argmax(-1).tolist() == [0, 100]
    assert found.amax(-1).tolist() == [1.0, 1.0]


def test_decoding_gives_back_what_was_encoded() -> None:
    values = torch.tensor([-300.0, -1.0, 0.0, 0.2, 5.0, 1000.0], dtype=torch.float64)
    logits = two_hot(symlog(values), EVEN).clamp(min=1e-300).log()
    torch.testing.assert_close(symexp(mean_of_bins(logits, EVEN)), values, rtol=1e-9, atol=1e-9)


def test_a_uniform_distribution_over_wide_bins_means_exactly_nothing() -> None:
    assert float(mean_of_bins(torch.zeros(255), WIDE.float())) == 0.0


def test_cross_entropy_is_that_of_the_distributions_and_least_at_the_target() -> None:
    weights = torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64)
    logits = torch.tensor([[0.0, math.log(3.0), math.log(6.0)]], dtype=torch.float64)
    expected = -(0.25 * math.log(0.1) + 0.75 * math.log(0.3))
    assert float(cross_entropy(logits, weights)) == pytest.approx(expected, abs=1e-12)
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert float(cross_entropy(weights.clamp(min=1e-300).log(), weights)) == pytest.approx(entropy, abs=1e-12)


def test_targets_have_no_gradient() -> None:
    values = torch.tensor([1.0], requires_grad=True)
    assert not two_hot(values, EVEN.float()).requires_grad


@pytest.mark.parametrize(("low", "high", "count"), [(0.0, 1.0, 1), (1.0, 1.0, 5), (2.0, 1.0, 5)])
def test_bins_over_nothing_are_refused(low: float, high: float, count: int) -> None:
    with pytest.raises(ConfigError, match="bins from"):
        even_bins(low, high, count)


def test_groups_of_a_simplicial_norm_sum_to_one() -> None:
    values = torch.randn(3, 5, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = simplicial_norm(values, 8)
    assert found.shape == values.shape
    torch.testing.assert_close(found.unflatten(-1, (3, 8)).sum(-1), torch.ones(3, 5, 3, dtype=torch.float64))
    assert simplicial_norm(torch.tensor([0.0, math.log(3.0), 5.0, 5.0]), 2).tolist() == pytest.approx(
        [0.25, 0.75, 0.5, 0.5]
    )


def test_groups_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="groups of 7 do not divide 24"):
        simplicial_norm(torch.zeros(24), 7)
