"""Bilinear transduction: a network that reads a state as an anchor and the difference from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.core.errors import ConfigError
from surefoot.core.networks import MLP

Anchor = Callable[[Tensor], Tensor]
"""(B, O) states -> (B, O) states that are in the data's distribution; without gradient."""


class TransducedMLP(nn.Module):
    r"""In place of an `MLP` whose inputs begin with a state: :math:`h_j = \sum_{d \le k} f_{jd} g_{jd}`, then an MLP.

    .. math:: f = f(s - \bar s, x), \quad g = g(\bar s, x), \quad j = 1 ... t

    x is what follows the state among the inputs, such as an action, and t the last width of f and g. For a fixed anchor
    the features are linear in f. The anchor is not part of the network: who holds it gives it to `anchored_by`.

    Source: Netanyahu, Gupta, Simchowitz, Zhang and Agrawal, "Learning to Extrapolate: A Transductive Approach" (ICLR
    2023); for offline RL Song, Lee and Kim, "Compositional Conservatism" (ICLR 2024).
    """

    def __init__(self, like: MLP, state_dim: int, transducer: Sequence[int], embedding: int) -> None:
        """Draw a network from torch's global generator.

        Args:
            like: whose inputs, outputs, members, hidden widths and activation it has; layer norms it has none.
            state_dim: O, how many of the inputs, the first, are the state.
            transducer: widths of f and g; the last is t.
            embedding: k >= 1.

        Raises:
            ConfigError: a network with layer norms, or settings out of range.
        """
        super().__init__()
        if len(like.scales) or not transducer or embedding < 1:
            raise ConfigError("transduction needs a network without layer norms, a width and an embedding of 1 or more")
        inputs, outputs = int(like.weights[0].shape[-1]), int(like.weights[-1].shape[-2])
        self.state_dim, self.embedding, self.transducer = state_dim, embedding, tuple(transducer)
        members, width = like.members, transducer[-1]
        options: dict[str, Any] = {"members": members, "activation": like.activation}
        self.of_difference = MLP(inputs, width * embedding, transducer, **options)
        self.of_anchor = MLP(inputs, width * embedding, transducer, **options)
        self.backbone = MLP(width, outputs, like.hidden, **options)
        self.members, self.activation, self.hidden = members, like.activation, like.hidden
        self.layer_norm, self.unit_features = False, False

    @property
    def biases(self) -> nn.ParameterList:
        """The backbone's: the last is as wide as the output."""
        return self.backbone.biases

    @property
    def scales(self) -> nn.ParameterList:
        """None: it has no layer norms."""
        return self.backbone.scales

    def anchored_by(self, anchor: Anchor) -> None:
        """Take the function that gives anchors; it is not saved with the network."""
        self.__dict__["anchor"] = anchor

    def features(self, difference: Tensor, anchor: Tensor, members: Tensor | None = None) -> Tensor:
        """(..., B, t) features of (B, O + X) differences and anchors, each with x behind."""
        both = self.of_difference(difference, members=members) * self.of_anchor(anchor, members=members)
        return both.unflatten(-1, (-1, self.embedding)).sum(-1)  # type: ignore[no-any-return]

    def _parts(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        state, rest = inputs[..., : self.state_dim], inputs[..., self.state_dim :]
        anchor = self.__dict__["anchor"](state)
        return torch.cat([state - anchor, rest], -1), torch.cat([anchor, rest], -1)

    def forward(self, inputs: Tensor, masks: Tensor | None = None, members: Tensor | None = None) -> Tensor:
        """As `MLP.forward`, of (B, O + X) inputs; it has no dropout."""
        if masks is not None:
            raise ConfigError("a transduced network has no dropout: set it to 0")
        return self.backbone(self.features(*self._parts(inputs), members), members=members)  # type: ignore[no-any-return]

    def member(self, inputs: Tensor, index: int) -> Tensor:
        """As `MLP.member`."""
        return self(inputs, members=inputs.new_full((1,), index, dtype=torch.int64)).squeeze(0)  # type: ignore[no-any-return]
