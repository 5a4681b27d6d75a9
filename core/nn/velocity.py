"""Networks that give the velocity of a flow: in which direction, and how fast, a noisy action becomes one of the data.

Time is t = 0 at the noise and t = 1 at the data, and is read as it is, without a factor. An action of D numbers may be
a chunk of C actions, one after the other.

Sources: Park, Li and Levine, "Flow Q-Learning" ("mlp"); Zhang et al., "ReinFlow" ("embedded"); Frans et al., "One Step
Diffusion via Shortcut Models" ("shortcut"); Chi et al., "Diffusion Policy" ("unet", in `core.nn.unet`).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from surefoot.core.base.described import DescribedInPlace
from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.nn.activations import ACTIVATIONS, mish
from surefoot.core.nn.networks import MLP, LayerNorm
from surefoot.core.nn.residual import ResidualMLP


class VelocityNetwork(DescribedInPlace, nn.Module):
    """Gives the velocity of noisy actions; its constructor says how it is described."""

    sized: ClassVar[bool] = False
    """Whether it reads how long the step will be: then its velocity is the mean over that step."""
    time_width: int
    """Of `time_features`."""
    condition_width: int
    """Of `condition`."""

    def forward(self, observations: Tensor, x: Tensor, time: Tensor, size: Tensor | None = None) -> Tensor:
        """(B, D) velocity at places x.

        Args:
            observations: (B, O), normalised.
            x: (B, D) noisy actions.
            time: (B,) or (1,) in [0, 1].
            size: (B,) or (1,) in [0, 1], the length of the step, of networks that are `sized`; None for 0, the
                velocity at the time itself. Others have no use for it.
        """
        raise TypeError(f"{type(self).__name__} must define forward")

    def time_features(self, time: Tensor) -> Tensor:
        """(B or 1, time_width) its embedding of the time, before the other inputs: for networks beside it."""
        return time.unsqueeze(-1)

    def condition(self, observations: Tensor) -> Tensor:
        """(B, condition_width) its embedding of the observation, before the other inputs."""
        return observations

    @classmethod
    def of_kind(cls, kind: str) -> type[VelocityNetwork]:
        """As `DescribedInPlace.of_kind`."""
        if kind in _HOMES:
            importlib.import_module(_HOMES[kind])
        if kind not in VELOCITIES:
            known = sorted({*VELOCITIES, *_HOMES})
            raise ConfigError(f"no velocity network is called {kind!r}; {nearest(kind, known)}")
        return VELOCITIES[kind]


class PlainVelocity(VelocityNetwork):
    """MLP of [observation, x, t]: hidden layers with GELU in its tanh form, Glorot's weights (FQL, QC, QAM)."""

    kind = "mlp"
    time_width = 1

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        velocity_hidden: Sequence[int] = (512, 512, 512, 512),
        velocity_activation: str = "gelu_tanh",
        velocity_layer_norm: LayerNorm = False,
    ) -> None:
        super().__init__()
        self.velocity_hidden, self.velocity_activation = tuple(velocity_hidden), velocity_activation
        self.velocity_layer_norm, self.condition_width = velocity_layer_norm, observation_dim
        self.mlp = MLP(
            observation_dim + action_dim + 1,
            action_dim,
            velocity_hidden,
            initialization="xavier",
            activation=velocity_activation,
            layer_norm=velocity_layer_norm,
        )

    def forward(self, observations: Tensor, x: Tensor, time: Tensor, size: Tensor | None = None) -> Tensor:
        """As `VelocityNetwork.forward`."""
        return self.mlp(torch.cat([observations, x, _column(time, x)], -1))


class Sinusoids(nn.Module):
    """(B,) times -> (B, W) sines, then cosines, of time multiplied by W / 2 frequencies between 1 and 1e-4."""

    frequencies: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        if width < 4 or width % 2:
            raise ConfigError(f"an embedding of the time of width {width}; needs an even number, at least 4")
        half = width // 2
        values = [math.exp(-math.log(1e4) * i / (half - 1)) for i in range(half)]
        self.register_buffer("frequencies", torch.tensor(values))

    def forward(self, time: Tensor) -> Tensor:
        """The features."""
        angles = time.unsqueeze(-1) * self.frequencies
        return torch.cat([angles.sin(), angles.cos()], -1)


class EmbeddedVelocity(VelocityNetwork):
    """A residual MLP of [x, embedding of the time, observation], ReinFlow's and DPPO's.

    The embedding is linear(mish(linear(sinusoids(t)))), twice as wide inside. The observation goes in as it is or, with
    `condition_hidden`, through an MLP of its own, whose last layer has no activation.
    """

    kind = "embedded"

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        velocity_hidden: Sequence[int] = (512, 512, 512),
        velocity_activation: str = "relu",
        time_embedding: int = 16,
        condition_hidden: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.velocity_hidden, self.velocity_activation = tuple(velocity_hidden), velocity_activation
        self.time_embedding, self.condition_hidden = time_embedding, tuple(condition_hidden)
        self.time_width = time_embedding
        self.sinusoids = Sinusoids(time_embedding)
        self.embed = self._embedding(time_embedding)
        self.encode = _condition(observation_dim, self.condition_hidden, velocity_activation)
        self.condition_width = self.condition_hidden[-1] if self.condition_hidden else observation_dim
        self.body = ResidualMLP(self._inputs(action_dim), action_dim, velocity_hidden, velocity_activation)

    def _embedding(self, width: int) -> nn.ModuleList:
        return nn.ModuleList([nn.Linear(width, 2 * width), nn.Linear(2 * width, width)])

    def _inputs(self, action_dim: int) -> int:
        return action_dim + self.time_embedding + self.condition_width

    def time_features(self, time: Tensor) -> Tensor:
        """As `VelocityNetwork.time_features`."""
        return self.embed[1](mish(self.embed[0](self.sinusoids(time))))

    def condition(self, observations: Tensor) -> Tensor:
        """As `VelocityNetwork.condition`."""
        return observations if self.encode is None else self.encode(observations)

    def forward(self, observations: Tensor, x: Tensor, time: Tensor, size: Tensor | None = None) -> Tensor:
        """As `VelocityNetwork.forward`."""
        embedded = self.time_features(time).expand(x.shape[0], -1)
        return self.body(torch.cat([x, embedded, self.condition(observations)], -1))


class ShortcutVelocity(EmbeddedVelocity):
    """A residual MLP of [x, e], e the sum of an embedding of time and step size and of an MLP of the observation.

    Time and size go through the same sinusoids, then together through linear(mish(linear)). The last width of
    `condition_hidden` is that of the embedding.
    """

    kind = "shortcut"
    sized = True

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        velocity_hidden: Sequence[int] = (512, 512, 512),
        velocity_activation: str = "relu",
        time_embedding: int = 16,
        condition_hidden: Sequence[int] = (32, 16),
    ) -> None:
        if not condition_hidden or condition_hidden[-1] != time_embedding:
            raise ConfigError(
                f"condition_hidden is {list(condition_hidden)}; its last width must be that of the embedding of the "
                f"time, {time_embedding}: the two are added"
            )
        super().__init__(
            observation_dim, action_dim, velocity_hidden, velocity_activation, time_embedding, condition_hidden
        )

    def _embedding(self, width: int) -> nn.ModuleList:
        return nn.ModuleList([nn.Linear(2 * width, width), nn.Linear(width, width)])

    def _inputs(self, action_dim: int) -> int:
        return action_dim + self.time_embedding

    def time_features(self, time: Tensor, size: Tensor | None = None) -> Tensor:
        """As `VelocityNetwork.time_features`, of time and step size."""
        both = [self.sinusoids(time), self.sinusoids(torch.zeros_like(time) if size is None else size)]
        rows = max(len(one) for one in both)
        joined = torch.cat([one.expand(rows, -1) for one in both], -1)
        return self.embed[1](mish(self.embed[0](joined)))

    def forward(self, observations: Tensor, x: Tensor, time: Tensor, size: Tensor | None = None) -> Tensor:
        """As `VelocityNetwork.forward`."""
        embedded = self.time_features(time, size) + self.condition(observations)
        return self.body(torch.cat([x, embedded], -1))


def _condition(observation_dim: int, hidden: tuple[int, ...], activation: str) -> MLP | None:
    """An MLP of these widths, the last one its output's; of one width only it is a linear layer, as an MLP of none."""
    if not hidden:
        return None
    if len(hidden) < 2 or activation not in ACTIVATIONS:
        raise ConfigError(f"condition_hidden is {list(hidden)}; needs a hidden width and the output's, or none at all")
    return MLP(observation_dim, hidden[-1], hidden[:-1], activation=activation)


def _column(time: Tensor, x: Tensor) -> Tensor:
    """(B, 1) of (B,) or (1,) times."""
    return time.unsqueeze(-1).expand(x.shape[0], -1)


VELOCITIES: dict[str, type[VelocityNetwork]] = {
    network.kind: network for network in (PlainVelocity, EmbeddedVelocity, ShortcutVelocity)
}
"""Kind of a velocity network -> class, of those here and those whose modules have been imported."""
_HOMES = {"unet": "surefoot.core.nn.unet"}


def network_of(
    kind: str, observation_dim: int, action_dim: int, hidden: Sequence[int], chunk: int = 1
) -> VelocityNetwork:
    """The network of a kind, with these hidden widths where it has such, for chunks of that many actions.

    Raises:
        ConfigError: no network is of this kind, or it has no place for such a chunk.
    """
    found = VelocityNetwork.of_kind(kind)
    given = {"velocity_hidden": tuple(hidden), "chunk": chunk}
    return found(observation_dim, action_dim, **{name: given[name] for name in found.option_names() if name in given})
