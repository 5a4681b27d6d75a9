"""Log-densities, entropies and exact divergences of the policies' distributions; one number per decision, in nats."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from surefoot.core.base.pointwise import pointwise
from surefoot.core.losses.masked import keep, masked_mean, masked_sum

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def gaussian_log_density(actions: Tensor, mean: Tensor, log_std: Tensor, mask: Tensor | None = None) -> Tensor:
    """log N(actions; mean, exp(log_std)^2), summed over the last dimension.

    Args:
        actions: (..., A).
        mean: (..., A).
        log_std: (A,) or (..., A).
        mask: (...,); where it is 0 the result is 0 and nothing gets a gradient, whatever lies there.

    Returns:
        (...,) in nats.
    """
    actions, mean, log_std = _rows(mask, actions, mean, log_std)
    return keep(normal_terms(actions, mean, log_std).sum(-1), mask)


@pointwise
def normal_terms(values: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """log N(value; mean, exp(log_std)^2) of each number by itself, of shapes that broadcast."""
    scaled = (values - mean) * torch.exp(-log_std)
    return -0.5 * scaled.square() - log_std - LOG_SQRT_2PI


def tanh_log_determinant(unsquashed: Tensor) -> Tensor:
    """log |d tanh(u) / du| summed over the last dimension, in the form that does not underflow.

    Source: 2 (log 2 - u - softplus(-2u)); Haarnoja et al., "Soft Actor-Critic", appendix C.
    """
    return tanh_log_slopes(unsquashed).sum(-1)


@pointwise
def tanh_log_slopes(unsquashed: Tensor) -> Tensor:
    """log |d tanh(u) / du| of each number by itself."""
    return 2 * (math.log(2) - unsquashed - nn.functional.softplus(-2 * unsquashed))


def tanh_gaussian_log_density(unsquashed: Tensor, mean: Tensor, log_std: Tensor, mask: Tensor | None = None) -> Tensor:
    """Log-density of tanh(u), u normal, at u before the tanh: (..., A) three times -> (...,) in nats; masked ones 0."""
    (unsquashed,) = _rows(mask, unsquashed)
    return gaussian_log_density(unsquashed, mean, log_std, mask) - keep(tanh_log_determinant(unsquashed), mask)


def categorical_log_prob(logits: Tensor, actions: Tensor, mask: Tensor | None = None) -> Tensor:
    """Log-probability of integer actions: (..., C) logits, (...) int64 in [0, C) -> (...) in nats, 0 where masked."""
    (logits,) = _rows(mask, logits)
    return keep(torch.log_softmax(logits, -1).gather(-1, actions.unsqueeze(-1)).squeeze(-1), mask)


def gaussian_entropy(log_std: Tensor, mask: Tensor | None = None) -> Tensor:
    """Entropy of a diagonal normal: (..., A) -> (...) in nats, 0 where masked."""
    return keep((_rows(mask, log_std)[0] + LOG_SQRT_2PI + 0.5).sum(-1), mask)


def categorical_entropy(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """Entropy over the last dimension: (..., C) -> (...) in nats, 0 where masked; logits may be -inf."""
    log_probs = _finite(torch.log_softmax(_rows(mask, logits)[0], -1))
    return keep(-(log_probs.exp() * log_probs).sum(-1), mask)


def kl_gaussian(
    mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor, mask: Tensor | None = None
) -> Tensor:
    """KL(first || other) of diagonal normals: (..., A) each -> (...) in nats, 0 where masked.

    Source: sum of log(s2/s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2; Kullback and Leibler (1951).
    """
    mean, log_std, other_mean, other_log_std = _rows(mask, mean, log_std, other_mean, other_log_std)
    spread = (2 * (log_std - other_log_std)).exp()
    distance = ((mean - other_mean) * torch.exp(-other_log_std)).square()
    return keep((other_log_std - log_std + 0.5 * (spread + distance - 1)).sum(-1), mask)


def kl_categorical(logits: Tensor, other_logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """KL(first || other) over the last dimension: (..., C) -> (...) in nats, 0 where masked; logits may be -inf."""
    first, other = (_finite(torch.log_softmax(rows, -1)) for rows in _rows(mask, logits, other_logits))
    return keep((first.exp() * (first - other)).sum(-1), mask)


def chain_log_prob(
    means: Tensor, log_stds: Tensor, chain: Tensor, mask: Tensor | None = None, average: bool = False
) -> Tensor:
    """Log-density of each transition x_k -> x_{k+1} of denoising chains, normal with the given means and deviations.

    The density of the first point is left out: no parameter changes it, so it cancels in every ratio.

    Args:
        means: (N, K, Ta, A) of x_{k+1}, for K steps of chunks of Ta actions.
        log_stds: broadcastable to it.
        chain: (N, K + 1, Ta, A), x_0 being the noise and x_K the chunk of actions.
        mask: broadcastable to `means`; 0 for actions of the chunk that are not carried out.
        average: mean over Ta and A (DPPO) instead of the sum (ReinFlow).

    Returns:
        (N, K) in nats.

    Source: Ren et al., "Diffusion Policy Policy Optimization"; Zhang et al., "ReinFlow".
    """
    points = keep(chain[:, 1:], mask)
    means, log_stds = keep(means, mask), keep(log_stds, mask)
    scaled = (points - means) * torch.exp(-log_stds)
    density = (-0.5 * scaled.square() - log_stds - LOG_SQRT_2PI).flatten(2)
    flat = None if mask is None else mask.expand_as(means).flatten(2)
    return masked_mean(density, flat, -1) if average else masked_sum(density, flat, -1)


def _rows(mask: Tensor | None, *rows: Tensor) -> tuple[Tensor, ...]:
    """(..., A) numbers, 0 where the mask (...) is: before the function, since 0 times an infinite slope is NaN."""
    return rows if mask is None else tuple(keep(row, mask.unsqueeze(-1)) for row in rows)


def _finite(log_probs: Tensor) -> Tensor:
    """Log-probabilities with -inf as the smallest number, so that 0 * log 0 is 0."""
    return log_probs.clamp(min=torch.finfo(log_probs.dtype).min)
