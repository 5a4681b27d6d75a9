"""The native MLP, Adam and gather give torch's numbers at every instruction set, for every class of shape."""

from __future__ import annotations

import itertools

import pytest
import torch
from levels import LEVELS
from pairwise import pairwise
from torch import Tensor

from surefoot.core.nn.native import kernels, native
from surefoot.cuda_ext import native as module
from surefoot.cuda_ext import why_not_native

if module() is None:
    pytest.skip(f"no native module: {why_not_native()}", allow_module_level=True)

LIBRARY = module()
SHAPES = [
    (17, 256, 256, 1),  # a value network
    (23, 256, 256, 1),  # a critic
    (17, 64, 64, 6),  # an actor
    (3, 8, 6, 2),
    (5, 7),  # one layer
    (1, 1, 1),
    (2, 33, 31, 3),
    (32, 16, 1),
    (49, 100, 13, 9, 2),  # four layers of odd widths
    (18, 12, 5),
    (70, 3, 40),
]


def network(sizes: tuple[int, ...], members: int | None) -> tuple[list[Tensor], list[Tensor]]:
    lead = () if members is None else (members,)
    pairs = list(itertools.pairwise(sizes))
    weights = [torch.randn(*lead, after, before) / before**0.5 for before, after in pairs]
    return weights, [torch.randn(*lead, after) for _, after in pairs]


def exact(
    inputs: Tensor, weights: list[Tensor], biases: list[Tensor], gradient: Tensor, hidden: str = "relu"
) -> list[Tensor]:
    """Outputs and the gradients of inputs, weights and biases, in float64 by torch."""
    values = [t.double().requires_grad_() for t in (inputs, *weights, *biases)]
    x, w, b = values[0], values[1 : len(weights) + 1], values[len(weights) + 1 :]
    for layer, (weight, bias) in enumerate(zip(w, b, strict=True)):
        x = x @ weight.transpose(-1, -2) + bias.unsqueeze(-2)
        x = kernels.HIDDEN[hidden](x) if layer < len(w) - 1 else x
    return [x, *torch.autograd.grad(x, values, gradient.double())]


def ours(
    inputs: Tensor, weights: list[Tensor], biases: list[Tensor], gradient: Tensor, hidden: str = "relu"
) -> list[Tensor]:
    outputs, saved = native.forward(inputs, weights, biases, keep=True, hidden=hidden)
    assert saved is not None
    places = [torch.full_like(t, 7.0) for t in (*weights, *biases)]
    to_weights, to_biases = places[: len(weights)], places[len(weights) :]
    below = native.backward(inputs, weights, biases, saved, gradient, to_weights, to_biases, True, hidden)
    assert below is not None
    return [outputs, below, *places]


def assert_near(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        scale = max(1.0, float(other.detach().abs().max())) if other.numel() else 1.0
        torch.testing.assert_close(one.double(), other.detach(), rtol=0, atol=3e-6 * scale)


@pytest.mark.parametrize(
    ("sizes", "batch", "hidden", "level"),
    pairwise(SHAPES, [(256, 2), (37, None), (1, 3), (64, 1)], native.HIDDEN, LEVELS),
    indirect=["level"],
    ids=str,
)
def test_an_mlp_and_its_gradients_are_torchs(
    sizes: tuple[int, ...], batch: tuple[int, int | None], hidden: str, level: str
) -> None:
    rows, members = batch
    torch.manual_seed(rows)
    inputs, (weights, biases) = torch.randn(rows, sizes[0]), network(sizes, members)
    gradient = torch.randn(*(() if members is None else (members,)), rows, sizes[-1]) / rows
    assert_near(ours(inputs, weights, biases, gradient, hidden), exact(inputs, weights, biases, gradient, hidden))


@pytest.mark.parametrize(
    ("sizes", "batch", "hidden", "norm", "level"),
    pairwise(
        [(17, 256, 256, 1), (5, 7), (2, 33, 31, 3), (49, 100, 13, 9, 2), (4, 3, 1)],
        [(1200, 2), (37, None), (1, 3)],
        native.HIDDEN,
        [(False, 1e-5), (True, 1e-6)],
        LEVELS,
    ),
    indirect=["level"],
    ids=str,
)
def test_an_mlp_with_layer_norms_and_its_gradients_are_torchs(
    sizes: tuple[int, ...], batch: tuple[int, int | None], hidden: str, norm: tuple[bool, float], level: str
) -> None:
    (rows, members), (after, epsilon) = batch, norm
    torch.manual_seed(rows)
    inputs, (weights, biases) = torch.randn(rows, sizes[0]), network(sizes, members)
    lead = () if members is None else (members,)
    gains, shifts = ([torch.randn(*lead, w) + 1 for w in sizes[1:-1]] for _ in range(2))
    gradient = torch.randn(*lead, rows, sizes[-1]) / rows
    values = [t.double().requires_grad_() for t in (inputs, *weights, *biases, *gains, *shifts)]
    layers, x = len(weights), values[0]
    for layer in range(layers):
        x = x @ values[1 + layer].transpose(-1, -2) + values[1 + layers + layer].unsqueeze(-2)
        if layer < layers - 1:
            x = kernels.HIDDEN[hidden](x) if after else x
            centred = x - x.mean(-1, keepdim=True)
            unit = centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt()
            gain, shift = (values[1 + 2 * layers + part * (layers - 1) + layer].unsqueeze(-2) for part in range(2))
            x = unit * gain + shift
            x = x if after else kernels.HIDDEN[hidden](x)
    expected = [x, *torch.autograd.grad(x, values, gradient.double())]

    norms = native.Norms(gains, shifts, after, epsilon)
    outputs, saved = native.forward(inputs, weights, biases, keep=True, hidden=hidden, norms=norms)
    assert saved is not None
    places = [[torch.full_like(t, 7.0) for t in group] for group in (weights, biases, gains, shifts)]
    given = (inputs, weights, biases, saved, gradient, places[0], places[1], True, hidden)
    below = native.backward(*given, norms, (places[2], places[3]))
    found = [outputs, below, *(t for group in places for t in group)]
    for one, other in zip(found, expected, strict=True):
        scale = max(1.0, float(other.detach().abs().max()))
        near = (1e-4 if after else 1e-5) * scale  # what is nearly equal is divided by its small deviation
        torch.testing.assert_close(one.double(), other.detach(), rtol=0, atol=near)  # type: ignore[union-attr]
    again = native.forward(inputs, weights, biases, keep=False, hidden=hidden, norms=norms)[0]
    assert torch.equal(again, outputs)


@pytest.mark.parametrize(
    ("sizes", "batch", "hidden", "norm", "sums", "level"),
    pairwise(
        [(17, 256, 256, 1), (5, 7), (2, 33, 31, 3), (49, 100, 13, 9, 2)],
        [(700, 2), (37, None), (1, 3)],
        native.HIDDEN,
        [None, (False, 1e-5), (True, 1e-5)],
        [False, True],
        LEVELS,
    ),
    indirect=["level"],
    ids=str,
)
def test_an_mlp_with_dropout_masks_and_its_gradients_are_torchs(
    sizes: tuple[int, ...],
    batch: tuple[int, int | None],
    hidden: str,
    norm: tuple[bool, float] | None,
    sums: bool,
    level: str,
) -> None:
    rows, members = batch
    torch.manual_seed(rows)
    inputs, (weights, biases) = torch.randn(rows, sizes[0]), network(sizes, members)
    lead = () if members is None else (members,)
    gains, shifts = ([torch.randn(*lead, w) + 1 for w in sizes[1:-1] if norm is not None] for _ in range(2))
    norms = native.NO_NORMS if norm is None else native.Norms(gains, shifts, *norm)
    masks = (torch.rand(*lead, rows, sum(sizes[1:-1]) + 4) < 0.8)[..., 3:-1] / 0.8  # rows that don't lie together
    gradient = torch.randn(*lead, rows, sizes[-1]) / rows
    parameters = [weights, biases, gains, shifts]
    values = [t.double().requires_grad_() for group in ([inputs], *parameters) for t in group]
    rest = iter(values[1:])
    w, b, g, s = ([next(rest) for _ in group] for group in parameters)
    exact_norms = native.Norms(g, s, norms.after, norms.epsilon)
    x = kernels.plain_mlp(values[0], w, b, hidden, exact_norms, native.Dropout(masks.double(), sums))
    expected = [x, *torch.autograd.grad(x, values, gradient.double())]

    dropout = native.Dropout(masks, sums)
    assert native.fits(inputs, weights, biases, norms, dropout)
    outputs, saved = native.forward(inputs, weights, biases, True, hidden, norms, dropout)
    assert saved is not None
    places = [[torch.full_like(t, 7.0) for t in group] for group in parameters]
    given = (inputs, weights, biases, saved, gradient, places[0], places[1], True, hidden)
    below = native.backward(*given, norms, (places[2], places[3]), dropout)
    found = [outputs, below, *(t for group in places for t in group)]
    for one, other in zip(found, expected, strict=True):
        scale = max(1.0, float(other.detach().abs().max()))
        near = {None: 1e-5, False: 2e-5, True: 1e-4}[None if norm is None else norm[0]] * scale
        torch.testing.assert_close(one.double(), other.detach(), rtol=0, atol=near)  # type: ignore[union-attr]
    assert torch.equal(native.forward(inputs, weights, biases, False, hidden, norms, dropout)[0], outputs)


@pytest.mark.parametrize("sums", [False, True])
def test_masks_that_the_members_share_are_read_by_each(sums: bool, level: str) -> None:
    inputs, (weights, biases) = torch.randn(40, 7), network((7, 20, 18, 3), 2)
    masks = (torch.rand(40, 38) < 0.5) * 2.0
    shared, own = (native.Dropout(m, sums) for m in (masks, masks.expand(2, -1, -1)))
    found = native.forward(inputs, weights, biases, False, dropout=shared)[0]
    assert torch.equal(found, native.forward(inputs, weights, biases, False, dropout=own)[0])
    assert not torch.equal(found, native.forward(inputs, weights, biases, False)[0])
    turned = native.Dropout(masks.t().contiguous().t(), sums)  # numbers of a row that don't lie together
    assert torch.equal(found, native.forward(inputs, weights, biases, False, dropout=turned)[0])


def test_masks_of_other_rows_members_units_or_types_do_not_fit() -> None:
    inputs, (weights, biases) = torch.randn(40, 7), network((7, 20, 18, 3), 2)

    def fits(masks: Tensor) -> bool:
        return native.fits(inputs, weights, biases, dropout=native.Dropout(masks, True))

    assert fits(torch.ones(40, 38))
    assert fits(torch.ones(2, 40, 38))
    for shape in ((1, 38), (39, 38), (40, 37), (40, 41), (1, 40, 38), (3, 40, 38), (2, 39, 38), (38,), (1, 2, 40, 38)):
        assert not fits(torch.ones(shape))
    assert not fits(torch.ones(40, 38).double())
    assert not fits(torch.ones(40, 38).requires_grad_())


def test_a_tanh_network_keeps_nan_and_saturates_at_one(level: str) -> None:
    inputs, weights, biases = torch.tensor([[float("nan")], [1e30], [-1e30]]), [torch.ones(4, 1)], [torch.zeros(4)]
    weights, biases = [*weights, torch.ones(1, 4)], [*biases, torch.zeros(1)]
    outputs, _ = native.forward(inputs, weights, biases, keep=False, hidden="tanh")
    assert bool(outputs[0].isnan())
    torch.testing.assert_close(outputs[1:], torch.tensor([[4.0], [-4.0]]), rtol=0, atol=2e-6)


@pytest.mark.parametrize("rows", [257, 383, 700])
@pytest.mark.parametrize("hidden", ["relu", "silu"])
def test_a_long_batch_goes_back_in_parts_to_the_gradients_of_all_rows(rows: int, hidden: str, level: str) -> None:
    sizes = (18, 600, 36, 2)  # so wide that parts are of 128 rows
    inputs, (weights, biases) = torch.randn(rows, sizes[0]), network(sizes, 2)
    gradient = torch.randn(2, rows, 2) / rows
    found, expected = (way(inputs, weights, biases, gradient, hidden) for way in (ours, exact))
    assert_near(found, expected)


@pytest.mark.parametrize("rows", [31, 32, 33, 63])
def test_rows_beside_whole_panels_change_nothing(rows: int, level: str) -> None:
    inputs, (weights, biases) = torch.randn(rows, 6), network((6, 20, 3), None)
    whole, _ = native.forward(inputs, weights, biases, keep=False)
    for row in range(rows):
        alone, _ = native.forward(inputs[row : row + 1], weights, biases, keep=False)
        assert torch.equal(alone[0], whole[row])


@pytest.mark.parametrize("members", [None, 2])
def test_strided_inputs_and_output_gradients_are_read_where_they_lie(members: int | None, level: str) -> None:
    weights, biases = network((7, 20, 3), members)
    lead = () if members is None else (members,)
    gradient = torch.randn(*lead, 40, 3)
    inputs = torch.randn(40, 19)[:, 4:11]
    assert_near(ours(inputs, weights, biases, gradient), exact(inputs, weights, biases, gradient))
    turned = torch.randn(7, 40).t()
    assert_near(ours(turned, weights, biases, gradient), exact(turned, weights, biases, gradient))
    one = torch.tensor(0.25).expand(*lead, 40, 3)
    assert_near(ours(inputs, weights, biases, one), exact(inputs, weights, biases, one))
    rows = torch.randn(1, 3).expand(*lead, 40, 3)
    assert_near(ours(inputs, weights, biases, rows), exact(inputs, weights, biases, rows))


def test_zero_rows_give_zero_gradients(level: str) -> None:
    weights, biases = network((7, 20, 1), 2)
    found = ours(torch.randn(0, 7), weights, biases, torch.randn(2, 0, 1))
    assert found[0].shape == (2, 0, 1)
    assert found[1].shape == (0, 7)
    assert all(not gradient.any() for gradient in found[2:])


def test_nan_and_inf_are_not_hidden_by_the_relu(level: str) -> None:
    inputs, (weights, biases) = torch.randn(40, 7), network((7, 20, 20, 2), None)
    inputs[5, 3] = torch.nan
    gradient = torch.ones(40, 2)
    found, expected = ours(inputs, weights, biases, gradient), exact(inputs, weights, biases, gradient)
    assert found[0].isnan().any(1).nonzero().flatten().tolist() == [5]
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.isnan(), other.isnan())
    weights[1][4, 2] = torch.nan
    outputs, _ = native.forward(torch.randn(40, 7), weights, biases, keep=False)
    assert outputs.isnan().all()
    biases[2][1] = torch.inf
    weights[1][4, 2] = 0.0
    outputs, _ = native.forward(torch.randn(40, 7), weights, biases, keep=False)
    assert (outputs[:, 1] == torch.inf).all()
    assert outputs[:, 0].isfinite().all()


def test_gradients_that_are_not_wanted_are_not_written(level: str) -> None:
    inputs, (weights, biases) = torch.randn(40, 7), network((7, 20, 3), 2)
    gradient = torch.randn(2, 40, 3)
    full = ours(inputs, weights, biases, gradient)
    outputs, saved = native.forward(inputs, weights, biases, keep=True)
    assert saved is not None
    last = torch.full_like(weights[1], 7.0)
    assert native.backward(inputs, weights, biases, saved, gradient, [None, last], [None, None], False) is None
    assert torch.equal(last, full[3])
    assert torch.equal(native.forward(inputs, weights, biases, keep=False)[0], outputs)


def test_equal_inputs_give_equal_bits(level: str) -> None:
    inputs, (weights, biases) = torch.randn(256, 23), network((23, 64, 64, 1), 2)
    gradient = torch.randn(2, 256, 1)
    first, second = (ours(inputs.clone(), weights, biases, gradient) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_lists_that_disagree_are_refused() -> None:
    with pytest.raises(ValueError, match=r"n \+ 1 sizes"):
        LIBRARY.mlp_forward([3, 4, 5], 1, 8, 0, [0], [0], [], [], 0, 3, 0, 0)
    with pytest.raises(ValueError, match=r"of activations \(1\) or of sums \(2\)"):
        LIBRARY.mlp_forward([3, 4], 1, 8, 0, [0], [0], [], [], 0, 3, 0, 0, dropout=3)
    with pytest.raises(ValueError, match="n - 1 gains"):
        LIBRARY.mlp_forward([3, 4, 5], 1, 8, 0, [0, 0], [0, 0], [0, 0], [0], 0, 3, 0, 0)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_is_torchs(decay: float, level: str) -> None:
    size, settings = 1003, {"lr": 3e-3, "betas": (0.8, 0.95), "eps": 1e-6}
    parameter = torch.randn(size).requires_grad_()
    optimizer = torch.optim.AdamW([parameter], weight_decay=decay, **settings)
    value, first, second = parameter.detach().clone(), torch.zeros(size), torch.zeros(size)
    average, count = torch.randn(size), torch.zeros(())
    expected_average = average.clone()
    for step in range(1, 7):
        parameter.grad = torch.randn(size)
        optimizer.step()
        expected_average.lerp_(parameter.detach(), 0.05)
        native.adam(
            value,
            parameter.grad,
            first,
            second,
            count,
            torch.tensor(settings["lr"], dtype=torch.float64),
            betas=settings["betas"],
            epsilon=settings["eps"],
            decay=decay,
            average=average,
            average_rate=0.05,
        )
        assert count.item() == step
        torch.testing.assert_close(value, parameter.detach(), rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(average, expected_average, rtol=1e-5, atol=1e-7)


def test_rows_are_gathered_by_number_and_a_wrong_number_is_refused() -> None:
    table, indices = torch.randn(1000, 5, 3), torch.randint(1000, (77,))
    out = torch.empty(77, 5, 3)
    assert native.gather(table, indices, out)
    assert torch.equal(out, table[indices])
    counts, small = torch.randint(255, (50, 3), dtype=torch.uint8), torch.empty(4, 3, dtype=torch.uint8)
    assert native.gather(counts, torch.tensor([49, 0, 3, 3]), small)
    assert torch.equal(small, counts[[49, 0, 3, 3]])
    for wrong in (-1, 1000):
        indices[5] = wrong
        with pytest.raises(IndexError, match="out of range"):
            native.gather(table, indices, out)
    assert not native.gather(table[:, ::2], indices, out)


def test_a_tape_refuses_what_it_does_not_have() -> None:
    tape, place = LIBRARY.Tape(1), (0, torch.zeros(3).data_ptr())
    with pytest.raises(ValueError, match="no instruction frobnicate"):
        tape.element("frobnicate", [3], [place, place], [[1], [1]])
    with pytest.raises(ValueError, match="at most 4 dimensions"):
        tape.element("neg", [1] * 5, [place, place], [[1] * 5, [1] * 5])
    with pytest.raises(ValueError, match="a stride for each dimension"):
        tape.element("neg", [3], [place, place], [[1], [1, 1]])
    with pytest.raises(ValueError, match="input does not exist"):
        tape.element("neg", [3], [place, (2, 0)], [[1], [1]])
    with pytest.raises(ValueError, match="an address for each input"):
        tape.run([])
    assert len(tape) == 0
