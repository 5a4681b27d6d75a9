"""Attributes of behaviour: how much a stretch of an episode has of each, learned from comparisons of two stretches.

Sources: Christiano et al., "Deep Reinforcement Learning from Human Preferences" (2017), for the likelihood of Bradley
and Terry; Dong et al., "AlignDiff" (ICLR 2024), for several attributes at once, by a transformer over states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.nn.transformer import Block

GREATEST = 20.0
"""Scores are squashed to +- this."""

MEASURES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda values: values.mean(-1),
    "abs": lambda values: values.abs().mean(-1),
    "deviation": lambda values: values.std(-1, correction=0),
    "change": lambda values: values[..., -1] - values[..., 0],
}
"""Word -> (..., H) values of a number of the observation to (...) how much a stretch has of an attribute."""


def measured(words: Sequence[str], windows: Tensor) -> Tensor:
    """(..., m) how much stretches have of attributes that are defined by words such as `abs:5`.

    Args:
        words: a key of `MEASURES`, a colon, and the number of an observation's number, from 0.
        windows: (..., H, O) in the environment's units.

    Raises:
        ConfigError: a word that is none, or a number that the observation does not have.
    """
    found = []
    for word in words:
        name, _, number = word.partition(":")
        if name not in MEASURES or not number.isdecimal() or int(number) >= windows.shape[-1]:
            raise ConfigError(
                f"attribute {word!r}: give one of {', '.join(MEASURES)}, a colon, and a number from 0 to "
                f"{windows.shape[-1] - 1}, such as abs:0; {nearest(name, MEASURES)}"
            )
        found.append(MEASURES[name](windows[..., int(number)]))
    return torch.stack(found, -1)


def preference_loss(first: Tensor, second: Tensor, preferred: Tensor) -> Tensor:
    r"""Mean of :math:`-p \log \sigma(\zeta_1 - \zeta_2) - (1 - p) \log \sigma(\zeta_2 - \zeta_1)`.

    Args:
        first: (..., m) scores of the first stretches.
        second: (..., m) of the second.
        preferred: (..., m) in [0, 1]: 1 where the first has more of the attribute, 0 where the second, 0.5 for neither.

    Returns:
        (), in nats; log 2 where nothing is known.

    Source: Bradley and Terry (1952).
    """
    margin = first - second
    return (nn.functional.softplus(margin) - preferred * margin).mean()


class AttributeModel(nn.Module):
    """E small transformers over the states of a stretch, whose readout tokens give a score of each attribute."""

    def __init__(
        self, observation_dim: int, length: int, attributes: int, width: int = 64, layers: int = 1, heads: int = 4,
        members: int = 3,
    ) -> None:  # fmt: skip
        """Build it.

        Args:
            observation_dim: O.
            length: H, states of a stretch.
            attributes: m.
            width: of each transformer.
            layers: of each.
            heads: of the attention; they divide the width.
            members: E.

        Raises:
            ConfigError: sizes below 1, or heads that do not divide the width.
        """
        super().__init__()
        if min(length, attributes, layers, heads, members) < 1 or width % heads:
            raise ConfigError(
                f"{members} attribute models of {layers} layers of {width} with {heads} heads for {attributes} "
                f"attributes of {length} states: each must be at least 1, and the heads a divisor of the width"
            )
        self.members = nn.ModuleList(_Scores(observation_dim, length, attributes, width, layers, heads)
                                     for _ in range(members))  # fmt: skip

    def forward(self, windows: Tensor) -> Tensor:
        """(E, B, m) scores, in [-20, 20], of (B, H, O) normalised states."""
        return torch.stack([member(windows) for member in self.members])


class _Scores(nn.Module):
    def __init__(self, observation_dim: int, length: int, attributes: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.enter = nn.Linear(observation_dim, width)
        self.leave = nn.Linear(width, attributes, bias=False)  # comparisons say nothing of an offset
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.readout = nn.Parameter(0.02 * torch.randn(1, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)

    def forward(self, windows: Tensor) -> Tensor:
        tokens = self.enter(windows) + self.positions
        tokens = torch.cat([tokens, self.readout.expand(windows.shape[0], 1, -1)], 1)
        scores = tokens.new_zeros(1, 1, 1, 1)
        *early, last = self.blocks
        for block in early:
            tokens = block(tokens, scores, None)
        assert isinstance(last, Block)
        found = self.leave(self.norm(last.of_last(tokens)[:, 0]))  # the others' ways end here
        return GREATEST * torch.tanh(found / GREATEST)
