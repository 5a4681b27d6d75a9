r"""A latent consistency model: dynamics of an encoder's own space, without a decoder (TD-MPC2's world model).

.. math:: z = h(s), \quad z' = d(z, a), \quad \hat r = R(z, a), \quad \hat Q_i = Q_i(z, a)

What an observation is encoded to is learned from where its successors are encoded to, from rewards and from values; a
simplicial norm (`core.nn.simplices`) keeps the states from shrinking or growing. Rewards and values are distributions
over bins of symlog numbers (`core.nn.two_hot`). Layers are linear, layer norm and Mish; weights are drawn from a normal
of deviation 0.02, biases are 0, and the last layers of rewards and values begin at 0.

Source: Hansen, Su and Wang, "TD-MPC2: Scalable, Robust World Models for Continuous Control", section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.base.pointwise import pointwise
from surefoot.core.nn.activations import mish, scaled
from surefoot.core.nn.native import kernels
from surefoot.core.nn.networks import MLP, at_members
from surefoot.core.nn.simplices import simplicial_norm
from surefoot.core.nn.two_hot import cross_entropy, even_bins, mean_of_bins, symexp, symlog, two_hot
from surefoot.envs import describe
from surefoot.world_models.dynamics import Outcome, StepNoise

DEVIATION = 0.02
"""Of the weights at the beginning."""


@torch.no_grad()
def begin(network: MLP, last: float = DEVIATION) -> MLP:
    """Draw weights from a normal of deviation 0.02 cut at 2, and of the last layer of another; biases are 0."""
    count = len(network.weights)
    for layer, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        deviation = last if layer == count - 1 else DEVIATION
        if deviation > 0:
            nn.init.trunc_normal_(weight, std=deviation)
        else:
            weight.zero_()
        bias.zero_()
    return network


def layers(
    inputs: int, outputs: int, hidden: Sequence[int], members: int | None = None, last: float = DEVIATION
) -> MLP:
    """An MLP of layer norms and Mish, drawn as `begin` says."""
    return begin(MLP(inputs, outputs, hidden, members=members, activation="mish", layer_norm=True), last)


@pointwise
def _scaled_mish(value: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return mish(torch.addcmul(shift, value, scale))


class SimplicialMLP(nn.Module):
    """An MLP whose outputs are layer-normed and pass through a simplicial norm."""

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int], group: int) -> None:
        super().__init__()
        self.mlp = layers(inputs, outputs, hidden)
        self.norm = nn.LayerNorm(outputs)
        self.group = group

    def forward(self, values: Tensor) -> Tensor:
        """(..., in) -> (..., out) on simplices."""
        value, norm = self.mlp(values), self.norm
        if value.device.type == "cpu":
            return simplicial_norm(norm(value), self.group)
        normed = nn.functional.layer_norm(value, value.shape[-1:], eps=norm.eps)
        return simplicial_norm(scaled(normed, norm.weight, norm.bias), self.group)


class Bins(nn.Module):
    """Evenly spaced bins of symlog numbers: targets, losses and means of distributions over them."""

    bins: Tensor

    def __init__(self, count: int = 101, limit: float = 10.0) -> None:
        """From -limit to limit, in symlog units: 10 stands for 22,025."""
        super().__init__()
        self.register_buffer("bins", even_bins(-limit, limit, count).float())

    def loss(self, logits: Tensor, values: Tensor) -> Tensor:
        """(...) cross-entropy of (..., K) logits against (...) values, in nats."""
        return cross_entropy(logits, two_hot(symlog(values), self.bins))

    def mean(self, logits: Tensor) -> Tensor:
        """(...) values that (..., K) logits stand for, in their own units."""
        return symexp(mean_of_bins(logits, self.bins))


class LatentModel(nn.Module):
    """Dynamics, reward and, where episodes terminate, terminations of latent states: `Dynamics` for planners."""

    noise_dim, members = 0, 1
    knows_costs = False

    def __init__(
        self,
        latent_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (512, 512),
        group: int = 8,
        bins: int = 101,
        limit: float = 10.0,
        terminates: bool = False,
    ) -> None:
        """Build and initialise from torch's global generator.

        Args:
            latent_dim: V, width of a state.
            action_dim: A.
            hidden: widths of the hidden layers of each network.
            group: numbers in a simplex; divides V.
            bins: of the reward's distribution.
            limit: symlog of the largest reward.
            terminates: whether there is a network that says where episodes terminate.
        """
        super().__init__()
        self.state_dim, self.action_dim = latent_dim, action_dim
        self.bins = Bins(bins, limit)
        self.dynamics = SimplicialMLP(latent_dim + action_dim, latent_dim, hidden, group)
        self.reward = layers(latent_dim + action_dim, bins, hidden, last=0.0)
        self.termination = layers(latent_dim, 1, hidden) if terminates else None

    def following(self, states: Tensor, actions: Tensor) -> Tensor:
        """(..., V) states after (..., A) actions."""
        following: Tensor = self.dynamics(torch.cat([states, actions], -1))
        return following

    def termination_logits(self, states: Tensor) -> Tensor:
        """(...) log-odds that an episode has terminated where it reached (..., V) states; of models that learn it."""
        assert self.termination is not None
        logits: Tensor = self.termination(states).squeeze(-1)
        return logits

    def termination_loss(self, states: Tensor, terminations: Tensor, mask: Tensor) -> Tensor:
        """() cross-entropy of (B, T) terminations where (B, T, V) states were reached, a mean over the mask."""
        log_odds = self.termination_logits(states)
        ended = nn.functional.binary_cross_entropy_with_logits(log_odds, terminations, reduction="none")
        return (ended * mask).sum() / mask.sum()

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        """As `Dynamics.step`: (..., V) states, (..., A) actions; nothing is random, and costs are 0."""
        pairs = torch.cat([states, actions], -1)
        rewards, following = self.bins.mean(self.reward(pairs)), self.dynamics(pairs)
        ended = torch.zeros_like(rewards, dtype=torch.bool)
        if self.termination is not None:
            ended = self.termination_logits(following) > 0
        return Outcome(following, rewards, torch.zeros_like(rewards), ended)


class LatentCritic(nn.Module):
    """E critics of latent states: distributions over bins of the values of state and action."""

    def __init__(
        self,
        latent_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (512, 512),
        members: int = 5,
        bins: int = 101,
        limit: float = 10.0,
    ) -> None:
        super().__init__()
        self.bins = Bins(bins, limit)
        self.mlp = layers(latent_dim + action_dim, bins, hidden, members, last=0.0)

    def forward(self, pairs: Tensor, members: Tensor | slice | None = None, masks: Tensor | None = None) -> Tensor:
        """(M, B, K) logits of (B, V + A) states and actions.

        Args:
            pairs: state and action side by side.
            members: (M,) int64 or a slice: which critics; None: all.
            masks: (M, B, first hidden width) dropout masks, divided by the keep probability, of what the first layer
                gives before its norm; None: no dropout.
        """
        mlp, last = self.mlp, len(self.mlp.weights) - 1
        weights, biases, gains, shifts = at_members((mlp.weights, mlp.biases, mlp.scales, mlp.shifts), members)
        value = pairs
        for layer in range(last + 1):
            value = kernels.linear(value, weights[layer], biases[layer])
            if layer == last:
                return value
            gain, shift = gains[layer], shifts[layer]
            if layer == 0 and masks is not None:
                value = value * masks
            normed = nn.functional.layer_norm(value, value.shape[-1:])
            value = _scaled_mish(normed, gain.unsqueeze(-2), shift.unsqueeze(-2))
        return value

    def values(self, pairs: Tensor, members: Tensor | slice | None = None, masks: Tensor | None = None) -> Tensor:
        """(M, B) values in the units of rewards; as `forward`."""
        return self.bins.mean(self(pairs, members, masks))


class PolicyPrior(TanhGaussianActor):
    """tanh of a normal whose log deviation is squashed into a range by a tanh, on latent states."""

    kind = "latent_prior"

    def __init__(
        self, latent_dim: int, action_dim: int, hidden: Sequence[int] = (512, 512),
        log_std_range: tuple[float, float] = (-10.0, 2.0),
    ) -> None:  # fmt: skip
        super().__init__(
            latent_dim, action_dim, hidden, log_std_range=log_std_range, layer_norm=True, activation="mish"
        )
        begin(self.mlp)

    @staticmethod
    @pointwise
    def bound(free: Tensor, lowest: float, highest: float) -> Tensor:
        """As `TanhGaussianActor.bound`, by a tanh."""
        return lowest + 0.5 * (highest - lowest) * (torch.tanh(free) + 1)


def kept_units(mask: Tensor, copies: int) -> Tensor:
    """(copies, B, W) dropout masks out of one of (B, W): its rows moved on by one for each copy.

    For each row the copies are as independent as rows are, as long as there are no more of them than rows, and a
    training step draws B W numbers instead of so many for each member of an ensemble.
    """
    rows = mask.shape[0]
    if mask.device.type == "cpu" or copies > rows:
        return torch.stack([mask.roll(turn, 0) for turn in range(copies)])
    windows = torch.cat([mask, mask]).unfold(0, rows, 1)  # views of the rows from each one on
    return windows[rows - copies + 1 :].flip(0).mT


def dropped_units(mask: Tensor, members: int, steps: int) -> Tensor:
    """(members, B steps, W) dropout masks out of one of (B, W), of windows whose rows and steps are flattened."""
    masks = kept_units(mask, members * steps).unflatten(0, (members, steps))
    return masks.transpose(1, 2).flatten(1, 2)


def step_weights(mask: Tensor, decay: float) -> Tensor:
    """(B, T) decay^t / T, each step's shared by the rows that reach it, for a (B, T) mask."""
    factors = decay ** torch.arange(mask.shape[1], device=mask.device, dtype=mask.dtype)
    return factors / mask.shape[1] * mask / mask.sum(0).clamp(min=1)


def discount_of(episode_length: int) -> float:
    """TD-MPC2's clip((T/5 - 1) / (T/5), 0.95, 0.995): 0.95 up to 100 steps, 0.99 at 500, 0.995 from 1,000 on."""
    fifth = episode_length / 5
    return min(max((fifth - 1) / fifth, 0.95), 0.995)


def discount_notes(env_id: str | None, episode_length: int, discount: float | None) -> list[str]:
    """What a user should hear where no discount is given, and the environment's time limit asks for another one."""
    limit = None if env_id is None or discount is not None else describe(env_id).max_episode_steps
    if limit is None or discount_of(limit) == discount_of(episode_length):
        return []
    used = f"the discount, {discount_of(episode_length):g}, is that of episodes of {episode_length} steps"
    return [f"{used}, and those of {env_id} have {limit}: algo.episode_length={limit} is for them"]
