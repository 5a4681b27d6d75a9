"""`NativePolicy`: a multilayer perceptron in the form that rollouts evaluate inside their loop."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

ACTIVATIONS = ("none", "relu", "tanh", "silu")  # in the order of native/mlp.h's enum
MAX_LAYERS = 16
NO_NOISE, AFTER_SQUASH, BEFORE_SQUASH = range(3)


@dataclasses.dataclass(frozen=True)
class NativePolicy:
    """action = middle + half * clip(output, -1, 1), output = [tanh](MLP((observation - mean) / scale)) [+ noise].

    All tensors share a floating dtype and a device. With `std` the policy samples N(output, std^2) after the tanh;
    with `log_std_range` the network has 2 A outputs, the second half a log standard deviation that is clipped to the
    range, and the sample is drawn before the tanh. Without either it is deterministic.
    """

    weights: Sequence[Tensor]
    """(outputs, inputs) each, first layer first; 1 to 16 of them."""
    biases: Sequence[Tensor]
    """(outputs,) each."""
    action_middle: Tensor
    """(A,)."""
    action_half: Tensor
    """(A,) half the width of the bounds."""
    activation: str = "relu"
    """Of the hidden layers: relu, tanh or silu."""
    gains: Sequence[Tensor] = ()
    """Layer norm before each hidden activation, or empty."""
    shifts: Sequence[Tensor] = ()
    mean: Tensor | None = None
    """(O,) of the observations; 0 by default."""
    scale: Tensor | None = None
    """(O,); 1 by default."""
    squash: bool = True
    std: Tensor | None = None
    """(A,) standard deviation of a sample after the squash."""
    log_std_range: tuple[float, float] | None = None

    @property
    def widths(self) -> list[int]:
        """Of the input and of every layer's output."""
        return [int(self.weights[0].shape[1]), *(int(weight.shape[0]) for weight in self.weights)]

    @property
    def sampling(self) -> int:
        """NO_NOISE, AFTER_SQUASH or BEFORE_SQUASH."""
        return AFTER_SQUASH if self.std is not None else BEFORE_SQUASH if self.log_std_range is not None else NO_NOISE

    @property
    def header(self) -> list[int]:
        """What `unpack` of native/mlp.h reads beside the values."""
        kind = ACTIVATIONS.index(self.activation)
        return [len(self.weights), kind, int(bool(self.gains)), int(self.squash), self.sampling, *self.widths]

    def check(self, observations: int, actions: int) -> None:
        """Raise ValueError where the policy does not fit a system of these widths, or is not a number somewhere."""
        layers, widths = len(self.weights), self.widths
        if not 1 <= layers <= MAX_LAYERS:
            raise ValueError(f"the policy has {layers} layers, must have 1 to {MAX_LAYERS}")
        if self.activation not in ACTIVATIONS[1:]:
            raise ValueError(f"the policy's activation is {self.activation!r}, must be relu, tanh or silu")
        if self.std is not None and self.log_std_range is not None:
            raise ValueError("a policy has either std or log_std_range, not both")
        outputs = 2 * actions if self.log_std_range is not None else actions
        if (widths[0], widths[-1]) != (observations, outputs):
            raise ValueError(
                f"the policy maps {widths[0]} observations to {widths[-1]} outputs; "
                f"the system needs {observations} and {outputs}"
            )
        hidden = widths[1:-1]
        expected: list[tuple[str, Tensor | None, list[int]]] = [
            ("action_middle", self.action_middle, [actions]),
            ("action_half", self.action_half, [actions]),
            ("mean", self.mean, [observations]),
            ("scale", self.scale, [observations]),
            ("std", self.std, [actions]),
        ]
        for name, tensors, sizes in (
            ("biases", self.biases, widths[1:]),
            ("gains", self.gains, hidden if self.gains else []),
            ("shifts", self.shifts, hidden if self.gains else []),
        ):
            if len(tensors) != len(sizes):
                raise ValueError(f"the policy has {len(tensors)} {name}, must have {len(sizes)}")
            expected += [(f"{name}[{k}]", tensor, [size]) for k, (tensor, size) in enumerate(zip(tensors, sizes))]
        pairs = itertools.pairwise(widths)
        expected += [(f"weights[{k}]", w, [b, a]) for k, (w, (a, b)) in enumerate(zip(self.weights, pairs))]
        for name, tensor, shape in expected:
            if tensor is not None and list(tensor.shape) != shape:
                raise ValueError(f"the policy's {name} has shape {tuple(tensor.shape)}, must have {tuple(shape)}")

    def packed(self) -> Tensor:
        """Flat float32 values as native/mlp.h reads them, on the policy's device."""
        first = self.weights[0]
        observations, actions = self.widths[0], int(self.action_middle.shape[0])
        mean = first.new_zeros(observations) if self.mean is None else self.mean
        scale = first.new_ones(observations) if self.scale is None else self.scale
        deviation = first.new_zeros(max(2, actions))
        if self.std is not None:
            deviation = torch.cat([self.std, deviation[actions:]])
        if self.log_std_range is not None:
            bounds = [first.new_full((1,), bound) for bound in self.log_std_range]  # no copy from the host
            deviation = torch.cat([*bounds, deviation[2:]])
        parts = [mean, 1 / scale, self.action_middle, self.action_half, deviation]
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            columns = torch.cat([bias[:, None], weight], 1)  # (outputs, 1 + inputs): a bundle is its transpose
            parts += [
                columns[a:b].unflatten(0, (-1, size)).transpose(1, 2).reshape(-1) for a, b, size in _bundles(columns)
            ]
            if self.gains and k + 1 < len(self.weights):
                parts += [self.gains[k], self.shifts[k]]
        return torch.cat([part.detach().float() for part in parts])

    @classmethod
    def unpacked(cls, values: Tensor, header: Sequence[int]) -> NativePolicy:
        """The policy that `packed` gave `values` and `header` of."""
        layers, activation, norm, squash, sampling, *widths = header
        actions = widths[-1] // 2 if sampling == BEFORE_SQUASH else widths[-1]
        at = 0

        def take(count: int) -> Tensor:
            nonlocal at
            at += count
            return values[at - count : at]

        mean, inverse, middle, half = take(widths[0]), take(widths[0]), take(actions), take(actions)
        deviation = take(max(2, actions))
        weights, biases, gains, shifts = [], [], [], []
        for k, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            columns = values.new_empty(outputs, 1 + inputs)
            for a, b, size in _bundles(columns):
                columns[a:b] = take((b - a) * (1 + inputs)).view(-1, 1 + inputs, size).transpose(1, 2).flatten(0, 1)
            biases.append(columns[:, 0])
            weights.append(columns[:, 1:])
            if norm and k + 1 < layers:
                gains.append(take(outputs))
                shifts.append(take(outputs))
        return cls(
            weights,
            biases,
            middle,
            half,
            ACTIVATIONS[activation],
            gains,
            shifts,
            mean,
            1 / inverse,
            bool(squash),
            deviation[:actions] if sampling == AFTER_SQUASH else None,
            (float(deviation[0]), float(deviation[1])) if sampling == BEFORE_SQUASH else None,
        )

    def actions(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(N, A) actions for (N, O) observations; `noise` (N, A) standard normal is read where the policy samples."""
        value = observations
        if self.mean is not None:
            value = value - self.mean
        if self.scale is not None:
            value = value / self.scale
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            value = torch.nn.functional.linear(value, weight, bias)
            if k + 1 < len(self.weights):
                if self.gains:
                    value = torch.nn.functional.layer_norm(value, value.shape[-1:], self.gains[k], self.shifts[k])
                value = _ACTIVATE[self.activation](value)
        if self.log_std_range is not None:
            value, log_std = value.chunk(2, dim=-1)
            if noise is not None:
                value = value + log_std.clamp(*self.log_std_range).exp() * noise
        if self.squash:
            value = torch.tanh(value)
        if self.std is not None and noise is not None:
            value = value + self.std * noise
        return self.action_middle + self.action_half * value.clamp(-1, 1)


_ACTIVATE = {"relu": torch.relu, "tanh": torch.tanh, "silu": torch.nn.functional.silu}


def _bundles(rows: Tensor) -> list[tuple[int, int, int]]:
    """(first row, last row + 1, rows in a bundle): eights, a four, single ones, as native/mlp.h's `linear` reads."""
    outputs = rows.shape[0]
    eights = outputs // 8 * 8
    fours = eights + (outputs - eights) // 4 * 4
    ranges = [(0, eights, 8), (eights, fours, 4), (fours, outputs, 1)]
    return [(a, b, size) for a, b, size in ranges if a < b]


def all_finite(values: Tensor) -> bool:
    """Whether none is NaN or infinite; numpy tells it in a tenth of torch's time."""
    if values.device.type == "cpu" and values.dtype in (torch.float32, torch.float64):
        return bool(np.isfinite(values.detach().numpy()).all())
    return bool(torch.isfinite(values).all())
