"""Ensembles of critics: a random few of them, the minimum and maximum of what they say, their losses."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from surefoot.core.random import Noise


def subset_noise(members: int, size: float, replacement: bool = False) -> dict[str, Noise]:
    """What `subset` of `size` among `members` reads, for `Update.noise`; nothing where it takes each of them once."""
    if size >= members and not replacement:
        return {}
    return {"subset": Noise("uniform", members + (size != int(size)))}


def subset(uniform: Tensor, size: float, replacement: bool = False) -> Tensor:
    """A random subset of an ensemble, the same for the whole batch: what `Critic` and `MLP` take as `members`.

    Written with comparisons only: no index leaves the arithmetic, so that it runs in a tape or graph and under vmap.

    Args:
        uniform: (B, E) on [0, 1), of which the first row is read; (B, E + 1) where the size is not whole.
        size: M, in [1, E]. One that is not whole, without replacement: the next smaller or larger one at random, such
            that it is M on average; of the smaller one a member is given twice, which changes no minimum.
        replacement: draw M times from all E, so that some are in it twice: what zhouzypaul/wsrl does.

    Returns:
        (M rounded up, E), a 1 in each row.

    Source: the in-target minimisation of Chen et al., "Randomized Ensembled Double Q-Learning".
    """
    count, part = math.ceil(size), size % 1
    draws = uniform[0, :-1] if part else uniform[0]
    places = torch.arange(draws.shape[0], dtype=uniform.dtype, device=uniform.device)
    if replacement:
        drawn = draws[:count].unsqueeze(1) * draws.shape[0]
        return ((drawn >= places) & (drawn < places + 1)).to(uniform.dtype)
    # the members of the M smallest numbers; of equal ones the first counts as smaller
    equal = (draws.unsqueeze(0) == draws.unsqueeze(1)).to(uniform.dtype)
    before = (places.unsqueeze(0) < places.unsqueeze(1)).to(uniform.dtype)
    rank = ((draws.unsqueeze(0) < draws.unsqueeze(1)).to(uniform.dtype) + equal * before).sum(1)
    wanted = places[:count]
    if part:  # the last of them, or the first again
        wanted = wanted * (1 - (uniform[0, -1:] >= part).to(uniform.dtype) * (wanted == count - 1).to(uniform.dtype))
    return (wanted.unsqueeze(1) == rank).to(uniform.dtype)


def chosen(values: Tensor, members: Tensor) -> Tensor:
    """(M, ...) of (E, ...) by (M, E) with a 1 in each row: a sum, which no index leaves (see `subset`)."""
    return (members.unsqueeze(-1) * values.flatten(1)).sum(1).unflatten(1, values.shape[1:])


def minimum(values: Tensor) -> Tensor:
    """(B,) smallest of (E, B) values; equal ones share the gradient equally."""
    lowest = values.detach().amin(0)
    if not (values.requires_grad or torch._C._are_functorch_transforms_active()):  # vmap hides who needs one
        return lowest
    least = values.detach() == lowest  # as amin's own gradient, but in float32: it counts in int64, no tape can
    return torch.where(least, values, 0.0).sum(0) / least.to(values.dtype).sum(0)


def lowest(critic: Callable[..., Tensor], pairs: Tensor, members: Tensor | None = None) -> Tensor:
    """(..., B) lowest of the values that critics give (..., B, O + A) pairs; of the (M, E) `members`, where given."""
    return minimum(critic(pairs.flatten(0, -2), members)).unflatten(0, pairs.shape[:-1])


def maximum(values: Tensor) -> Tensor:
    """(B,) largest of (E, B), as `minimum`: of cost critics, the one that fears most."""
    return -minimum(-values)


def critic_loss(values: Tensor, targets: Tensor, over: str) -> Tensor:
    """Squared errors, averaged over the batch.

    Args:
        values: (E, B).
        targets: (B,), without gradient.
        over: "mean" over the critics (WSRL, RLPD), their "sum" (REDQ, CleanRL) or "half_sum" (stable-baselines3).

    Returns:
        ().
    """
    errors = (values - targets).square().mean(-1)
    if over == "mean":
        return errors.mean()
    return errors.sum() if over == "sum" else 0.5 * errors.sum()


REDUCTIONS = ("mean", "sum", "half_sum")
"""Words for `critic_loss`."""
