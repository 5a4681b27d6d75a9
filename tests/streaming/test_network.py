"""SparseInit, and the closed-form gradient beside autograd's and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from surefoot.core.base.random import generator
from surefoot.streaming.avg import UnitNetwork
from surefoot.streaming.network import Network, sparse_matrix

FAN_IN = (4, 5, 7, 9, 10, 12, 18, 28, 36, 128, 256, 512, 1024)
ZEROS = (4, 5, 7, 9, 9, 11, 17, 26, 33, 116, 231, 461, 922)


@pytest.mark.parametrize("min_nonzero", [0, 1])
@pytest.mark.parametrize(("fan_in", "zeros"), zip(FAN_IN, ZEROS, strict=True))
def test_each_row_of_sparse_init_has_its_share_of_zeros(fan_in: int, zeros: int, min_nonzero: int) -> None:
    weights = sparse_matrix(generator(3, "test"), 40, fan_in, 0.9, min_nonzero)
    expected = min(zeros, fan_in - min_nonzero)
    assert ((weights == 0).sum(1) == expected).all()
    assert np.abs(weights).max(initial=0) <= 1 / np.sqrt(fan_in)
    if fan_in >= 36:
        places = [tuple(np.flatnonzero(row)) for row in weights]
        assert len(set(places)) > 35  # rows differ in where, and every column is reached by some
        assert np.abs(weights).max() > 0.9 / np.sqrt(fan_in)
        assert weights.std() == pytest.approx(np.sqrt((1 - expected / fan_in) / (3 * fan_in)), rel=0.2)


def plain(network: Network, flat: Tensor, inputs: Tensor) -> Tensor:
    """The network by torch's own functions."""
    value, start = inputs, 0
    for layer, (after, before) in enumerate(network.shapes):
        weight = flat[start : start + after * before].view(after, before)
        bias = flat[start + after * before : start + after * (before + 1)]
        start += after * (before + 1)
        value = nn.functional.linear(value, weight, bias)
        if layer < len(network.shapes) - 1:
            if network.layer_norm:
                value = nn.functional.layer_norm(value, value.shape[-1:])
            value = nn.functional.leaky_relu(value, 0.01)
    return value


@pytest.mark.parametrize("hidden", [(), (6,), (16, 9), (5, 5, 5)])
@pytest.mark.parametrize("layer_norm", [True, False])
def test_the_closed_form_gradient_is_autograds(hidden: tuple[int, ...], layer_norm: bool) -> None:
    network = Network(7, 3, hidden, layer_norm)
    random = torch.Generator().manual_seed(1)
    flat = torch.randn(4, network.size, generator=random, dtype=torch.float64)
    inputs, by_outputs = (torch.randn(4, n, generator=random, dtype=torch.float64) for n in (7, 3))
    inputs[1] = 0  # biases alone
    passed = network.forward(flat, inputs)
    gradient = network.backward(flat, passed, by_outputs)
    for k in range(4):
        leaf = flat[k].clone().requires_grad_()
        outputs = plain(network, leaf, inputs[k])
        torch.testing.assert_close(passed.outputs[k], outputs.detach(), rtol=1e-12, atol=1e-12)
        (expected,) = torch.autograd.grad((outputs * by_outputs[k]).sum(), leaf)
        torch.testing.assert_close(gradient[k], expected, rtol=1e-9, atol=1e-11)


def test_layer_norm_of_a_zero_vector_has_the_jacobian_of_the_closed_form() -> None:
    """(I - 11'/n) / sqrt(1e-5), times LeakyReLU's slope at 0: finite, and what autograd says too."""
    network = Network(3, 1, (4,))
    flat = torch.zeros(1, network.size, dtype=torch.float64)
    flat[0, -5:-1] = torch.tensor([1.0, 2.0, -1.0, 0.5])  # the output weights
    inputs = torch.tensor([[0.3, -0.2, 1.0]], dtype=torch.float64)
    gradient = network.backward(flat, network.forward(flat, inputs), torch.ones(1, 1, dtype=torch.float64))[0]
    centred = flat[0, -5:-1] - flat[0, -5:-1].mean()
    biases = 0.01 * centred / np.sqrt(1e-5)
    torch.testing.assert_close(gradient[12:16], biases)
    torch.testing.assert_close(gradient[:12].view(4, 3), torch.outer(biases, inputs[0]))
    leaf = flat[0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(plain(network, leaf, inputs[0]).sum(), leaf)
    torch.testing.assert_close(gradient, expected)


def test_the_gradient_is_that_of_finite_differences() -> None:
    network = Network(3, 2, (5, 4))
    flat = torch.from_numpy(generator(2, "test").normal(size=(1, network.size)))
    inputs, by_outputs = torch.tensor([[0.5, -1.0, 2.0]]).double(), torch.tensor([[1.0, -0.7]]).double()
    gradient = network.backward(flat, network.forward(flat, inputs), by_outputs)[0]
    for index in range(network.size):
        nudge = torch.zeros_like(flat)
        nudge[0, index] = 1e-6
        up, down = (network.forward(flat + sign * nudge, inputs).outputs for sign in (1, -1))
        slope = float(((up - down) * by_outputs).sum() / 2e-6)
        assert slope == pytest.approx(float(gradient[index]), rel=1e-5, abs=1e-8)


def test_hidden_layers_are_normalised_to_mean_zero_and_variance_one() -> None:
    network = Network(6, 1, (32,))
    flat = torch.from_numpy(generator(5, "test").normal(size=(2, network.size)))
    (normalised,) = network.forward(flat, torch.randn(2, 6, dtype=torch.float64)).normalised
    torch.testing.assert_close(normalised.mean(-1), torch.zeros(2).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(normalised.var(-1, correction=0), torch.ones(2).double(), rtol=1e-5, atol=0)
    assert network.size == 32 * 7 + 33


def test_networks_of_unit_features_have_no_closed_form_of_another_kind() -> None:
    for name in ("forward", "backward", "layer_norm"):
        assert hasattr(Network(3, 1, (4,)), name)
        assert not hasattr(UnitNetwork(3, 1, (4,)), name)
