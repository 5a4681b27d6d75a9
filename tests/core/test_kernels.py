"""The hand-written MLP gives plain PyTorch's numbers, with every library, forwards, backwards and twice backwards."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.core import kernels, native
from surefoot.core.errors import CheckpointError
from surefoot.core.kernels import (
    KERNELS,
    NATIVE,
    PRODUCTS,
    KernelTable,
    Slots,
    load_table,
    machine_name,
    measure,
    store_table,
)
from surefoot.core.networks import MLP


class Only(KernelTable):
    """A table that chooses one library for every shape."""

    def __init__(self, library: str) -> None:
        super().__init__("test")
        self.library = library

    def kernel(self, what: str, rows: int, inputs: int, outputs: int) -> kernels.Kernel:
        return KERNELS[what][self.library]

    def mlp(self, rows: int, sizes: Sequence[int]) -> str:
        return NATIVE if self.library == NATIVE else PRODUCTS


LIBRARIES = [*sorted(KERNELS["forward"]), *([NATIVE] if native.library() is not None else [])]


def strided(rows: int, width: int) -> Tensor:
    """Rows as a store's batch has them: a slice of wider ones."""
    return torch.randn(rows, width + 5)[:, 2 : 2 + width]


def results(network: MLP, inputs: Tensor, library: str | None, target: Tensor) -> list[Tensor]:
    """Output, and gradients of inputs and parameters."""
    inputs = inputs.detach().requires_grad_()
    with kernels.use(None if library is None else Slots(Only(library))):
        output = network(inputs)
        gradients = torch.autograd.grad((output - target).square().mean(), [inputs, *network.parameters()])
    return [output.detach(), *gradients]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("members", [None, 1, 3])
@pytest.mark.parametrize("rows", [1, 37, 256])
def test_kernels_equal_plain_pytorch(library: str, members: int | None, rows: int) -> None:
    network = MLP(7, 2, (24, 16), members=members)
    inputs, target = strided(rows, 7), torch.randn(rows, 2)
    plain = results(network, inputs, None, target)
    for found, expected in zip(results(network, inputs, library, target), plain, strict=True):
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
    plain = results(network, inputs, None, target)
    calls: list[str] = []
    backward = native.backward
    monkeypatch.setattr(native, "backward", lambda *a: (calls.append("backward"), backward(*a))[1])
    for found, expected in zip(results(network, inputs, NATIVE, target), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert calls == ["backward"]
    monkeypatch.setattr(native, "library", lambda: None)
    for found, expected in zip(results(network, inputs, "numpy", target), plain, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.skipif(native.library() is None, reason="layer norms are plain PyTorch without the native module")
@pytest.mark.parametrize("members", [None, 3])
def test_layer_norms_with_another_epsilon_equal_plain_pytorch(members: int | None) -> None:
    network, target = with_norms(members, epsilon=1e-3), torch.randn(37, 2)
    inputs = (0.05 * strided(37, 7)).detach().requires_grad_()
    plain = results(network, inputs, None, target)
    for found, expected in zip(results(network, inputs, NATIVE, target), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("index", [0, 2])
def test_one_member_with_layer_norms_equals_plain_pytorch(index: int) -> None:
    network = with_norms(3)
    inputs = strided(40, 7).detach().requires_grad_()
    wanted = [inputs, *network.parameters()]
    plain = torch.autograd.grad(network.member(inputs, index).square().mean(), wanted)
    with kernels.use(Slots(Only("torch"))):
        found = torch.autograd.grad(network.member(inputs, index).square().mean(), wanted)
        stacked = torch.vmap(lambda rows: network(rows))(strided(40, 7).view(4, 10, 7))
    assert stacked.shape == (4, 3, 10, 2)
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("index", [0, 2])
def test_one_member_through_the_kernels_equals_plain_pytorch(library: str, index: int) -> None:
    network = MLP(7, 2, (24, 16), members=3)
    inputs = strided(40, 7).detach().requires_grad_()
    wanted = [inputs, *network.parameters()]
    plain = torch.autograd.grad(network.member(inputs, index).square().mean(), wanted)
    with kernels.use(Slots(Only(library))):
        found = torch.autograd.grad(network.member(inputs, index).square().mean(), wanted)
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("library", LIBRARIES)
def test_gradients_are_written_where_the_slots_say(library: str) -> None:
    network = MLP(7, 2, (24,), members=2)
    slots = Slots(Only(library))
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
    slots = Slots(KernelTable("test"))
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
    slots = Slots(Only("numpy"))
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
    slots = Slots(Only("numpy"))
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

    plain = penalty()
    with kernels.use(Slots(Only("numpy"))):
        found = penalty()
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_only_float32_rows_take_the_kernels_and_others_still_work() -> None:
    class Refusing(KernelTable):
        def mlp(self, rows: int, sizes: Sequence[int]) -> str:
            raise AssertionError("a kernel was asked for")

    network, silu = MLP(3, 1, (4,)), MLP(3, 1, (4,), activation="silu")
    normed, wide = MLP(3, 1, (4,), layer_norm=True), MLP(3, 1, (4,)).double()
    with kernels.use(Slots(Refusing("test"))):
        with pytest.raises(AssertionError, match="a kernel was asked for"):
            network(torch.randn(2, 3))
        assert network(torch.randn(6, 2, 3)).shape == (6, 2, 1)
        assert network(torch.randn(2, 3), torch.ones(2, 4)).shape == (2, 1)
        assert silu(torch.randn(2, 3)).shape == normed(torch.randn(2, 3)).shape == (2, 1)
        assert wide(torch.randn(2, 3).double()).dtype == torch.float64
    assert kernels.active() is None


def test_use_is_undone_when_the_block_raises() -> None:
    def failing() -> None:
        with kernels.use(Slots(KernelTable("test"))):
            assert kernels.active() is not None
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        failing()
    assert kernels.active() is None


@pytest.mark.parametrize("what", sorted(KERNELS))
def test_all_libraries_compute_the_same_product(what: str) -> None:
    x, weight, bias, gradient = torch.randn(33, 9), torch.randn(5, 9), torch.randn(5), torch.randn(33, 5)
    arguments = {
        "forward": lambda: (x, weight, bias, True),
        "down": lambda: (gradient, weight),
        "weight": lambda: (gradient, x, torch.empty(5, 9)),
    }[what]
    exact = {
        "forward": (x.double() @ weight.double().T + bias.double()).relu(),
        "down": gradient.double() @ weight.double(),
        "weight": gradient.double().T @ x.double(),
    }[what]
    for kernel in KERNELS[what].values():
        torch.testing.assert_close(kernel(*arguments()).double(), exact, rtol=1e-5, atol=1e-5)


def test_a_table_measures_once_and_survives_json_and_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path))
    table = load_table()
    assert table.machine == machine_name()
    assert table.choices == {}
    table.kernel("forward", 4, 3, 2)
    assert table.choices[("forward", 4, 3, 2)] in KERNELS["forward"]
    monkeypatch.setattr(kernels, "measure", lambda shape: pytest.fail("measured twice"))
    table.kernel("forward", 4, 3, 2)
    store_table(table)
    assert load_table() == table
    assert KernelTable.from_json(table.to_json()) == table


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"machine": "another", "choices": []}', '{"machine": 1}', '{"machine": "m", "choices": [["x"]]}'],
)
def test_a_damaged_or_foreign_cache_is_not_used(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path))
    (tmp_path / "kernels.json").write_text(text)
    assert load_table() == KernelTable(machine_name())


def test_a_cache_naming_an_unknown_library_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path))
    store_table(KernelTable(machine_name(), {("forward", 1, 1, 1): "cublas"}))
    assert load_table().choices == {}


def test_a_cache_that_cannot_be_written_does_not_stop_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("SUREFOOT_CACHE", str(blocked / "folder"))
    store_table(KernelTable(machine_name()))
    assert load_table().choices == {}


@pytest.mark.parametrize("what", sorted(KERNELS))
def test_no_measured_choice_is_pathological(what: str) -> None:
    """The weight gradient of a first layer once took 40 ms on a reference path of oneDNN (engine.md)."""
    import time

    shape = (what, 256, 23, 256)
    kernel = KERNELS[what][measure(shape, repeats=3)]
    x, weight, bias, gradient = torch.randn(256, 23), torch.randn(256, 23), torch.randn(256), torch.randn(256, 256)
    arguments = {
        "forward": (x, weight, bias, True),
        "down": (gradient, weight),
        "weight": (gradient, x, torch.empty(256, 23)),
    }
    start = time.process_time()
    for _ in range(5):
        kernel(*arguments[what])
    assert (time.process_time() - start) / 5 < 0.01


needs_native = pytest.mark.skipif(native.library() is None, reason=f"no native module: {native.why_not()}")


@needs_native
@pytest.mark.parametrize("members", [None, 2])
def test_functional_call_and_vmap_see_the_kernels_or_plain_pytorch(members: int | None) -> None:
    networks = [MLP(7, 2, (24, 16), members=members) for _ in range(3)]
    inputs = strided(40, 7)
    parameters, _ = torch.func.stack_module_state(networks)

    def loss(own: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(networks[0], own, (inputs,)).square().mean()

    with kernels.use(Slots(Only(NATIVE))):
        stacked = torch.func.vmap(torch.func.grad(loss))(parameters)
        for position, network in enumerate(networks):
            own = dict(network.named_parameters())
            alone = torch.autograd.grad(loss(own), list(own.values()))
            for name, gradient in zip(own, alone, strict=True):
                torch.testing.assert_close(stacked[name][position], gradient, rtol=1e-5, atol=2e-6)


@needs_native
@pytest.mark.parametrize("members", [None, 2])
def test_torch_compile_keeps_the_mlp_as_one_node_with_the_same_gradients(members: int | None) -> None:
    network, inputs = MLP(7, 2, (24, 16), members=members), strided(40, 7)
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, examples: list[Tensor]) -> torch.fx.GraphModule:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    def loss(x: Tensor) -> Tensor:
        return network(x).square().mean()

    plain = torch.autograd.grad(loss(inputs), list(network.parameters()))
    for how in (backend, "aot_eager"):
        torch.compiler.reset()
        with kernels.use(Slots(Only(NATIVE))):
            compiled = torch.compile(loss, backend=how, fullgraph=True)
            found = torch.autograd.grad(compiled(inputs), list(network.parameters()))
        for one, other in zip(found, plain, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)
    assert any("surefoot.mlp" in target for target in seen)
    torch.compiler.reset()


@needs_native
@pytest.mark.parametrize("members", [None, 3])
def test_the_operator_keeps_torchs_rules(members: int | None) -> None:
    """Shapes without numbers, autograd and aliasing, as torch itself checks them."""
    network = MLP(7, 2, (24, 16), members=members)
    weights, biases = list(network.weights), list(network.biases)
    arguments = (torch.randn(40, 7, requires_grad=True), weights, biases, "tanh")
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(native.mlp_operator, arguments, test_utils=tests)


def test_without_the_native_module_a_new_table_takes_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda: None)
    table = KernelTable("test")
    assert table.mlp(256, [17, 256, 256, 1]) == PRODUCTS
    assert machine_name().endswith(f"numpy-{np.__version__}")


def test_a_run_begun_with_the_native_module_stops_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    table = KernelTable("test", {("mlp", 40, 7, 24, 2): NATIVE})
    monkeypatch.setattr(native, "library", lambda: None)
    monkeypatch.setattr(native, "why_not", lambda: "SUREFOOT_NATIVE=0 is set")
    with (
        kernels.use(Slots(table)),
        pytest.raises(CheckpointError, match="begun with surefoot's native module, and here SUREFOOT_NATIVE=0 is set"),
    ):
        MLP(7, 2, (24,))(torch.randn(40, 7))


@needs_native
def test_an_mlp_is_measured_once_and_small_ones_are_native() -> None:
    table = KernelTable("test")
    assert table.mlp(16, [3, 8, 1]) == NATIVE
    assert table.mlp(256, [17, 64, 64, 1]) in {NATIVE, PRODUCTS}
    assert KernelTable.from_json(table.to_json()) == table
    assert machine_name().endswith(native.name())


@needs_native
def test_parameters_that_do_not_lie_together_take_the_products() -> None:
    weights, biases = [torch.randn(7, 24).t(), torch.randn(2, 24)], [torch.randn(24), torch.randn(2)]
    inputs = strided(40, 7)
    found = kernels.mlp(Slots(KernelTable("test")), inputs, weights, biases)
    torch.testing.assert_close(found, kernels.plain_mlp(inputs, weights, biases), rtol=1e-5, atol=2e-6)
