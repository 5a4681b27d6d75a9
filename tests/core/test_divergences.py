"""What each estimate of KL does as a loss, by enumerating every outcome of a softmax policy in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.core.losses import policy_gradient as pg

ARMS = torch.arange(5)


def policies(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the trained, the reference and the sampling policy."""
    source = torch.Generator().manual_seed(seed)
    logits, reference, old = torch.randn(3, 5, generator=source, dtype=torch.float64)
    return logits.requires_grad_(), reference.log_softmax(0), old.log_softmax(0)


def gradient(value: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(value, logits, retain_graph=True)[0]


def exact(logits: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """KL(pi || ref) and KL(ref || pi)."""
    log_prob = logits.log_softmax(0)
    return (log_prob.exp() * (log_prob - reference)).sum(), (reference.exp() * (reference - log_prob)).sum()


def as_loss(terms: Tensor, sampler: Tensor, logits: Tensor) -> Tensor:
    """Expected gradient of terms whose samples are of `sampler`, which has no gradient."""
    return gradient((sampler.exp().detach() * terms).sum(), logits)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_k1_is_unbiased_and_as_a_loss_regularises_nothing() -> None:
    logits, reference, _ = policies()
    log_prob = logits.log_softmax(0)
    terms = pg.kl_k1(log_prob, reference)
    close((log_prob.exp() * terms).sum(), exact(logits, reference)[0])
    assert bool((terms < 0).any())
    close(as_loss(terms, log_prob, logits), torch.zeros(5, dtype=torch.float64))


def test_k2_is_biased_and_as_a_loss_has_the_gradient_of_the_reverse_divergence() -> None:
    logits, reference, _ = policies()
    log_prob = logits.log_softmax(0)
    terms = pg.kl_k2(log_prob, reference)
    assert abs(float(((log_prob.exp() * terms).sum() - exact(logits, reference)[0]).detach())) > 0.01
    close(as_loss(terms, log_prob, logits), gradient(exact(logits, reference)[0], logits))


def test_k3_is_unbiased_never_negative_and_as_a_loss_has_the_gradient_of_the_forward_divergence() -> None:
    logits, reference, _ = policies()
    log_prob = logits.log_softmax(0)
    terms = pg.kl_k3(log_prob, reference)
    reverse, forward = exact(logits, reference)
    close((log_prob.exp() * terms).sum(), reverse)
    assert bool((terms > 0).all())
    close(as_loss(terms, log_prob, logits), gradient(forward, logits))
    assert float((gradient(forward, logits) - gradient(reverse, logits)).abs().max()) > 0.01
    close(pg.kl_k3(reference, reference), torch.zeros(5, dtype=torch.float64))


def test_k3_weighted_by_the_ratio_is_unbiased_in_value_and_gradient_for_samples_of_another_policy() -> None:
    logits, reference, old = policies()
    log_prob = logits.log_softmax(0)
    terms = pg.kl_k3_weighted(log_prob, reference, old)
    reverse, forward = exact(logits, reference)
    close((old.exp() * terms).sum(), reverse)
    close(as_loss(terms, old, logits), gradient(reverse, logits))
    detached = pg.ratio(pg.log_ratio(log_prob, old)).detach() * pg.kl_k3(log_prob, reference)
    close(as_loss(detached, old, logits), gradient(forward, logits))


def test_straight_k3_has_the_value_of_k3_and_the_gradient_of_the_reverse_divergence() -> None:
    logits, reference, _ = policies()
    log_prob = logits.log_softmax(0)
    terms = pg.kl_k3_straight(log_prob, reference)
    close(terms, pg.kl_k3(log_prob, reference))
    close(as_loss(terms, log_prob, logits), gradient(exact(logits, reference)[0], logits))


def test_k2_and_k3_agree_to_second_order() -> None:
    near = torch.tensor([-1e-3, 1e-3], dtype=torch.float64)
    difference = pg.kl_k3(near, torch.zeros(2, dtype=torch.float64)) - pg.kl_k2(near, torch.zeros(2))
    assert float(difference.abs().max()) < 2e-10  # d^3 / 6


def test_rubbish_under_the_mask_changes_nothing() -> None:
    logits, reference, old = policies()
    mask = torch.tensor([1.0, 1, 0, 1, 0], dtype=torch.float64)
    log_prob = logits.log_softmax(0)
    spoilt = torch.where(mask != 0, log_prob, torch.nan)
    for terms, clean in (
        (pg.kl_k3_straight(spoilt, reference, mask), pg.kl_k3_straight(log_prob, reference)),
        (pg.kl_k3_weighted(spoilt, reference, old, mask), pg.kl_k3_weighted(log_prob, reference, old)),
    ):
        close(terms, clean * mask)
        close(gradient(terms.sum(), logits), gradient((clean * mask).sum(), logits))
