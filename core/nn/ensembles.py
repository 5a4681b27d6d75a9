"""Ensembles of critics: a random few of them, the minimum and maximum of what they say, their losses."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import require
from surefoot.core.base.pointwise import pointwise, squared_difference
from surefoot.core.base.random import Noise


def subset_noise(members: int, size: float, replacement: bool = False) -> dict[str, Noise]:
    """What `subset` of `size` among `members` reads, for `Update.noise`; nothing where it takes each of them once."""
    if size >= members and not replacement:
        return {}
    return {"subset": Noise("uniform", members + (size != int(size)))}


def subset(uniform: Tensor, size: float, replacement: bool = False) -> Tensor:
    """A random subset of an ensemble, the same for the whole batch: what `Critic` and `MLP` take as `members`.

    Args:
        uniform: (B, E) on [0, 1), of which the first row is read; (B, E + 1) where the size is not whole.
        size: M, in [1, E]. One that is not whole, without replacement: the next smaller or larger one at random, such
            that it is M on average; of the smaller one a member is given twice, which changes no minimum.
        replacement: draw M times from all E, so that some are in it twice: what zhouzypaul/wsrl does.

    Returns:
        (M rounded up,) int64 places in the ensemble.

    Source: the in-target minimisation of Chen et al., "Randomized Ensembled Double Q-Learning".
    """
    count, part = math.ceil(size), size % 1
    draws = uniform[0, :-1] if part else uniform[0]
    if replacement:
        members = draws.shape[0]
        return (draws[:count] * members).long().clamp(max=members - 1)  # a product may be rounded up to E
    smallest = draws.argsort(stable=True)[:count]
    if part:  # the last of them, or the first again
        last = torch.where(uniform[0, -1:] < part, smallest[-1:], smallest[:1])
        smallest = torch.cat([smallest[:-1], last])
    return smallest


def minimum(values: Tensor) -> Tensor:
    """(B,) smallest of (E, B) values; equal ones share the gradient equally."""
    if values.shape[0] == 2:  # the gradient of amin counts the smallest ones in integers, which costs a critic more
        return _smaller(*_pair(values))
    return values.amin(0)


@pointwise
def _smaller(first: Tensor, second: Tensor) -> Tensor:
    return torch.minimum(first, second)


def _pair(values: Tensor) -> tuple[Tensor, Tensor]:
    """The two of (2, ...); on a GPU their gradients are joined by one kernel."""
    if values.device.type == "cpu":
        return values[0], values[1]
    first, second = values.unbind(0)
    return first, second


def maximum(values: Tensor) -> Tensor:
    """(B,) largest of (E, B), as `minimum`."""
    if values.shape[0] == 2:
        return torch.maximum(*_pair(values))
    return values.amax(0)


def lowest(critic: Callable[..., Tensor], pairs: Tensor, members: Tensor | None = None) -> Tensor:
    """(..., B) lowest of the values that critics give (..., B, O + A) pairs; of the (M,) `members`, where given."""
    return critic(pairs.flatten(0, -2), members).amin(0).unflatten(0, pairs.shape[:-1])


AGGREGATES = ("min", "mean")
"""Words for `aggregate`."""


def check_aggregate(algorithm: str, how: str, deviations: float) -> None:
    """Refuse deviations that `aggregate` could not take off."""
    possible = deviations == 0 or how == "mean"
    require(possible, algorithm, "deviations", deviations, "0 for aggregate=min; aggregate=mean takes them off")


def aggregate(values: Tensor, how: str = "mean", deviations: float = 0.0) -> Tensor:
    """(...,) one value of (E, ...) critics': their minimum, or their mean less some standard deviations.

    Args:
        values: of each critic.
        how: "min" or "mean".
        deviations: of the critics around their mean, over E and not E - 1, that are taken off the mean (Li and Levine,
            "Q-learning with Adjoint Matching", with half a deviation of ten critics).

    Raises:
        ConfigError: another word, or deviations off the minimum.
    """
    if how not in AGGREGATES or (how == "min" and deviations != 0):
        raise ConfigError(f"aggregate is {how!r} less {deviations} deviations; min has none, or mean")
    if how == "min":
        return minimum(values)
    mean = values.mean(0)
    return mean if deviations == 0 else mean - deviations * values.std(0, correction=0)


def spread(values: Tensor) -> Tensor:
    """(B,) standard deviation of (E, B) critics' values, over E - 1 as official codes report it; 0 of one critic."""
    return values.std(0, correction=min(1, values.shape[0] - 1))


def critic_loss(values: Tensor, targets: Tensor, over: str, weight: Tensor | None = None) -> Tensor:
    """Squared errors, averaged over the batch.

    Args:
        values: (E, B).
        targets: (B,), without gradient.
        weight: (B,) of each row's error; rows of weight 0 count in the average all the same.
        over: "mean" over the critics (WSRL, RLPD), their "sum" (REDQ, CleanRL) or "half_sum" (stable-baselines3).

    Returns:
        ().
    """
    squares = squared_difference(values, targets)
    errors = (squares if weight is None else weight * squares).mean(-1)
    if over == "mean":
        return errors.mean()
    return errors.sum() if over == "sum" else 0.5 * errors.sum()


def diversity(gradients: Tensor) -> Tensor:
    r"""() how much critics agree on where a better action lies: E where all gradients are parallel, 0 where orthogonal.

    .. math::
        \frac{1}{E - 1} E_s \textstyle\sum_{i \ne j} \langle n_i, n_j \rangle, \quad n_i = g_i / (|g_i| + 10^{-10})

    Args:
        gradients: (E, B, A) of each critic's values by the actions, E >= 2.

    Source: An, Moon, Kim and Song, "Uncertainty-Based Offline RL with Diversified Q-Ensemble" (NeurIPS 2021), eq. (7).
    """
    lengths = gradients.square().sum(-1, keepdim=True).clamp(min=1e-24).sqrt()  # a root has no gradient at 0
    units = gradients / (lengths + 1e-10)
    together = units.sum(0).square().sum(-1) - units.square().sum((0, -1))
    return together.mean() / (gradients.shape[0] - 1)


REDUCTIONS = ("mean", "sum", "half_sum")
"""Words for `critic_loss`."""
