"""Perceptrons whose first hidden layer is normalised and goes through tanh, which bounds what the others read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.activations import SCALED, activated
from surefoot.core.nn.native import kernels
from surefoot.core.nn.networks import MLP


class FirstNormMLP(MLP):
    """An MLP whose first hidden layer is tanh(layer norm(W x + b)); the others have relu and no norm.

    Source: the networks of Touati, Rapin and Ollivier, "Does Zero-Shot Reinforcement Learning Exist?" (ICLR 2023), as
    those of DrQ-v2 begin.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: Sequence[int] = (1024, 1024),
        *,
        members: int | None = None,
        initialization: str = "torch",
    ) -> None:
        """Build and initialise from torch's global generator; arguments as of `MLP`."""
        super().__init__(inputs, outputs, hidden, members=members, initialization=initialization)
        lead = () if members is None else (members,)
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(*lead, self.hidden[0]))])
        self.shifts = nn.ParameterList([nn.Parameter(torch.zeros(*lead, self.hidden[0]))])

    def _fits_kernels(self, inputs: Tensor) -> bool:
        """Not as a whole: a kernel has the same layers throughout."""
        return False

    def _plain(
        self,
        inputs: Tensor,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        scales: Sequence[Tensor],
        shifts: Sequence[Tensor],
        masks: Tensor | None = None,
    ) -> Tensor:
        slots = kernels.active()
        if slots is None or not super()._fits_kernels(inputs):
            return super()._plain(inputs, weights, biases, scales, shifts, masks)
        self._refuse(masks)
        first = kernels.mlp(slots, inputs, weights[:1], biases[:1])
        bounded = SCALED["tanh"](self._normalised(first), scales[0], shifts[0])
        return kernels.mlp(slots, bounded, weights[1:], biases[1:], self.activation)

    def _features(
        self,
        inputs: Tensor,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        scales: Sequence[Tensor],
        shifts: Sequence[Tensor],
        masks: Tensor | None = None,
    ) -> Tensor:
        self._refuse(masks)
        first = kernels.linear(inputs, weights[0], biases[0])
        value: Tensor = SCALED["tanh"](self._normalised(first), scales[0], shifts[0])
        for weight, bias in zip(weights[1:-1], biases[1:-1], strict=True):
            value = activated(value, weight, bias, self.activation)
        return value

    def _refuse(self, masks: Tensor | None) -> None:
        if masks is not None:
            raise ConfigError("a network whose first layer alone is normalised has no dropout: give it no masks")
