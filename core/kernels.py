"""A multilayer perceptron as one autograd function: hand-written backward, gradients in place, measured kernels.

On a CPU the updates of this library are matrix products of a few hundred rows. What eager PyTorch adds
around them (a graph node per operation, page faults for activations, a slow BLAS path for some shapes)
costs a third of the time. Here a whole MLP is one node and gradients are written where the optimiser reads
them. Its arithmetic is the native module's (`core.native`), or, where that was not built or does a shape
clearly slower, each matrix product is done by the fastest of the installed libraries (`core.products`); both
are measured once a machine. Algorithms don't see any of it: `networks.MLP` asks `active()` and otherwise
runs plain PyTorch, which gives the same numbers within rounding.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import json
import os
import pathlib
import platform
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from surefoot.core import native
from surefoot.core.errors import CheckpointError
from surefoot.core.products import KERNELS, Kernel
from surefoot.core.schema import Many, Number, Plain, Record, Text, check

SMALLEST_MEASURED = 1_000_000
CLEAR_WIN = 0.8
"""Products of fewer multiplications, and those that no other library does in this fraction of torch's time, are
left to torch: noise must not decide what rounding a run gets."""

NATIVE, PRODUCTS = "native", "products"
"""How a whole MLP is computed: by the native module, or product by product."""

Product = tuple[str, int, int, int]
"""(what is computed, rows, inputs, outputs)."""
Shape = tuple[str | int, ...]
"""A `Product`, or ("mlp", rows, widths of the layers from the input on)."""


_SIZES = Many(Number(0, whole=True), 3)
TABLE = Record({"machine": Text(), "choices": Many(Many(Plain(2), 5))})
"""What `KernelTable.to_json` gives."""


@dataclasses.dataclass
class KernelTable:
    """Which library computes which shape. Fixed for a run: saved in checkpoints, reused on resume."""

    machine: str
    """Processor and library versions that the choices were measured on."""
    choices: dict[Shape, str] = dataclasses.field(default_factory=dict)
    """Shape -> library."""

    def kernel(self, what: str, rows: int, inputs: int, outputs: int) -> Kernel:
        """The kernel for this shape; one met for the first time is measured first."""
        shape = (what, rows, inputs, outputs)
        name = self.choices.get(shape)
        if name is None:
            name = self.choices[shape] = measure(shape)
        return KERNELS[what][name]

    def mlp(self, rows: int, sizes: Sequence[int]) -> str:
        """`NATIVE` or `PRODUCTS` for an MLP of these widths; one met for the first time is measured first.

        Raises:
            CheckpointError: the table says native, and the native module is not there.
        """
        shape: Shape = ("mlp", rows, *sizes)
        choice = self.choices.get(shape)
        if choice is None:
            with native.recording(None), _disable_current_modes():
                choice = self.choices[shape] = measure_mlp(rows, sizes)
        if choice == NATIVE and native.library() is None:
            raise CheckpointError(
                f"this run was begun with surefoot's native module, and here {native.why_not()}; going on without it "
                "would give other numbers. Build it, or start anew with init="
            )
        return choice

    def to_json(self) -> dict[str, Any]:
        """The table as JSON values."""
        rows = [[*shape, name] for shape, name in sorted(self.choices.items())]
        return {"machine": self.machine, "choices": rows}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> KernelTable:
        """The table written by `to_json`.

        Raises:
            CheckpointError: it is damaged, or names a kernel that this version doesn't have.
        """
        check(value, TABLE, "kernels.json")
        choices: dict[Shape, str] = {}
        for *shape, name in value["choices"]:
            what, *sizes = shape
            check(sizes, _SIZES, f"kernels.json, {shape}")
            kernels = (NATIVE, PRODUCTS) if what == "mlp" else KERNELS.get(str(what), {})
            if name not in kernels:
                raise CheckpointError(f"kernels.json: {shape} is computed by {name!r}, which this version doesn't have")
            choices[what, *sizes] = name
        return cls(value["machine"], choices)


def machine_name() -> str:
    """Processor, torch and numpy versions and the native module, if it is there: the key of measured choices."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "model\t", "cpu family")):
                processor += " " + line.split(":", 1)[1].strip()
            if not line:
                break
    return f"{processor} torch-{torch.__version__} numpy-{np.__version__} {native.name()}".rstrip()


def measure(shape: Product, repeats: int = 9) -> str:
    """Name of the library that computes `shape` fastest on one thread (least CPU time); torch unless it is clear."""
    what, rows, inputs, outputs = shape
    if rows * inputs * outputs < SMALLEST_MEASURED:
        return "torch"
    x, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    gradient = torch.randn(rows, outputs)
    arguments: dict[str, tuple[Any, ...]] = {
        "forward": (x, weight, bias, True),
        "down": (gradient, weight),
        "weight": (gradient, x, torch.empty(outputs, inputs)),
    }
    candidates = dict(KERNELS[what])
    if not torch.backends.mkldnn.is_available():
        candidates.pop("onednn")
    times: dict[str, list[int]] = {name: [] for name in candidates}
    calls = max(1, min(20, int(3e7 / max(1, rows * inputs * outputs))))
    for _ in range(repeats):
        for name, kernel in candidates.items():
            start = time.process_time_ns()
            for _ in range(calls):
                kernel(*arguments[what])
            times[name].append(time.process_time_ns() - start)
    least = {name: min(values) for name, values in times.items()}  # what else the machine does can only add
    best = min(least, key=lambda name: least[name])
    return best if least[best] < CLEAR_WIN * least["torch"] else "torch"


def measure_mlp(rows: int, sizes: Sequence[int], repeats: int = 9) -> str:
    """`NATIVE` where the module is there, unless doing the products one by one is clearly faster (least CPU time)."""
    if native.library() is None:
        return PRODUCTS
    if rows * sum(before * after for before, after in itertools.pairwise(sizes)) < SMALLEST_MEASURED:
        return NATIVE
    inputs = torch.randn(rows, sizes[0])
    weights = [torch.randn(after, before).requires_grad_() for before, after in itertools.pairwise(sizes)]
    biases = [torch.randn(after).requires_grad_() for after in sizes[1:]]
    slots = Slots(KernelTable("measured"))
    functions: dict[str, type[torch.autograd.Function]] = {NATIVE: _NativeMLP, PRODUCTS: _ProductsMLP}
    times: dict[str, list[int]] = {name: [] for name in functions}
    with torch.enable_grad():
        for turn in range(-1, repeats):  # in turn, and once before that for what is made at first use
            for name, function in functions.items():
                start = time.process_time_ns()
                outputs: Tensor = function.apply(slots, "relu", len(weights), inputs, *weights, *biases)
                torch.autograd.grad(outputs.sum(), [*weights, *biases])
                if turn >= 0:
                    times[name].append(time.process_time_ns() - start)
    best = {name: min(values) for name, values in times.items()}  # what else the machine does can only add
    return PRODUCTS if best[PRODUCTS] < CLEAR_WIN * best[NATIVE] else NATIVE


def load_table() -> KernelTable:
    """This machine's table from the cache, or an empty one that fills as shapes are met."""
    machine = machine_name()
    with contextlib.suppress(OSError, ValueError, CheckpointError):
        table = KernelTable.from_json(json.loads(_cache_file().read_text()))
        if table.machine == machine and set(table.choices.values()) <= {*KERNELS["forward"], NATIVE, PRODUCTS}:
            return table
    return KernelTable(machine)


def store_table(table: KernelTable) -> None:
    """Write the table to the cache for later runs; a cache that can't be written is not needed."""
    from surefoot.core.errors import SurefootError
    from surefoot.core.files import write_json

    with contextlib.suppress(SurefootError):  # what `written_aside` makes of an OSError
        write_json(_cache_file(), table.to_json())


def _cache_file() -> pathlib.Path:
    root = os.environ.get("SUREFOOT_CACHE") or pathlib.Path.home() / ".cache" / "surefoot"
    return pathlib.Path(root) / "kernels.json"


class Slots:
    """Kernels in use, and where the gradients of the parameters that are being trained are wanted."""

    def __init__(self, table: KernelTable) -> None:
        self.table = table
        self.gradients: dict[int, Tensor] = {}
        """Address of a parameter -> a view of the Learner's flat gradient."""

    def gradient(self, parameter: Tensor) -> Tensor:
        """Where to write the gradient of `parameter`; a second use in one backward gets memory of its own."""
        slot = self.gradients.get(parameter.data_ptr())
        if slot is None or slot.shape != parameter.shape:  # member 0 lies where its whole ensemble does
            return torch.empty_like(parameter)
        return self.gradients.pop(parameter.data_ptr())


_active: Slots | None = None


def active() -> Slots | None:
    """The slots of the Learner that is training in this process just now, if it uses these kernels."""
    return _active


@contextlib.contextmanager
def use(slots: Slots | None) -> Iterator[None]:
    """Run MLPs of float32 CPU tensors through `mlp` while the block runs."""
    global _active
    before, _active = _active, slots
    try:
        yield
    finally:
        _active = before


def keep_memory() -> None:
    """Tell glibc to keep freed memory: a fresh page costs more than the arithmetic on it.

    By default blocks above 128 kB, which activations are, go back to the system when freed, and each step
    pays hundreds of page faults for them (a tenth of the time of an update). Elsewhere than on glibc
    nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        trim, mmap = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
        libc.mallopt(trim, 1 << 30)
        libc.mallopt(mmap, 1 << 30)


def mlp(
    slots: Slots,
    inputs: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    hidden: str = "relu",
    norms: native.Norms = native.NO_NORMS,
) -> Tensor:
    """MLP of one network or an ensemble.

    Args:
        slots: kernels and gradient slots.
        inputs: (B, in) float32 on the CPU, shared by the members.
        weights: a layer each, (out, in) or (E, out, in).
        biases: a layer each, (out,) or (E, out).
        hidden: activation of the hidden layers, of `native.HIDDEN`.
        norms: gains and shifts of layer norms before the activations.

    Returns:
        (B, out) or (E, B, out).
    """
    if norms[0]:
        return _normed(slots, inputs, weights, biases, hidden, norms)
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return _traced(inputs, weights, biases, hidden)
    parameters = (*weights, *biases)
    if (
        not native.fits(inputs, weights, biases)
        or slots.table.mlp(inputs.shape[0], native.mlp_sizes(weights)) != NATIVE
    ):
        recorder = native.recorder()
        if recorder is not None:
            recorder.refuse("an MLP that is computed product by product")
        return _ProductsMLP.apply(slots, hidden, len(weights), inputs, *parameters)  # type: ignore[no-any-return]
    if torch.is_grad_enabled() and (inputs.requires_grad or any(p.requires_grad for p in parameters)):
        return _NativeMLP.apply(slots, hidden, len(weights), inputs, *parameters)  # type: ignore[no-any-return]
    return native.forward(inputs, weights, biases, keep=False, hidden=hidden)[0]


def _normed(
    slots: Slots,
    inputs: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    hidden: str,
    norms: native.Norms,
) -> Tensor:
    """With layer norms: in the native module, or in plain PyTorch where that can't be."""
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if traced or native.library() is None or not native.fits(inputs, weights, biases, norms):
        return plain_mlp(inputs, weights, biases, hidden, norms)
    parameters = (*weights, *biases, *norms[0], *norms[1])
    if torch.is_grad_enabled() and (inputs.requires_grad or any(p.requires_grad for p in parameters)):
        return _NativeMLP.apply(slots, hidden, len(weights), inputs, *parameters)  # type: ignore[no-any-return]
    return native.forward(inputs, weights, biases, keep=False, hidden=hidden, norms=norms)[0]


def _parts(
    values: Sequence[Any], layers: int
) -> tuple[Sequence[Any], Sequence[Any], tuple[Sequence[Any], Sequence[Any]]]:
    """Values for weights, biases, and gains and shifts of the norms, of which there may be none."""
    rest = values[2 * layers :]
    half = len(rest) // 2
    return values[:layers], values[layers : 2 * layers], (rest[:half], rest[half:])


def _traced(inputs: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], hidden: str) -> Tensor:
    """Under `torch.compile` the MLP is one node of the graph; `vmap` and its like take plain PyTorch."""
    if torch._C._are_functorch_transforms_active() or native.library() is None:
        return plain_mlp(inputs, weights, biases, hidden)
    outputs: Tensor = native.mlp_operator(inputs, list(weights), list(biases), hidden)[0]
    return outputs


class _NativeMLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, slots: Slots, hidden: str, layers: int, inputs: Tensor, *parameters: Tensor) -> Tensor:
        weights, biases, norms = _parts(parameters, layers)
        outputs, saved = native.forward(inputs, weights, biases, keep=True, hidden=hidden, norms=norms)
        ctx.slots, ctx.hidden, ctx.layers = slots, hidden, layers
        ctx.save_for_backward(inputs, saved, *parameters)
        return outputs

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        layers: int = ctx.layers
        inputs, saved, *parameters = ctx.saved_tensors
        if torch.is_grad_enabled():
            return (None, None, None, *_plain_gradients(ctx, inputs, parameters, layers, outputs[0]))
        inputs_wanted, *wanted = ctx.needs_input_grad[3:]
        slots: Slots = ctx.slots
        found = [slots.gradient(p) if needed else None for p, needed in zip(parameters, wanted, strict=True)]
        weights, biases, norms = _parts(parameters, layers)
        to_weights, to_biases, to_norms = _parts(found, layers)
        given = (inputs, weights, biases, saved, outputs[0], to_weights, to_biases, inputs_wanted, ctx.hidden)
        below = native.backward(*given, norms, to_norms)
        return (None, None, None, below, *found)


class _ProductsMLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, slots: Slots, hidden: str, layers: int, inputs: Tensor, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[:layers], parameters[layers:]
        single, rows = weights[0].dim() == 2, inputs.shape[0]
        members = 1 if single else weights[0].shape[0]
        values = [inputs] * members
        saved: list[Tensor] = [inputs]
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            kernel = slots.table.kernel("forward", rows, weight.shape[-1], weight.shape[-2])
            relu = layer < layers - 1 and hidden == "relu"
            matrices = [weight] if single else weight.unbind(0)
            vectors = [bias] if single else bias.unbind(0)
            values = [kernel(v, w, b, relu) for v, w, b in zip(values, matrices, vectors, strict=True)]
            if layer < layers - 1 and hidden == "tanh":
                values = [v.tanh_() for v in values]
            saved.extend(values)
        ctx.slots, ctx.hidden, ctx.layers, ctx.members = slots, hidden, layers, members
        ctx.save_for_backward(*parameters, *saved[:-members])
        return values[0] if single else torch.stack(values)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        layers: int = ctx.layers
        members: int = ctx.members
        parameters, saved = ctx.saved_tensors[: 2 * layers], ctx.saved_tensors[2 * layers :]
        if torch.is_grad_enabled():
            return (None, None, None, *_plain_gradients(ctx, saved[0], parameters, layers, outputs[0]))
        weights, biases = parameters[:layers], parameters[layers:]
        slots: Slots = ctx.slots
        single, rows = weights[0].dim() == 2, saved[0].shape[0]
        inputs_wanted, *wanted = ctx.needs_input_grad[3:]
        gradients = [outputs[0].contiguous()] if single else list(outputs[0].contiguous().unbind(0))
        found: list[Tensor | None] = [None] * (2 * layers)
        for layer in range(layers - 1, -1, -1):
            weight = weights[layer]
            sizes = (rows, weight.shape[-1], weight.shape[-2])
            below = [saved[0]] * members if layer == 0 else saved[1 + (layer - 1) * members : 1 + layer * members]
            if wanted[layer]:
                found[layer], found[layers + layer] = slots.gradient(weight), slots.gradient(biases[layer])
                kernel = slots.table.kernel("weight", *sizes)
                matrices = [found[layer]] if single else found[layer].unbind(0)  # type: ignore[union-attr]
                vectors = [found[layers + layer]] if single else found[layers + layer].unbind(0)  # type: ignore[union-attr]
                for g, x, matrix, vector in zip(gradients, below, matrices, vectors, strict=True):
                    kernel(g, x, matrix)
                    torch.sum(g, dim=0, out=vector)
            if layer == 0 and not inputs_wanted:
                gradients = []
                break
            kernel = slots.table.kernel("down", *sizes)
            matrices = [weight] if single else weight.unbind(0)
            gradients = [kernel(g, matrix) for g, matrix in zip(gradients, matrices, strict=True)]
            if layer > 0:
                for g, x in zip(gradients, below, strict=True):
                    if ctx.hidden == "relu":
                        torch.ops.aten.threshold_backward.grad_input(g, x, 0.0, grad_input=g)
                    else:
                        torch.ops.aten.tanh_backward.grad_input(g, x, grad_input=g)
        input_gradient = None
        if gradients:
            input_gradient = gradients[0] if single else torch.stack(gradients).sum(0)
        return (None, None, None, input_gradient, *found)


def _plain_gradients(
    ctx: Any, inputs: Tensor, parameters: Sequence[Tensor], layers: int, output_gradient: Tensor
) -> list[Tensor | None]:
    """The same gradients through plain PyTorch, for losses that differentiate a gradient."""
    sources = [inputs, *parameters]
    wanted = [source for source, needed in zip(sources, ctx.needs_input_grad[3:], strict=True) if needed]
    weights, biases, norms = _parts(parameters, layers)
    output = plain_mlp(inputs, weights, biases, ctx.hidden, norms)
    gradients = iter(torch.autograd.grad(output, wanted, output_gradient, create_graph=True))
    return [next(gradients) if needed else None for needed in ctx.needs_input_grad[3:]]


def plain_mlp(
    inputs: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    hidden: str = "relu",
    norms: native.Norms = native.NO_NORMS,
) -> Tensor:
    """`mlp` in plain PyTorch: any device and dtype, under `vmap`, `functional_call` and `torch.compile`."""
    value = inputs
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        value = linear(value, weight, bias)
        if layer < len(weights) - 1:
            if norms[0]:
                gain, shift = norms[0][layer].unsqueeze(-2), norms[1][layer].unsqueeze(-2)
                value = torch.nn.functional.layer_norm(value, value.shape[-1:]) * gain + shift
            value = value.relu() if hidden == "relu" else value.tanh()
    return value


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Affine map of one layer: (B, in) with (out, in), or (B, in) or (E, B, in) with (E, out, in)."""
    if weight.dim() == 2:
        return torch.nn.functional.linear(inputs, weight, bias)
    return torch.matmul(inputs, weight.transpose(-1, -2)) + bias.unsqueeze(-2)
