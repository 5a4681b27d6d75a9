"""Multilayer perceptrons and ensembles of them, with the initialisations that the papers use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from surefoot.core.base.described import Part
from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.activations import ACTIVATIONS as ACTIVATIONS
from surefoot.core.nn.activations import SCALED, activated, scaled
from surefoot.core.nn.native import kernels, native

INITIALISATIONS = ("torch", "orthogonal", "unit_orthogonal", "edac", "corl", "xavier", "truncated")
ORTHOGONAL = {"orthogonal": math.sqrt(2), "unit_orthogonal": 1.0}
"""Initialisation with orthogonal weights -> gain."""
NORM_EPSILON = 1e-5
"""What layer norms add to the variance, by default: torch's default."""
AFTER_EPSILON = 1e-6
"""What they add where they stand after the activation, by default: flax's default."""


LayerNorm = bool | Literal["after"]
"""Whether hidden layers are normalised: before their activation, "after" it, or not."""
DROPOUTS = ("activations", "sums")
"""What dropout masks multiply: what a hidden layer gives (Srivastava et al.; IQL), or its weighted sums, before their
layer norm and activation (DroQ)."""


class MLP(nn.Module):
    """Linear layers with an activation between them; with `members`, E independent copies side by side."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: Sequence[int] = (256, 256),
        *,
        members: int | None = None,
        initialization: str = "torch",
        activation: str = "relu",
        layer_norm: LayerNorm = False,
        norm_epsilon: float | None = None,
        unit_features: bool = False,
        dropout: str = "activations",
    ) -> None:
        """Build and initialise from torch's global generator.

        Args:
            inputs: width of the input.
            outputs: width of the output.
            hidden: widths of the hidden layers.
            members: E, or None for a single network without that dimension.
            initialization: "torch" (nn.Linear's), "orthogonal" (gain sqrt 2 everywhere, zero biases: IQL),
                "unit_orthogonal" (gain 1, zero biases: HILP), "xavier" (Glorot's uniform rule, zero biases: REDQ),
                "edac" (nn.Linear's kernels, biases 0.1, last layer U(-3e-3, 3e-3): EDAC), "corl" (as "edac", but
                kernels bounded by the layer's outputs, as the ensembles of CORL's and RIQL's code start: their rule
                reads a transposed kernel) or "truncated" (normal of deviation 1 / (2 sqrt(inputs)), cut at two
                deviations, zero biases: MBPO's dynamics).
            activation: a name in `ACTIVATIONS`.
            layer_norm: normalise each hidden layer before its activation, or "after" it (FQL, QC, QAM; ReBRAC).
            norm_epsilon: what layer norms add to the variance; None for 1e-5, torch's, before the activation, and
                for 1e-6, flax's, after it.
            unit_features: divide what the last layer reads by its Euclidean norm (AVG).
            dropout: what the masks of `forward` multiply, of `DROPOUTS`.
        """
        super().__init__()
        if initialization not in INITIALISATIONS:
            raise ConfigError(f"initialization is {initialization!r}, must be one of {', '.join(INITIALISATIONS)}")
        if activation not in ACTIVATIONS:
            raise ConfigError(f"activation is {activation!r}, must be one of {', '.join(ACTIVATIONS)}")
        if dropout not in DROPOUTS:
            raise ConfigError(f"dropout is {dropout!r}, must be one of {', '.join(DROPOUTS)}")
        if not hidden or min(hidden) < 1:
            raise ConfigError(f"hidden is {list(hidden)}, must be at least one width, each 1 or more")
        sizes = [inputs, *hidden, outputs]
        lead = () if members is None else (members,)
        self.members, self.activation, self.hidden = members, activation, tuple(hidden)
        self.layer_norm, self.unit_features, self.dropout = layer_norm, unit_features, dropout
        self.norm_epsilon = self.usual_epsilon if norm_epsilon is None else norm_epsilon
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(*lead, after, before)) for before, after in itertools.pairwise(sizes)
        )
        self.biases = nn.ParameterList(nn.Parameter(torch.empty(*lead, after)) for after in sizes[1:])
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(*lead, w)) for w in hidden if layer_norm)
        self.shifts = nn.ParameterList(nn.Parameter(torch.zeros(*lead, w)) for w in hidden if layer_norm)
        initialise(self, initialization)

    def decayed(self, inputs: Tensor, coefficients: Sequence[float]) -> tuple[Tensor, Tensor]:
        r"""What `forward` gives, and () :math:`\sum_l c_l \lVert W_l \rVert^2 / 2` over the layers' weights."""
        weights, decay = kernels.decayed(_tensors(self.weights), coefficients)
        return self._forward(inputs, weights), decay

    def forward(self, inputs: Tensor, masks: Tensor | None = None, members: Tensor | None = None) -> Tensor:
        """Map (B, in) to (B, out), or (B, in) or (E, B, in) to (E, B, out) with members.

        Args:
            inputs: in the units that the network was trained on.
            masks: (B, sum of hidden widths) dropout masks, already divided by the keep probability; with members
                (E, B, sum of hidden widths), for each its own.
            members: (M,) int64: only these are evaluated, and the output is (M, B, out).

        Raises:
            ConfigError: masks of another width, or of another number of members.
        """
        return self._forward(inputs, _tensors(self.weights), masks, members)

    def _forward(
        self, inputs: Tensor, own: list[Tensor], masks: Tensor | None = None, members: Tensor | None = None
    ) -> Tensor:
        parts: Sequence[list[Tensor]] = [own, *(_tensors(group) for group in (self.biases, self.scales, self.shifts))]
        if masks is not None:
            self._check_masks(masks)
        if members is not None:
            parts = at_members(parts, members)
            masks = masks[members] if masks is not None and masks.dim() > 2 else masks
        weights, biases, scales, shifts = parts
        slots = kernels.active()
        if slots is not None and (masks is None or slots.masks_inside) and self._fits_kernels(inputs):
            dropout = None if masks is None else native.Dropout(masks, self.dropout == "sums")
            return kernels.mlp(slots, inputs, weights, biases, self.activation, self._norms(scales, shifts), dropout)
        if self.members is not None:
            scales, shifts = [s.unsqueeze(-2) for s in scales], [s.unsqueeze(-2) for s in shifts]
        return self._plain(inputs, weights, biases, scales, shifts, masks)

    def prepared(self, rows: int) -> native.Forward | None:
        """What the kernels give for (rows, in) inputs, as a call that is made again and again; None: they give nothing.

        Of a network without members and norms whose parameters stay where they are.
        """
        weights, biases = _tensors(self.weights), _tensors(self.biases)
        plain = self.members is None and len(self.scales) == 0 and not self.unit_features
        inputs = torch.empty(rows, weights[0].shape[-1])
        if not plain or self.activation not in native.HIDDEN or native.library() is None:
            return None
        fits = native.fits(inputs, weights, biases)
        return native.Forward(rows, weights, biases, self.activation) if fits else None

    def in_torch(self) -> Callable[[Tensor], Tensor] | None:
        """What plain PyTorch gives for (B, in) inputs, as a function for many calls; None: of members or norms.

        Its parameters must stay where they are: changes in place count at once.
        """
        if self.members is not None or len(self.scales):
            return None
        weights, biases = _tensors(self.weights), _tensors(self.biases)
        return lambda inputs: self._plain(inputs, weights, biases, (), ())

    def _check_masks(self, masks: Tensor) -> None:
        units, rows = sum(self.hidden), tuple(masks.shape)
        if masks.shape[-1] != units:
            raise ConfigError(f"dropout masks are {rows}, must be of {units} units, the sum of hidden widths")
        if self.members is not None and masks.dim() > 2 and masks.shape[0] != self.members:
            raise ConfigError(f"dropout masks are {rows}, must be (B, {units}) or ({self.members}, B, {units})")

    @property
    def usual_epsilon(self) -> float:
        """What its layer norms add to the variance by default."""
        return AFTER_EPSILON if self.layer_norm == "after" else NORM_EPSILON

    def _fits_kernels(self, inputs: Tensor) -> bool:
        plain = self.activation in native.HIDDEN and not self.unit_features
        fits = inputs.dim() == 2 or (inputs.dim() == 3 and self.members is not None)
        return plain and fits and inputs.dtype == torch.float32

    def _norms(self, gains: Sequence[Tensor], shifts: Sequence[Tensor]) -> native.Norms:
        return native.Norms(gains, shifts, self.layer_norm == "after", self.norm_epsilon)

    def _normalised(self, value: Tensor) -> Tensor:
        return nn.functional.layer_norm(value, value.shape[-1:], eps=self.norm_epsilon)

    def usual(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        r"""Weights and biases that give the same outputs where layer norms add `NORM_EPSILON`, as native rollouts do.

        With g y before a norm in place of y it gives g (y - m) / sqrt(g^2 v + e) = (y - m) / sqrt(v + e / g^2).
        """
        if not len(self.scales) or self.norm_epsilon == NORM_EPSILON:
            return list(weights), list(biases)
        grown = math.sqrt(NORM_EPSILON / self.norm_epsilon)
        return [*(w * grown for w in weights[:-1]), weights[-1]], [*(b * grown for b in biases[:-1]), biases[-1]]

    def with_features(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(B, last hidden width) what the last layer reads, and (B, out) what it gives; of a network without members.

        In plain PyTorch, not by the native kernel, which keeps the hidden layers to itself.
        """
        if self.members is not None:
            raise ConfigError("with_features is of a single network, and this one has members")
        weights, biases, scales, shifts = (_tensors(g) for g in (self.weights, self.biases, self.scales, self.shifts))
        features = self._features(inputs, weights, biases, scales, shifts)
        return features, kernels.linear(features, weights[-1], biases[-1])

    def _plain(
        self,
        inputs: Tensor,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        scales: Sequence[Tensor],
        shifts: Sequence[Tensor],
        masks: Tensor | None = None,
    ) -> Tensor:
        features = self._features(inputs, weights, biases, scales, shifts, masks)
        return self._affine(features, weights[-1], biases[-1], masks)

    def _affine(self, value: Tensor, weight: Tensor, bias: Tensor, masks: Tensor | None) -> Tensor:
        """One layer's affine map; with masks outside of the kernels' networks each layer is one of theirs."""
        slots = kernels.active()
        if masks is not None and slots is not None and self._fits_kernels(value):
            return kernels.mlp(slots, value, [weight], [bias])
        return kernels.linear(value, weight, bias)

    def _features(
        self,
        inputs: Tensor,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        scales: Sequence[Tensor],
        shifts: Sequence[Tensor],
        masks: Tensor | None = None,
    ) -> Tensor:
        """What the last layer reads: hidden layers, with the dropout `masks` of `forward` where there are some."""
        value = inputs
        parts = None if masks is None else masks.split(self.hidden, dim=-1)
        for layer in range(len(weights) - 1):
            if masks is None and (not scales or self.layer_norm == "after"):
                value = activated(value, weights[layer], biases[layer], self.activation)
            else:
                value = self._affine(value, weights[layer], biases[layer], masks)
                if parts is not None and self.dropout == "sums":
                    value = value * parts[layer]
                if scales and self.layer_norm != "after":
                    value = SCALED[self.activation](self._normalised(value), scales[layer], shifts[layer])
                else:
                    value = ACTIVATIONS[self.activation](value)
            if scales and self.layer_norm == "after":
                value = scaled(self._normalised(value), scales[layer], shifts[layer])
            if parts is not None and self.dropout == "activations":
                value = value * parts[layer]
        return nn.functional.normalize(value, dim=-1) if self.unit_features else value

    def with_gradient(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(E, B) outputs and (E, B, in) their gradients by the inputs, which can be differentiated by the weights.

        Of an ensemble of one output each, relu and no layer norms: the gradient is a product of the weights, and so
        costs what a second forward pass does. In plain PyTorch.

        Args:
            inputs: (B, in).

        Raises:
            ConfigError: a network of another kind.
        """
        weights, biases = _tensors(self.weights), _tensors(self.biases)
        if self.members is None or self.activation != "relu" or len(self.scales) or weights[-1].shape[-2] != 1:
            raise ConfigError("with_gradient is of relu ensembles with one output and without layer norms")
        value, kept = inputs, []
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            value = torch.relu(kernels.linear(value, weight, bias))
            kept.append((value > 0).to(value.dtype))
        outputs = kernels.linear(value, weights[-1], biases[-1]).squeeze(-1)
        gradient = weights[-1].expand(-1, inputs.shape[0], -1)
        for weight, above in zip(reversed(weights[:-1]), reversed(kept), strict=True):
            gradient = torch.matmul(gradient * above, weight)
        return outputs, gradient

    def member(self, inputs: Tensor, index: int) -> Tensor:
        """What member `index` alone maps (B, in) to: (B, out)."""
        weights, biases = [w[index] for w in _tensors(self.weights)], [b[index] for b in _tensors(self.biases)]
        norms = [s[index] for s in _tensors(self.scales)], [s[index] for s in _tensors(self.shifts)]
        slots = kernels.active()
        if slots is not None and self._fits_kernels(inputs):
            return kernels.mlp(slots, inputs, weights, biases, self.activation, self._norms(*norms))
        return self._plain(inputs, weights, biases, *norms)


@torch.no_grad()
def initialise(network: MLP, how: str) -> None:
    """Draw the weights of `network`; member i of an ensemble gets what the i-th draw gives.

    Sources: "torch" is He's uniform rule with a = sqrt 5, as nn.Linear; "orthogonal" Saxe et al., as in
    ikostrikov/implicit_q_learning; "xavier" Glorot and Bengio, as in watchernyu/REDQ; "edac" An et al.,
    "Uncertainty-Based Offline RL with Diversified Q-Ensemble"; "corl" tinkoff-ai/CORL and YangRui2015/RIQL.
    """
    last = len(network.weights) - 1
    for layer, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        for matrix, vector in _each(weight, bias):
            bound = 1 / math.sqrt(matrix.shape[1])
            if how in ORTHOGONAL:
                nn.init.orthogonal_(matrix, gain=ORTHOGONAL[how])
                vector.zero_()
            elif how == "xavier":
                nn.init.xavier_uniform_(matrix)
                vector.zero_()
            elif how == "truncated":
                nn.init.trunc_normal_(matrix, std=bound / 2, a=-bound, b=bound)
                vector.zero_()
            elif how in {"edac", "corl"} and layer == last:
                matrix.uniform_(-3e-3, 3e-3)
                vector.uniform_(-3e-3, 3e-3)
            else:
                if how == "corl":
                    bound = 1 / math.sqrt(matrix.shape[0])
                matrix.uniform_(-bound, bound)
                if how in {"edac", "corl"}:
                    vector.fill_(0.1)
                else:
                    vector.uniform_(-bound, bound)


def _tensors(parameters: nn.ParameterList) -> list[Tensor]:
    """The list's tensors, in order; iterating over a ParameterList itself costs a microsecond an item."""
    return list(parameters._parameters.values())  # type: ignore[arg-type]


def at_members(
    parts: Sequence[Sequence[Tensor] | nn.ParameterList], members: Tensor | slice | None
) -> Sequence[list[Tensor]]:
    """Groups of (E, ...) tensors at some members, (M,) int64 or a slice; None: all.

    On a GPU all of them are laid side by side and gathered at once: under `vmap` a gather is two kernels.
    """
    groups = [_tensors(part) if isinstance(part, nn.ParameterList) else list(part) for part in parts]
    if members is None:
        return groups
    if isinstance(members, slice) or groups[0][0].device.type == "cpu":
        return [[tensor[members] for tensor in group] for group in groups]
    tensors = [tensor for group in groups for tensor in group]
    flat = torch.cat([tensor.flatten(1) for tensor in tensors], 1)[members]
    found = iter(flat.split([math.prod(tensor.shape[1:]) for tensor in tensors], 1))
    return [[next(found).unflatten(1, tensor.shape[1:]) for tensor in group] for group in groups]


def _each(weight: Tensor, bias: Tensor) -> list[tuple[Tensor, Tensor]]:
    if weight.dim() == 2:
        return [(weight, bias)]
    return list(zip(weight.unbind(0), bias.unbind(0), strict=True))


def pairs(observations: Tensor, actions: Tensor) -> Tensor:
    """(..., B, O + A) what a critic reads: (B, O) observations with (..., B, A) actions."""
    return torch.cat([observations.expand(*actions.shape[:-1], -1), actions], -1)


class Critic(Part, nn.Module):
    """Action values of E critics."""

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (256, 256),
        members: int = 2,
        initialization: str = "torch",
        layer_norm: LayerNorm = False,
        norm_epsilon: float | None = None,
        activation: str = "relu",
    ) -> None:
        """Build E critics; of FQL's backbone with "xavier", layer norm "after" and activation "gelu_tanh"."""
        super().__init__()
        self.mlp = MLP(
            observation_dim + action_dim,
            1,
            hidden,
            members=members,
            initialization=initialization,
            activation=activation,
            layer_norm=layer_norm,
            norm_epsilon=norm_epsilon,
        )

    def forward(
        self, observation_actions: Tensor, members: Tensor | None = None, masks: Tensor | None = None
    ) -> Tensor:
        """(E, B) values of (B, observation dim + action dim) pairs; (M, B) of the (M,) `members` alone.

        With dropout `masks`, as `MLP.forward` takes them.
        """
        return self.mlp(observation_actions, masks, members).squeeze(-1)

    def with_action_gradient(self, observation_actions: Tensor, action_dim: int) -> tuple[Tensor, Tensor]:
        """(E, B) values and (E, B, A) their gradients by the actions, as `MLP.with_gradient`."""
        values, gradients = self.mlp.with_gradient(observation_actions)
        return values, gradients[..., -action_dim:]

    def first(self, observation_actions: Tensor) -> Tensor:
        """(B,) values of the first critic alone."""
        return self.mlp.member(observation_actions, 0).squeeze(-1)

    @classmethod
    def write(cls, part: Critic, name: str) -> dict[str, Any]:
        """As `Part.write`: sizes, and what is not usual, each behind the name."""
        mlp = part.mlp
        value: dict[str, Any] = {"hidden": list(mlp.hidden), "members": mlp.members}
        value |= {"layer_norm": mlp.layer_norm} if len(mlp.scales) > 0 else {}
        value |= {"activation": mlp.activation} if mlp.activation != "relu" else {}
        value |= {"norm_epsilon": mlp.norm_epsilon} if mlp.norm_epsilon != mlp.usual_epsilon else {}
        return {f"{name}_{option}": one for option, one in value.items()}

    @classmethod
    def read(cls, name: str, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Critic | None:
        """As `Part.read`."""
        if f"{name}_hidden" not in options:
            return None
        wanted = ("layer_norm", "activation", "norm_epsilon")
        given = {option: options[f"{name}_{option}"] for option in wanted if f"{name}_{option}" in options}
        return Critic(observation_dim, action_dim, options[f"{name}_hidden"], options[f"{name}_members"], **given)


class Value(nn.Module):
    """State values."""

    def __init__(
        self,
        observation_dim: int,
        hidden: Sequence[int] = (256, 256),
        initialization: str = "torch",
        layer_norm: LayerNorm = False,
        activation: str = "relu",
        norm_epsilon: float | None = None,
    ) -> None:
        super().__init__()
        self.mlp = MLP(
            observation_dim,
            1,
            hidden,
            initialization=initialization,
            activation=activation,
            layer_norm=layer_norm,
            norm_epsilon=norm_epsilon,
        )

    def forward(self, observations: Tensor) -> Tensor:
        """(B,) values of (B, observation dim)."""
        return self.mlp(observations).squeeze(-1)
