"""Elementwise functions that are one kernel on a GPU: values, derivatives, and the C++ that torch compiles there."""

from __future__ import annotations

import ctypes
import pathlib
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from surefoot.core.actors import heads
from surefoot.core.base import pointwise as home
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.pointwise import Call, joined_anywhere, pointwise, squared_difference
from surefoot.core.base.pointwise_source import Kernel, recorded
from surefoot.core.losses import distributions, flow, value_learning
from surefoot.core.nn import activations, ensembles, two_hot

Function = Callable[..., Any]
FUNCTIONS: dict[str, tuple[Function, tuple[float | None, ...]]] = {
    "expectile": (value_learning.expectile_loss, (None, 0.7)),
    "huber": (value_learning.huber_loss, (None, 0.4)),
    "one step": (value_learning._one_step, (None, None, None, 0.9)),
    "bounded exponential": (value_learning._bounded_exponential, (None, 3.0, 1.5)),
    "normal terms": (distributions.normal_terms, (None, None, None)),
    "tanh log slopes": (distributions.tanh_log_slopes, (None,)),
    "bounded normal terms": (heads._bounded_normal_terms, (None, None, None, -0.5, 0.5)),
    "squashed": (heads._squashed, (None, None, None, heads.TanhGaussianActor.bound, -0.5, 0.5)),  # type: ignore[dict-item]
    "path": (flow._on_the_path, (None, None, None)),
    "path with rest": (flow._on_a_path_with_rest, (None, None, None, 0.1)),
    "stepped": (flow._stepped, (None, None, 7)),
    "smaller": (ensembles._smaller, (None, None)),
    "squares": (squared_difference, (None, None)),
    "symlog": (two_hot.symlog, (None,)),
    "symexp": (two_hot.symexp, (None,)),
    **{f"biased {name}": (function, (None, None)) for name, function in activations.BIASED.items()},
    **{f"scaled {name}": (function, (None, None, None)) for name, function in activations.SCALED.items()},
}
"""Name -> a function and its arguments, None being a tensor."""


def call_of(name: str) -> Call:
    function, numbers = FUNCTIONS[name]
    return Call(function.__wrapped__, numbers, re.sub(r"\W", "_", name))  # type: ignore[attr-defined]


def kernels() -> list[tuple[Kernel, Call]]:
    found = []
    for name in FUNCTIONS:
        call = call_of(name)
        gradients = call.gradients((True,) * call.inputs)
        found += [(one.kernel(torch.float64), one) for one in (call, gradients)]
    return found


# ---- by a hand-written function ----


@pointwise
def distance(x: Tensor, y: Tensor, power: float) -> Tensor:
    return torch.where(x > y, (x - y) ** power, y - x)


def test_values_and_gradients_are_those_worked_out_by_hand() -> None:
    x, y = torch.tensor([3.0, 1.0], requires_grad=True), torch.tensor([[1.0], [4.0]], requires_grad=True)
    with joined_anywhere():
        found = distance(x, y, 3.0)
        by_x, by_y = torch.autograd.grad(found.sum(), (x, y))
    assert found.tolist() == [[8.0, 0.0], [1.0, 3.0]]
    assert by_x.tolist() == [12.0 - 1.0, -1.0 - 1.0]  # at y = 1 (x > y alone for 3), at y = 4
    assert by_y.tolist() == [[-12.0 + 1.0], [1.0 + 1.0]]


def test_a_processor_calls_the_function_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "_call", lambda *_: pytest.fail("a processor has no kernels"))
    assert distance(torch.ones(1), torch.zeros(1), 2.0).item() == 1.0
    assert distance(x=torch.ones(1), y=torch.zeros(1), power=2.0).item() == 1.0


# ---- every function of the library ----


def derivatives(function: Function, inputs: list[Tensor]) -> list[Tensor]:
    """Values under `vmap`, first and second derivatives, and a forward one."""

    def loss(*given: Tensor) -> Tensor:
        found = function(*given)
        return sum(torch.sin(one).sum() for one in (found if isinstance(found, tuple) else (found,)))  # type: ignore

    every = tuple(range(len(inputs)))
    first = vmap(grad(loss, every))(*inputs)
    curvature = vmap(grad(lambda *given: sum(one.square().sum() for one in grad(loss, every)(*given)), every))(*inputs)
    tangent = jvp(vmap(loss), tuple(inputs), tuple(torch.ones_like(one) for one in inputs))[1]
    leaves = [one.clone().requires_grad_() for one in inputs]
    backward = torch.autograd.grad(vmap(loss)(*leaves).sum(), leaves)
    return [vmap(loss)(*inputs), *first, *curvature, tangent, *backward]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_joined_functions_and_their_derivatives_are_those_of_plain_operations(name: str) -> None:
    call = call_of(name)
    source = torch.Generator().manual_seed(len(name))
    shapes = [(2, 5, 3), (2, 1, 3), (2, 3)]
    inputs = [torch.randn(shapes[i], generator=source, dtype=torch.float64) for i in range(call.inputs)]
    function, numbers = FUNCTIONS[name]

    def given(*tensors: Tensor) -> Any:
        left = iter(tensors)
        return function(*(next(left) if number is None else number for number in numbers))

    plain = derivatives(given, inputs)
    with joined_anywhere():
        joined = derivatives(given, inputs)
    for one, other in zip(plain, joined, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_gradients_are_one_kernel_whatever_the_number_of_inputs() -> None:
    tensors = [torch.zeros(4, 3, device="meta", requires_grad=True) for _ in range(3)]
    counted = 0

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal counted
            counted += func.overloadpacket.__name__ == "pointwise"
            return func(*args, **(kwargs or {}))

    with Count():
        found = distributions.normal_terms(*tensors)
        torch.autograd.grad(found, tensors, torch.ones(4, 3, device="meta"))
    assert counted == 2


def test_numbers_of_two_types_have_kernels_of_their_own() -> None:
    call = call_of("expectile")
    for dtype in (torch.float32, torch.float64):
        (found,) = home._by_operations(call.kernel(dtype).key, [torch.tensor([2.0], dtype=dtype)], [1])
        assert found.dtype == dtype
        assert found.item() == torch.tensor(0.7, dtype=dtype).item() * 4


def test_an_operation_without_a_cpp_form_is_named() -> None:
    with pytest.raises(ConfigError, match=r"odd: the operation aten\.lgamma\.default has no C\+\+ form"):
        recorded(lambda x: (torch.lgamma(x),), 1, torch.float32, "odd")


# ---- the C++ ----


def program(found: list[tuple[Kernel, Call]]) -> str:
    """A C++ function `run(kernel, inputs, outputs)` on doubles."""
    cases = []
    for number, (kernel, _) in enumerate(found):
        arguments = [f"x[{i}]" for i in range(len(kernel.reads))] + [f"y[{i}]" for i in range(kernel.outputs)]
        cases.append(f"case {number}: {kernel.name}<double>({', '.join(arguments)}); return;")
    sources = "\n".join(kernel.source for kernel, _ in found)
    body = "\n".join(cases)
    head = 'extern "C" void run(int k, double* x, double* y)'
    return f"#include <math.h>\n{sources}\n{head} {{ switch (k) {{\n{body}\n}} }}"


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_the_cpp_of_every_function_and_of_its_gradients_gives_torchs_numbers(tmp_path: pathlib.Path) -> None:
    found = kernels()
    (tmp_path / "all.cpp").write_text(program(found))
    library = tmp_path / "all.so"
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", str(tmp_path / "all.cpp"), "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    run = ctypes.CDLL(str(library)).run
    source = torch.Generator().manual_seed(0)
    for number, (kernel, call) in enumerate(found):
        for scale in (0.3, 1.0, 4.0):
            inputs = scale * torch.randn(call.inputs, generator=source, dtype=torch.float64)
            x = (ctypes.c_double * call.inputs)(*(inputs[place] for place in kernel.reads))
            y = (ctypes.c_double * max(1, kernel.outputs))()
            run(number, x, y)
            for (is_own, place), expected in zip(kernel.gives, call(*inputs.unsqueeze(1)), strict=True):
                given = y[place] if is_own else inputs[place].item()
                assert given == pytest.approx(expected.item(), rel=1e-9, abs=1e-12), kernel.source


def test_torch_finds_name_and_parameters_in_the_source_and_nvrtc_compiles_it() -> None:
    found = kernels()
    for kernel, _ in found:
        parsed = torch.cuda.jiterator._create_multi_output_jit_fn(kernel.source, max(1, kernel.outputs))
        assert parsed.kernel_name == kernel.name
    pytest.importorskip("cuda.core")
    from cuda.core import Program, ProgramOptions

    calls = []
    for number, (kernel, _) in enumerate(found):
        names = [f"p[{place}]" for place in range(len(kernel.reads) + kernel.outputs)]
        calls.append(f"if (k == {number}) {kernel.name}<float>({', '.join(names)});")
    body = "\n".join(calls)
    sources = "\n".join(kernel.source for kernel, _ in found)
    code = f'{sources}\nextern "C" __global__ void every(int k, float* p) {{\n{body}\n}}'
    options = ProgramOptions(arch="sm_90", std="c++17", device_as_default_execution_space=True)  # as torch compiles it
    assert Program(code, "c++", options).compile("cubin").code


# ---- a GPU ----


def test_what_torch_refuses_runs_by_its_operations_and_a_warning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("nvrtc: no such header\nmore")

    monkeypatch.setattr(torch.cuda.jiterator, "_create_multi_output_jit_fn", refuse)
    call = call_of("huber")
    kernel = call.kernel(torch.float32)
    monkeypatch.delitem(home._compiled, kernel.key, raising=False)
    x = torch.tensor([0.1, -2.0])
    with pytest.warns(UserWarning, match=r"huber is not one kernel .* \(nvrtc: no such header\)"):
        (found,) = home._on_gpu(kernel.key, [x], [2])
    torch.testing.assert_close(found, value_learning.huber_loss(x, 0.4))
    monkeypatch.delitem(home._compiled, kernel.key)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_of_a_gpu_give_the_processors_numbers(name: str) -> None:
    call = call_of(name)
    source = torch.Generator().manual_seed(0)
    for one in (call, call.gradients((True,) * call.inputs)):
        inputs = torch.randn(one.inputs, 1000, generator=source)
        kernel = one.kernel(torch.float32)
        if not kernel.outputs:
            continue
        expected = kernel.run([inputs[place] for place in kernel.reads])
        found = home._on_gpu(kernel.key, [inputs[place].cuda() for place in kernel.reads], [1000])
        assert home._compiled[kernel.key] is not None
        for own, other in zip(found, expected, strict=True):
            torch.testing.assert_close(own.cpu(), other, rtol=1e-4, atol=1e-5)
