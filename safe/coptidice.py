"""COptiDICE: the data reweighted to the stationary distribution of the best policy within a cost limit, then cloned."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update
from surefoot.core.losses.distributions import tanh_gaussian_log_density
from surefoot.core.nn.networks import Value
from surefoot.core.nn.temperature import Temperature
from surefoot.data.dataset import Array, Dataset
from surefoot.safe.constraint.cost_critics import COSTS_TOO, ThresholdAgent, ThresholdConfig

EDGE = 1e-4
"""Actions are taken this far inside [-1, 1] before the tanh is undone."""


@dataclasses.dataclass(frozen=True)
class COptiDICEConfig(ThresholdConfig):
    """Settings of COptiDICE; the numbers are OSRL's."""

    regularization: float = option(
        0.5, "weight of the divergence from the data, alpha, in units of scaled rewards", range="> 0"
    )
    radius: float = option(
        0.01, "radius of the cost's upper bound, epsilon, in nats; 0: the plain estimate", range=">= 0"
    )
    multiplier: float = option(1.0, "the multiplier at the start, lambda", range="> 0")
    learning_rate: float = option(1e-4, "learning rate", range=">= 0")
    actor_learning_rate: float = option(1e-4, "learning rate of the actor", range=">= 0")


def softchi(weights: Tensor) -> Tensor:
    """f(w) = w log w - w + 1 below 1, (w - 1)^2 / 2 above: chi-square where it is steep, and gentle near 0.

    Source: Lee et al., "COptiDICE", appendix.
    """
    below = weights.clamp(min=1e-10, max=1)
    return torch.where(weights < 1, below * below.log() - below + 1, 0.5 * (weights - 1).square())


def softchi_inverse(values: Tensor) -> Tensor:
    """(f')^-1 of `softchi`: exp(x) below 0, x + 1 above; value and slope are 1 at 0."""
    return torch.where(values < 0, values.clamp(max=0).exp(), values + 1)


class COptiDICE(ThresholdAgent):
    r"""COptiDICE of Lee et al. (ICLR 2022), with the divergence "softchi".

    .. math::
        e &= r - \lambda c + \gamma (1 - d) \nu(s') - \nu(s), \quad w = (f')^{-1}(e / \alpha)_+ \\
        L_\nu &= (1 - \gamma) E_{s_0} \nu(s_0) + E [w e - \alpha f(w)] \\
        \ell &= (1 - \gamma) \chi(s_0) + w (c + \gamma (1 - d) \chi(s') - \chi(s)), \quad
            p = B\, \mathrm{softmax}(\ell / \tau) \\
        L_\chi &= E [p\, \ell], \quad L_\tau = \tau (\epsilon - E [p \log p]), \quad
            L_\lambda = \lambda (\hat c - E [p\, w c]) \\
        L_\pi &= -E [w \log \pi(a|s)]

    with weights p held fixed in L_chi. Slips of OSRL that are not here: its limit on the *average* cost of a step,
    :math:`E [w c] \le \hat c`, is a discounted *sum*, 1 / (1 - gamma) times too large (here :math:`\hat c =
    (1 - \gamma) q_{thr}`); its log pi is the normal's before the tanh, taken at the action after it (here the tanh is
    undone, and its determinant counted); time-outs end its returns. First states come from a column of their own, one
    for each row, instead of from the few rows of a batch that happen to be first. No noise is added to the data.
    """

    name = "coptidice"
    Config: ClassVar[type] = COptiDICEConfig
    PRESETS = {"osrl": {}, "small": {"learning_rate": 3e-4, "actor_learning_rate": 3e-4}}  # noqa: RUF012
    required_columns: ClassVar[tuple[str, ...]] = (*COSTS_TOO, "initial_observations")
    config: COptiDICEConfig
    actor: TanhGaussianActor

    def build(self) -> None:
        """nu, chi, the weights lambda and tau, actor."""
        super().build()
        c, spec = self.config, self.spec
        self.nu = Value(spec.observation_dim, c.hidden)
        self.multiplier = Temperature(c.multiplier, "softplus")
        if c.radius > 0:
            self.chi = Value(spec.observation_dim, c.hidden)
            self.tau = Temperature(1.0, "softplus")
        self.actor = TanhGaussianActor(spec.observation_dim, spec.action_dim, c.hidden)

    @property
    def step_limit(self) -> Tensor:
        """() c hat: what a step may cost on average over discounted time, (1 - gamma) times the discounted limit."""
        return (1 - self.config.discount) * self.cost_threshold

    def prepare(self, dataset: Dataset) -> Dataset:
        """Costs beside scaled rewards, normalised observations, and a first state for each row."""
        dataset = super().prepare(dataset)
        return dataset.replace(extras={**dataset.extras, "initial_observations": initial_observations(dataset)})

    def annotate(self, batch: Batch) -> Batch:
        """Add the stationary weights w, which three losses read as they are."""
        return {**batch, "weights": softchi_inverse(self._advantage(batch) / self.config.regularization)}

    def _advantage(self, batch: Batch) -> Tensor:
        """(B,) e."""
        c, alive = self.config, 1 - batch["terminations"]
        following = c.discount * alive * self.nu(batch["next_observations"])
        return batch["rewards"] - self.multiplier() * batch["costs"] + following - self.nu(batch["observations"])

    def nu_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """The dual of the regularised linear programme, in its multipliers of the flow constraints."""
        c, advantage = self.config, self._advantage(batch)
        weights = softchi_inverse(advantage / c.regularization)
        first = (1 - c.discount) * self.nu(batch["initial_observations"]).mean()
        gain = weights * advantage - c.regularization * softchi(weights)
        return first + gain.mean(), {"weights": weights, "advantage": advantage}

    def chi_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """An upper bound of the cost, over distributions within a radius of the batch's: its flow part."""
        bound = self._bound(batch)
        return (self._tilt(bound) * bound).mean(), {"cost_bound": bound}

    def tau_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Raises the temperature of the tilt while the tilted distribution is further away than the radius."""
        tilt = self._tilt(self._bound(batch))
        divergence = (tilt * tilt.clamp(min=1e-10).log()).mean()
        return self.tau() * (self.config.radius - divergence.detach()), {"divergence": divergence}

    def multiplier_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Raises lambda while the weighted data costs more than the limit."""
        tilt = self._tilt(self._bound(batch)) if self.config.radius > 0 else torch.ones_like(batch["costs"])
        cost = (tilt * batch["weights"] * batch["costs"]).mean().detach()
        weight = self.multiplier()
        return weight * (self.step_limit - cost), {"multiplier": weight, "step_cost": cost}

    def _bound(self, batch: Batch) -> Tensor:
        """(B,) ell."""
        c, alive = self.config, 1 - batch["terminations"]
        flow = c.discount * alive * self.chi(batch["next_observations"]) - self.chi(batch["observations"])
        first = (1 - c.discount) * self.chi(batch["initial_observations"])
        return first + batch["weights"] * (batch["costs"] + flow)

    def _tilt(self, bound: Tensor) -> Tensor:
        """(B,) p, without gradient: B softmax(ell / tau)."""
        scaled = bound.detach() / self.tau().detach()
        raised = (scaled - scaled.amax(-1, keepdim=True)).exp()
        return raised / raised.mean(-1, keepdim=True)

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Negative log-density of the data's actions, by their weights."""
        mean, log_std = self.actor(batch["observations"])
        actions = batch["actions"].clamp(-1 + EDGE, 1 - EDGE)
        unsquashed = 0.5 * ((1 + actions).log() - (1 - actions).log())
        density = tanh_gaussian_log_density(unsquashed, mean, log_std)
        return -(batch["weights"] * density).mean(), {"log_density": density}

    def updates(self) -> list[Update]:
        """All at the same parameters."""
        c = self.config
        adam, actor = Adam(c.learning_rate), Adam(c.actor_learning_rate)
        made = [Update(self.nu_loss, ("nu",), adam)]
        if c.radius > 0:
            made.append(Update(self.chi_loss, ("chi",), adam, simultaneous=True))
            made.append(Update(self.tau_loss, ("tau",), adam, simultaneous=True))
        made.append(Update(self.multiplier_loss, ("multiplier",), adam, simultaneous=True))
        return [*made, Update(self.actor_loss, ("actor",), actor, simultaneous=True)]


def initial_observations(dataset: Dataset) -> Array:
    """(N, O) first observations of episodes, one for each row, every episode's as often (within one).

    Row i gets that of episode i K mod E, K being coprime to E and near E's golden section, so that neighbours get
    unlike ones.
    """
    firsts = dataset.observations[dataset.episode_starts[:-1]]
    count = len(firsts)
    stride = max(1, round(0.618 * count))
    while math.gcd(stride, count) != 1:
        stride += 1
    rows = [stride * row % count for row in range(len(dataset))]
    return firsts[rows]
