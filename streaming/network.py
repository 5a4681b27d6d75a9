"""K layer-normalised networks as flat rows of parameters, with their gradients in closed form; SparseInit."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import torch
from torch import Tensor

SLOPE = 0.01
"""Of LeakyReLU at and below 0."""
EPSILON = 1e-5
"""Of layer norm: added to the variance."""


@dataclasses.dataclass(frozen=True)
class Pass:
    """What a forward pass of K networks leaves for the backward one."""

    outputs: Tensor  # (K, out)
    inputs: list[Tensor]  # (K, width) what each layer read
    normalised: list[Tensor]  # (K, width) what each hidden activation read
    deviations: list[Tensor]  # (K, 1) what each hidden layer was divided by


@dataclasses.dataclass(frozen=True)
class Layers:
    """Where the parameters of an MLP lie: flat (K, P) rows, for each layer weights (out, in) by rows, biases (out)."""

    inputs: int
    outputs: int
    hidden: tuple[int, ...]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(out, in) of each layer."""
        return [(after, before) for before, after in itertools.pairwise((self.inputs, *self.hidden, self.outputs))]

    @property
    def size(self) -> int:
        """P."""
        return sum(after * (before + 1) for after, before in self.shapes)

    def layers(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Views of (K, P) parameters: (K, out, in) weights and (K, out) biases of each layer."""
        layers, start = [], 0
        for after, before in self.shapes:
            middle, end = start + after * before, start + after * (before + 1)
            layers.append((flat[:, start:middle].unflatten(1, (after, before)), flat[:, middle:end]))
            start = end
        return layers

    def initial(self, source: np.random.Generator) -> np.ndarray:
        """(P,) float64 first parameters."""
        raise TypeError(f"{type(self).__name__} must define initial")


@dataclasses.dataclass(frozen=True)
class Network(Layers):
    """An MLP: linear, layer norm without parameters, LeakyReLU; the last layer is linear."""

    layer_norm: bool = True
    sparsity: float = 0.9
    min_nonzero: int = 1

    def initial(self, source: np.random.Generator) -> np.ndarray:
        """(P,) float64 first parameters by SparseInit, biases 0."""
        parts = []
        for after, before in self.shapes:
            parts += [sparse_matrix(source, after, before, self.sparsity, self.min_nonzero).ravel(), np.zeros(after)]
        return np.concatenate(parts)

    def forward(self, flat: Tensor, inputs: Tensor) -> Pass:
        """(K, P) parameters, each row of them on its own row of (K, in) inputs."""
        read, normalised, deviations = [], [], []
        value, layers = inputs, self.layers(flat)
        for layer, (weight, bias) in enumerate(layers):
            read.append(value)
            value = torch.baddbmm(bias.unsqueeze(-1), weight, value.unsqueeze(-1)).squeeze(-1)
            if layer == len(layers) - 1:
                break
            if self.layer_norm:
                centred = value - value.mean(-1, keepdim=True)
                deviations.append((centred.square().mean(-1, keepdim=True) + EPSILON).sqrt())
                value = centred / deviations[-1]
            normalised.append(value)
            value = torch.where(value > 0, value, SLOPE * value)
        return Pass(value, read, normalised, deviations)

    def backward(self, flat: Tensor, passed: Pass, outputs: Tensor) -> Tensor:
        """(K, P) gradient of a quantity whose derivative by the outputs is `outputs` (K, out).

        Through layer norm, n = (a - mean) / s: da = (dn - mean(dn) - n mean(dn n)) / s.
        """
        layers, parts, d = self.layers(flat), [], outputs
        for layer in reversed(range(len(layers))):
            parts += [d, (d.unsqueeze(-1) * passed.inputs[layer].unsqueeze(-2)).flatten(1)]
            if layer == 0:
                break
            n = passed.normalised[layer - 1]
            d = (layers[layer][0] * d.unsqueeze(-1)).sum(1)
            d = torch.where(n > 0, d, SLOPE * d)
            if self.layer_norm:
                d = d - d.mean(-1, keepdim=True) - n * (d * n).mean(-1, keepdim=True)
                d = d / passed.deviations[layer - 1]
        return torch.cat(parts[::-1], -1)


def sparse_matrix(
    source: np.random.Generator, fan_out: int, fan_in: int, sparsity: float, min_nonzero: int
) -> np.ndarray:
    """(fan_out, fan_in) weights, uniform within 1 / sqrt(fan_in), of which each row has a share of zeros.

    ceil(sparsity fan_in) places of each row, drawn without replacement, are 0; at least `min_nonzero` stay.

    Source: Elsayed, Vasan and Mahmood, algorithm 1 (SparseInit) with LeCun's bound.
    """
    bound = 1 / math.sqrt(fan_in)
    weights = source.uniform(-bound, bound, (fan_out, fan_in))
    zeros = min(math.ceil(sparsity * fan_in), max(fan_in - min_nonzero, 0))
    for row in weights:
        row[source.permutation(fan_in)[:zeros]] = 0
    return weights
