"""Heads of values with two streams, noisy weights, or distributions of the return, which take the best choice."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from surefoot.core.actors.greedy_actor import ChoiceValues
from surefoot.core.actors.masked_actors import masked
from surefoot.core.base.errors import ConfigError
from surefoot.core.losses.value_distributions import quantile_loss, shifted_categorical
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.noisy import NoisyMLP
from surefoot.core.nn.two_hot import cross_entropy, even_bins


class ValueHead(ChoiceValues):
    r"""Values of choices; with `dueling` by two networks, one of which is for all choices in common:

    .. math:: Q(s, a) = V(s) + A(s, a) - \tfrac{1}{|A|} \textstyle\sum_b A(s, b)

    Both streams have the `hidden` layers; of images they share the encoder, as in the paper. Source: Wang et al.,
    "Dueling Network Architectures for Deep Reinforcement Learning" (2016), eq. (9).
    """

    kind = "value_head"

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (256, 256),
        dueling: bool = False,
        noisy: float = 0.0,
        masked: bool = False,
    ) -> None:
        """Build from torch's global generator.

        Args:
            observation_dim: O.
            action_dim: A, the number of choices.
            hidden: widths of the hidden layers of each stream.
            dueling: two streams.
            noisy: deviation that noisy weights start with (`NoisyMLP`); 0: plain weights.
            masked: observations end with a mask of the allowed choices (`core.actors.masked_actors`).
        """
        super().__init__()
        self.hidden, self.dueling, self.noisy, self.masked = tuple(hidden), dueling, noisy, masked
        self.choices = action_dim
        self.advantage = self._stream(observation_dim, action_dim * self.width)
        self.common: nn.Module | None = self._stream(observation_dim, self.width) if dueling else None

    @property
    def width(self) -> int:
        """N, numbers of each choice."""
        return 1

    def _stream(self, inputs: int, outputs: int) -> nn.Module:
        if self.noisy > 0:
            return NoisyMLP(inputs, outputs, self.hidden, self.noisy)
        return MLP(inputs, outputs, self.hidden)

    @property
    def weight_noise_dim(self) -> int:
        """As of `ChoiceValues`."""
        return sum(s.noise_dim for s in (self.advantage, self.common) if isinstance(s, NoisyMLP))

    def estimates(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A, N), as of `ChoiceValues`."""
        own, common = self._split(noise)
        found = self._of(self.advantage, observations, own).unflatten(-1, (self.choices, self.width))
        if self.common is None:
            return found
        shared = self._of(self.common, observations, common).unsqueeze(-2)
        return shared + found - found.mean(-2, keepdim=True)

    def _split(self, noise: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The noise of both streams."""
        if noise is None or not isinstance(self.advantage, NoisyMLP):
            return None, None
        first = self.advantage.noise_dim
        return noise[..., :first], noise[..., first:]

    @staticmethod
    def _of(stream: nn.Module, observations: Tensor, noise: Tensor | None) -> Tensor:
        found: Tensor = stream(observations) if noise is None else stream(observations, noise)
        return found

    def values(self, outputs: Tensor, observations: Tensor) -> Tensor:
        """(B, A), that of a forbidden choice far below all others."""
        found = self.expected(outputs)
        return masked(found, observations) if self.masked else found

    def expected(self, outputs: Tensor) -> Tensor:
        """(B, A) means of the returns that (B, A, N) outputs stand for."""
        return outputs.squeeze(-1)

    def plain_network(self) -> MLP | None:
        """The advantages' network, of mean weights and with the mean of N outputs as one: what is common to all choices
        decides nothing. None where observations have a mask."""
        if self.masked:
            return None
        own = self.advantage.mean if isinstance(self.advantage, NoisyMLP) else self.advantage
        network = copy.deepcopy(own)
        assert isinstance(network, MLP)
        with torch.no_grad():
            weight, bias = network.weights[-1], network.biases[-1]
            network.weights[-1] = nn.Parameter(weight.unflatten(0, (self.choices, self.width)).mean(1))
            network.biases[-1] = nn.Parameter(bias.unflatten(0, (self.choices, self.width)).mean(1))
        return network


class QuantileHead(ValueHead):
    """Values as means of N quantiles of the return, of the levels (i + 1/2) / N (QR-DQN; Dabney et al., 2018)."""

    kind = "quantile_head"

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (256, 256),
        dueling: bool = False,
        noisy: float = 0.0,
        masked: bool = False,
        quantiles: int = 51,
    ) -> None:
        """As `ValueHead`; `quantiles` is N."""
        self.quantiles = _at_least(quantiles, 1, "quantiles")
        super().__init__(observation_dim, action_dim, hidden, dueling, noisy, masked)

    @property
    def width(self) -> int:
        """N."""
        return self.quantiles

    def expected(self, outputs: Tensor) -> Tensor:
        """(B, A) means of the quantiles."""
        return outputs.mean(-1)

    def losses(self, outputs: Tensor, target: Tensor, error: str) -> tuple[Tensor, Tensor]:
        """(B,) quantile Huber losses with kappa = 1, and (B,) the differences of the means."""
        return quantile_loss(outputs, target), (outputs.mean(-1) - target.mean(-1)).abs()


class CategoricalHead(ValueHead):
    """Values as means of probabilities softmax(outputs) on N evenly spaced returns (C51; Bellemare et al., 2017)."""

    kind = "categorical_head"

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (256, 256),
        dueling: bool = False,
        noisy: float = 0.0,
        masked: bool = False,
        atoms: int = 51,
        value_range: tuple[float, float] = (-10.0, 10.0),
    ) -> None:
        """As `ValueHead`; `atoms` is N, and `value_range` the lowest and the highest return."""
        self.atoms = _at_least(atoms, 2, "atoms")
        self.value_range = tuple(value_range)
        super().__init__(observation_dim, action_dim, hidden, dueling, noisy, masked)
        low, high = self.value_range
        self.register_buffer("returns", even_bins(low, high, atoms).float())

    returns: Tensor

    @property
    def width(self) -> int:
        """N."""
        return self.atoms

    def expected(self, outputs: Tensor) -> Tensor:
        """(B, A) means of the distributions."""
        return (outputs.softmax(-1) * self.returns).sum(-1)

    def target(self, outputs: Tensor, rewards: Tensor, reach: Tensor) -> Tensor:
        """(B, N) probabilities."""
        return shifted_categorical(outputs.softmax(-1), self.returns, rewards, reach)

    def losses(self, outputs: Tensor, target: Tensor, error: str) -> tuple[Tensor, Tensor]:
        """(B,) cross-entropies in nats, and (B,) divergences KL(target || outputs), which are 0 at the target."""
        loss = cross_entropy(outputs, target)
        return loss, (loss + torch.xlogy(target, target).sum(-1)).clamp(min=0)

    def plain_network(self) -> MLP | None:
        """None: the best choice depends on softmaxes."""
        return None


def _at_least(value: int, least: int, name: str) -> int:
    if value < least:
        raise ConfigError(f"{name} is {value}, must be >= {least}")
    return value
