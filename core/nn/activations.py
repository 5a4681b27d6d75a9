"""Activations by name, and the forms of them that cost a core less than torch's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.core.base.pointwise import pointwise
from surefoot.core.nn.dense import dense
from surefoot.core.nn.native import kernels, native


def mish(x: Tensor) -> Tensor:
    """x tanh(softplus(x)); beside the kernels in a form that costs a core a third of torch's own."""
    taped = native.recorder() is not None  # where torch's is one operation of the tape's
    if taped or kernels.active() is None or x.dtype != torch.float32:
        return nn.functional.mish(x)
    return _Mish.apply(x)


class _Mish(torch.autograd.Function):
    """With p = sigmoid(x) and a = p (2 - p), tanh(softplus(x)) = a / (2 - a): no logarithm, and no cancellation.

    Its derivative by x is 4 p (1 - p)^2 / (2 - a)^2. Rows go through in parts that stay in a core's cache.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        found, slope = torch.empty_like(x), torch.empty_like(x)
        rows = max(1, NUMBERS_IN_CACHE // max(1, math.prod(x.shape[1:])))
        for part, out, derivative in zip(*(t.split(rows) for t in (x, found, slope)), strict=True):
            p = torch.sigmoid(part)
            rest = 1 - p
            a = torch.addcmul(p, p, rest, out=out)  # p + p (1 - p)
            below = (2 - a).reciprocal_()
            gate = a.mul_(below)
            torch.mul(p.mul_(4), rest.mul_(below).square_(), out=derivative)
            torch.addcmul(gate, part, derivative, out=derivative)
            gate.mul_(part)
        ctx.save_for_backward(slope)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0]


NUMBERS_IN_CACHE = 65_536
"""That `_Mish` works on at once: some copies of them fit a core's second cache."""


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **kernels.HIDDEN,  # relu, tanh, gelu_tanh and silu
    "gelu": nn.functional.gelu,
    "leaky_relu": nn.functional.leaky_relu,  # slope 0.01
    "mish": mish,
}
"""Name, as configs and policy files have it -> function."""


def _biased(name: str, activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def biased(value: Tensor, bias: Tensor) -> Tensor:
        return activation(value + bias)

    biased.__name__ += f"_{name}"
    return pointwise(biased)


def _scaled(name: str, activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def scaled(value: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return activation(value * scale + shift)

    scaled.__name__ += f"_{name}"
    return pointwise(scaled)


BIASED = {name: _biased(name, activation) for name, activation in ACTIVATIONS.items()}
"""Activation -> that of a sum, one kernel on a GPU."""
SCALED = {name: _scaled(name, activation) for name, activation in ACTIVATIONS.items()}
"""Activation -> that of value * scale + shift, as behind a layer norm."""


def activated(inputs: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    """An affine map and what activates it, as `kernels.linear`; on a GPU a product and one kernel."""
    if kernels.plain(inputs):
        return ACTIVATIONS[activation](kernels.linear(inputs, weight, bias))
    return dense(inputs, weight, bias, BIASED[activation])


@pointwise
def scaled(value: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """value * scale + shift, as behind a layer norm; one kernel on a GPU."""
    return value * scale + shift
