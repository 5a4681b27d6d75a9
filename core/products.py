"""The matrix products of a layer and its gradients, by each of the installed libraries."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

Kernel = Callable[..., Tensor]


def _torch_forward(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    out = torch.addmm(bias, x, weight.t())
    return out.relu_() if relu else out


def _numpy_forward(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    out = torch.empty(x.shape[0], weight.shape[0])
    np.dot(x.numpy(), weight.numpy().T, out=out.numpy())
    out.add_(bias)
    return out.relu_() if relu else out


def _onednn_forward(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "relu" if relu else "none", [], "")
    return out


def _torch_down(gradient: Tensor, weight: Tensor) -> Tensor:
    return torch.mm(gradient, weight)


def _numpy_down(gradient: Tensor, weight: Tensor) -> Tensor:
    out = torch.empty(gradient.shape[0], weight.shape[1])
    np.dot(gradient.numpy(), weight.numpy(), out=out.numpy())
    return out


def _onednn_down(gradient: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(gradient, weight.t(), None, "none", [], "")
    return out


def _torch_weight(gradient: Tensor, x: Tensor, out: Tensor) -> Tensor:
    return torch.mm(gradient.t(), x, out=out)


def _numpy_weight(gradient: Tensor, x: Tensor, out: Tensor) -> Tensor:
    np.dot(gradient.numpy().T, x.numpy(), out=out.numpy())
    return out


def _onednn_weight(gradient: Tensor, x: Tensor, out: Tensor) -> Tensor:
    return out.copy_(torch.ops.mkldnn._linear_pointwise(gradient.t(), x.t(), None, "none", [], ""))


KERNELS: dict[str, dict[str, Kernel]] = {
    "forward": {"torch": _torch_forward, "numpy": _numpy_forward, "onednn": _onednn_forward},
    "down": {"torch": _torch_down, "numpy": _numpy_down, "onednn": _onednn_down},
    "weight": {"torch": _torch_weight, "numpy": _numpy_weight, "onednn": _onednn_weight},
}
"""What is computed -> library -> function. forward: x W' + b and ReLU, (B, in), (out, in) -> (B, out); down: g W,
(B, out) -> (B, in); weight: g' x -> (out, in). Libraries: torch's BLAS (MKL), numpy's (OpenBLAS), oneDNN."""
