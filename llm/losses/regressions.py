"""Losses of their own, without a clipped ratio: regression, classification, ranking and weighted likelihood."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from surefoot.core.losses.masked import group_moments, keep, masked_count, masked_sum
from surefoot.core.losses.policy_gradient.ratios import log_ratio
from surefoot.llm.losses.advantages import best_of_group, group_numbers


@torch.no_grad()
def optimal_value(returns: Tensor, groups: Tensor | int, temperature: float = 1.0) -> Tensor:
    """V* = b log mean over the group of exp(R / b): between the group's mean (b large) and its best (b small).

    Args:
        returns: (M,); NaN rows count for nothing.
        groups: (M,) integers, or k.
        temperature: b > 0, in units of the returns.

    Returns:
        (M,), the value of each row's own group.

    Source: Brantley et al., "A*-PO", eq. (3), and OAPL (2026), eq. (2).
    """
    group = group_numbers(returns, groups)
    scored = (~returns.isnan()).to(returns.dtype)
    logs = keep(returns / temperature, scored, -torch.inf)
    largest = torch.full_like(logs, -torch.inf).scatter_reduce_(0, group, logs, "amax")[group]
    largest = torch.where(largest.isfinite(), largest, 0.0)
    mean, _, _ = group_moments((logs - largest).exp(), group, scored)
    return temperature * (mean.log() + largest)


def optimal_advantage_terms(
    log_prob: Tensor,
    behaviour_log_prob: Tensor,
    returns: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    scale: float = 1e-3,
) -> Tensor:
    """(b sum_t (log pi - log behaviour) - (R - V*))^2: no ratio, no clip, for samples of any age.

    Args:
        log_prob: (M, U) with gradient.
        behaviour_log_prob: (M, U) of the policy that acted.
        returns: (M,).
        values: (M,), `optimal_value`.
        mask: (M, U).
        scale: b, in units of the returns per nat.

    Returns:
        (M, 1); reduce with `sequence_mask(mask)`. 0 where the return is NaN.

    Source: OAPL (2026), eq. (3); Brantley et al., "A*-PO".
    """
    logs = log_ratio(log_prob, behaviour_log_prob, mask, "chain")
    scored = ~returns.isnan().unsqueeze(-1)
    wanted = keep((returns - values).unsqueeze(-1), scored)
    return keep((scale * logs - wanted).square(), scored)


def direct_advantage_terms(
    log_prob: Tensor, reference_log_prob: Tensor, advantages: Tensor, mask: Tensor | None = None, scale: float = 1.0
) -> Tensor:
    """(log pi / ref - A / scale)^2 / 2 for each reasoning step: offline, against a frozen critic.

    Args:
        log_prob: (..., S) of whole steps, with gradient.
        reference_log_prob: (..., S).
        advantages: (..., S) of the steps, A = V(after) - V(before) of a critic of the reference policy.
        mask: broadcastable.
        scale: temperature, in units of the advantages.

    Returns:
        (..., S), 0 where masked.

    Source: Liu et al., "Direct Advantage Policy Optimization" (2412.18279): the form only, its constants are
    unverified.
    """
    logs = log_ratio(log_prob, reference_log_prob, mask)
    return 0.5 * (logs - keep(advantages.detach(), mask) / scale).square()


def classification_terms(
    log_prob: Tensor,
    proximal_log_prob: Tensor,
    correct: Tensor,
    groups: Tensor | int,
    mask: Tensor | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Class-balanced cross-entropy of whether an answer is right, the logit being the policy's own log-ratio.

    z = b sum_t log-ratio; the logit is z minus the mean of the group's others; the weight is n / (2 n_class) within a
    group that has both classes, else 1.

    Args:
        log_prob: (M, U) with gradient.
        proximal_log_prob: (M, U).
        correct: (M,) of 0 and 1; NaN rows could not be judged: they get 0 and count for nothing in their group.
        groups: (M,) integers, or k; whole groups must be in the batch.
        mask: (M, U).
        scale: b.

    Returns:
        (M, 1).

    Source: Li et al., "PACS: Implicit Actor Critic Coupling via a Supervised Learning Framework for RLVR".
    """
    group = group_numbers(correct, groups)
    judged = ~correct.isnan()
    z = keep(scale * log_ratio(log_prob, proximal_log_prob, mask, "chain").squeeze(-1), judged)
    correct = keep(correct, judged).to(z.dtype)
    count = torch.zeros_like(z).index_add(0, group, judged.to(z.dtype))[group]
    others = (torch.zeros_like(z).index_add(0, group, z)[group] - z) / (count - 1).clamp(min=1)
    right = torch.zeros_like(z).index_add(0, group, correct)[group]
    of_class = torch.where(correct != 0, right, count - right)
    weights = torch.where((right > 0) & (right < count), count / (2 * of_class.clamp(min=1)), torch.ones_like(z))
    terms = F.binary_cross_entropy_with_logits(z - others, correct, weights, reduction="none")
    return keep(terms, judged).unsqueeze(-1)


def ranking_terms(
    log_prob: Tensor, returns: Tensor, groups: Tensor | int, mask: Tensor | None = None, power: float = 1.0
) -> Tensor:
    """Hinge on each pair of a group whose likelihoods are in the wrong order, and the likelihood of its best.

    p_i = sum_t log pi / length^power; a row pays max(0, p_i - p_j) for each better row j, and the best one pays
    -sum_t log pi.

    Args:
        log_prob: (M, U) with gradient.
        returns: (M,); NaN rows are in no pair.
        groups: (M,) integers, or k; whole groups must be in the batch.
        mask: (M, U).
        power: of the length.

    Returns:
        (M, 1): the sum over a group is its loss.

    Source: Yuan et al., "RRHF", eqs. (2) to (5).
    """
    group = group_numbers(returns, groups)
    total = masked_sum(keep(log_prob, mask), mask, -1)
    p = total / masked_count(log_prob, mask, -1).clamp(min=1) ** power
    wrong = (group[:, None] == group[None]) & (returns[:, None] < returns[None])
    hinge = torch.where(wrong, (p[:, None] - p[None]).clamp(min=0), 0.0).sum(-1)
    return (hinge - best_of_group(returns, group) * total).unsqueeze(-1)


@torch.no_grad()
def reward_weights(returns: Tensor, temperature: float, largest: float = 20.0) -> Tensor:
    """exp(R / temperature) as weights of a likelihood, at most `largest`: reward-weighted regression.

    Source: Peters and Schaal, "Reinforcement Learning by Reward-Weighted Regression" (2007).
    """
    return keep((returns / temperature).exp().clamp(max=largest), ~returns.isnan())


@torch.no_grad()
def distribution_weights(
    target_log_prob: Tensor, behaviour_log_prob: Tensor, log_normaliser: Tensor | float = 0.0
) -> Tensor:
    """P(x) / (Z q(x)) for samples of q: weights of a likelihood that moves pi to the distribution P / Z.

    Args:
        target_log_prob: (M,) log P(x) = log a(x) + lambda phi(x), or log a(x) where b(x) = 1; -inf where P is 0.
        behaviour_log_prob: (M,) log q(x) of whole sequences.
        log_normaliser: log Z; its estimate is the log of the mean of P / q.

    Source: Khalifa et al., "A Distributional Approach to Controlled Text Generation" (GDC, KL-adaptive DPG).
    """
    return (target_log_prob - behaviour_log_prob - log_normaliser).exp()


def preference_terms(better: Tensor, worse: Tensor, center: float = 0.0) -> Tensor:
    """-log sigmoid(r_w - r_l) of each pair, and `center` (r_w + r_l)^2, which holds the scores' free level at 0.

    Args:
        better: (P,) scores of the preferred answers.
        worse: (P,) of the others.
        center: at least 0.

    Returns:
        (P,) with gradient.

    Source: Bradley and Terry (1952), as in Stiennon et al., "Learning to Summarize with Human Feedback", section 3.4;
    the second term: Eisenstein et al., "Helping or Herding?", section 3.
    """
    return -F.logsigmoid(better - worse) + center * (better + worse).square()


def demonstration_terms(demonstrated: Tensor, sampled: Tensor, center: float) -> Tensor:
    """-(r_d - r_s) + `center` (r_d^2 + r_s^2) of each pair: a reward that explains demonstrations against samples.

    The gradient of the demonstrations' likelihood under the policy that is best for the reward, whose samples these
    are. Where demonstrations have a text with probability p and samples with q, the minimum is
    r = (p - q) / (2 `center` (p + q)), from -1 / (2 `center`) to 1 / (2 `center`).

    Args:
        demonstrated: (P,) scores of demonstrated answers.
        sampled: (P,) of the policy's own.
        center: above 0.

    Returns:
        (P,) with gradient.

    Source: Ziebart et al., "Maximum Entropy Inverse Reinforcement Learning"; the square: Ho and Ermon, "Generative
    Adversarial Imitation Learning", whose regulariser it is for least squares (Garg et al., "IQ-Learn", section 4).
    """
    return sampled - demonstrated + center * (demonstrated.square() + sampled.square())


def direct_preference_terms(better: Tensor, worse: Tensor, beta: float) -> Tensor:
    """DPO's -log sigmoid(beta (better - worse)) of each pair: preferences whose scores are the policy's own.

    Args:
        better: (P,) log pi(y) - log reference(y) of the preferred answers, summed over their tokens.
        worse: (P,) of the others.
        beta: above 0; the reference's weight.

    Returns:
        (P,) with gradient.

    Source: Rafailov et al., "Direct Preference Optimization", eq. (7).
    """
    return preference_terms(beta * better, beta * worse)


def step_label_terms(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of whether each reasoning step is right: (P,), for (P,) logits and labels in [0, 1].

    Source: Lightman et al., "Let's Verify Step by Step", section 2.6; Uesato et al. (2022).
    """
    return F.binary_cross_entropy_with_logits(scores, labels, reduction="none")
