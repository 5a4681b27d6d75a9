"""The affine map of a layer on a GPU: as few kernels as a stack of agents needs, each of which costs its launch.

`torch.nn.functional.linear` under `vmap` multiplies its bias by 1 in a kernel of its own, and its weights' gradients
come transposed, so that each is copied to where the optimiser reads it by a kernel of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Dense(torch.autograd.Function):
    """(..., B, in), (..., out, in) and (..., out) to (..., B, out), with equal leading dimensions."""

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """A product, and the bias added in its memory."""
        return torch.matmul(inputs, weight.mT).add_(bias.unsqueeze(-2))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Keep inputs and weights."""
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """By operations that can be differentiated again; the weights' gradient is laid out as they are."""
        inputs, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return (
            torch.matmul(gradient, weight) if needs[0] else None,
            torch.matmul(gradient.mT, inputs) if needs[1] else None,
            gradient.sum(-2) if needs[2] else None,
        )

    @staticmethod
    def jvp(ctx: Any, inputs: Tensor | None, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Forward mode."""
        own_inputs, own_weight = ctx.saved_tensors
        parts = [] if inputs is None else [torch.matmul(inputs, own_weight.mT)]
        parts += [] if weight is None else [torch.matmul(own_inputs, weight.mT)]
        parts += [] if bias is None else [bias.unsqueeze(-2).expand(*own_inputs.shape[:-1], -1)]
        return sum(parts[1:], parts[0])

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: Tensor) -> tuple[Tensor, int]:
        """One product for the whole batch of them."""
        size = info.batch_size
        front = [
            value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
            for value, dim in zip(given, dims, strict=True)
        ]
        return _Dense.apply(*front), 0


def dense(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(..., out) for (..., in) inputs, (out, in) weights and (out,) biases; any device, under `vmap` or not."""
    rows = inputs if inputs.dim() == 2 else inputs.reshape(-1, inputs.shape[-1])
    found: Tensor = _Dense.apply(rows, weight, bias)
    return found if inputs.dim() == 2 else found.reshape(*inputs.shape[:-1], weight.shape[0])
