"""Estimates of KL(pi || reference) from samples of pi, and what each does as a loss."""

from __future__ import annotations

from torch import Tensor

from surefoot.core.losses.masked import keep
from surefoot.core.losses.policy_gradient.ratios import LARGEST_LOG_RATIO, log_ratio, ratio


def kl_k1(log_prob: Tensor, reference_log_prob: Tensor, mask: Tensor | None = None) -> Tensor:
    """log pi - log ref: unbiased, may be negative; for rewards only, its gradient as a loss is 0 on average."""
    return keep(log_prob - reference_log_prob, mask)


def kl_k2(log_prob: Tensor, reference_log_prob: Tensor, mask: Tensor | None = None) -> Tensor:
    """(log pi - log ref)^2 / 2: biased, but its gradient as a loss is that of KL(pi || ref)."""
    return 0.5 * keep(log_prob - reference_log_prob, mask).square()


def kl_k3(log_prob: Tensor, reference_log_prob: Tensor, mask: Tensor | None = None) -> Tensor:
    """ref/pi - 1 - log(ref/pi): unbiased and never negative; as a loss, the gradient of KL(ref || pi).

    Source: Schulman, "Approximating KL Divergence" (2020), for k1, k2 and k3.
    """
    difference = keep(reference_log_prob - log_prob, mask)
    return difference.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).expm1() - difference


def kl_k3_straight(log_prob: Tensor, reference_log_prob: Tensor, mask: Tensor | None = None) -> Tensor:
    """The value of k3 with the gradient of k2: never negative, and as a loss the gradient of KL(pi || ref)."""
    k2 = kl_k2(log_prob, reference_log_prob, mask)
    return k2 + (kl_k3(log_prob, reference_log_prob, mask) - k2).detach()


def kl_k3_weighted(
    log_prob: Tensor, reference_log_prob: Tensor, proximal_log_prob: Tensor, mask: Tensor | None = None
) -> Tensor:
    """pi / pi_old times k3 with gradient through both: for samples of pi_old, unbiased in value and gradient.

    Args:
        log_prob: (..., U) with gradient.
        reference_log_prob: (..., U).
        proximal_log_prob: (..., U) of the policy whose samples these are.
        mask: broadcastable.

    Source: DeepSeek-AI, "DeepSeek-V3.2", unbiased KL estimate.
    """
    return ratio(log_ratio(log_prob, proximal_log_prob, mask)) * kl_k3(log_prob, reference_log_prob, mask)
