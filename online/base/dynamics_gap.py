"""How a simulator's dynamics differ from those that data came from: estimates from two discriminators.

Each row (s, a, s') is real (from the data) or simulated. One discriminator sees (s, a), the other (s, a, s'); what the
second knows beyond the first is the log-ratio of the two dynamics, log p_real(s'|s, a) - log p_sim(s'|s, a). From
it come an importance weight (H2O), a reward (DARC) and an estimate of the divergence of the dynamics (H2O).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core.base.counter import CounterGenerator
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.nn.networks import MLP
from surefoot.data.dataset import Array, Dataset

LEAST_GAP, MOST_GAP = 1e-45, 10.0
"""The gap estimate is kept between these (t6-thu/H2O)."""
LEAST_WEIGHT = 1e-5
SPREADS = ("data", "zero_rows")


class DynamicsGap(nn.Module):
    """The two discriminators.

    Sources: Eysenbach et al., "Off-Dynamics Reinforcement Learning: Training for Transfer with Domain Classifiers"
    (ICLR 2021), eq. (2); bounded outputs and the gap: Niu et al., "When to Trust Your Simulator: Dynamics-Aware
    Hybrid Offline-and-Online Reinforcement Learning" (NeurIPS 2022) and t6-thu/H2O.
    """

    def __init__(
        self, observation_dim: int, action_dim: int, hidden: Sequence[int] = (256, 256), bound: float | None = 2.0
    ) -> None:
        """Build both from torch's global generator.

        Args:
            observation_dim: O.
            action_dim: A.
            hidden: widths of the hidden layers of each.
            bound: outputs are bound * tanh(.), so that a log-ratio lies within +- 2 * bound; None: not bounded.
        """
        super().__init__()
        self.bound = bound
        self.pair = MLP(observation_dim + action_dim, 2, hidden)
        self.transition = MLP(2 * observation_dim + action_dim, 2, hidden)

    def pair_odds(self, observation_actions: Tensor) -> Tensor:
        """(B,) log-odds that a (B, O + A) pair is real."""
        return self._odds(self.pair(observation_actions))

    def log_ratio(self, observation_actions: Tensor, next_observations: Tensor) -> Tensor:
        """(B,) log p_real(s'|s, a) - log p_sim(s'|s, a), in nats.

        The probabilities of the second discriminator are softmax(l_sas + l_sa), those of the first softmax(l_sa), so
        that the difference of their log-odds is that of l_sas alone.
        """
        return self._odds(self.transition(torch.cat([observation_actions, next_observations], -1)))

    def _odds(self, outputs: Tensor) -> Tensor:
        if self.bound is not None:
            outputs = self.bound * torch.tanh(outputs)
        return outputs[..., 0] - outputs[..., 1]

    def losses(self, observation_actions: Tensor, next_observations: Tensor) -> tuple[Tensor, Tensor]:
        """() cross-entropies of the first and of the second discriminator; the sum of both trains both.

        Args:
            observation_actions: (2 B, O + A), the first half real and the other simulated.
            next_observations: (2 B, O).
        """
        pair = self.pair_odds(observation_actions)
        both = pair + self.log_ratio(observation_actions, next_observations)
        return cross_entropy(pair), cross_entropy(both)

    def gap(self, observation_actions: Tensor, next_observations: Tensor, noise: Tensor, spread: Tensor) -> Tensor:
        """(B,) mean log p_sim/p_real over N next observations drawn around the one that the simulator gave.

        It stands for the divergence KL(p_sim || p_real) at (s, a), and may come out negative.

        Args:
            observation_actions: (B, O + A) of the simulator.
            next_observations: (B, O) of the simulator.
            noise: (B, N O) standard normal.
            spread: (O,) standard deviations of the draws.
        """
        size = next_observations.shape[-1]
        drawn = next_observations.unsqueeze(-2) + noise.unflatten(-1, (-1, size)) * spread
        count = drawn.shape[-2]
        pairs = observation_actions.unsqueeze(-2).expand(*drawn.shape[:-1], -1)
        ratio = self.log_ratio(pairs.flatten(-3, -2), drawn.flatten(-3, -2))
        return -ratio.unflatten(-1, (-1, count)).mean(-1)


def cross_entropy(odds: Tensor) -> Tensor:
    """() of log-odds (2 B,) of being real, the real rows first: the sum of the means of both classes."""
    real, simulated = odds.chunk(2)
    return nn.functional.softplus(-real).mean() + nn.functional.softplus(simulated).mean()


def importance_weights(log_ratio: Tensor) -> Tensor:
    """p_real/p_sim, no more than 1 and no less than 1e-5, from its logarithm."""
    return log_ratio.clamp(math.log(LEAST_WEIGHT), 0.0).exp()


def clipped_gap(gap: Tensor) -> Tensor:
    """A gap estimate between 1e-45 and 10."""
    return gap.clamp(LEAST_GAP, MOST_GAP)


def log_shares(gap: Tensor) -> Tensor:
    """(..., B) log(u / sum of u over the batch) of gap estimates that are clipped here.

    A row without a gap has the logarithm of 1e-45, about -103, before it is normalised: it has no share beside rows
    that have one, and an equal share where none has.
    """
    least = max(LEAST_GAP, torch.finfo(gap.dtype).tiny)  # below, float32 has numbers that some processors take for 0
    logs = torch.where(gap > least, gap.clamp(least, MOST_GAP).log(), math.log(LEAST_GAP))
    return logs - logs.logsumexp(-1, keepdim=True)


def spread_of(observations: Array, how: str) -> Array:
    """(O,) float32 standard deviations of (N, O) observations, by which the gap is sampled.

    Args:
        observations: of the data.
        how: "data": the deviations themselves; "zero_rows": what t6-thu/H2O computes, over a buffer of which ten
            elevenths are still zero, and 1e-3 more: about 0.3 of the true deviation where observations are centred.
    """
    mean, variance = observations.mean(0, dtype=np.float64), observations.var(0, dtype=np.float64)
    if how == "zero_rows":
        return (np.sqrt(variance / 11 + 10 * mean**2 / 121) + 1e-3).astype(np.float32)
    return np.sqrt(variance).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class GapEstimate:
    """What `estimate_gap` found."""

    gap: float  # mean over simulated transitions of the clipped estimate u that H2O uses, in nats
    divergence: float  # mean log p_sim/p_real at the simulator's own next observations: KL(p_sim || p_real), in nats
    loss: float  # cross-entropy of the second discriminator in the last step: 2 log 2 where it can't tell them apart
    network: DynamicsGap


def estimate_gap(
    real: Dataset,
    simulated: Dataset,
    *,
    steps: int = 5000,
    rows: int = 256,
    hidden: Sequence[int] = (256, 256),
    input_noise: float = 0.1,
    learning_rate: float = 3e-4,
    draws: int = 10,
    spread: str = "data",
    seed: int = 0,
) -> GapEstimate:
    """How far a simulator is from reality, from transitions of both: the discriminators of H2O alone.

    Args:
        real: transitions of the real system.
        simulated: of the simulator, in the same units; best by similar actions, for unlike ones say nothing.
        steps: of training.
        rows: real and simulated rows a step, each.
        hidden: widths of the discriminators.
        input_noise: standard deviation of the noise on their inputs while they train.
        learning_rate: of Adam.
        draws: N next observations that the gap is averaged over.
        spread: "data" or "zero_rows", see `spread_of`.
        seed: of weights, batches and noise.

    Raises:
        DataError: the datasets have other sizes of observations or actions.
        ConfigError: another word for `spread`, or no steps.
    """
    sizes = (real.observation_dim, real.action_dim)
    if sizes != (simulated.observation_dim, simulated.action_dim):
        raise DataError(
            f"{real.name} has observations and actions of {sizes[0]} and {sizes[1]} dimensions, {simulated.name} of "
            f"{simulated.observation_dim} and {simulated.action_dim}: compare transitions of one system"
        )
    if spread not in SPREADS or steps < 1:
        raise ConfigError(f"spread={spread!r} must be {' or '.join(SPREADS)}, and steps={steps} at least 1")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = DynamicsGap(*sizes, hidden)
    adam = torch.optim.Adam(network.parameters(), learning_rate)
    source = CounterGenerator([seed], "discriminators", 0, torch.device("cpu"))
    sides = [_transitions(dataset) for dataset in (real, simulated)]
    loss = torch.zeros(())
    for _ in range(steps):
        drawn = [side[source.integers(0, len(side), rows)[0]] for side in sides]
        batch = torch.cat(drawn)
        batch = batch + input_noise * source.standard_normal(batch.shape)[0]
        pair, loss = network.losses(*_split(batch, sizes[0]))
        adam.zero_grad()
        (pair + loss).backward()
        adam.step()
    with torch.no_grad():
        judged = sides[1][:: -(-len(sides[1]) // 5000)]
        pairs, following = _split(judged, sizes[0])
        noise = source.standard_normal((len(judged), draws * sizes[0]))[0]
        gap = network.gap(pairs, following, noise, torch.from_numpy(spread_of(real.observations, spread)))
        divergence = -network.log_ratio(pairs, following).mean()
    return GapEstimate(float(clipped_gap(gap).mean()), float(divergence), float(loss.detach()), network)


def _transitions(dataset: Dataset) -> Tensor:
    """(N, 2 O + A) rows (s, a, s') of a dataset that are transitions."""
    rows = np.concatenate([dataset.observations, dataset.actions, dataset.next_observations], 1)[dataset.transitions]
    return torch.from_numpy(rows.astype(np.float32))


def _split(rows: Tensor, observation_dim: int) -> tuple[Tensor, Tensor]:
    """Pairs (s, a) and next observations."""
    return rows[:, :-observation_dim], rows[:, -observation_dim:]
