"""The native MLP gives plain PyTorch's numbers, forwards, backwards and twice backwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.core.nn.native import kernels, native
from surefoot.core.nn.native.kernels import Slots, machine_name
from surefoot.core.nn.networks import MLP, LayerNorm

needs_native = pytest.mark.skipif(native.library() is None, reason=f"no native module: {native.why_not()}")


def strided(rows: int, width: int) -> Tensor:
    """Rows as a store's batch has them: a slice of wider ones."""
    return torch.randn(rows, width + 5)[:, 2 : 2 + width]


def dropped(*shape: int, units: int) -> Tensor:
    """Masks of half of the units, as a slice of wider rows."""
    return (torch.rand(*shape, units + 1) < 0.5)[..., :units] * 2.0


def results(network: MLP, inputs: Tensor, fused: bool, target: Tensor, masks: Tensor | None = None) -> list[Tensor]:
    """Output, and gradients of inputs and parameters."""
    inputs = inputs.detach().requires_grad_()
    with kernels.use(Slots() if fused else None):
        output = network(inputs, masks)
        gradients = torch.autograd.grad((output - target).square().mean(), [inputs, *network.parameters()])
    return [output.detach(), *gradients]


def assert_same_with_kernels(gradients: Callable[[], Sequence[Tensor]]) -> None:
    """What a function gives is what it gives over the kernels, within rounding."""
    plain = gradients()
    with kernels.use(Slots()):
        found = gradients()
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@needs_native
@pytest.mark.parametrize("members", [None, 1, 3])
@pytest.mark.parametrize("rows", [1, 37, 256])
def test_kernels_equal_plain_pytorch(members: int | None, rows: int) -> None:
    network = MLP(7, 2, (24, 16), members=members)
    inputs, target = strided(rows, 7), torch.randn(rows, 2)
    plain = results(network, inputs, False, target)
    for found, expected in zip(results(network, inputs, True, target), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


def with_norms(members: int | None, activation: str = "relu", epsilon: float = 1e-5) -> MLP:
    network = MLP(7, 2, (24, 16), members=members, layer_norm=True, activation=activation, norm_epsilon=epsilon)
    with torch.no_grad():
        for value in (*network.scales, *network.shifts):
            value.add_(0.5 * torch.randn_like(value))
    return network


@pytest.mark.skipif(native.library() is None, reason="layer norms are plain PyTorch without the native module")
@pytest.mark.parametrize("activation", native.HIDDEN)
@pytest.mark.parametrize("members", [None, 3])
@pytest.mark.parametrize("rows", [1, 37, 256])
def test_layer_norms_in_the_native_module_equal_plain_pytorch(
    rows: int, members: int | None, activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, inputs, target = with_norms(members, activation), strided(rows, 7), torch.randn(rows, 2)
    plain = results(network, inputs, False, target)
    calls: list[str] = []
    backward = native.backward
    monkeypatch.setattr(native, "backward", lambda *a: (calls.append("backward"), backward(*a))[1])
    for found, expected in zip(results(network, inputs, True, target), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert calls == ["backward"]
    monkeypatch.setattr(native, "library", lambda: None)
    for found, expected in zip(results(network, inputs, True, target), plain, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.skipif(native.library() is None, reason="layer norms are plain PyTorch without the native module")
@pytest.mark.parametrize("members", [None, 3])
def test_layer_norms_with_another_epsilon_equal_plain_pytorch(members: int | None) -> None:
    network, target = with_norms(members, epsilon=1e-3), torch.randn(37, 2)
    inputs = (0.05 * strided(37, 7)).detach().requires_grad_()
    plain = results(network, inputs, False, target)
    for found, expected in zip(results(network, inputs, True, target), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@needs_native
@pytest.mark.parametrize("layer_norm", [False, True, "after"])
@pytest.mark.parametrize("where", ["activations", "sums"])
@pytest.mark.parametrize("members", [None, 3])
@pytest.mark.parametrize("rows", [1, 37, 256])
def test_dropout_masks_in_the_native_module_equal_plain_pytorch(
    rows: int, members: int | None, where: str, layer_norm: LayerNorm, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(rows)
    network = MLP(7, 2, (24, 15), members=members, layer_norm=layer_norm, norm_epsilon=1e-5, dropout=where)
    inputs, target = strided(rows, 7), torch.randn(rows, 2)
    own = dropped(*(() if members is None else (members,)), rows, units=39)
    calls: list[str] = []
    backward = native.backward
    monkeypatch.setattr(native, "backward", lambda *a: (calls.append("backward"), backward(*a))[1])
    for masks in (own, own if members is None else own[0]):
        plain = results(network, inputs, False, target, masks)
        for found, expected in zip(results(network, inputs, True, target, masks), plain, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
    assert calls == ["backward"] * 2
    exact = results(network.double(), inputs.double(), False, target.double(), own.double())
    for found, expected in zip(results(network.float(), inputs, True, target, own), exact, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=2e-5)
    monkeypatch.setattr(native, "library", lambda: None)
    for found, expected in zip(
        results(network, inputs, True, target, own), results(network, inputs, False, target, own), strict=True
    ):
        assert torch.equal(found, expected)


@needs_native
@pytest.mark.parametrize("own", [False, True])
def test_members_with_rows_of_their_own_take_dropout_masks_in_the_native_module(own: bool) -> None:
    network = MLP(7, 2, (24, 15), members=3, layer_norm=True, dropout="sums")
    inputs, target = torch.randn(3, 37, 7), torch.randn(37, 2)
    masks = dropped(*((3,) if own else ()), 37, units=39)
    plain = results(network, inputs, False, target, masks)
    for found, expected in zip(results(network, inputs, True, target, masks), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("where", ["activations", "sums"])
def test_a_gradient_under_dropout_masks_can_be_differentiated_again(where: str) -> None:
    network, masks = MLP(5, 1, (16, 15), members=3, layer_norm=True, dropout=where), dropped(3, 30, units=31)
    inputs = strided(30, 5).detach().requires_grad_()

    def penalty() -> tuple[Tensor, ...]:
        (slope,) = torch.autograd.grad(network(inputs, masks).square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(slope.square().sum(-1).mean(), [inputs, *network.parameters()])

    assert_same_with_kernels(penalty)


@needs_native
def test_masks_that_are_learned_batched_or_of_one_row_for_all_take_plain_pytorch() -> None:
    network, inputs = MLP(5, 1, (16, 15), layer_norm=True, dropout="sums"), strided(30, 5)
    one, learned, several = dropped(1, units=31), dropped(30, units=31).requires_grad_(), dropped(4, 30, units=31)
    expected = network(inputs, one), torch.autograd.grad(network(inputs, learned).sum(), learned)[0]
    stacked = torch.stack([network(inputs, masks) for masks in several])
    with kernels.use(Slots()):
        assert torch.equal(network(inputs, one), expected[0])
        assert torch.equal(torch.autograd.grad(network(inputs, learned).sum(), learned)[0], expected[1])
        torch.testing.assert_close(torch.vmap(lambda masks: network(inputs, masks))(several), stacked)


@needs_native
def test_masks_outside_of_the_kernels_networks_are_multiplied_between_layers_of_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in runs that were started so."""
    network, inputs, masks = MLP(5, 1, (16, 15), layer_norm=True, dropout="sums"), strided(30, 5), dropped(30, units=31)
    sizes: list[int] = []
    forward = native.forward
    monkeypatch.setattr(native, "forward", lambda x, w, *a: (sizes.append(len(w)), forward(x, w, *a))[1])
    slots = Slots()
    found = []
    for slots.masks_inside in (True, False):
        with kernels.use(slots):
            found.append(network(inputs, masks))
    assert sizes == [3, 1, 1, 1]
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("index", [0, 2])
def test_one_member_with_layer_norms_equals_plain_pytorch(index: int) -> None:
    network = with_norms(3)
    inputs = strided(40, 7).detach().requires_grad_()
    wanted = [inputs, *network.parameters()]
    plain = torch.autograd.grad(network.member(inputs, index).square().mean(), wanted)
    with kernels.use(Slots()):
        found = torch.autograd.grad(network.member(inputs, index).square().mean(), wanted)
        stacked = torch.vmap(lambda rows: network(rows))(strided(40, 7).view(4, 10, 7))
    assert stacked.shape == (4, 3, 10, 2)
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@needs_native
@pytest.mark.parametrize("index", [0, 2])
def test_one_member_through_the_kernels_equals_plain_pytorch(index: int) -> None:
    network = MLP(7, 2, (24, 16), members=3)
    inputs = strided(40, 7).detach().requires_grad_()
    wanted = [inputs, *network.parameters()]
    plain = torch.autograd.grad(network.member(inputs, index).square().mean(), wanted)
    with kernels.use(Slots()):
        found = torch.autograd.grad(network.member(inputs, index).square().mean(), wanted)
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)


@needs_native
def test_gradients_are_written_where_the_slots_say() -> None:
    network = MLP(7, 2, (24,), members=2)
    slots = Slots()
    places = {p.data_ptr(): torch.full_like(p, torch.nan) for p in network.parameters()}
    slots.gradients = dict(places)
    inputs = strided(40, 7)
    plain = torch.autograd.grad(network(inputs).square().mean(), list(network.parameters()))
    with kernels.use(slots):
        found = torch.autograd.grad(network(inputs).square().mean(), list(network.parameters()))
    for parameter, gradient, expected in zip(network.parameters(), found, plain, strict=True):
        assert gradient.data_ptr() == places[parameter.data_ptr()].data_ptr()
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=2e-6)


def test_a_network_used_twice_in_one_loss_gets_the_sum_of_its_gradients() -> None:
    network = MLP(7, 2, (24,))
    slots = Slots()
    slots.gradients = {p.data_ptr(): torch.zeros_like(p) for p in network.parameters()}
    first, second = strided(40, 7), strided(40, 7)
    wanted = list(network.parameters())
    plain = torch.autograd.grad((network(first) * network(second)).mean(), wanted)
    with kernels.use(slots):
        found = torch.autograd.grad((network(first) * network(second)).mean(), wanted)
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("index", [0, 1])
def test_a_member_and_its_ensemble_in_one_loss_get_right_gradients(index: int) -> None:
    network = MLP(7, 1, (24,), members=2)
    slots = Slots()
    slots.gradients = {p.data_ptr(): torch.zeros_like(p) for p in network.parameters()}
    inputs, other = strided(40, 7), strided(40, 7)
    wanted = list(network.parameters())

    def loss() -> Tensor:
        return network(inputs).square().mean() + network.member(other, index).mean()

    plain = torch.autograd.grad(loss(), wanted)
    with kernels.use(slots):
        found = torch.autograd.grad(loss(), wanted)
    for one, expected in zip(found, plain, strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-5, atol=2e-6)


def test_training_one_member_alone_through_the_slots_gets_right_gradients() -> None:
    network = MLP(7, 1, (24,), members=2)
    slots = Slots()
    slots.gradients = {p.data_ptr(): torch.zeros_like(p) for p in network.parameters()}
    inputs, wanted = strided(40, 7), list(network.parameters())
    plain = torch.autograd.grad(network.member(inputs, 0).square().mean(), wanted)
    with kernels.use(slots):
        found = torch.autograd.grad(network.member(inputs, 0).square().mean(), wanted)
    for one, expected in zip(found, plain, strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("members", [None, 3])
def test_a_gradient_can_be_differentiated_again(members: int | None, layer_norm: bool) -> None:
    """A gradient penalty, as in EDAC: the second derivative goes through plain PyTorch."""
    network = MLP(5, 1, (16, 16), members=members, layer_norm=layer_norm)
    inputs = strided(30, 5).detach().requires_grad_()

    def penalty() -> tuple[Tensor, ...]:
        (slope,) = torch.autograd.grad(network(inputs).square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(slope.square().sum(-1).mean(), [inputs, *network.parameters()])

    assert_same_with_kernels(penalty)


@needs_native
def test_only_float32_rows_take_the_kernels_and_others_still_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: object, **__: object) -> None:
        raise AssertionError("a kernel was asked for")

    monkeypatch.setattr(native, "forward", refusing)
    network, leaky = MLP(3, 1, (4,)), MLP(3, 1, (4,), activation="leaky_relu")
    wide = MLP(3, 1, (4,)).double()
    with kernels.use(Slots()):
        with pytest.raises(AssertionError, match="a kernel was asked for"):
            network(torch.randn(2, 3))
        with pytest.raises(AssertionError, match="a kernel was asked for"):
            network(torch.randn(2, 3), torch.ones(2, 4))  # with dropout masks
        assert network(torch.randn(6, 2, 3)).shape == (6, 2, 1)
        assert leaky(torch.randn(2, 3)).shape == (2, 1)
        assert wide(torch.randn(2, 3).double()).dtype == torch.float64
        assert torch.func.jacrev(network)(torch.randn(2, 3)).shape == (2, 1, 2, 3)
    assert kernels.active() is None


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_of_another_width_are_refused_and_not_read_past_their_ends(compiled: bool) -> None:
    weights, biases = [torch.zeros(8, 12), torch.zeros(2, 8)], [torch.zeros(8), torch.zeros(2)]

    def run(rows: torch.Tensor) -> torch.Tensor:
        return kernels.mlp(kernels.Slots(), rows, weights, biases)

    with pytest.raises(RuntimeError, match=r"shapes|size"):
        (torch.compile(run, backend="eager") if compiled else run)(torch.zeros(5, 3))


def test_use_is_undone_when_the_block_raises() -> None:
    def failing() -> None:
        with kernels.use(Slots()):
            assert kernels.active() is not None
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        failing()
    assert kernels.active() is None


@needs_native
@pytest.mark.parametrize("members", [None, 2])
def test_functional_call_and_vmap_see_the_kernels_or_plain_pytorch(members: int | None) -> None:
    networks = [MLP(7, 2, (24, 16), members=members) for _ in range(3)]
    inputs = strided(40, 7)
    parameters, _ = torch.func.stack_module_state(networks)

    def loss(own: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(networks[0], own, (inputs,)).square().mean()

    with kernels.use(Slots()):
        stacked = torch.func.vmap(torch.func.grad(loss))(parameters)
        for position, network in enumerate(networks):
            own = dict(network.named_parameters())
            alone = torch.autograd.grad(loss(own), list(own.values()))
            for name, gradient in zip(own, alone, strict=True):
                torch.testing.assert_close(stacked[name][position], gradient, rtol=1e-5, atol=2e-6)


@needs_native
@pytest.mark.parametrize("members", [None, 2])
def test_under_torch_compile_networks_are_plain_and_give_the_same_gradients(members: int | None) -> None:
    network, inputs = MLP(7, 2, (24, 16), members=members), strided(40, 7)

    def loss(x: Tensor) -> Tensor:
        return network(x).square().mean()

    plain = torch.autograd.grad(loss(inputs), list(network.parameters()))
    torch.compiler.reset()
    with kernels.use(Slots()):
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
        found = torch.autograd.grad(compiled(inputs), list(network.parameters()))
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)
    torch.compiler.reset()


def test_without_the_native_module_the_numbers_are_plain_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda: None)
    network, inputs, target = MLP(7, 2, (24,), members=2), strided(40, 7), torch.randn(40, 2)
    plain = results(network, inputs, False, target)
    for found, expected in zip(results(network, inputs, True, target), plain, strict=True):
        assert torch.equal(found, expected)
    assert machine_name().endswith(f"numpy-{np.__version__}")


@needs_native
def test_the_machines_name_ends_with_the_instruction_set_and_the_revision_of_the_arithmetic() -> None:
    assert machine_name().endswith(f" {native.name()}")


@needs_native
def test_parameters_that_do_not_lie_together_take_plain_pytorch() -> None:
    weights, biases = [torch.randn(7, 24).t(), torch.randn(2, 24)], [torch.randn(24), torch.randn(2)]
    inputs = strided(40, 7)
    found = kernels.mlp(Slots(), inputs, weights, biases)
    assert torch.equal(found, kernels.plain_mlp(inputs, weights, biases))


@needs_native
@pytest.mark.parametrize(("rows", "hidden"), [(700, (256, 256)), (300, (600, 70)), (1000, (20,))])
def test_long_batches_and_wide_layers_equal_double_precision(rows: int, hidden: tuple[int, ...]) -> None:
    """Batches and widths that the native module takes in parts: sums continue from one part to the next."""
    network, inputs, target = MLP(19, 3, hidden, members=2), strided(rows, 19), torch.randn(rows, 3)
    found = results(network, inputs, True, target)
    exact = results(network.double(), inputs.double(), False, target.double())
    for one, expected in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("inputs", [torch.ones(5, 7), torch.ones(5, 4), torch.ones(5, 6).double()])
def test_a_prepared_network_reads_no_rows_but_its_own(inputs: Tensor) -> None:
    run = kernels.prepared([torch.ones(8, 6), torch.ones(2, 8)], [torch.zeros(8), torch.zeros(2)], "relu")
    out = torch.empty(5, 2)
    run(torch.ones(6, 5).T, out)  # columns that lie apart
    assert out.tolist() == [[48.0, 48.0]] * 5
    with pytest.raises(RuntimeError):
        run(inputs, out)
