"""A decoder-only transformer over the tokens of trajectories, which can continue from where it was.

Source: Janner, Li and Levine, "Offline Reinforcement Learning as One Big Sequence Modeling Problem" (NeurIPS 2021).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.transformer import HIDDEN, Block

Past = list[tuple[Tensor, Tensor]]
"""Of each layer, keys and values (B, heads, n, W / heads) of the tokens that were read."""


class GrowingBlock(Block):
    """A block that reads some more tokens, after those whose keys and values it is given."""

    def extended(
        self, tokens: Tensor, past: tuple[Tensor, Tensor] | None, scores: Tensor, masks: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """(B, n, W) outputs for (B, n, W) tokens, and the keys and values of all tokens up to them.

        Args:
            tokens: the new ones.
            past: what it gave for those before; None: there are none.
            scores: (..., n, m + n) added to the attention's, m being the number of those before.
            masks: (B, 2 W) dropout masks of the two parts that are added, or None.
        """
        parts = self.attention(self.before(tokens)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (part.transpose(-3, -2) for part in parts.unbind(-3))
        if past is not None:
            key, value = torch.cat([past[0], key], -2), torch.cat([past[1], value], -2)
        weights = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        mixed = self.out(((weights + scores).softmax(-1) @ value).transpose(-3, -2).flatten(-2))
        first, second = (1.0, 1.0) if masks is None else masks.unsqueeze(1).chunk(2, -1)
        tokens = tokens + mixed * first
        hidden = nn.functional.gelu(self.widen(self.between(tokens)))
        return tokens + self.narrow(hidden) * second, (key, value)


class TokenTransformer(nn.Module):
    """The odds of each token given those before it, in steps of D places with an alphabet of K each.

    A place has tokens and an output layer of its own; the position is encoded by a vector for each place of each of T
    steps. Token number i, of place i mod D, gives the odds of token i + 1.
    """

    def __init__(
        self,
        places: int,
        steps: int,
        bins: int,
        width: int = 128,
        layers: int = 4,
        heads: int = 4,
        unread: int | None = None,
    ) -> None:
        """Build it.

        Args:
            places: D, tokens of a step.
            steps: T, the longest that it reads.
            bins: K.
            width: W.
            layers: blocks.
            heads: of the attention; they divide the width.
            unread: a place other than the first, whose tokens no attention reads: they are predicted, and tell only the
                token right after them. None: there is none.

        Raises:
            ConfigError: sizes below 1, heads that do not divide the width, or no such place.
        """
        super().__init__()
        if min(places, steps, layers, width, heads) < 1 or width % heads:
            raise ConfigError(
                f"{places} places of {steps} steps in {layers} layers of {width} with {heads} heads: each must be at "
                "least 1, and the heads a divisor of the width"
            )
        if unread is not None and not 0 < unread < places:
            raise ConfigError(f"place {unread} of {places} can't be left unread: choose one from 1 to {places - 1}")
        self.unread = unread
        self.places, self.steps, self.bins, self.width, self.layers, self.heads = (
            places, steps, bins, width, layers, heads,
        )  # fmt: skip
        self.tokens = nn.Parameter(0.02 * torch.randn(places, bins, width))
        self.positions = nn.Parameter(0.02 * torch.randn(steps, places, width))
        self.blocks = nn.ModuleList(GrowingBlock(width, heads) for _ in range(layers))
        self.leave = nn.LayerNorm(width)
        self.outputs = nn.Parameter(0.02 * torch.randn(places, width, bins))
        self.offsets = nn.Parameter(torch.zeros(places, bins))

    @property
    def masks_dim(self) -> int:
        """Numbers per row of the dropout masks: of the tokens as they enter, and of two parts a layer."""
        return self.width * (1 + 2 * self.layers)

    def forward(
        self,
        tokens: Tensor,
        first: int = 0,
        past: Past | None = None,
        skipped: Tensor | None = None,
        masks: Tensor | None = None,
    ) -> tuple[Tensor, Past]:
        """(B, n, K) log-odds of the token after each of (B, n), and what `past` is for those to come.

        Args:
            tokens: (B, n) int64, number `first` and on.
            first: how many tokens were read before.
            past: what it gave for these.
            skipped: (B,) int64 whole steps at the beginning that are padding: they are not seen, and time is counted
                from the step after them. None: there are none.
            masks: (B, masks_dim) dropout masks, divided by the keep probability.
        """
        count = tokens.shape[-1]
        index = torch.arange(first, first + count, device=tokens.device)
        place, step = index % self.places, torch.div(index, self.places, rounding_mode="floor")
        earlier = torch.arange(first + count, device=tokens.device)
        seen = earlier.unsqueeze(0) <= index.unsqueeze(1)  # (n, first + n)
        if self.unread is not None:
            seen = seen & (earlier % self.places != self.unread)
        if skipped is not None:
            step = (step - skipped.unsqueeze(-1)).clamp(min=0)
            padding = torch.div(earlier, self.places, rounding_mode="floor") < skipped.unsqueeze(-1)  # (B, first + n)
            itself = earlier.unsqueeze(0) == index.unsqueeze(1)
            padding = padding.unsqueeze(1)
            seen = (seen & ~padding) | (itself & padding)  # padding sees itself, so that it has any softmax
            seen = seen.unsqueeze(1)
        scores = torch.where(seen, 0.0, HIDDEN).to(self.positions.dtype)
        state = self.tokens[place, tokens] + self.positions[step, place]
        parts: Sequence[Any] = [None] * (1 + self.layers)
        if masks is not None:
            parts = masks.split([self.width, *[2 * self.width] * self.layers], -1)
            state = state * parts[0].unsqueeze(1)
        following: Past = []
        for layer, block in enumerate(self.blocks):
            before = None if past is None else past[layer]
            assert isinstance(block, GrowingBlock)
            state, kept = block.extended(state, before, scores, parts[1 + layer])
            following.append(kept)
        after = (place + 1) % self.places
        state = self.leave(state)
        logits = torch.einsum("bnw,nwk->bnk", state, self.outputs[after]) + self.offsets[after]
        return logits, following


def of_rows(past: Past, rows: Tensor) -> Past:
    """The past of (R,) rows, each taken as often as it stands there."""
    return [(key[rows], value[rows]) for key, value in past]


def log_likelihood(logits: Tensor, tokens: Tensor) -> Tensor:
    """(B, n) log-probabilities, in nats, of (B, n) tokens under (B, n, K) log-odds."""
    return logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
