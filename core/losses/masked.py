"""Moments and reductions over the units that a mask keeps: padding changes no result, whatever numbers lie in it."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, nearest

REDUCTIONS = ("mean", "sequence_mean", "token_sum", "fixed_length", "length_weighted")


def keep(values: Tensor, mask: Tensor | None, instead: float = 0.0) -> Tensor:
    """`values` where the mask is not 0, else `instead`: NaN and infinity under the mask go no further.

    Args:
        values: any shape.
        mask: float or bool, broadcastable with `values`; None keeps everything.
        instead: what masked places get.

    Returns:
        The broadcast shape of both.
    """
    return values if mask is None else torch.where(mask != 0, values, instead)


def masked_sum(values: Tensor, mask: Tensor | None = None, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Sum of mask * values over all units, or over `dim`."""
    kept = values if mask is None else keep(values, mask) * mask
    return kept.sum() if dim is None else kept.sum(dim, keepdim)


def masked_count(values: Tensor, mask: Tensor | None = None, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Sum of the mask, broadcast to `values`, over all units or over `dim`, in the dtype of `values`."""
    ones = torch.ones_like(values) if mask is None else mask.to(values.dtype).expand_as(values)
    return ones.sum() if dim is None else ones.sum(dim, keepdim)


def masked_mean(values: Tensor, mask: Tensor | None = None, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Mean over the units that the mask keeps, 0 where it keeps none."""
    count = masked_count(values, mask, dim, keepdim)
    return masked_sum(values, mask, dim, keepdim) / torch.where(count > 0, count, 1)


def masked_quantile(values: Tensor, mask: Tensor, level: float) -> Tensor:
    """() the `level` quantile over the units that the mask keeps, at least one, linear between order statistics.

    Args:
        values: any shape.
        mask: of zeros and ones, broadcastable to `values`.
        level: in [0, 1].
    """
    ordered = keep(values, mask, torch.inf).flatten().sort().values
    last = masked_count(values, mask) - 1
    position = level * last
    below = position.floor()
    pair = torch.stack([below, torch.minimum(below + 1, last)]).long()
    low, high = ordered.gather(0, pair).unbind(0)
    return torch.lerp(low, high, position - below)


def masked_variance(values: Tensor, mask: Tensor | None = None, correction: int = 1) -> Tensor:
    """Variance over the units that the mask keeps, 0 where they are no more than `correction`.

    Args:
        values: any shape.
        mask: of zeros and ones, broadcastable to `values`.
        correction: 1 for the unbiased estimate, 0 for the mean square.

    Returns:
        A scalar.
    """
    deviation = keep(values - masked_mean(values, mask), mask)
    degrees = masked_count(values, mask) - correction
    return masked_sum(deviation.square(), mask) / torch.where(degrees > 0, degrees, 1)


def sequence_mask(mask: Tensor) -> Tensor:
    """1 for rows in which any unit is kept, 0 for the others: (..., U) -> (..., 1), a mask for sequence-level terms."""
    return (mask != 0).any(-1, keepdim=True).to(mask.dtype)


def reduce(
    terms: Tensor,
    mask: Tensor | None = None,
    mode: str = "mean",
    *,
    denominator: float | Tensor | None = None,
    length: float | None = None,
) -> Tensor:
    """One loss of many terms.

    Args:
        terms: (..., U), U units (tokens, denoising steps) of a sequence; any shape for "mean".
        mask: broadcastable to `terms`, of zeros and ones.
        mode: "mean" sum / number of units (PPO; DAPO's token mean); "sequence_mean" mean over sequences of
            each one's mean (GRPO); "token_sum" mean over sequences of each one's sum (REINFORCE, RLOO);
            "fixed_length" that divided by `length` (Dr.GRPO); "length_weighted" for terms of whole sequences, (..., 1),
            mean over sequences of each one's term times its number of units (LUSPO), `mask` being that of the units.
        denominator: what to divide by in place of the number of units ("mean") or of sequences that keep any
            unit (the others). A minibatch of a larger batch needs the larger one's, times its share; and
            rows that were masked as a whole count only where a denominator counts them.
        length: L of "fixed_length".

    Returns:
        A scalar, 0 where nothing is kept.

    Raises:
        ConfigError: an unknown mode, or "fixed_length" without `length`.

    Source: Shao et al. (GRPO); Yu et al. (DAPO); Liu et al. (Dr.GRPO); Ahmadian et al. (RLOO).
    """
    if mode not in REDUCTIONS:
        raise ConfigError(f"unknown reduction {mode!r}: {nearest(mode, REDUCTIONS)}")
    if mode == "fixed_length" and (length is None or length <= 0):
        raise ConfigError(f"reduction 'fixed_length' needs length above 0, was given {length}")
    if mode == "mean":
        if denominator is None:
            return masked_mean(terms, mask)
        return masked_sum(terms, mask) / denominator
    if mode == "length_weighted" and mask is not None:
        terms = terms.expand_as(mask)
    each = (masked_mean if mode == "sequence_mean" else masked_sum)(terms, mask, -1)
    if denominator is None:
        count = masked_count(terms, mask, -1).ne(0).sum()
        denominator = torch.where(count > 0, count, 1)
    total = each.sum() / denominator
    return total / length if length is not None and mode == "fixed_length" else total


def normalise(values: Tensor, mask: Tensor | None = None, groups: Tensor | None = None, eps: float = 1e-8) -> Tensor:
    """(x - mean) / (std + eps) over the units that the mask keeps, without gradient; 0 at the others.

    Over whatever is passed: a minibatch (PPO), the whole batch (rsl_rl), or each group by itself.

    Args:
        values: any shape; (M,) with `groups`.
        mask: of zeros and ones, broadcastable to `values`.
        groups: (M,) integers, rows of the same group having the same.
        eps: added to the unbiased standard deviation, in units of `values`.

    Returns:
        The shape of `values`; 0 for groups of one.
    """
    values = values.detach()
    if groups is not None:
        mean, variance, _ = group_moments(values, groups, mask)
    else:
        values = values - keep(values, mask, torch.inf).amin()  # so that equal values have exactly their own mean
        mean, variance = masked_mean(values, mask), masked_variance(values, mask)
    return keep((values - mean) / (variance.sqrt() + eps), mask)


def group_moments(values: Tensor, groups: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, unbiased variance and number of the kept rows of each row's own group, (M,) each.

    Equal values have exactly their own mean and a variance of exactly 0; a variance of fewer than two is 0.

    Args:
        values: (M,).
        groups: (M,) integers.
        mask: (M,) of zeros and ones.
    """
    group = torch.unique(groups, return_inverse=True)[1]
    kept = torch.ones_like(values) if mask is None else (mask != 0).to(values.dtype).expand_as(values)

    def total(numbers: Tensor) -> Tensor:
        return torch.zeros_like(values).index_add_(0, group, numbers)[group]

    smallest = torch.full_like(values, torch.inf)
    smallest = smallest.scatter_reduce_(0, group, keep(values, mask, torch.inf), "amin")[group]
    above = keep(values - smallest, mask)  # from the smallest: rounding can't make equal values differ from their mean
    count = total(kept)
    mean = total(above) / count.clamp(min=1)
    variance = total(keep((above - mean).square(), mask)) / (count - 1).clamp(min=1)
    return smallest + mean, variance, count
