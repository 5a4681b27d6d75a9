"""Value-learning functions: losses of a batch, elementwise and without reduction; returns over time, time first.

Ends of episodes have two masks everywhere: only a termination stops bootstrapping, any end stops the sum.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surefoot.core.errors import ConfigError
from surefoot.core.masked import keep, masked_variance


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
    same = {"dtype": difference.dtype, "device": difference.device}  # of plain numbers torch would make float32
    above, below = (torch.scalar_tensor(share, **same) for share in (expectile, 1.0 - expectile))
    weight = torch.where(difference > 0, above, below)
    return weight * difference.square()


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

    Source: Sutton and Barto, "Reinforcement Learning", eq. (6.2).
    """
    return (rewards + discount * (1 - terminations) * next_values).detach()


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
    exponent = (advantages.detach() * inverse_temperature).clamp(max=math.log(limit))
    return exponent.exp()


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
        anchor_values: what the critic said when the data was collected; read only with `clip`.
        clip: in units of the values (PPO: 0.2 with normalised rewards); None for no clip.
        mask: broadcastable.

    Returns:
        Loss per element, 0 where masked; reduce it with `core.masked.reduce`.

    Raises:
        ConfigError: `clip` without `anchor_values`.

    Source: Schulman et al.'s PPO code, as told by Huang et al., "The 37 Implementation Details of PPO".
    """
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


# -- returns over time: dimension 0 is time, the others are environments or sequences ------------------------


def _summed_backwards(increments: Tensor, decay: Tensor) -> Tensor:
    """x_t = increments_t + decay_t x_{t+1}; x beyond the last is 0."""
    found: list[Tensor] = []
    for now, rate in zip(reversed(increments.unbind(0)), reversed(decay.unbind(0)), strict=True):
        found.append(torch.addcmul(now, rate, found[-1]) if found else now)  # not in place: vmap has no rule for that
    return torch.stack(found[::-1])


@torch.no_grad()
def shifted_values(values: Tensor, last_values: Tensor, mask: Tensor | None = None) -> Tensor:
    """The value of the next kept unit at each unit: what `gae` bootstraps from within a sequence.

    At the end of an episode put the value of the final observation in its place.

    Args:
        values: (T, ...).
        last_values: (...), value of what follows the last unit, 0 where a sequence is complete.
        mask: (T, ...), 0 at units that are no step of the policy (padding, a tool's answer, a reset row).

    Returns:
        (T, ...).
    """
    following = torch.empty_like(values)
    carried = last_values
    for step in range(len(values) - 1, -1, -1):
        following[step] = carried
        carried = values[step] if mask is None else torch.where(mask[step] != 0, values[step], carried)
    return following


@torch.no_grad()
def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminations: Tensor,
    truncations: Tensor,
    discount: float,
    trace: float,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Generalised advantages :math:`A_t = \delta_t + \gamma \lambda (1 - end_t) A_{t+1}` and returns A + V.

    Here :math:`\delta_t = r_t + \gamma (1 - term_t) V(s'_t) - V(s_t)`: a truncated step bootstraps from its
    final observation, a terminated one from nothing, and no sum goes across either.

    Args:
        rewards: (T, ...) float32 or float64, dimension 0 is time.
        values: (T, ...) V(s_t).
        next_values: (T, ...) V of the true next observation; at ends that of the final one, not of the reset.
        terminations: (T, ...) 1 or True where the task itself ended; it wins where both are set.
        truncations: (T, ...) 1 or True where the episode was cut.
        discount: gamma in [0, 1].
        trace: lambda in [0, 1].
        mask: (T, ...); the sum passes masked steps unchanged, and they get 0.

    Returns:
        Advantages and returns, (T, ...) each, without gradient.

    Source: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation", eq. (16);
    Pardo et al., "Time Limits in Reinforcement Learning", for the two masks.
    """
    decay = terminations.to(values.dtype).mul(-discount).add_(discount)
    increments = torch.addcmul(rewards - values, decay, next_values)
    decay.mul_(truncations.to(values.dtype).mul(-trace).add_(trace))
    if mask is None:
        advantages = _summed_backwards(increments, decay)
        return advantages, advantages + values
    advantages = _summed_backwards(keep(increments, mask), keep(decay, mask, 1.0))
    return keep(advantages, mask), keep(advantages + values, mask)


@torch.no_grad()
def lambda_returns(
    rewards: Tensor,
    next_values: Tensor,
    terminations: Tensor,
    truncations: Tensor,
    discount: float,
    trace: float,
    mask: Tensor | None = None,
) -> Tensor:
    r"""TD(lambda)'s targets :math:`G_t = r_t + \gamma ((1 - \lambda) V(s'_t) + \lambda G_{t+1})`, time first.

    At an end G is V(s') instead of what follows, and nothing where it terminated. Equal to the returns of `gae`,
    which needs V(s) too.

    Args:
        rewards: (T, ...).
        next_values: (T, ...) as in `gae`.
        terminations: (T, ...).
        truncations: (T, ...).
        discount: gamma in [0, 1].
        trace: lambda in [0, 1].
        mask: (T, ...); masked steps are passed over, and get 0.

    Returns:
        (T, ...), without gradient.

    Source: Sutton and Barto, "Reinforcement Learning", eq. (12.2).
    """
    alive = 1 - terminations.to(rewards.dtype)
    cut = truncations.to(rewards.dtype, copy=True)
    if mask is None:
        cut[-1] = 1
    else:  # the last kept step of each column, which nothing kept follows
        kept = (mask != 0).expand_as(rewards)
        cut = torch.maximum(cut, (kept.flip(0).cumsum(0).flip(0) == kept).to(cut.dtype) * kept)
    decay = discount * trace * alive * (1 - cut)
    increments = torch.addcmul(rewards, discount * alive - decay, next_values)
    return keep(_summed_backwards(keep(increments, mask), keep(decay, mask, 1.0)), mask)


def mc_return(
    rewards: Tensor,
    terminations: Tensor,
    truncations: Tensor,
    discount: float,
    next_values: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Discounted sum of the rewards to come within the episode, time first; `lambda_returns` with a trace of 1.

    Args:
        rewards: (T, ...).
        terminations: (T, ...).
        truncations: (T, ...).
        discount: gamma in [0, 1].
        next_values: (T, ...) what a truncated or unfinished episode still would have brought; None for nothing.
        mask: (T, ...).

    Returns:
        (T, ...), without gradient.
    """
    beyond = torch.zeros_like(rewards) if next_values is None else next_values
    return lambda_returns(rewards, beyond, terminations, truncations, discount, 1.0, mask)


@torch.no_grad()
def vtrace(
    log_ratios: Tensor,
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminations: Tensor,
    truncations: Tensor,
    discount: float,
    trace: float = 1.0,
    largest_weight: float = 1.0,
    largest_trace: float = 1.0,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""V-trace targets and policy-gradient advantages of steps that another policy took.

    :math:`v_t = V(s_t) + \rho_t \delta_t + \gamma \lambda c_t (v_{t+1} - V(s_{t+1}))`, with
    :math:`\rho_t = \min(\bar\rho, \pi/\mu)` and :math:`c_t = \min(\bar c, \pi/\mu)`; the advantage is
    :math:`\rho_t (r_t + \gamma v_{t+1} - V(s_t))`, with V(s') for v_{t+1} at the end of an episode or block.

    Args:
        log_ratios: (T, ...) log pi(a_t|s_t) - log mu(a_t|s_t), mu being the behaviour policy.
        rewards: (T, ...); and the others as in `gae`.
        values: (T, ...).
        next_values: (T, ...).
        terminations: (T, ...).
        truncations: (T, ...).
        discount: gamma in [0, 1].
        trace: lambda in [0, 1].
        largest_weight: rho bar, which sets whose value is learned.
        largest_trace: c bar, which sets how fast.
        mask: (T, ...); masked steps are passed over, and get 0.

    Returns:
        Targets of V and advantages, (T, ...) each, without gradient.

    Source: Espeholt et al., "IMPALA", eq. (1) and section 4.2.
    """
    ratios = keep(log_ratios, mask).clamp(-20, 20).exp()
    weights = ratios.clamp(max=largest_weight)
    alive = discount * (1 - terminations.to(values.dtype))
    on = 1 - torch.maximum(terminations.to(values.dtype), truncations.to(values.dtype))
    errors = torch.addcmul(rewards - values, alive, next_values)
    decay = discount * trace * on * ratios.clamp(max=largest_trace)
    corrections = _summed_backwards(keep(weights * errors, mask), keep(decay, mask, 1.0))
    ahead = torch.zeros_like(corrections)  # v - V at the next step; a masked step holds what its successor has
    ahead[:-1] = corrections[1:]
    advantages = weights * torch.addcmul(errors, discount * on, ahead)
    return keep(values + corrections, mask), keep(advantages, mask)
