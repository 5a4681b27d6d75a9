"""What is made of the values of several critics: the minimum over a random few of them, their mean, their losses."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surefoot.core.random import Noise


def subset_noise(members: int, size: int) -> dict[str, Noise]:
    """What `subset` of `size` among `members` reads, for `Update.noise`; nothing where it takes all."""
    return {} if size >= members else {"subset": Noise("uniform", members)}


def subset(uniform: Tensor, size: int, replacement: bool = False) -> Tensor:
    """Which members are in a random subset, the same for the whole batch.

    Written with comparisons only: no index leaves the arithmetic, so that it runs in a tape or graph and under vmap.

    Args:
        uniform: (B, E) on [0, 1), of which the first row is read.
        size: M, in [1, E].
        replacement: draw M times from all E, so that some subsets are smaller: what zhouzypaul/wsrl does.

    Returns:
        (E,) bool.

    Source: the in-target minimisation of Chen et al., "Randomized Ensembled Double Q-Learning".
    """
    draws = uniform[0]
    if not replacement:  # the members of the M smallest numbers
        rank = (draws.unsqueeze(0) < draws.unsqueeze(1)).to(uniform.dtype).sum(1)
        return rank < size
    places = torch.arange(draws.shape[0], dtype=uniform.dtype, device=uniform.device)
    drawn = draws[:size].unsqueeze(1) * draws.shape[0]
    return ((drawn >= places) & (drawn < places + 1)).to(uniform.dtype).amax(0) > 0


def minimum(values: Tensor, members: Tensor | None = None) -> Tensor:
    """(B,) smallest of (E, B) values, over `members` (E,) bool or all; equal ones share the gradient equally."""
    if members is not None:
        values = torch.where(members.unsqueeze(1), values, math.inf)
    lowest = values.detach().amin(0)
    if not (values.requires_grad or torch._C._are_functorch_transforms_active()):  # vmap hides who needs one
        return lowest
    chosen = values.detach() == lowest  # as amin's own gradient, but in float32: it counts in int64, no tape can
    return torch.where(chosen, values, 0.0).sum(0) / chosen.to(values.dtype).sum(0)


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
