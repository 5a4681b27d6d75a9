"""A transformer over the steps of a plan, or the actions of a chunk, that predicts their noise.

Source: Peebles and Xie, "Scalable Diffusion Models with Transformers" (ICCV 2023): norms that are given the step of the
diffusion and what else is known (adaLN-Zero), and weights that make every block do nothing at first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.noise_networks import NoiseNetwork
from surefoot.core.nn.transformer import Block
from surefoot.core.nn.velocity import Sinusoids

TIME_FEATURES = 256
"""Sines and cosines of the step of the diffusion."""


class ConditionedBlock(Block):
    r"""Attention and a hidden layer, each added, behind norms that are scaled and shifted by what is known.

    .. math::
        x &\leftarrow x + g_1\, \mathrm{attention}((1 + s_1)\, \mathrm{norm}(x) + b_1) \\
        x &\leftarrow x + g_2\, \mathrm{MLP}((1 + s_2)\, \mathrm{norm}(x) + b_2)

    with shifts b, scales s and gates g that are linear in silu(what is known), and 0 before training. Norms have no
    weights of their own.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.before, self.between = (nn.LayerNorm(width, eps=1e-6, elementwise_affine=False) for _ in range(2))
        self.reported = nn.Linear(width, 6 * width)

    def forward(self, tokens: Tensor, known: Tensor, masks: Tensor | None = None) -> Tensor:
        """(B, T, W) of (B, T, W) tokens and (B, W) what is known; there is no dropout."""
        shift, scale, gate, *second = self.reported(nn.functional.silu(known)).unsqueeze(1).chunk(6, -1)
        nothing = tokens.new_zeros(1, 1, 1, 1)  # every token sees all
        tokens = tokens + gate * self._attended(self.before(tokens) * (1 + scale) + shift, nothing)
        shift, scale, gate = second
        hidden = self.widen(self.between(tokens) * (1 + scale) + shift)
        return tokens + gate * self.narrow(nn.functional.gelu(hidden, approximate="tanh"))


class TransformerNoise(NoiseNetwork):
    """Tokens of what is noisy, in the order of time, through blocks that are given the step and the observation.

    The first token may have numbers of another kind, as a plan of an action and the states after it; the others share
    the rest equally. Places are encoded by fixed sines and cosines.
    """

    kind = "transformer"
    places: Tensor

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        tokens: int = 16,
        first: int = 0,
        width: int = 128,
        layers: int = 4,
        heads: int = 4,
    ) -> None:
        """Build it.

        Args:
            observation_dim: O, all that is known beside the step.
            action_dim: numbers that are noisy.
            tokens: T.
            first: numbers of the first token; 0: as many as of the others.
            width: W; the published sizes of width, layers and heads are 384, 12, 6 (DiT-S) to 1152, 28, 16 (DiT-XL).
            layers: blocks.
            heads: of the attention; they divide the width.

        Raises:
            ConfigError: numbers that the tokens can't share, sizes below 1, or heads that do not divide the width.
        """
        super().__init__()
        alike, rest = (tokens, action_dim) if first == 0 else (tokens - 1, action_dim - first)
        if min(tokens, layers, heads, alike, rest) < 1 or first < 0 or rest % alike or width % heads or width < 4:
            raise ConfigError(
                f"a transformer of {layers} layers of {width} with {heads} heads over {tokens} tokens of {action_dim} "
                f"numbers, the first of {first}: sizes must be at least 1, the heads a divisor of the width, and the "
                "tokens must share the numbers equally"
            )
        self.tokens, self.first, self.width, self.layers, self.heads = tokens, first, width, layers, heads
        each = rest // alike
        self.enter, self.leave = nn.Linear(each, width), nn.Linear(width, each)
        self.enter_first = nn.Linear(first, width) if first else None
        self.leave_first = nn.Linear(width, first) if first else None
        self.sinusoids = Sinusoids(TIME_FEATURES)
        self.time = nn.ModuleList([nn.Linear(TIME_FEATURES, width), nn.Linear(width, width)])
        self.condition = nn.ModuleList([nn.Linear(observation_dim, width), nn.Linear(width, width)])
        self.blocks = nn.ModuleList(ConditionedBlock(width, heads) for _ in range(layers))
        self.norm, self.reported = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False), nn.Linear(width, 2 * width)
        places = Sinusoids(width)(torch.arange(tokens, dtype=torch.float32))
        self.register_buffer("places", places, persistent=False)
        self._begin()

    def _begin(self) -> None:
        """Weights as published: Xavier's, of the step's a normal of 0.02; what ends a way or tells a norm is 0."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for layer in self.time:
            nn.init.normal_(layer.weight, std=0.02)  # type: ignore[arg-type]
        ends: list[Any] = [self.reported, self.leave, *(block.reported for block in self.blocks)]
        for end in (*ends, *([] if self.leave_first is None else [self.leave_first])):
            nn.init.zeros_(end.weight)

    def forward(self, actions: Tensor, observations: Tensor, steps: Tensor, masks: Tensor | None = None) -> Tensor:
        """As `NoiseNetwork.forward`; there is no dropout."""
        time = self.time[1](nn.functional.silu(self.time[0](self.sinusoids(steps))))
        known = time + self.condition[1](nn.functional.silu(self.condition[0](observations)))
        first, rest = actions[:, : self.first], actions[:, self.first :]
        tokens = self.enter(rest.unflatten(-1, (self.tokens - (self.first > 0), -1)))
        if self.enter_first is not None:
            tokens = torch.cat([self.enter_first(first).unsqueeze(1), tokens], 1)
        tokens = tokens + self.places
        for block in self.blocks:
            tokens = block(tokens, known)
        shift, scale = self.reported(nn.functional.silu(known)).unsqueeze(1).chunk(2, -1)
        tokens = self.norm(tokens) * (1 + scale) + shift
        if self.leave_first is None:
            return self.leave(tokens).flatten(1)
        return torch.cat([self.leave_first(tokens[:, 0]), self.leave(tokens[:, 1:]).flatten(1)], -1)
