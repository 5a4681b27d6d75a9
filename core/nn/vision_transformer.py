"""A small vision transformer, whose tokens are read together with the vectors beside the images.

Sources: Hu et al., "Imitation Bootstrapped Reinforcement Learning" (IBRL); Ren et al., "Diffusion Policy Policy
Optimization", which reads its images by it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from surefoot.core.nn.image_encoders import ENCODERS, ImageEncoder
from surefoot.core.nn.pictures import View
from surefoot.core.nn.transformer import Block

WIDTH, HEADS, DEVIATION = 128, 4, 0.02
"""Of a token; of the attention; of weights and positions as they are drawn."""
STEM = ((8, 4), (3, 2))
"""Kernel size and stride of the convolutions that make tokens of an image, no padding."""


class Tokens(nn.Module):
    """Two convolutions, learned positions, one transformer block, a layer norm: (B, C, H, W) to (B, P, 128) tokens."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        """Make it for (C, H, W) images: as many positions as convolutions without padding leave places."""
        super().__init__()
        (kernel, stride), (after, step) = STEM
        self.patches = nn.Sequential(
            nn.Conv2d(shape[0], WIDTH, kernel, stride), nn.ReLU(), nn.Conv2d(WIDTH, WIDTH, after, step)
        )
        rows, columns = (((size - kernel) // stride + 1 - after) // step + 1 for size in shape[1:])
        self.positions = nn.Parameter(torch.zeros(1, max(rows, 0) * max(columns, 0), WIDTH))
        self.block = Block(WIDTH, HEADS)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, images: Tensor) -> Tensor:
        """(B, P, 128) tokens."""
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        all_seen = tokens.new_zeros(1, 1, 1, 1)
        return self.norm(self.block(tokens, all_seen, None))


class SpatialEmbedding(nn.Module):
    """Each token feature's values at all places, with the vectors, through one layer; then a weighted sum of those."""

    def __init__(self, places: int, width: int, vectors: int, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(places + vectors, features)
        self.norm = nn.LayerNorm(features)
        self.weight = nn.Parameter(torch.zeros(1, width, features))

    def forward(self, tokens: Tensor, vectors: Tensor | None) -> Tensor:
        """(B, F) of (B, P, D) tokens and (B, V) vectors."""
        rows = tokens.transpose(1, 2)
        if vectors is not None:
            rows = torch.cat([rows, vectors.unsqueeze(1).expand(-1, rows.shape[1], -1)], -1)
        return (self.weight * torch.relu(self.norm(self.linear(rows)))).sum(1)


class ViT(ImageEncoder):
    """Tokens, by a trunk that all cameras share, and a spatial embedding for each camera."""

    kind = "vit"
    own_features = 128
    always_shares = True
    vectors = "joined"
    reads_vectors = True

    @classmethod
    def trunk_of(cls, view: View) -> nn.Module:
        """As `ImageEncoder.trunk_of`."""
        return Tokens(view.shape)

    def build(self, mapped: tuple[int, ...], features: int, vectors: int) -> None:
        """As `ImageEncoder.build`."""
        places, width = mapped
        self.embedding = SpatialEmbedding(places, width, vectors, features)

    def of_map(self, mapped: Tensor, vectors: Tensor | None) -> Tensor:
        """As `ImageEncoder.of_map`."""
        return self.embedding(mapped, vectors)

    @torch.no_grad()
    def initialise(self) -> None:
        """Linear layers normal of deviation .02, cut at two, biases 0; the sum's weights standard normal."""
        if self.convolutions is not None:
            self.initialise_trunk(self.convolutions)
        _small(self.embedding)
        self.embedding.weight.normal_()

    @classmethod
    @torch.no_grad()
    def initialise_trunk(cls, trunk: nn.Module) -> None:
        """As `initialise`; positions as the weights. Convolutions stay as torch draws them."""
        _small(trunk)
        assert isinstance(trunk, Tokens)
        nn.init.trunc_normal_(trunk.positions, std=DEVIATION, a=-2 * DEVIATION, b=2 * DEVIATION)


def _small(network: nn.Module) -> None:
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=DEVIATION, a=-2 * DEVIATION, b=2 * DEVIATION)
            nn.init.zeros_(layer.bias)


ENCODERS[ViT.kind] = ViT
