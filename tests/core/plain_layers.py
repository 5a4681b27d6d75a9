"""Our networks as torch's own layers, for second implementations of whole updates."""

from __future__ import annotations

from torch import nn

from surefoot.core.nn.networks import MLP


def layers(mlp: MLP, member: int | None = None, epsilon: float = 1e-5) -> nn.Sequential:
    """A network, or a member of an ensemble, as torch's own layers in float64; `epsilon` is that of its layer norms."""
    parts: list[nn.Module] = []
    for index, (weight, bias) in enumerate(zip(mlp.weights, mlp.biases, strict=True)):
        linear = nn.Linear(weight.shape[-1], weight.shape[-2]).double()
        chosen = (weight, bias) if member is None else (weight[member], bias[member])
        linear.load_state_dict({"weight": chosen[0], "bias": chosen[1]})
        parts.append(linear)
        if index < len(mlp.scales):
            norm, own = nn.LayerNorm(weight.shape[-2], eps=epsilon).double(), (mlp.scales[index], mlp.shifts[index])
            scale, shift = own if member is None else (own[0][member], own[1][member])
            norm.load_state_dict({"weight": scale, "bias": shift})
            parts.append(norm)
        parts.append(nn.ReLU())
    return nn.Sequential(*parts[:-1])
