"""A multilayer perceptron as one autograd function: the native module's arithmetic, gradients in place.

On a CPU the updates of this library are matrix products of a few hundred rows. What eager PyTorch adds
around them (a graph node per operation, page faults for activations, a slow BLAS path for some shapes)
costs a third of the time. Here a whole MLP is one node, and its gradients are written where the optimiser reads
them, by the native module (`core.nn.native.native`). Algorithms don't see any of it: `networks.MLP` asks `active()` and
otherwise runs plain PyTorch, as it does where the module was not built; numbers are the same within rounding.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import pathlib
import platform
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.nn.dense import dense
from surefoot.core.nn.native import native


def machine_name() -> str:
    """Processor, torch and numpy versions and the native module, if it is there: what a run's numbers depend on."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "model\t", "cpu family")):
                processor += " " + line.split(":", 1)[1].strip()
            if not line:
                break
    return f"{processor} torch-{torch.__version__} numpy-{np.__version__} {native.name()}".rstrip()


HIDDEN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "gelu_tanh": functools.partial(torch.nn.functional.gelu, approximate="tanh"),  # as flax and jax have GELU
    "silu": torch.nn.functional.silu,
}
"""Activations that the native module has, in plain PyTorch."""


class Slots:
    """Where the gradients of the parameters that are being trained are wanted."""

    def __init__(self) -> None:
        self.gradients: dict[int, Tensor] = {}
        """Address of a parameter -> a view of the Learner's flat gradient."""
        self.masks_inside = True
        """Whether networks with dropout masks are one call too, or each layer is one: so runs were started before."""

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
    dropout: native.Dropout | None = None,
) -> Tensor:
    """MLP of one network or an ensemble: in the native module, or in plain PyTorch where that can't be.

    Args:
        slots: where gradients are wanted.
        inputs: (B, in) float32 on the CPU, shared by the members, or (E, B, in), for each of them its own.
        weights: a layer each, (out, in) or (E, out, in).
        biases: a layer each, (out,) or (E, out).
        hidden: activation of the hidden layers, of `native.HIDDEN`.
        norms: layer norms before or after the activations.
        dropout: masks before or after them.

    Returns:
        (B, out) or (E, B, out).
    """
    compiling = torch.compiler.is_compiling()  # which sees no addresses, and has products of its own
    if compiling or native.library() is None or not native.fits(inputs, weights, biases, norms, dropout):
        return plain_mlp(inputs, weights, biases, hidden, norms, dropout)
    parameters = (*weights, *biases, *norms.gains, *norms.shifts)
    if torch.is_grad_enabled() and (inputs.requires_grad or any(p.requires_grad for p in parameters)):
        how = (hidden, norms.after, norms.epsilon, dropout)
        return _NativeMLP.apply(slots, how, len(weights), inputs, *parameters)
    calls = _calls(inputs, weights, biases, norms, dropout)
    found = [native.forward(x, w, b, False, hidden, n, d)[0] for x, w, b, n, d in calls]
    return found[0] if inputs.dim() == 2 else torch.stack(found)


def prepared(weights: Sequence[Tensor], biases: Sequence[Tensor], hidden: str) -> Callable[[Tensor, Tensor], None]:
    """The forward pass of one network that is asked many times and not trained meanwhile, its addresses found once.

    Of few rows it takes a third of the time of `mlp`. Without derivatives or layer norms; in plain PyTorch where the
    native module can't be used.

    Args:
        weights: a layer each, (out, in).
        biases: a layer each, (out,).
        hidden: activation of the hidden layers, of HIDDEN.

    Returns:
        f(inputs, outputs): (B, in), with adjacent numbers in its rows -> written, (B, out), contiguous.
    """
    module = native.library()
    if module is None or not native.fits(weights[0], weights, biases):

        def plain(inputs: Tensor, outputs: Tensor) -> None:
            outputs.copy_(plain_mlp(inputs, weights, biases, hidden))

        return plain
    sizes, place = native.mlp_sizes(weights), native.HIDDEN.index(hidden)
    kept = ([*weights], [*biases])  # as long as their addresses are used
    addresses = [[t.data_ptr() for t in group] for group in kept]
    forward, (first, last) = module.mlp_forward, (sizes[0], sizes[-1])

    def run(inputs: Tensor, outputs: Tensor) -> None:
        read = inputs.dtype == torch.float32 and inputs.dim() == 2 and inputs.shape[1] == first
        written = outputs.dtype == torch.float32 and outputs.shape == (len(inputs), last)
        if not (read and written and inputs.stride(1) == 1 and outputs.is_contiguous()):
            outputs.copy_(plain_mlp(inputs, *kept, hidden))  # which says what does not fit
            return
        where = (inputs.data_ptr(), inputs.stride(0), 0, outputs.data_ptr())
        forward(sizes, 1, len(inputs), place, *addresses, [], [], *where)

    return run


How = tuple[str, bool, float, native.Dropout | None]
"""Activation; whether norms come after it; what they add to the variance; dropout masks."""
Call = tuple[Tensor, Sequence[Tensor], Sequence[Tensor], native.Norms, native.Dropout | None]
"""Rows, weights, biases, norms and masks that native code is given at once."""


def _parts(values: Sequence[Any], layers: int) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Values for weights, biases, and gains and shifts of the norms, of which there may be none."""
    rest = values[2 * layers :]
    half = len(rest) // 2
    return values[:layers], values[layers : 2 * layers], rest[:half], rest[half:]


def _calls(
    inputs: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    norms: native.Norms,
    dropout: native.Dropout | None,
) -> list[Call]:
    """What native code is given: all at once, or where members read rows of their own, each member by itself."""
    if inputs.dim() == 2:
        return [(inputs, weights, biases, norms, dropout)]
    count = range(len(weights[0]))
    groups = (
        [[tensor[i] for tensor in group] for i in count] for group in (weights, biases, norms.gains, norms.shifts)
    )
    of_weights, of_biases, gains, shifts = groups
    of_norms = [native.Norms(gains[i], shifts[i], norms.after, norms.epsilon) for i in count]
    dropouts = [dropout for _ in count]
    if dropout is not None and dropout.masks.dim() == 3:
        dropouts = [dropout._replace(masks=masks) for masks in dropout.masks]
    return list(zip(inputs, of_weights, of_biases, of_norms, dropouts, strict=True))


class _NativeMLP(torch.autograd.Function):
    """An MLP or an ensemble of them, gradients in place."""

    @staticmethod
    def forward(ctx: Any, slots: Slots, how: How, layers: int, inputs: Tensor, *parameters: Tensor) -> Tensor:
        weights, biases, gains, shifts = _parts(parameters, layers)
        hidden, after, epsilon, dropout = how
        calls = _calls(inputs, weights, biases, native.Norms(gains, shifts, after, epsilon), dropout)
        found = [native.forward(x, w, b, True, hidden, n, d) for x, w, b, n, d in calls]
        ctx.slots, ctx.how, ctx.layers = slots, how, layers
        ctx.save_for_backward(inputs, *(saved for _, saved in found), *parameters)
        return found[0][0] if inputs.dim() == 2 else torch.stack([outputs for outputs, _ in found])

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        layers: int = ctx.layers
        inputs, *rest = ctx.saved_tensors
        together = inputs.dim() == 2
        count = 1 if together else len(inputs)
        saved, parameters = rest[:count], rest[count:]
        if torch.is_grad_enabled():
            return (None, None, None, *_plain_gradients(ctx, inputs, parameters, layers, outputs[0]))
        inputs_wanted, *wanted = ctx.needs_input_grad[3:]
        slots: Slots = ctx.slots
        found = [slots.gradient(p) if needed else None for p, needed in zip(parameters, wanted, strict=True)]
        weights, biases, gains, shifts = _parts(parameters, layers)
        hidden, after, epsilon, dropout = ctx.how
        below: list[Any] = []
        for i, call in enumerate(_calls(inputs, weights, biases, native.Norms(gains, shifts, after, epsilon), dropout)):
            own = found if together else [None if g is None else g[i] for g in found]
            to_weights, to_biases, *to_norms = _parts(own, layers)
            given = (*call[:3], saved[i], outputs[0] if together else outputs[0][i], to_weights, to_biases)
            below.append(native.backward(*given, inputs_wanted, hidden, call[3], (to_norms[0], to_norms[1]), call[4]))
        return (None, None, None, torch.stack(below) if inputs_wanted and not together else below[0], *found)


class _Decayed(torch.autograd.Function):
    """A parameter as it is, and half its squared norm times a coefficient; their gradients in one pass, in place."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, coefficient: float) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(parameter)
        ctx.coefficient = coefficient
        flat = parameter.reshape(-1)
        return parameter.view_as(parameter), 0.5 * coefficient * torch.dot(flat, flat)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (parameter,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return gradients[0] + ctx.coefficient * gradients[1] * parameter, None
        return gradients[0].addcmul_(parameter, gradients[1], value=ctx.coefficient), None


def decayed(parameters: Sequence[Tensor], coefficients: Sequence[float]) -> tuple[list[Tensor], Tensor]:
    r"""The parameters for a network to read, and () :math:`\sum_i c_i \lVert p_i \rVert^2 / 2` of them.

    Where kernels are in use the decay's gradient is added where the network's own was written; a network must then read
    what is given back, and nothing else may.
    """
    if _active is None:
        squares = [0.5 * c * p.square().sum() for p, c in zip(parameters, coefficients, strict=True)]
        return list(parameters), torch.stack(squares).sum()
    found = [_Decayed.apply(p, c) for p, c in zip(parameters, coefficients, strict=True)]
    return [parameter for parameter, _ in found], torch.stack([loss for _, loss in found]).sum()


def _plain_gradients(
    ctx: Any, inputs: Tensor, parameters: Sequence[Tensor], layers: int, output_gradient: Tensor
) -> list[Tensor | None]:
    """The same gradients through plain PyTorch, for losses that differentiate a gradient."""
    sources = [inputs, *parameters]
    wanted = [source for source, needed in zip(sources, ctx.needs_input_grad[3:], strict=True) if needed]
    weights, biases, gains, shifts = _parts(parameters, layers)
    hidden, after, epsilon, dropout = ctx.how
    output = plain_mlp(inputs, weights, biases, hidden, native.Norms(gains, shifts, after, epsilon), dropout)
    gradients = iter(torch.autograd.grad(output, wanted, output_gradient, create_graph=True))
    return [next(gradients) if needed else None for needed in ctx.needs_input_grad[3:]]


def plain_mlp(
    inputs: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    hidden: str = "relu",
    norms: native.Norms = native.NO_NORMS,
    dropout: native.Dropout | None = None,
) -> Tensor:
    """`mlp` in plain PyTorch: any device and dtype, under `vmap`, `functional_call` and `torch.compile`."""
    value = inputs
    masks: Sequence[Tensor] = ()
    if dropout is not None:
        masks = dropout.masks.split([weight.shape[-2] for weight in weights[:-1]], dim=-1)
    sums = dropout is not None and dropout.sums
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        value = linear(value, weight, bias)
        if layer < len(weights) - 1:
            if masks and sums:
                value = value * masks[layer]
            value = HIDDEN[hidden](value) if norms.after else value
            if norms.gains:
                gain, shift = norms.gains[layer].unsqueeze(-2), norms.shifts[layer].unsqueeze(-2)
                value = torch.nn.functional.layer_norm(value, value.shape[-1:], eps=norms.epsilon) * gain + shift
            value = value if norms.after else HIDDEN[hidden](value)
            if masks and not sums:
                value = value * masks[layer]
    return value


def plain(inputs: Tensor) -> bool:
    """Whether layers are torch's own operations: on a processor, and for a compiler, which makes kernels of its own."""
    return inputs.device.type == "cpu" or torch.compiler.is_compiling()


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Affine map of one layer: (B, in) with (out, in), or (B, in) or (E, B, in) with (E, out, in)."""
    if not plain(inputs):
        return dense(inputs, weight, bias)
    if weight.dim() == 2:
        return torch.nn.functional.linear(inputs, weight, bias)
    return torch.matmul(inputs, weight.transpose(-1, -2)) + bias.unsqueeze(-2)
