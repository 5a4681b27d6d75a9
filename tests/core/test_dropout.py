"""Dropout masks out of the places of what is dropped, and where they stand in a network."""

from __future__ import annotations

import math

import pytest
import torch

from surefoot.core.base import dropout
from surefoot.core.base.counter import CounterGenerator
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.random import Noise
from surefoot.core.nn.networks import MLP, Critic


def drawn(rows: int, units: int, keep: float) -> torch.Tensor:
    source = CounterGenerator([0], "dropped", 0, torch.device("cpu"))
    (places,) = Noise("dropped", units, keep).draw(source, (rows,))
    assert places.dtype == torch.float32
    assert places.shape == (rows, dropout.most_dropped(units, keep))
    return dropout.masks(places.double(), units, keep)


@pytest.mark.parametrize(("units", "keep"), [(40, 0.99), (40, 0.9), (12, 0.5), (3, 0.1), (40, 0.9999)])
def test_each_unit_is_dropped_with_its_probability_and_for_itself(units: int, keep: float) -> None:
    rows = 50_000
    masks = drawn(rows, units, keep)
    zeros = masks == 0
    assert torch.equal(masks[~zeros], torch.full_like(masks[~zeros], 1 / keep))
    p = 1 - keep
    error = 5 * math.sqrt(p * keep / rows)
    torch.testing.assert_close(zeros.double().mean(0), torch.full((units,), p).double(), rtol=0, atol=error)
    counts = zeros.sum(1).double()
    assert float(counts.mean()) == pytest.approx(units * p, abs=error * math.sqrt(units))
    assert float(counts.var()) == pytest.approx(units * p * keep, rel=0.05, abs=5e-4)  # what independent ones have
    neighbours = (zeros[:, 1:] & zeros[:, :-1]).double().mean()
    assert float(neighbours) == pytest.approx(p * p, abs=5 * p * math.sqrt(1 / rows / units) + 1e-5)


def test_there_is_room_for_all_that_are_dropped() -> None:
    """By the binomial distribution itself."""
    for units, keep in ((1024, 0.99), (1024, 0.9), (1024, 0.9999), (64, 0.99), (20, 0.5)):
        room, p = dropout.most_dropped(units, keep), 1 - keep
        tail = sum(math.comb(units, k) * p**k * keep ** (units - k) for k in range(room + 1, units + 1))
        assert tail <= dropout.RARE
    assert dropout.most_dropped(1024, 0.99) < 1024 / 20


def test_masks_are_read_from_places() -> None:
    where = torch.tensor([[0.0, 2.0, 5.0], [4.0, 5.0, 5.0], [5.0, 5.0, 5.0]])
    expected = 1.25 * torch.tensor([[0, 1, 0, 1, 1], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1.0]])
    assert torch.equal(dropout.masks(where, 5, 0.8), expected)


def test_over_many_masks_a_layers_sums_have_the_mean_that_they_have_without() -> None:
    """Read through layers that change nothing: sums far above 0 for the relu, and the identity behind it."""
    rows = 100_000
    mlp = MLP(3, 6, (6,), dropout="sums").double()
    with torch.no_grad():
        mlp.biases[0].add_(5)
        mlp.weights[1].copy_(torch.eye(6))
        mlp.biases[1].zero_()
        inputs = torch.tensor([[0.3, -0.8, 0.5]], dtype=torch.float64)
        plain = mlp(inputs)[0]
        means = mlp(inputs.expand(rows, -1), drawn(rows, 6, 0.9)).mean(0)
    error = plain * math.sqrt(0.1 / 0.9 / rows)  # the standard deviation of the mean
    assert bool(((means - plain).abs() < 5 * error).all())


@pytest.mark.parametrize("where", ["sums", "activations"])
def test_masks_stand_before_the_layer_norm_or_behind_the_activation(where: str) -> None:
    """Of sums (1, 3, 5) and a mask (2, 0, 2): norm(2, 0, 10), or 2 norm(1, 3, 5)_1 and 2 norm(1, 3, 5)_3."""
    mlp = MLP(1, 3, (3,), layer_norm=True, norm_epsilon=1e-12, dropout=where).double()
    with torch.no_grad():
        mlp.weights[0].zero_()
        mlp.biases[0].copy_(torch.tensor([1.0, 3.0, 5.0]))
        mlp.weights[1].copy_(torch.eye(3))
        mlp.biases[1].zero_()
        found = mlp(torch.zeros(1, 1, dtype=torch.float64), torch.tensor([[2.0, 0.0, 2.0]], dtype=torch.float64))
    expected = [0.0, 0.0, 6 / math.sqrt(56 / 3)] if where == "sums" else [0.0, 0.0, 2 * 2 / math.sqrt(8 / 3)]
    torch.testing.assert_close(found, torch.tensor([expected], dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_each_critic_has_masks_of_its_own_also_where_some_are_chosen() -> None:
    critic = Critic(2, 1, (5, 4), 3, layer_norm=True).double()
    critic.mlp.dropout = "sums"
    pairs, masks = torch.randn(7, 3, dtype=torch.float64), drawn(21, 9, 0.5).view(3, 7, 9)
    whole = critic(pairs, masks=masks)
    torch.testing.assert_close(critic(pairs, torch.tensor([2, 0]), masks), whole[[2, 0]])
    for index in range(3):
        same = critic(pairs, masks=masks[index])[index]  # one for all, of which this critic is read
        torch.testing.assert_close(whole[index], same)
    assert not torch.equal(whole, critic(pairs))


def test_what_masks_cannot_be_is_named() -> None:
    with pytest.raises(ConfigError, match="dropout is 'inputs', must be one of activations, sums"):
        MLP(2, 1, (4,), dropout="inputs")
    critic = Critic(2, 1, (5, 4), 2)
    with pytest.raises(ConfigError, match=r"dropout masks are \(7, 5\), must be of 9 units, the sum of hidden widths"):
        critic(torch.zeros(7, 3), masks=torch.ones(7, 5))
    with pytest.raises(ConfigError, match=r"dropout masks are \(3, 7, 9\), must be \(B, 9\) or \(2, B, 9\)"):
        critic(torch.zeros(7, 3), masks=torch.ones(3, 7, 9))
