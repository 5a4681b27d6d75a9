"""The affine map that a GPU's layers use: torch's own, in values and derivatives, alone and stacked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, jvp, vmap

from surefoot.core.nn.dense import dense

linear = torch.nn.functional.linear
SHAPES = {"rows": (5, 3), "windows": (2, 4, 3), "one row": (3,)}


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape)), dtype=torch.float64)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_values_and_gradients_are_those_of_torch(shape: tuple[int, ...]) -> None:
    given = [numbers(*shape), numbers(4, 3), numbers(4)]
    results = []
    for function in (linear, dense):
        leaves = [value.clone().requires_grad_() for value in given]
        found = function(*leaves)
        results.append([found, *torch.autograd.grad(found.square().sum(), leaves)])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


def loss_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def loss(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.tanh(function(torch.tanh(function(inputs, weight, bias)), weight, bias)).square().mean()

    return loss


@pytest.mark.parametrize("dims", [(0, 0, 0), (None, 0, 0), (1, 0, 0), (0, None, None)])
def test_stacked_gradients_are_those_of_torch(dims: tuple[int | None, ...]) -> None:
    shapes = [(5, 3), (3, 3), (3,)]
    given = []
    for dim, shape in zip(dims, shapes, strict=True):
        given.append(numbers(*shape) if dim is None else numbers(6, *shape).movedim(0, dim))
    expected, found = (
        vmap(grad(loss_of(function), argnums=(0, 1, 2)), in_dims=dims)(*given) for function in (linear, dense)
    )
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one)


def test_second_derivatives_and_forward_mode_are_those_of_torch() -> None:
    given = (numbers(2, 3), numbers(3, 3), numbers(3))
    ways = [numbers(*value.shape) for value in given]
    for derive in (
        lambda loss: jacrev(grad(loss))(*given),
        lambda loss: jvp(loss, given, tuple(ways))[1],
        lambda loss: jvp(lambda inputs: loss(inputs, *given[1:]), given[:1], tuple(ways[:1]))[1],
        lambda loss: vmap(lambda x: jvp(lambda y: loss(y, *given[1:]), (x,), (ways[0],))[1])(numbers(4, 2, 3)),
    ):
        torch.testing.assert_close(derive(loss_of(dense)), derive(loss_of(linear)))
