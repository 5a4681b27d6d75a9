"""Value-learning functions: losses of a batch, elementwise, without reduction; returns are in `core.losses.returns`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.pointwise import pointwise
from surefoot.core.losses.masked import keep, masked_variance
from surefoot.core.losses.returns import gae as gae
from surefoot.core.losses.returns import gae_off_policy as gae_off_policy
from surefoot.core.losses.returns import lambda_returns as lambda_returns
from surefoot.core.losses.returns import mc_return as mc_return
from surefoot.core.losses.returns import same_shape
from surefoot.core.losses.returns import shifted_values as shifted_values
from surefoot.core.losses.returns import vtrace as vtrace


@pointwise
def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    r"""Asymmetric squared error :math:`|\tau - 1(u < 0)|\, u^2` of u = target - prediction.

    Its minimiser over predictions is the `expectile` of the target; 0.5 gives half the squared error.

    Args:
        difference: u, any shape.
        expectile: tau in (0, 1); above 0.5, underestimating costs more.

    Returns:
        Loss per element, the shape of `difference`.

    Source: Kostrikov, Nair, Levine, "Offline Reinforcement Learning with Implicit Q-Learning", eq. (4).
    """
    dtype, device = difference.dtype, difference.device  # of plain numbers torch would make float32
    above, below = (torch.scalar_tensor(e, dtype=dtype, device=device) for e in (expectile, 1.0 - expectile))
    weight = torch.where(difference > 0, above, below)
    return weight * difference.square()


@pointwise
def huber_loss(difference: Tensor, transition: float) -> Tensor:
    """Huber's loss divided by its transition point b: x^2 / (2b) where |x| < b, else |x| - b/2.

    The gradient is clip(x / b, -1, 1): at most one in size whatever b is.

    Args:
        difference: x, any shape.
        transition: b > 0, in the units of `difference`.

    Returns:
        Loss per element, the shape of `difference`.

    Source: Huber (1964); in this scaling Yang et al., "Towards Robust Offline RL under Diverse Data
    Corruption" (RIQL), with b = 1 / sigma^2.
    """
    size = difference.abs()
    return torch.where(size < transition, difference.square() / (2 * transition), size - transition / 2)


def linear_quantile(values: Tensor, level: float) -> Tensor:
    """The `level` quantile over dimension 0, linear between order statistics at level * (K - 1).

    Args:
        values: (K, ...), K members.
        level: in [0, 1]; 0 is the minimum, 0.5 the median, 1 the maximum.

    Returns:
        (...), equal to `torch.quantile(values, level, dim=0)`, which is slower for small K.

    Source: definition 7 of Hyndman and Fan (1996); used over critics by RIQL.
    """
    members = values.shape[0]
    position = level * (members - 1)
    below = min(int(position), members - 1)
    fraction = position - below
    if below == 0 and fraction == 0:
        return values.amin(0)
    ordered = values.sort(0).values
    if fraction == 0:
        return ordered[below]
    return torch.lerp(ordered[below], ordered[below + 1], fraction)


def td_target(rewards: Tensor, terminations: Tensor, next_values: Tensor, discount: float) -> Tensor:
    """One-step target r + discount * (1 - d) * V(s'), without gradient.

    Args:
        rewards: (B,) in reward units.
        terminations: (B,) 1 where the task itself ended; a truncation is not one and bootstraps.
        next_values: (B,) value of the next state, in reward units.
        discount: in [0, 1].

    Returns:
        (B,).

    Raises:
        DataError: next values whose last dimensions are not those of the rewards, as (B, 1) beside (B,).

    Source: Sutton and Barto, "Reinforcement Learning", eq. (6.2).
    """
    if next_values.shape[next_values.dim() - rewards.dim() :] != rewards.shape:
        raise DataError(
            f"rewards are {tuple(rewards.shape)} and next values {tuple(next_values.shape)}: give them one shape"
        )
    return _one_step(rewards, terminations, next_values, discount).detach()


@pointwise
def _one_step(rewards: Tensor, terminations: Tensor, next_values: Tensor, discount: float) -> Tensor:
    return rewards + discount * (1 - terminations) * next_values


def smoothed_actions(actions: Tensor, noise: Tensor, deviation: float, limit: float) -> Tensor:
    """Target actions with clipped noise, within [-1, 1]: a value that is high for one action alone counts for less.

    Args:
        actions: (B, A) in [-1, 1].
        noise: (B, A) standard normal.
        deviation: of the noise that is added.
        limit: its largest size.

    Returns:
        (B, A).

    Source: Fujimoto, van Hoof and Meger, "Addressing Function Approximation Error in Actor-Critic Methods", eq. (14).
    """
    return (actions + (deviation * noise).clamp(-limit, limit)).clamp(-1, 1)


def advantage_weights(advantages: Tensor, inverse_temperature: float, limit: float = 100.0) -> Tensor:
    """Weights min(exp(inverse_temperature * A), limit) of advantage-weighted regression, without gradient.

    The exponent is cut at log(limit) before it is taken, so that it can't overflow.

    Args:
        advantages: (B,) in reward units.
        inverse_temperature: beta >= 0; 0 gives plain behaviour cloning.
        limit: largest weight.

    Returns:
        (B,) in (0, limit]; a NaN advantage stays NaN, so that divergence is seen.

    Source: Peng et al., "Advantage-Weighted Regression"; the limit of 100 is IQL's.
    """
    return _bounded_exponential(advantages.detach(), inverse_temperature, math.log(limit))


@pointwise
def _bounded_exponential(values: Tensor, factor: float, highest: float) -> Tensor:
    return (values * factor).clamp(max=highest).exp()


def soft_maximum(values: Tensor, dim: int, temperature: float = 1.0) -> Tensor:
    """T log sum exp(x / T) over `dim`: the largest as T falls to 0.

    Args:
        values: any shape.
        dim: dimension that is reduced.
        temperature: T > 0, in the units of `values`.
    """
    largest = values.detach().amax(dim, keepdim=True)
    total = ((values - largest) / temperature).exp().sum(dim)
    return temperature * total.log() + largest.squeeze(dim)


def conservative_gap(
    sampled: Tensor, data: Tensor, log_densities: Tensor | None = None, temperature: float = 1.0
) -> Tensor:
    """How far the soft maximum of Q over sampled actions lies above Q of the data's: what CQL pushes down.

    Args:
        sampled: (..., K, B) values of K sampled actions of each row, in reward units.
        data: (..., B) values of the data's actions.
        log_densities: (K, B) log-densities that the actions were drawn with: each value gets minus its own, so that the
            sum estimates the integral of exp Q; None: no correction, data is one of K + 1, each minus T log(K + 1).
        temperature: T > 0.

    Returns:
        (..., B).

    Source: Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning", eq. (4) and appendix F.
    """
    if log_densities is None:
        together = torch.cat([sampled, data.unsqueeze(-2)], -2)
        return soft_maximum(together, -2, temperature) - temperature * math.log(together.shape[-2]) - data
    return soft_maximum(sampled - log_densities.detach(), -2, temperature) - data


def value_loss(
    values: Tensor,
    returns: Tensor,
    anchor_values: Tensor | None = None,
    clip: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Half the squared error, or the larger of it and that of a prediction kept within `clip` of an anchor.

    Args:
        values: V(s), any shape, with gradient.
        returns: targets, the same shape.
        anchor_values: what the critic predicted when the data was collected; read only with `clip`.
        clip: in units of the values (PPO: 0.2 with normalised rewards); None for no clip.
        mask: broadcastable.

    Returns:
        Loss per element, 0 where masked; reduce it with `core.losses.masked.reduce`.

    Raises:
        ConfigError: `clip` without `anchor_values`.
        DataError: returns of another shape.

    Source: Schulman et al.'s PPO code, as given by Huang et al., "The 37 Implementation Details of PPO".
    """
    same_shape(values=values, returns=returns)
    values, returns = keep(values, mask), keep(returns.detach(), mask)
    loss = (values - returns).square()
    if clip is not None:
        if anchor_values is None:
            raise ConfigError("value_loss was given a clip without anchor_values, the values at collection")
        anchor = keep(anchor_values.detach(), mask)
        near = anchor + (values - anchor).clamp(-clip, clip)
        loss = torch.maximum(loss, (near - returns).square())
    return 0.5 * loss


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor | None = None) -> Tensor:
    """1 - Var(returns - values) / Var(returns), a scalar: 1 is perfect, 0 a constant; 0 where returns don't vary."""
    values, returns = keep(values.detach(), mask), keep(returns.detach(), mask)
    unexplained = masked_variance(returns - values, mask, correction=0)
    all_of_it = masked_variance(returns, mask, correction=0)
    return torch.where(all_of_it > 0, 1 - unexplained / torch.where(all_of_it > 0, all_of_it, 1), 0.0)
