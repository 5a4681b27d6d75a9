"""Perceptrons with layer norm and tanh in their first layer, against PyTorch's own layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.first_norm import FirstNormMLP
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.two_streams import TwoStreams


def plain(network: FirstNormMLP, member: int | None = None) -> nn.Sequential:
    """The same numbers in PyTorch's layers."""
    layers: list[nn.Module] = []
    pick = (lambda value: value) if member is None else (lambda value: value[member])
    for number, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        layer = nn.Linear(*pick(weight).shape[::-1])
        layer.load_state_dict({"weight": pick(weight), "bias": pick(bias)})
        norm = nn.LayerNorm(layer.out_features)
        norm.load_state_dict(
            {"weight": pick(network.scales[0]), "bias": pick(network.shifts[0])}
        ) if number == 0 else None
        layers += [layer, *([norm, nn.Tanh()] if number == 0 else [nn.ReLU()])]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("hidden", [(7,), (7, 5), (7, 5, 6)])
@pytest.mark.parametrize("members", [None, 2])
def test_it_is_pytorchs_layers(hidden: tuple[int, ...], members: int | None) -> None:
    torch.manual_seed(0)
    network = FirstNormMLP(3, 4, hidden, members=members)
    with torch.no_grad():
        network.scales[0].uniform_(0.5, 2)
        network.shifts[0].normal_()
    inputs = torch.randn(9, 3)
    if members is None:
        torch.testing.assert_close(network(inputs), plain(network)(inputs))
        return
    expected = torch.stack([plain(network, member)(inputs) for member in range(members)])
    torch.testing.assert_close(network(inputs), expected)
    torch.testing.assert_close(network.member(inputs, 1), expected[1])


def test_dropout_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no dropout"):
        FirstNormMLP(3, 4, (7,))(torch.randn(2, 3), torch.ones(2, 7))


@pytest.mark.parametrize(("normed", "kinds"), [("none", (0, 0, 0)), ("inputs", (1, 1, 0)), ("last", (0, 0, 1))])
def test_which_of_the_streams_begin_with_a_norm(normed: str, kinds: tuple[int, ...]) -> None:
    network = TwoStreams(3, 5, 2, (8,), 4, 2, normed)
    parts = (network.first, network.second, network.last)
    assert tuple(isinstance(part, FirstNormMLP) for part in parts) == kinds
    assert network(torch.randn(6, 3), torch.randn(6, 5)).shape == (2, 6, 2)
    with pytest.raises(ConfigError, match="normed is 'all'"):
        TwoStreams(3, 5, 2, normed="all")


def test_orthogonal_weights_of_gain_one() -> None:
    network = MLP(6, 6, (6,), initialization="unit_orthogonal")
    for weight in network.weights:
        torch.testing.assert_close(weight @ weight.T, torch.eye(6), atol=1e-5, rtol=0)
