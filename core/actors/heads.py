"""Policy heads: deterministic, Gaussians (squashed or not, held noise, a family), tanh-Gaussian; and categorical."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.core.actors.actor import ACTORS as ACTORS
from surefoot.core.actors.actor import Actor as Actor
from surefoot.core.actors.actor import DistributionActor, Evaluation, MLPActor, SampleAux
from surefoot.core.base.pointwise import pointwise
from surefoot.core.losses.distributions import (
    gaussian_entropy,
    gaussian_log_density,
    kl_gaussian,
    normal_terms,
    tanh_log_determinant,
    tanh_log_slopes,
)
from surefoot.core.nn.networks import MLP, NORM_EPSILON, LayerNorm


class DeterministicActor(MLPActor):
    """a = tanh(MLP(s))."""

    kind = "deterministic"

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (256, 256),
        initialization: str = "torch",
        activation: str = "relu",
        layer_norm: LayerNorm = False,
        norm_epsilon: float | None = None,
    ) -> None:
        super().__init__()
        own: dict[str, Any] = {"initialization": initialization, "activation": activation}
        self.mlp = MLP(observation_dim, action_dim, hidden, layer_norm=layer_norm, norm_epsilon=norm_epsilon, **own)

    def forward(self, observations: Tensor, masks: Tensor | None = None) -> Tensor:
        """(B, A) actions in [-1, 1]."""
        return torch.tanh(self.mlp(observations, masks))

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions; `noise` has no effect."""
        return self(observations)

    @property
    def noise_dim(self) -> int:
        """0: there is nothing to draw."""
        return 0


class GaussianActor(MLPActor):
    """Normal with mean tanh(MLP(s)) and a standard deviation that does not depend on the state (IQL).

    The distribution itself is not squashed: log-densities are plain normal ones, and actions are clipped
    to [-1, 1] only when acting.
    """

    kind = "gaussian"

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (256, 256),
        initialization: str = "torch",
        log_std_range: tuple[float, float] = (-5.0, 2.0),
    ) -> None:
        super().__init__()
        self.mlp = MLP(observation_dim, action_dim, hidden, initialization=initialization)
        self.log_std = nn.Parameter(torch.zeros(action_dim))
        self.log_std_range = log_std_range

    def forward(self, observations: Tensor, masks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean (B, A) in [-1, 1] and log standard deviation (A,)."""
        mean = torch.tanh(self.mlp(observations, masks))
        return mean, self.log_std.clamp(*self.log_std_range)

    def evaluate(self, observations: Tensor, actions: Tensor, sample_aux: Mapping[str, Tensor]) -> Evaluation:
        """Density and entropy of the normal."""
        mean, log_std = self(observations)
        entropy = gaussian_entropy(log_std).expand(mean.shape[:-1])
        return Evaluation(gaussian_log_density(actions, mean, log_std), entropy, (mean, log_std))

    def log_density(
        self, observations: Tensor, actions: Tensor, sample_aux: Any = None, masks: Tensor | None = None
    ) -> Tensor:
        """(B,) log-density of (B, A) actions, in nats; under (B, sum of hidden widths) dropout `masks`."""
        terms = _bounded_normal_terms(actions, self.mlp(observations, masks), self.log_std, *self.log_std_range)
        return terms.sum(-1)

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) mean actions, or samples from (B, A) standard normal `noise`; clipped to [-1, 1]."""
        mean, log_std = self(observations)
        if noise is not None:
            mean = mean + log_std.exp() * noise
        return mean.clamp(-1, 1)


@pointwise
def _bounded_normal_terms(actions: Tensor, outputs: Tensor, log_std: Tensor, lowest: float, highest: float) -> Tensor:
    return normal_terms(actions, torch.tanh(outputs), log_std.clamp(lowest, highest))


@pointwise
def _squashed(
    mean: Tensor, free: Tensor, noise: Tensor, bound: Callable[..., Tensor], lowest: float, highest: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Terms of a sample's log-density, those that are taken off, and the sample's tanh."""
    log_std = bound(free, lowest, highest)
    unsquashed = mean + log_std.exp() * noise
    return normal_terms(unsquashed, mean, log_std), tanh_log_slopes(unsquashed), torch.tanh(unsquashed)


class TanhGaussianActor(MLPActor):
    """tanh of a normal whose mean and standard deviation depend on the state (SAC)."""

    kind = "tanh_gaussian"
    outputs = 2

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (256, 256),
        initialization: str = "torch",
        log_std_range: tuple[float, float] = (-5.0, 2.0),
        layer_norm: LayerNorm = False,
        activation: str = "relu",
        unit_features: bool = False,
        norm_epsilon: float = NORM_EPSILON,
    ) -> None:
        super().__init__()
        self.mlp = MLP(
            observation_dim,
            2 * action_dim,
            hidden,
            initialization=initialization,
            activation=activation,
            layer_norm=layer_norm,
            norm_epsilon=norm_epsilon,
            unit_features=unit_features,
        )
        self.log_std_range = log_std_range
        if initialization == "xavier":  # as where mean and deviation are layers of their own (REDQ, RLPD, QAM)
            for head in self.mlp.weights[-1].detach().chunk(2):
                nn.init.xavier_uniform_(head)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation before the tanh, (B, A) each."""
        mean, free = self.mlp(observations).chunk(2, dim=-1)
        return mean, self.bound(free, *self.log_std_range)

    @staticmethod
    def bound(free: Tensor, lowest: float, highest: float) -> Tensor:
        """The log standard deviation, which lies in a range, of what the network gives for it; element by element."""
        return free.clamp(lowest, highest)

    def draw(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparameterised actions (..., B, A) in (-1, 1) and their log-densities (..., B) in nats.

        Args:
            observations: (B, O).
            noise: (..., B, A) standard normal: each observation gets as many actions as there are leading places.
        """
        mean, free = self.mlp(observations).chunk(2, dim=-1)
        terms, slopes, actions = _squashed(mean, free, noise, self.bound, *self.log_std_range)
        return actions, terms.sum(-1) - slopes.sum(-1)

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, SampleAux]:
        """(B, A) samples, and the values before the tanh, which an action near +- 1 no longer determines."""
        mean, log_std = self(observations)
        unsquashed = mean + log_std.exp() * noise
        return torch.tanh(unsquashed), {"unsquashed": unsquashed}

    def evaluate(self, observations: Tensor, actions: Tensor, sample_aux: Mapping[str, Tensor]) -> Evaluation:
        """Density of what `sample` gave; the entropy is that of the normal before the tanh.

        Without what was kept, of actions of another policy say, these are taken to be within 1 - 1e-6 of 0.
        """
        mean, log_std = self(observations)
        unsquashed = sample_aux["unsquashed"] if sample_aux else torch.atanh(actions.clamp(-1 + 1e-6, 1 - 1e-6))
        density = gaussian_log_density(unsquashed, mean, log_std) - tanh_log_determinant(unsquashed)
        return Evaluation(density, gaussian_entropy(log_std), (mean, log_std))

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) tanh of the mean, or samples from (B, A) standard normal `noise`."""
        mean, log_std = self(observations)
        return torch.tanh(mean if noise is None else mean + log_std.exp() * noise)

    def in_torch(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """`act` with noise in plain PyTorch, as a function for many calls; None: of a network with norms.

        Its parameters must stay where they are: changes in place count at once.
        """
        network = self.mlp.in_torch()
        if network is None or type(self) is not TanhGaussianActor:
            return None
        bound, limits = self.bound, self.log_std_range

        def act(observations: Tensor, noise: Tensor) -> Tensor:
            mean, free = network(observations).chunk(2, dim=-1)
            return torch.tanh(mean + bound(free, *limits).exp() * noise)

        return act


class UnboundedGaussianActor(DistributionActor):
    """Normal with mean MLP(s), not squashed, and a standard deviation that does not depend on the state (PPO).

    Actions are samples as drawn: log-densities belong to them, and only what acts in an environment clips them.
    Source: Huang et al., "The 37 Implementation Details of PPO", details 1 to 5 for continuous actions.
    """

    kind = "unbounded_gaussian"

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (64, 64),
        initialization: str = "torch",
        log_std_range: tuple[float, float] = (-20.0, 2.0),
        activation: str = "tanh",
        initial_log_std: float = 0.0,
    ) -> None:
        super().__init__()
        self.mlp = MLP(observation_dim, action_dim, hidden, initialization=initialization, activation=activation)
        self.log_std = nn.Parameter(torch.full((action_dim,), initial_log_std))
        self.log_std_range = log_std_range

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (B, A), of any size, and log standard deviation (A,)."""
        return self.mlp(observations), self.log_std.clamp(*self.log_std_range)

    def density_of(self, outputs: tuple[Tensor, Tensor], actions: Tensor) -> Tensor:
        """(B,) log-density of (B, A) actions under what the actor gave, in nats."""
        return gaussian_log_density(actions, *outputs)

    def entropy_of(self, outputs: tuple[Tensor, Tensor]) -> Tensor:
        """(B,) entropy in nats."""
        mean, log_std = outputs
        return gaussian_entropy(log_std).expand(mean.shape[:-1])

    def divergence(self, outputs: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]) -> Tensor:
        """(B,) KL(outputs || others) in nats, exactly."""
        return kl_gaussian(*outputs, *others)

    def to_rows(self, outputs: tuple[Tensor, Tensor]) -> Tensor:
        """Outputs as (B, 2 A) rows, to be kept and read again by `from_rows`."""
        mean, log_std = outputs
        return torch.cat([mean, log_std.expand_as(mean)], -1)

    def from_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Inverse of `to_rows`."""
        mean, log_std = rows.chunk(2, -1)
        return mean, log_std

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) mean actions, or samples from (B, A) standard normal `noise`; not clipped."""
        mean, log_std = self(observations)
        return mean if noise is None else mean + log_std.exp() * noise


class StateDependentActor(UnboundedGaussianActor):
    r"""Normal whose noise is a random linear function of the last hidden layer, smooth while that is held (gSDE).

    .. math::
        a = \mu(s) + (\sigma \odot Z)^T \phi(s), \qquad
        a | s \sim \mathcal N(\mu_j(s), \textstyle\sum_i \sigma_{ij}^2 \phi_i(s)^2 + 10^{-6})

    :math:`\phi` are the last hidden layer's outputs, which the variance does not train; Z is standard normal. So
    natural steps (TRPO, CPO) take the divergence's curvature at these features, and bound the true divergence.
    Source: Raffin, Kober and Stulp, "Smooth Exploration for Robotic Reinforcement Learning" (CoRL 2021), whose code has
    the 1e-6 and takes the gradient from the features.
    """

    kind = "state_dependent"

    def __init__(self, *sizes: Any, **options: Any) -> None:
        """As the parent's, with a row of deviations for each unit of the last hidden layer."""
        super().__init__(*sizes, **options)
        self.log_std = nn.Parameter(self.log_std.detach().repeat(self.mlp.hidden[-1], 1))

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation of a single action, (B, A) each."""
        features, mean = self.mlp.with_features(observations)
        variance = features.detach().square() @ (2 * self.log_std.clamp(*self.log_std_range)).exp()
        return mean, 0.5 * (variance + 1e-6).log()

    @property
    def held_dim(self) -> int:
        """H A: a number for each last hidden unit and dimension of the action."""
        return self.log_std.numel()

    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(B, A) samples from (B, H A) standard normal `noise`, a function each; not clipped."""
        features, mean = self.mlp.with_features(observations)
        functions = self.log_std.clamp(*self.log_std_range).exp() * noise.unflatten(-1, self.log_std.shape)
        return mean + (features.unsqueeze(-2) @ functions).squeeze(-2)


class SoftplusGaussianActor(MLPActor):
    """Normal with mean and softplus standard deviation from one MLP, neither clamped nor squashed (stream AC).

    Source: Elsayed, Vasan and Mahmood, "Streaming Deep Reinforcement Learning Finally Works".
    """

    kind = "softplus_gaussian"
    outputs = 2

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (128, 128),
        initialization: str = "torch",
        activation: str = "leaky_relu",
        layer_norm: LayerNorm = False,
    ) -> None:
        super().__init__()
        self.mlp = MLP(
            observation_dim,
            2 * action_dim,
            hidden,
            initialization=initialization,
            activation=activation,
            layer_norm=layer_norm,
        )

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, (B, A) each."""
        mean, raw = self.mlp(observations).chunk(2, dim=-1)
        return mean, nn.functional.softplus(raw)

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) mean actions, or samples from (B, A) standard normal `noise`; not clipped."""
        mean, std = self(observations)
        return mean if noise is None else mean + std * noise


class Choices:
    """What a head of choices does with the (B, A) log-probabilities that it gives for observations."""

    def density_of(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """(B,) log-probability of (B, A) one-hot actions under what the actor gave, in nats."""
        return (outputs * actions).sum(-1)

    def entropy_of(self, outputs: Tensor) -> Tensor:
        """(B,) entropy in nats."""
        return -(outputs.exp() * outputs).sum(-1)

    def divergence(self, outputs: Tensor, others: Tensor) -> Tensor:
        """(B,) KL(outputs || others) in nats, exactly."""
        return (outputs.exp() * (outputs - others)).sum(-1)

    def to_rows(self, outputs: Tensor) -> Tensor:
        """Outputs as (B, A) rows: themselves."""
        return outputs

    def from_rows(self, rows: Tensor) -> Tensor:
        """Inverse of `to_rows`."""
        return rows

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) one-hot likeliest choices, or samples from (B, A) standard normal `noise`.

        Source: the Gumbel-max trick; -log(-log Phi(z)) of a standard normal z is a Gumbel number.
        """
        scores: Tensor = self(observations)  # type: ignore[operator]
        if noise is not None:
            scores = scores - torch.log(-torch.special.log_ndtr(noise))
        return nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)


class CategoricalActor(Choices, DistributionActor):
    """One of A choices, with probabilities softmax(MLP(s)); actions are one-hot rows."""

    kind = "categorical"
    discrete = True

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (64, 64),
        initialization: str = "torch",
        activation: str = "tanh",
        layer_norm: LayerNorm = False,
    ) -> None:
        super().__init__()
        self.mlp = MLP(
            observation_dim,
            action_dim,
            hidden,
            initialization=initialization,
            activation=activation,
            layer_norm=layer_norm,
        )

    def logits(self, observations: Tensor) -> Tensor:
        """(B, A) scores before they are normalised."""
        return self.mlp(observations)

    def forward(self, observations: Tensor) -> Tensor:
        """(B, A) log-probabilities."""
        logits = self.logits(observations)
        logits = logits - logits.amax(-1, keepdim=True).detach()
        return logits - logits.exp().sum(-1, keepdim=True).log()
