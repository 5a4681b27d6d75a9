"""The affine map of a layer on a GPU: as few kernels as a stack of agents needs, each of which costs its launch.

`torch.nn.functional.linear` under `vmap` multiplies its bias by 1 in a kernel of its own, and its weights' gradients
come transposed, so that each is copied to where the optimiser reads it by a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.pointwise import pointwise


class _Product(torch.autograd.Function):
    """(..., B, in) and (..., out, in) to (..., B, out), with leading dimensions that broadcast."""

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor) -> Tensor:
        """One product."""
        return torch.matmul(inputs, weight.mT)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Keep inputs and weights."""
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """By operations that can be differentiated again; the weights' gradient is laid out as they are."""
        inputs, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return (
            torch.matmul(gradient, weight).sum_to_size(inputs.shape) if needs[0] else None,
            torch.matmul(gradient.mT, inputs).sum_to_size(weight.shape) if needs[1] else None,
        )

    @staticmethod
    def jvp(ctx: Any, inputs: Tensor | None, weight: Tensor | None) -> Tensor:
        """Forward mode."""
        own_inputs, own_weight = ctx.saved_tensors
        parts = [] if inputs is None else [torch.matmul(inputs, own_weight.mT)]
        parts += [] if weight is None else [torch.matmul(own_inputs, weight.mT)]
        return sum(parts[1:], parts[0])

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: Tensor) -> tuple[Tensor, int]:
        """One product for the whole batch of them."""
        front = [
            value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
            for value, dim in zip(given, dims, strict=True)
        ]
        most = max(value.dim() for value in front)
        inputs, weight = (value[(slice(None), *(None,) * (most - value.dim()))] for value in front)
        return _Product.apply(inputs, weight), 0


@pointwise
def plus(value: Tensor, bias: Tensor) -> Tensor:
    """A sum."""
    return value + bias


def dense(inputs: Tensor, weight: Tensor, bias: Tensor, biased: Callable[[Tensor, Tensor], Tensor] = plus) -> Tensor:
    """(..., out) for (..., in) inputs, (out, in) weights and (out,) biases; any device, under `vmap` or not.

    Args:
        inputs: (..., in), or (B, in) or (E, B, in) with members.
        weight: (out, in), or (E, out, in).
        bias: (out,), or (E, out).
        biased: joins the product and the bias; a `pointwise` function that also activates is one kernel.
    """
    if weight.dim() > 2:
        return biased(_Product.apply(inputs, weight), bias.unsqueeze(-2))
    rows = inputs if inputs.dim() == 2 else inputs.reshape(-1, inputs.shape[-1])
    found = biased(_Product.apply(rows, weight), bias.unsqueeze(-2))
    return found if inputs.dim() == 2 else found.reshape(*inputs.shape[:-1], weight.shape[0])
