"""`NoisyMLP`: a multilayer perceptron whose weights are drawn anew from distributions that are learned."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.activations import ACTIVATIONS
from surefoot.core.nn.native import kernels
from surefoot.core.nn.networks import MLP


class NoisyMLP(nn.Module):
    r"""Linear layers with relu between them, whose weights are a mean and a learned deviation times noise.

    .. math:: y = (\mu_w + \sigma_w \odot f(\epsilon_o) f(\epsilon_i)^T) x + \mu_b + \sigma_b \odot f(\epsilon_o),
        \quad f(x) = \operatorname{sign}(x) \sqrt{|x|}

    which is :math:`\mu_w x + \mu_b + f(\epsilon_o) \odot (\sigma_w (f(\epsilon_i) \odot x) + \sigma_b)`: no matrix of
    noise is made, and each row of a batch may have noise of its own. Deviations start at `deviation` / sqrt(inputs of
    the layer). Source: Fortunato et al., "Noisy Networks for Exploration" (2018), factorised noise.
    """

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int], deviation: float = 0.5) -> None:
        """Build and initialise from torch's global generator.

        Args:
            inputs: width of the input.
            outputs: width of the output.
            hidden: widths of the hidden layers.
            deviation: sigma_0 > 0.

        Raises:
            ConfigError: a deviation that is not above 0.
        """
        super().__init__()
        if not deviation > 0:
            raise ConfigError(f"the deviation of noisy weights is {deviation}, must be > 0")
        self.mean = MLP(inputs, outputs, hidden)
        """What is left without noise."""
        sizes = list(itertools.pairwise([inputs, *hidden, outputs]))
        self.parts = tuple(itertools.chain.from_iterable(sizes))
        """Of the noise: inputs and outputs of each layer."""
        self.weights = nn.ParameterList(
            nn.Parameter(torch.full((after, before), deviation / math.sqrt(before))) for before, after in sizes
        )
        self.biases = nn.ParameterList(
            nn.Parameter(torch.full((after,), deviation / math.sqrt(before))) for before, after in sizes
        )

    @property
    def noise_dim(self) -> int:
        """Standard normal numbers that one draw of the weights takes."""
        return sum(self.parts)

    def forward(self, inputs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Map (B, in) to (B, out).

        Args:
            inputs: in the units that the network was trained on.
            noise: (1, `noise_dim`) or (B, `noise_dim`) standard normal; None: the mean weights.
        """
        if noise is None:
            return self.mean(inputs)
        factors = (noise.sign() * noise.abs().sqrt()).split(self.parts, -1)
        value, last = inputs, len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            before, after = factors[2 * layer], factors[2 * layer + 1]
            certain = kernels.linear(value, self.mean.weights[layer], self.mean.biases[layer])
            value = certain + after * kernels.linear(before * value, weight, bias)
            value = value if layer == last else ACTIVATIONS["relu"](value)
        return value
