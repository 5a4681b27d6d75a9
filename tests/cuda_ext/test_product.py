"""Products of matrices, softmax and layer norms of a tape agree with float64 at every instruction set."""

from __future__ import annotations

import pytest
import torch
from levels import LEVELS
from pairwise import pairwise
from torch import Tensor

from surefoot.cuda_ext import native as module
from surefoot.cuda_ext import why_not_native

if module() is None:
    pytest.skip(f"no native module: {why_not_native()}", allow_module_level=True)

LIBRARY = module()
NEAR = 3e-6  # of the largest number, as of MLPs
SIZES = [
    (1, 1, 1),
    (8, 32, 64),
    (7, 33, 5),
    (97, 101, 257),  # a row, a column and a number of the depth beside full parts
    (200, 17, 600),
    (13, 530, 40),
    (3, 6, 0),
    (0, 5, 4),
    (5, 0, 4),
]
"""Rows, columns, depth."""


def place(tensor: Tensor | None) -> tuple[int, int]:
    return (0, 0) if tensor is None else (0, tensor.data_ptr())


def product(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out = a b + bias by a tape, of (members, rows, columns) tensors."""
    operands = [out, a, b, *([] if bias is None else [bias])]
    tape = LIBRARY.Tape(0)
    sizes = [*out.shape, a.shape[-1]]
    tape.product(sizes, [place(operand) for operand in operands], [list(operand.stride()) for operand in operands])
    tape.run([])


def laid(how: str, *shape: int) -> Tensor:
    """(members, rows, columns) random numbers that lie in some way."""
    members, rows, columns = shape
    if how == "rows":
        return torch.randn(shape)
    if how == "columns":
        return torch.randn(members, columns, rows).transpose(1, 2)
    if how == "part":
        return torch.randn(members, rows + 2, columns + 5)[:, 1:-1, 3:-2]
    if how == "neither":
        return torch.randn(members, rows, 2 * columns)[..., ::2]
    return torch.randn(1, rows, columns).expand(shape)  # shared


LAYOUTS = ["rows", "columns", "part", "neither", "shared"]


@pytest.mark.parametrize(
    ("sizes", "members", "of_a", "of_b", "bias", "level"),
    pairwise(SIZES, [1, 3], LAYOUTS, LAYOUTS, [None, "row", "rows"], LEVELS),
    indirect=["level"],
    ids=str,
)
def test_products_are_those_of_float64(
    sizes: tuple[int, int, int], members: int, of_a: str, of_b: str, bias: str | None, level: str
) -> None:
    rows, columns, depth = sizes
    torch.manual_seed(rows)
    a, b = laid(of_a, members, rows, depth), laid(of_b, members, depth, columns)
    added = None
    if bias is not None:
        added = torch.randn(members, 1 if bias == "row" else rows, columns).expand(members, rows, columns)
    expected = a.double() @ b.double() + (0 if added is None else added.double())
    around = torch.full((members, rows + 2, columns + 3), 7.0)
    product(a, b, added, around[:, 1:-1, 1:-2])
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(around[:, 1:-1, 1:-2].double(), expected, rtol=0, atol=NEAR * scale)
    around[:, 1:-1, 1:-2] = 7
    assert bool((around == 7).all())  # nothing beside the result is written


def test_a_result_in_place_of_its_bias_is_added_to(level: str) -> None:
    a, b, out = torch.randn(1, 40, 600), torch.randn(1, 600, 50), torch.randn(1, 40, 50)
    expected = out.double() + a.double() @ b.double()
    product(a, b, out, out)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=NEAR * float(expected.abs().max()))


def test_a_row_of_a_product_does_not_depend_on_the_others(level: str) -> None:
    a, b, whole = torch.randn(1, 101, 300), torch.randn(1, 300, 70), torch.empty(1, 101, 70)
    product(a, b, None, whole)
    for row in (0, 7, 96, 100):
        alone = torch.empty(1, 1, 70)
        product(a[:, row : row + 1], b, None, alone)
        assert torch.equal(alone[0, 0], whole[0, row])


def test_nan_stays_in_its_row_and_infinity_in_its_column(level: str) -> None:
    a, b, out = torch.randn(1, 40, 30), torch.rand(1, 30, 50), torch.empty(1, 40, 50)
    a[0, 5, 3], b[0, 2, 8] = torch.nan, torch.inf
    product(a, b, None, out)
    assert out.isnan().any(-1).nonzero().tolist() == [[0, 5]]
    assert (~out[0].isfinite()).all(0).nonzero().tolist() == [[8]]


def test_products_that_do_not_fit_are_refused() -> None:
    tape, at = LIBRARY.Tape(0), (0, 0)
    with pytest.raises(ValueError, match="a result, two factors and perhaps a bias"):
        tape.product([1, 2, 2, 2], [at, at], [[0, 2, 1]] * 2)
    with pytest.raises(ValueError, match="strides of members, rows and columns"):
        tape.product([1, 2, 2, 2], [at] * 3, [[0, 2, 1], [0, 2, 1], [2, 1]])
    with pytest.raises(ValueError, match="row are adjacent"):
        tape.product([1, 2, 2, 2], [at] * 3, [[0, 1, 2], [0, 2, 1], [0, 2, 1]])
    with pytest.raises(ValueError, match="no operation on rows polish"):
        tape.rows("polish", 1, 1, 0.0, [at])
    with pytest.raises(ValueError, match="softmax has 2 operands"):
        tape.rows("softmax", 1, 1, 0.0, [at])
    assert len(tape) == 0


def rows(name: str, columns: int, *operands: Tensor | None, epsilon: float = 0.0) -> None:
    tape, first = LIBRARY.Tape(0), operands[0]
    assert first is not None
    tape.rows(name, first.numel() // columns, columns, epsilon, [place(operand) for operand in operands])
    tape.run([])


def near(found: Tensor, expected: Tensor, by: float = NEAR) -> None:
    scale = max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(found.double(), expected.detach(), rtol=0, atol=by * scale)


@pytest.mark.parametrize("shape", [(5, 1), (7, 8), (3, 13), (40, 60), (2, 257)])
def test_softmax_and_its_gradient_are_those_of_float64(shape: tuple[int, int], level: str) -> None:
    x, above = torch.randn(shape) * 20, torch.randn(shape)
    x[0, -1] = -1e9  # of what may not be seen
    exact = x.double().requires_grad_()
    expected = exact.softmax(-1)
    (slope,) = torch.autograd.grad(expected, exact, above.double())
    found, below = torch.empty(shape), torch.empty(shape)
    rows("softmax", shape[1], found, x)
    rows("softmax_backward", shape[1], below, above, found)
    near(found, expected)
    near(below, slope)
    assert found[0, -1] == (1 if shape[1] == 1 else 0)
    x[1, 0] = torch.nan
    rows("softmax", shape[1], found, x)
    assert found.isnan().any(-1).nonzero().tolist() == [[1]]


@pytest.mark.parametrize("shape", [(5, 1), (3, 13), (40, 128), (2, 257)])
@pytest.mark.parametrize("scaled", [True, False])
def test_layer_norms_and_their_gradients_are_those_of_float64(shape: tuple[int, int], scaled: bool, level: str) -> None:
    x, above = torch.randn(shape) + 3, torch.randn(shape)
    parameters = [torch.randn(shape[1]) + 1, torch.randn(shape[1])] if scaled else []
    exact = [t.double().requires_grad_() for t in (x, *parameters)]
    expected = torch.nn.functional.layer_norm(exact[0], shape[1:], *exact[1:], eps=1e-5)
    slopes = torch.autograd.grad(expected, exact, above.double())
    found, mean, inverse = torch.empty(shape), torch.empty(len(x)), torch.empty(len(x))
    gain, shift = parameters if scaled else (None, None)
    rows("layer_norm", shape[1], found, mean, inverse, x, gain, shift, epsilon=1e-5)
    below = [torch.full_like(t, 7.0) for t in (x, *parameters)]
    to_gain, to_shift = below[1:] if scaled else (None, None)
    rows("layer_norm_backward", shape[1], below[0], to_gain, to_shift, above, x, mean, inverse, gain)
    near(found, expected, 1e-5)  # as in the MLP's
    for one, other in zip(below, slopes, strict=True):
        near(one, other, 1e-5)
