"""The networks of ACT: a transformer from what is seen to a chunk of actions, and an encoder of a chunk's style.

Source: Zhao, Kumar, Levine and Finn, "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware" (RSS 2023),
appendix C. Layers are those of Carion et al., "End-to-End Object Detection with Transformers" (2020): norms behind each
part, places added to queries and keys in every layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.core.base.described import Described
from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.transformer import HIDDEN, dropped_out

LONGEST_WAVE = 10_000.0
"""Of the sines and cosines that tell places."""
SIZES = 3
"""Numbers that describe a map: channels, height and width."""


class Attention(nn.Module):
    """Attention of several heads from (B, T, W) tokens to (B, S, W) others."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, scores: Tensor | None = None) -> Tensor:
        """(B, T, W); `scores` (B, 1, 1, S) are added to those of the attention."""
        parts = (self.query(queries), self.key(keys), self.value(values))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in parts)
        found = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if scores is not None:
            found = found + scores
        return self.out((found.softmax(-1) @ v).transpose(-3, -2).flatten(-2))


class EncoderLayer(nn.Module):
    """Attention among tokens and a hidden layer, each added and then normed."""

    parts = 2
    """Parts that are added, each with a dropout mask of its own."""

    def __init__(self, width: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.widen, self.narrow = nn.Linear(width, feed_forward), nn.Linear(feed_forward, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(self.parts))

    def forward(self, tokens: Tensor, places: Tensor, masks: Sequence[Tensor | None], scores: Tensor | None) -> Tensor:
        """(B, T, W) tokens at (1 or B, T, W) places; (B, 1, W) dropout masks or None."""
        placed = tokens + places
        tokens = self.norms[0](tokens + dropped_out(self.attention(placed, placed, tokens, scores), masks[0]))
        return self.norms[1](tokens + dropped_out(self.narrow(torch.relu(self.widen(tokens))), masks[1]))


class DecoderLayer(nn.Module):
    """Attention among queries, attention to what is remembered, and a hidden layer, each added and then normed."""

    parts = 3

    def __init__(self, width: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        self.among, self.across = Attention(width, heads), Attention(width, heads)
        self.widen, self.narrow = nn.Linear(width, feed_forward), nn.Linear(feed_forward, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(self.parts))

    def forward(
        self, tokens: Tensor, asked: Tensor, memory: Tensor, places: Tensor, masks: Sequence[Tensor | None]
    ) -> Tensor:
        """(B, C, W) tokens of (1, C, W) learned queries; (B, T, W) memory at (1, T, W) places."""
        placed = tokens + asked
        tokens = self.norms[0](tokens + dropped_out(self.among(placed, placed, tokens), masks[0]))
        seen = self.across(tokens + asked, memory + places, memory)
        tokens = self.norms[1](tokens + dropped_out(seen, masks[1]))
        return self.norms[2](tokens + dropped_out(self.narrow(torch.relu(self.widen(tokens))), masks[2]))


class ACTNetwork(Described, nn.Module):
    """A chunk of actions from a style z and what is seen; and the style of a chunk that is known.

    What is seen is one row of numbers: the maps of all cameras, each (channels, height, width) flattened, then the
    vectors. Without maps it is the vectors alone.
    """

    between: Tensor
    cells: Tensor

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        chunk: int,
        maps: Sequence[int] = (),
        width: int = 512,
        heads: int = 8,
        feed_forward: int = 3200,
        style_layers: int = 4,
        layers: int = 4,
        decoder_layers: int = 1,
        latent_dim: int = 32,
    ) -> None:
        """Build it.

        Args:
            observation_dim: F, numbers of what is seen.
            action_dim: A, of one action.
            chunk: C, actions.
            maps: channels, height and width of each camera's map, one after another.
            width: W of the tokens, a multiple of 4 that the heads divide.
            heads: of each attention.
            feed_forward: units of the hidden layers.
            style_layers: of the encoder of styles.
            layers: of the encoder of what is seen.
            decoder_layers: of the decoder.
            latent_dim: numbers of a style.

        Raises:
            ConfigError: sizes below 1 or that don't go together.
        """
        super().__init__()
        sizes = [tuple(maps[i : i + SIZES]) for i in range(0, len(maps), SIZES)]
        seen = sum(math.prod(size) for size in sizes)
        self.vector_dim = observation_dim - seen
        least = min(chunk, action_dim, width, heads, feed_forward, style_layers, layers, decoder_layers, latent_dim)
        if least < 1 or width % heads or width % 4 or self.vector_dim < 0 or len(maps) % SIZES:
            raise ConfigError(
                f"ACT of width {width} with {heads} heads, layers {style_layers}, {layers} and {decoder_layers}, and "
                f"maps {list(maps)} in {observation_dim} numbers: sizes must be at least 1, the width a multiple of 4 "
                "and of the heads, and the maps among what is seen"
            )
        if len({size[0] for size in sizes}) > 1:
            raise ConfigError(f"maps have {[size[0] for size in sizes]} channels; all cameras need as many")
        self.sizes, self.chunk, self.action_dim, self.latent_dim = sizes, chunk, action_dim, latent_dim
        self.maps, self.width, self.heads, self.feed_forward = tuple(maps), width, heads, feed_forward
        self.style_layers, self.layers, self.decoder_layers = style_layers, layers, decoder_layers
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.style_vector = nn.Linear(self.vector_dim, width) if self.vector_dim else None
        self.style_action, self.style_out = nn.Linear(action_dim, width), nn.Linear(width, 2 * latent_dim)
        self.style = nn.ModuleList(EncoderLayer(width, heads, feed_forward) for _ in range(style_layers))
        self.latent = nn.Linear(latent_dim, width)
        self.vector = nn.Linear(self.vector_dim, width) if self.vector_dim else None
        self.cell = nn.Linear(sizes[0][0], width) if sizes else None
        self.one_dimensional = nn.Parameter(torch.randn(1, 1 + bool(self.vector_dim), width))
        self.encoder = nn.ModuleList(EncoderLayer(width, heads, feed_forward) for _ in range(layers))
        self.asked = nn.Parameter(torch.randn(1, chunk, width))
        self.decoder = nn.ModuleList(DecoderLayer(width, heads, feed_forward) for _ in range(decoder_layers))
        self.norm, self.leave = nn.LayerNorm(width), nn.Linear(width, action_dim)
        self.register_buffer("between", in_line(1 + bool(self.vector_dim) + chunk, width).unsqueeze(0))
        grids = [in_plane(height, across, width) for _, height, across in sizes]
        self.register_buffer("cells", torch.cat([torch.zeros(0, width), *grids]).unsqueeze(0))
        self.masks = [layer.parts for layer in (*self.style, *self.encoder, *self.decoder)]  # type: ignore[union-attr]
        self.masks_dim = sum(self.masks) * width
        """Units of a row that dropout masks are for: one mask for all tokens of a part."""
        for module in (*self.style, *self.encoder, *self.decoder):
            for layer in module.modules():
                if isinstance(layer, nn.Linear):
                    nn.init.xavier_uniform_(layer.weight)
                    nn.init.zeros_(layer.bias)

    @classmethod
    def write(cls, part: ACTNetwork, name: str) -> dict[str, Any]:
        """As `Part.write`: the description as it is, among its holder's."""
        return part.description()

    @classmethod
    def read(cls, name: str, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> ACTNetwork:
        """As `Part.read`, for `action_dim` numbers of all C actions together."""
        chunk = options["chunk"]
        if not isinstance(chunk, int) or chunk < 1 or action_dim % chunk:
            raise ConfigError(f"{action_dim} numbers are no {chunk} actions of as many numbers each")
        return cls.from_description(observation_dim, action_dim // chunk, options)

    def _parted(self, masks: Tensor | None) -> list[list[Tensor | None]]:
        """The dropout masks of each layer, (B, 1, W) for each part, of (B, `masks_dim`)."""
        if masks is None:
            return [[None] * parts for parts in self.masks]
        each = iter(masks.unsqueeze(1).chunk(sum(self.masks), -1))
        return [[next(each) for _ in range(parts)] for parts in self.masks]

    def styles(
        self, seen: Tensor, actions: Tensor, there: Tensor, masks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean and log variance (B, Z) of the style of (B, C, A) actions, of which (B, C) are 1 `there`."""
        tokens = [self.first.expand(seen.shape[0], -1, -1)]
        if self.style_vector is not None:
            tokens.append(self.style_vector(seen[:, -self.vector_dim :]).unsqueeze(1))
        ahead = sum(token.shape[1] for token in tokens)
        joined = torch.cat([*tokens, self.style_action(actions)], 1)
        hidden = torch.cat([torch.ones_like(there[:, :1]).expand(-1, ahead), there], 1)
        scores = (1 - hidden)[:, None, None] * HIDDEN
        for layer, mask in zip(self.style, self._parted(masks), strict=False):
            joined = layer(joined, self.between, mask, scores)
        return self.style_out(joined[:, 0]).chunk(2, -1)  # type: ignore[return-value]

    def forward(self, seen: Tensor, latent: Tensor, masks: Tensor | None = None) -> Tensor:
        """(B, C, A) actions of (B, F) what is seen and a (B, Z) style."""
        tokens = [self.latent(latent).unsqueeze(1)]
        if self.vector is not None:
            tokens.append(self.vector(seen[:, -self.vector_dim :]).unsqueeze(1))
        start = 0
        for size in self.sizes:
            flat = seen[:, start : start + math.prod(size)]
            start += math.prod(size)
            assert self.cell is not None
            tokens.append(self.cell(flat.unflatten(-1, (size[0], -1)).transpose(-2, -1)))
        memory, places = torch.cat(tokens, 1), torch.cat([self.one_dimensional, self.cells], 1)
        given = self._parted(masks)[len(self.style) :]
        for layer, mask in zip(self.encoder, given, strict=False):
            memory = layer(memory, places, mask, None)
        found = torch.zeros_like(self.asked).expand(seen.shape[0], -1, -1)
        for layer, mask in zip(self.decoder, given[len(self.encoder) :], strict=True):
            found = layer(found, self.asked, memory, places, mask)
        return self.leave(self.norm(found))


def in_line(count: int, width: int) -> Tensor:
    """(count, width) sines and cosines of the places 0 .. count - 1, alternating (Vaswani et al., 2017)."""
    angles = torch.arange(count).unsqueeze(1) / LONGEST_WAVE ** (torch.arange(0, width, 2) / width)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def in_plane(height: int, across: int, width: int) -> Tensor:
    """(height * across, width): of each cell, row by row, half of the numbers of its row and half of its column.

    Places of a side go to 2 pi, as in Carion et al.
    """

    def side(count: int) -> Tensor:
        places = 2 * math.pi * torch.arange(1, count + 1) / count
        angles = places.unsqueeze(1) / LONGEST_WAVE ** (torch.arange(0, width // 2, 2) / (width // 2))
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)

    rows, columns = side(height), side(across)
    return torch.cat(
        [rows.unsqueeze(1).expand(-1, across, -1), columns.unsqueeze(0).expand(height, -1, -1)], -1
    ).flatten(0, 1)
