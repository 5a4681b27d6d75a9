"""The block of a decoder-only transformer: attention to earlier tokens and a hidden layer."""

from __future__ import annotations

import math

from torch import Tensor, nn

HIDDEN = -1e9
"""Score of a token that may not be seen; finite, so that rows without a past give no NaN."""


class Block(nn.Module):
    """Layer norm and attention to earlier tokens, layer norm and a hidden layer four times as wide, each added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor, scores: Tensor, masks: Tensor | None) -> Tensor:
        """(B, T, W) tokens.

        Args:
            tokens: (B, T, W).
            scores: (B, 1, T, T) added to the attention's: 0, or `HIDDEN`.
            masks: (B, 2 W) dropout masks of the two parts that are added, or None.
        """
        first, second = (None, None) if masks is None else masks.unsqueeze(1).chunk(2, -1)
        tokens = tokens + dropped_out(self._attended(self.before(tokens), scores), first)
        hidden = nn.functional.gelu(self.widen(self.between(tokens)))
        return tokens + dropped_out(self.narrow(hidden), second)

    def of_last(self, tokens: Tensor) -> Tensor:
        """(B, 1, W) what `forward` gives the last of (B, T, W) tokens where it sees all and nothing is dropped.

        One query per head needs neither keys nor values of the tokens: its score of a token x is (W_k^T q) . x, the
        keys' bias being the same for all, and its value is W_v times the mixture of the tokens.
        """
        seen = self.before(tokens)
        query, key, value = self.attention.weight.unflatten(0, (3, self.heads, -1)).unbind(0)  # (heads, d, W)
        bias = self.attention.bias.unflatten(0, (3, self.heads, 1, -1))
        asked = (seen[:, -1] @ query.transpose(-2, -1) + bias[0]) @ key  # (heads, B, W)
        weights = (seen @ asked.permute(1, 2, 0) / math.sqrt(key.shape[-2])).softmax(-2)  # (B, T, heads)
        mixed = (weights.transpose(-2, -1) @ seen).transpose(0, 1) @ value.transpose(-2, -1) + bias[2]
        last = tokens[:, -1:] + self.out(mixed.transpose(0, 1).flatten(-2)).unsqueeze(1)
        return last + self.narrow(nn.functional.gelu(self.widen(self.between(last))))

    def _attended(self, tokens: Tensor, scores: Tensor) -> Tensor:
        parts = self.attention(tokens).unflatten(-1, (3, self.heads, -1))
        query, key, value = (part.transpose(-3, -2) for part in parts.unbind(-3))  # (B, heads, T, W / heads)
        weights = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        mixed = (weights + scores).softmax(-1) @ value
        return self.out(mixed.transpose(-3, -2).flatten(-2))


def dropped_out(values: Tensor, mask: Tensor | None) -> Tensor:
    """Values times a dropout mask; as they are without one."""
    return values if mask is None else values * mask
