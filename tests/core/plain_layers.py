"""Our networks as torch's own layers, for second implementations of whole updates."""

from __future__ import annotations

from torch import nn

from surefoot.core.networks import MLP


def layers(mlp: MLP, member: int | None = None) -> nn.Sequential:
    """A network, or a member of an ensemble, as torch's own layers in float64."""
    parts: list[nn.Module] = []
    for weight, bias in zip(mlp.weights, mlp.biases, strict=True):
        linear = nn.Linear(weight.shape[-1], weight.shape[-2]).double()
        chosen = (weight, bias) if member is None else (weight[member], bias[member])
        linear.load_state_dict({"weight": chosen[0], "bias": chosen[1]})
        parts += [linear, nn.ReLU()]
    return nn.Sequential(*parts[:-1])
