"""Returns and advantages over time: dimension 0 is time, the others are environments or sequences.

Ends of episodes have two masks everywhere: only a termination stops bootstrapping, any end stops the sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.core.base.errors import DataError
from surefoot.core.losses.masked import keep


def same_shape(**tensors: Tensor) -> None:
    """Refuse tensors of unlike shapes, which broadcasting would mix: (T, 1) values beside (T,) rewards, say.

    Raises:
        DataError: names the first pair.
    """
    (name, first), *others = tensors.items()
    for other, value in others:
        if value.shape != first.shape:
            raise DataError(f"{name} are {tuple(first.shape)} and {other} {tuple(value.shape)}: give them one shape")


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

    Raises:
        DataError: shapes differ.

    Source: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation", eq. (16);
    Pardo et al., "Time Limits in Reinforcement Learning", for the two masks.
    """
    same_shape(
        rewards=rewards, values=values, next_values=next_values, terminations=terminations, truncations=truncations
    )
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

    Raises:
        DataError: shapes differ.

    Source: Sutton and Barto, "Reinforcement Learning", eq. (12.2).
    """
    same_shape(rewards=rewards, next_values=next_values, terminations=terminations, truncations=truncations)
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


def _ratios(log_ratios: Tensor, mask: Tensor | None) -> Tensor:
    """pi / mu of finite log-ratios; 1 at masked steps."""
    return keep(log_ratios, mask).clamp(-20, 20).exp()


def _errors(
    rewards: Tensor, values: Tensor, next_values: Tensor, terminations: Tensor, truncations: Tensor, discount: float
) -> tuple[Tensor, Tensor]:
    """TD errors, and 1 where no episode ends."""
    same_shape(
        rewards=rewards, values=values, next_values=next_values, terminations=terminations, truncations=truncations
    )
    alive = discount * (1 - terminations.to(values.dtype))
    on = 1 - torch.maximum(terminations.to(values.dtype), truncations.to(values.dtype))
    return torch.addcmul(rewards - values, alive, next_values), on


def _corrections(errors: Tensor, decay: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """V-trace's v - V at each step, the sum of weighted errors, and at the next one, 0 after the last."""
    found = _summed_backwards(keep(errors, mask), keep(decay, mask, 1.0))
    ahead = torch.zeros_like(found)  # a masked step holds what its successor has
    ahead[:-1] = found[1:]
    return found, ahead


@torch.no_grad()
def gae_off_policy(
    log_ratios: Tensor,
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminations: Tensor,
    truncations: Tensor,
    discount: float,
    trace: float,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Generalised advantages of steps that a slightly older policy took, for losses that weigh each step themselves.

    :math:`A_t = r_t + \gamma ((1 - \lambda) V(s_{t+1}) + \lambda v_{t+1}) - V(s_t)` with V-trace's targets v, whose two
    bars are 1: what follows a step is corrected, its own ratio is left to the loss. With ratios of 1 it is `gae`.

    Args:
        log_ratios: (T, ...) log pi(a_t|s_t) - log mu(a_t|s_t), mu being the policy that acted.
        rewards: (T, ...); and the others as in `gae`.
        values: (T, ...).
        next_values: (T, ...).
        terminations: (T, ...).
        truncations: (T, ...).
        discount: gamma in [0, 1].
        trace: lambda in [0, 1].
        mask: (T, ...); masked steps are passed over, and get 0.

    Returns:
        Advantages, and V-trace's targets of V, (T, ...) each, without gradient.

    Source: Espeholt et al., "IMPALA", eq. (1) and section 4.2.
    """
    weights = _ratios(log_ratios, mask).clamp(max=1)
    errors, on = _errors(rewards, values, next_values, terminations, truncations, discount)
    corrections, ahead = _corrections(weights * errors, discount * trace * on * weights, mask)
    return keep(torch.addcmul(errors, discount * trace * on, ahead), mask), keep(values + corrections, mask)


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
    ratios = _ratios(log_ratios, mask)
    weights = ratios.clamp(max=largest_weight)
    errors, on = _errors(rewards, values, next_values, terminations, truncations, discount)
    decay = discount * trace * on * ratios.clamp(max=largest_trace)
    corrections, ahead = _corrections(weights * errors, decay, mask)
    advantages = weights * torch.addcmul(errors, discount * on, ahead)
    return keep(values + corrections, mask), keep(advantages, mask)
