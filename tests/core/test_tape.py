"""A tape repeats what torch did, on other numbers; what can't be repeated is refused by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.core.nn.native import kernels, native
from surefoot.core.nn.native.tape import Recorder, Tape
from surefoot.core.nn.networks import MLP

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"no native module: {native.why_not()}")


def record(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tape | None, Tensor, str]:
    """The tape, what it writes, and why there is none."""
    recorder = Recorder(list(inputs))
    with recorder.watching():
        result = function(*inputs)
    return recorder.tape(), result, recorder.problem


def others(inputs: tuple[Tensor, ...]) -> list[Tensor]:
    return [i.logical_not() if i.dtype == torch.bool else i.flip(0) * 1.5 + 0.25 for i in inputs]


def check(function: Callable[..., Tensor], *inputs: Tensor, tolerance: float = 2e-6) -> None:
    """The tape gives torch's numbers on inputs other than the recorded ones."""
    tape, result, problem = record(function, *inputs)
    assert tape is not None, problem
    again = [torch.empty_strided(i.shape, i.stride()).copy_(o) for i, o in zip(inputs, others(inputs), strict=True)]
    expected = function(*again)
    assert not torch.equal(result, expected)
    assert tape.run(again)
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


def wide(*shape: int) -> Tensor:
    """Numbers on both sides of everything."""
    return torch.randn(*shape) * 3


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "square": torch.square,
    "cube": lambda x: x.pow(3),
    "root": lambda x: x.abs().sqrt(),
    "log": lambda x: (x.abs() + 0.1).log() + x.abs().log1p(),
    "exp": torch.exp,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "softplus": torch.nn.functional.softplus,
    "reciprocal": lambda x: 1 / (x.abs() + 1),
    "sign": torch.sign,
    "clamp": lambda x: x.clamp(-1, 2) + x.clamp(max=0.5) + x.clamp(min=-0.5),
    "compare": lambda x: (x > 0.3) * x + (x <= -0.3) * 2.0 + ((x == x) & (x != 1)).float(),
    "where": lambda x: torch.where(x > 0, 0.7, 0.3) * torch.where((x > 2) | ~(x < 1), x, -x),
    "powers": lambda x: 2 ** x.clamp(-2, 2) + x.abs() ** 1.5,
    "scalars": lambda x: (2 - x) / 3 + x * 0.5 - 1.25,
    "alpha": lambda x: torch.add(x, x, alpha=0.3) - torch.sub(x, 1.0, alpha=2),
    "lerp": lambda x: torch.lerp(x, x.square(), 0.2),
    "in place": lambda x: x.clone().mul_(2).add_(1).clamp_(min=0).tanh_(),
    "filled": lambda x: torch.zeros_like(x) + torch.ones_like(x) * x + x.new_full((5,), 2.0).sum(),
    "joined": lambda x: torch.cat([x, torch.zeros(0), x * 2], -1)[..., 1:4] + torch.stack([x, -x]).sum(0)[..., :3],
    "chunks": lambda x: x.split([2, x.shape[-1] - 2], -1)[1] * x.chunk(2, 0)[0][:1].sum(),
}
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(),
    "rows": lambda x: x.sum(-1),
    "columns": lambda x: x.sum(0, keepdim=True),
    "both": lambda x: x.mean((0, -1)),
    "mean": lambda x: x.mean(),
    "least": lambda x: x.amin(0) - x.amax(-1, keepdim=True)[0],
    "spread": lambda x: x.std(0) + x.var(-1, keepdim=True, correction=0)[:1],
    "logsumexp": lambda x: torch.logsumexp(x, 0)[:1] + torch.logsumexp(x, (0, -1), keepdim=True),
    "all of it": lambda x: x.sum().sum().mean() + x.std() + x.mean(0).square().sum(),
}


WEIGHT, BIAS = torch.linspace(-1, 1, 9 * 5).view(5, 9), torch.linspace(-0.3, 0.3, 5)
PLACES = torch.tensor([3, 0, 0, 5])
NATIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "affine": lambda x: torch.nn.functional.linear(x, WEIGHT, BIAS),
    "products": lambda x: x @ x.t() + torch.mm(x, WEIGHT.t()).sum(),
    "batches of products": lambda x: (
        torch.bmm(x.view(2, 3, 9), x.view(2, 9, 3))
        + torch.baddbmm(x[:, :3].reshape(2, 3, 3), x.view(2, 3, 9), x.view(2, 3, 9).transpose(1, 2))
    ),
    "ensemble": lambda x: torch.einsum("bi,eoi->ebo", x, torch.stack([WEIGHT, -WEIGHT])),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, (9,), WEIGHT[0], WEIGHT[1]),
    "mish": torch.nn.functional.mish,
    "recurrent": lambda x: torch.gru_cell(x, x[:, :5], torch.ones(15, 9) / 9, torch.ones(15, 5) / 5),
    "norm without a gain": lambda x: torch.nn.functional.layer_norm(x.view(2, 3, 9), (3, 9)),
    "plain gelu": torch.nn.functional.gelu,
    "softmax of rows": lambda x: x.softmax(-1) + (x[:, 1:8] * 1).softmax(1).sum(),
    "affine without rows": lambda x: torch.nn.functional.linear(x[:0], WEIGHT, BIAS).sum() + x,
    "transposed": lambda x: x.t() + x.new_full((9, 6), 2.0) - x.view(3, 2, 9).permute(2, 0, 1).reshape(9, 6),
}
BY_TORCH: dict[str, Callable[[Tensor], Tensor]] = {
    "batched products": lambda x: (
        torch.bmm(x.view(2, 3, 9), x.view(2, 9, 3))
        + torch.baddbmm(x[:, :3].view(2, 3, 3), x.view(2, 3, 9), x.view(2, 9, 3), alpha=0.5)
    ),
    "vectors": lambda x: x.mv(x[0]) * x[1].dot(x[2]),
    "gather": lambda x: x.gather(1, PLACES.view(4, 1)),
    "index_select": lambda x: x.index_select(0, PLACES),
    "index": lambda x: x[PLACES] + x[:, PLACES].sum(),
    "put": lambda x: x.clone().index_add_(0, PLACES, x[:4]).scatter(1, PLACES.view(4, 1), 2.0),
    "group norm": lambda x: torch.nn.functional.group_norm(x.view(2, 3, 9), 3),
    "silu": torch.nn.functional.silu,
    "gelu": lambda x: torch.nn.functional.gelu(x) + torch.nn.functional.gelu(x, approximate="tanh"),
    "elu": lambda x: torch.nn.functional.elu(x) + torch.nn.functional.leaky_relu(x, 0.1),
    "softmax": lambda x: x.softmax(-1) * x.log_softmax(0),
    "sorted": lambda x: x.sort(0).values[1] + x.sort(-1, descending=True).values[..., :1],
    "largest": lambda x: x.topk(2, dim=-1).values.sum(-1) + x.max(-1).values * x.min(-1).values,
    "ranks": lambda x: x.argsort(-1).argsort(-1).float() * x + (x.argmax(-1, keepdim=True) == torch.arange(9)).float(),
    "cumulative": lambda x: x.cumsum(0) + (0.1 * x).tanh().cumprod(-1) + x.flip(0),
    "angles": lambda x: torch.atan2(x, x.flip(1)) + x.sin() * x.cos() + x.floor() + x.remainder(1.5),
    "norm": lambda x: torch.nn.functional.normalize(x, dim=-1) * torch.linalg.vector_norm(x),
    "least of several": lambda x: torch.stack([x, x.flip(0), x * 1]).amin(0),
    "five dimensions": lambda x: (x.view(1, 2, 1, 3, 9) * x.view(2, 1, 3, 1, 9)).mean((0, 3)),
    "convolution": lambda x: torch.nn.functional.conv1d(x.view(2, 3, 9), WEIGHT[:3, :9].reshape(1, 3, 9)[..., :3]),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(*[x.view(1, 2, 3, 9)] * 3, is_causal=True),
    "products in double precision": lambda x: (x.double() @ x.double().t()).float(),
    "scaled product": lambda x: torch.addmm(BIAS, x, WEIGHT.t(), alpha=0.5),
    "double precision": lambda x: (x.double().square().sum(-1) + x.double().exp()[:, 0]).float(),
    "windows": lambda x: x.unfold(1, 3, 2).sum(-1) + torch.nn.functional.pad(x, (1, 2)).roll(1, 0)[:, 1:5],
    "losses": lambda x: (
        torch.nn.functional.smooth_l1_loss(x, x.flip(0))
        + torch.nn.functional.cross_entropy(x[:4], PLACES)
        + torch.nn.functional.binary_cross_entropy_with_logits(x, (x > 0).float()).view(1)
    ),
}


def with_gradient(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """What a function gives, and the gradient of a loss of it."""
    weight, factors = torch.linspace(0.5, 1.5, 9), torch.linspace(-1, 1, 200)

    def gradient(x: Tensor) -> Tensor:
        own = (x * 1).requires_grad_()
        result = function(own)
        with torch.enable_grad():
            loss = (function(own * weight).flatten() * factors[: result.numel()]).sum()
        return torch.cat([result.detach().flatten(), *[g.flatten() for g in torch.autograd.grad(loss, own)]])

    return gradient


@pytest.mark.parametrize("name", BY_TORCH)
def test_operations_that_are_not_native_are_repeated_by_torch_with_their_gradients(name: str) -> None:
    tape, _, problem = record(BY_TORCH[name], wide(6, 9))
    assert tape is not None, problem
    assert tape.calls["torch"] > 0
    check(BY_TORCH[name], wide(6, 9), tolerance=2e-5)
    check(with_gradient(BY_TORCH[name]), wide(6, 9), tolerance=2e-5)


@pytest.mark.parametrize("name", NATIVE)
def test_products_and_operations_on_rows_are_repeated_natively_with_their_gradients(name: str) -> None:
    for function in (NATIVE[name], with_gradient(NATIVE[name])):
        tape, _, problem = record(function, wide(6, 9))
        assert tape is not None, problem
        assert "torch" not in tape.calls
        check(function, wide(6, 9), tolerance=2e-5)


def test_what_torch_reads_of_an_input_follows_it() -> None:
    """A batch's whole numbers, and rows of a longer block of noise, at another place in each step."""
    block, actions = torch.randn(5, 4, 3), torch.randint(0, 3, (5, 4))

    def function(noise: Tensor, action: Tensor) -> Tensor:
        return noise.gather(1, action.unsqueeze(1)) + noise.cumsum(0)[:, 1:2]

    tape, result, problem = record(function, block[1], actions[2])
    assert tape is not None, problem
    for noise, action in ((block[3], actions[0]), (block[0].clone(), actions[4]), (block[1], actions[2].clone())):
        assert tape.run([noise, action])
        torch.testing.assert_close(result, function(noise, action))


@pytest.mark.parametrize("name", UNARY)
def test_elementwise_operations_are_repeated(name: str) -> None:
    check(UNARY[name], wide(6, 9))
    check(UNARY[name], wide(4, 40)[:, 3:12])
    check(UNARY[name], wide(9, 6).t())


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_are_repeated(name: str) -> None:
    check(REDUCTIONS[name], wide(6, 37))
    check(REDUCTIONS[name], wide(37, 6).t())
    check(REDUCTIONS[name], wide(3, 5, 7))


@pytest.mark.parametrize(
    "shapes", [((5, 7), (7,)), ((5, 1), (1, 7)), ((2, 5, 7), (5, 1)), ((3, 1, 4, 2), (6, 1, 2)), ((), (4,))]
)
def test_operands_are_broadcast(shapes: tuple[tuple[int, ...], ...]) -> None:
    first, second = (torch.tensor(1.5) if shape == () else wide(*shape) for shape in shapes)
    check(lambda b: first * b - b.maximum(first) / (b.minimum(first).abs() + 1), second)


def test_gradients_of_a_loss_are_repeated() -> None:
    weight = torch.randn(6, requires_grad=True)

    def gradient(x: Tensor, y: Tensor) -> Tensor:
        spread = (torch.tanh(x * weight) - y).square()
        loss = torch.where(spread > 0.5, spread, 0.1 * spread).sum(-1).mean() + (x.exp().clamp(max=9) * weight).mean()
        return torch.autograd.grad(loss + torch.nn.functional.relu(weight).sum(), weight)[0]

    check(gradient, torch.randn(31, 6), torch.randn(31, 6))


@pytest.mark.parametrize("members", [None, 2])
def test_networks_and_their_gradients_are_repeated(members: int | None) -> None:
    network = MLP(5, 2, (20, 16), members=members)

    def gradient(x: Tensor) -> Tensor:
        parameters = list(network.parameters())
        with kernels.use(kernels.Slots()):
            found = torch.autograd.grad(network(x).square().mean(), parameters)
            with torch.no_grad():
                return torch.cat([g.flatten() for g in (*found, network(x[:3]))])

    check(gradient, torch.randn(40, 30)[:, 3:8])


def test_nan_and_inf_go_the_same_ways() -> None:
    def function(x: Tensor) -> Tensor:
        parts = [x.clamp(-1, 1), x.relu(), x.maximum(x * 0), x.minimum(x * 0), x.exp(), x.amin(0).expand_as(x)]
        return torch.cat(
            [
                *parts,
                x.amax(0).expand_as(x),
                x.sort(0).values,
                x.sum(0).expand_as(x),
                x.logsumexp(0).expand_as(x),
                x.logsumexp(1, keepdim=True).expand_as(x),
            ]
        )

    given = torch.tensor([[1.0, torch.nan, torch.inf, -torch.inf], [2.0, -1.0, 0.5, 3.0]])
    tape, result, problem = record(function, torch.zeros(2, 4))
    assert tape is not None, problem
    assert tape.run([given])
    torch.testing.assert_close(result, function(given), equal_nan=True)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda x: x + torch.randn(3), "aten.randn.default draws random numbers of its own"),
        (lambda x: torch.nn.functional.dropout(x, 0.5), "draws random numbers of its own"),
        (lambda x: x * (2 if x.sum().item() > 0 else 3), "aten._local_scalar_dense.default gives python a number"),
        (lambda x: x * (2 if torch.equal(x, -x) else 3), "aten.equal.default gives python a number"),
        (lambda x: x[x > 0].sum(), "aten.index.Tensor gives a shape that depends on the numbers"),
        (lambda x: x.gt(0).nonzero().sum(), "aten.nonzero.default gives a shape that depends on the numbers"),
    ],
)
def test_what_a_tape_cannot_repeat_is_refused_by_name(function: Callable[..., Tensor], problem: str) -> None:
    tape, _, found = record(function, torch.randn(5, 3))
    assert tape is None
    assert problem in found


def test_what_torch_does_not_see_is_found_by_running_the_tape() -> None:
    total = torch.zeros(3)
    calls = []

    def function(x: Tensor) -> Tensor:
        calls.append(1)
        total.add_(x.sum(0) * torch.from_numpy(np.full(3, 1.0, np.float32) * len(calls)))
        hidden = torch.zeros(3)
        hidden.numpy()[:] = x.numpy().sum(0)
        return total.add_(hidden)

    tape, _, problem = record(function, torch.ones(5, 3))
    assert tape is None
    assert "not a function of parameters, batch and noise" in problem
    assert torch.equal(total, torch.zeros(3))  # recording leaves everything as it was


def test_recording_leaves_the_state_as_it_was_and_a_run_moves_it_once() -> None:
    state = torch.zeros(3)

    def function(x: Tensor) -> Tensor:
        return state.add_(x)

    tape, _, _ = record(function, torch.ones(3))
    assert tape is not None
    assert torch.equal(state, torch.zeros(3))
    assert tape.run([torch.full((3,), 2.0)])
    assert torch.equal(state, torch.full((3,), 2.0))


def test_inputs_of_another_layout_are_refused_and_nothing_is_done() -> None:
    state = torch.zeros(3)
    rows = torch.ones(4, 8)
    tape, _, _ = record(lambda x, y: state.add_(x.sum(0) + y.sum(0)), rows[:, :3], rows[:, 4:7])
    assert tape is not None
    moved = torch.ones(4, 8)
    for wrong in (
        [moved[:, :3], moved[:, 5:8]],
        [moved[:, :3], torch.ones(4, 3)],
        [moved[:2, :3], moved[:2, 4:7]],
        [moved[:, :3].double(), moved[:, 4:7]],
    ):
        assert not tape.run(wrong)
    assert not state.any()
    assert tape.run([moved[:, :3], moved[:, 4:7]])
    assert torch.equal(state, torch.full((3,), 8.0))


def test_a_network_evaluated_twice_is_computed_once_unless_it_changed_in_between() -> None:
    network = MLP(5, 2, (20, 16)).requires_grad_(False)
    weight = network.weights[1].data

    def twice(x: Tensor) -> Tensor:
        with kernels.use(kernels.Slots()):
            return network(x) + 2 * network(x)

    def changed(x: Tensor) -> Tensor:
        with kernels.use(kernels.Slots()):
            first = network(x)
            weight.mul_(2)
            second = network(x)
            weight.mul_(0.5)
            own = x * 1
            third = network(own)
            own.mul_(3)
            return first + 2 * second + 3 * third + 4 * network(own)

    check(twice, torch.randn(40, 5))
    check(changed, torch.randn(40, 5))
    tape, _, _ = record(twice, torch.randn(40, 5))
    assert tape is not None
    assert tape.calls == {"mlp_forward": 1, "element": 3}
    assert len(tape) == 4


def test_a_network_under_two_dropout_masks_is_computed_twice_and_reads_its_masks_anew() -> None:
    network = MLP(5, 2, (20, 16), members=2, layer_norm=True, dropout="sums")

    def function(x: Tensor, whole: Tensor) -> Tensor:
        own = whole.unflatten(-1, (2, -1)).movedim(-2, 0)  # of an input, elsewhere in each run
        with kernels.use(kernels.Slots()):
            with torch.no_grad():
                fixed = network(x, own) + 2 * network(x, own) + 3 * network(x, 2 * own) + 4 * network(x)
            (gradient,) = torch.autograd.grad((network(x, own) * fixed).sum(), network.weights[0])
        return fixed.sum() + gradient

    masks = (torch.rand(40, 72) < 0.8) / 0.8
    check(function, torch.randn(40, 5), masks, tolerance=1e-3)
    tape, _, _ = record(function, torch.randn(40, 5), masks)
    assert tape is not None
    assert tape.calls["mlp_forward"] == 4  # the second is the first's copy; the last one keeps what its gradient needs
    assert tape.calls["mlp_backward"] == 1


def test_training_does_not_import_torchs_compiler() -> None:
    """It takes as long to import as torch, in every worker."""
    code = """
import sys, torch
from surefoot.core.nn.networks import MLP
from surefoot.core.engine.smoothness import squared_jacobian
from surefoot.core.nn.native.tape import Recorder
network, rows = MLP(3, 2, (8,)), torch.zeros(4, 3)
recorder = Recorder([rows])
with recorder.watching():
    network(rows).square().mean().backward()
assert recorder.calls, recorder.problem
squared_jacobian(network, rows)
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
