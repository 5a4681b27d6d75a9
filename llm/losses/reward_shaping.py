"""Rewards made of other rewards: penalties, gates, bonuses and places. (M,) is one for each sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.losses.masked import group_moments, keep, masked_mean, normalise
from surefoot.llm.losses.advantages import group_baseline, group_numbers


@torch.no_grad()
def overlong_penalty(lengths: Tensor, longest: int, buffer: int) -> Tensor:
    """0 up to `longest` - `buffer` tokens, falling to -1 at `longest`, and -1 beyond.

    Args:
        lengths: (M,) tokens.
        longest: the most tokens of an answer.
        buffer: tokens before it in which the penalty grows.

    Raises:
        ConfigError: a buffer that is not within (0, longest].

    Source: Yu et al., "DAPO", eq. (13).
    """
    if not 0 < buffer <= longest:
        raise ConfigError(f"buffer={buffer} of an overlong penalty must be above 0 and at most longest={longest}")
    return ((longest - buffer - lengths) / buffer).clamp(-1, 0)


@torch.no_grad()
def gated_reward(outcome: Tensor, dense: Tensor, threshold: float) -> Tensor:
    """R = outcome + 1[outcome >= threshold] * sum of the dense rewards: (M,).

    Args:
        outcome: (M,), the reward that counts in the end.
        dense: (M, K) rewards on the way.
        threshold: the gate.

    Source: "Gated Reward Accumulation" (2508.10548), from a summary of the paper.
    """
    return outcome + torch.where(outcome >= threshold, dense.sum(-1), 0.0)


@torch.no_grad()
def difficulty_scales(similarity: Tensor, gaps: Tensor, largest: float) -> Tensor:
    """What GRPO-S multiplies the advantages of each answer with: (M,), above 0; 1 where all answers are alike.

    sigma(d_i) / sigma(mean d) * sigma(mean of the gaps that are kept) / sigma(mean of all gaps), d = 1 - similarity.
    A gap is kept where its squared deviation from the mean is at most `largest`.

    Args:
        similarity: (M,), cosines of answers and their demonstrations, in [-1, 1].
        gaps: (M,), rewards of demonstrations less those of answers; NaN counts for nothing.
        largest: in squared units of the reward.

    Source: "Inverse Reinforcement Learning with Dynamic Reward Scaling for LLM Alignment" (DR-IRL, 2503.18991), from
    notes of a reader.
    """
    apart, known = 1 - similarity, gaps[~gaps.isnan()]
    of_data = apart.sigmoid() / apart.mean().sigmoid()
    if not len(known):
        return of_data
    mean = known.mean()
    kept = known[(known - mean).square() <= largest]
    return of_data * ((kept.mean() if len(kept) else mean).sigmoid() / mean.sigmoid())


@torch.no_grad()
def consistency_bonus(
    accuracy: Tensor,
    answer_log_prob: Tensor,
    answer_mask: Tensor,
    groups: Tensor | int,
    *,
    weight: float = 0.5,
    margin: float = 0.01,
    largest: float = 0.95,
    least_accuracy: float = 0.1,
) -> Tensor:
    """A bonus for right answers that the reasoning makes likely, to be added to the reward: (M,).

    c = min(exp(mean log-probability of the answer's tokens under a slow copy), largest); S = rows with accuracy above
    `least_accuracy` and at least their group's mean; the bonus is weight * accuracy for rows of S whose c is at least
    the mean of c over S in their group, less `margin`.

    Args:
        accuracy: (M,).
        answer_log_prob: (M, U) given question and reasoning, under the moving average of the policy.
        answer_mask: (M, U), 1 at the answer's tokens.
        groups: (M,) integers, or k.
        weight: of the bonus.
        margin: slack, in probability.
        largest: cap of c.
        least_accuracy: below it no row is in S.

    Source: Chen et al., "GRPO-CARE", with the constants of its code.
    """
    group = group_numbers(accuracy, groups)
    likely = masked_mean(keep(answer_log_prob, answer_mask), answer_mask, -1).exp().clamp(max=largest)
    mean, _, _ = group_moments(accuracy, group)
    good = ((accuracy > least_accuracy) & (accuracy >= mean)).to(accuracy.dtype)
    likely_mean, _, _ = group_moments(likely, group, good)
    return keep(torch.where(likely >= likely_mean - margin, weight * accuracy, 0.0), good)


@torch.no_grad()
def probability_reward(
    with_reasoning: Tensor,
    without_reasoning: Tensor,
    mask: Tensor,
    format_reward: Tensor | None = None,
    format_share: float = 0.1,
) -> Tensor:
    """How much the reasoning raises the mean probability of the reference answer's tokens, at least 0: (M,).

    Args:
        with_reasoning: (M, U) log-probabilities of the reference answer given question and reasoning.
        without_reasoning: (M, U) given the question alone.
        mask: (M, U).
        format_reward: (M,); None for none.
        format_share: its share, the rest being the probability's.

    Source: Yu et al., "RLPR", eqs. (4) and (5), with the shares of its code.
    """
    gain = masked_mean(keep(with_reasoning, mask).exp(), mask, -1) - masked_mean(
        keep(without_reasoning, mask).exp(), mask, -1
    )
    gain = gain.clamp(min=0)
    return gain if format_reward is None else (1 - format_share) * gain + format_share * format_reward


@torch.no_grad()
def consistency_scaled_reward(result: Tensor, consistency: Tensor, form: Tensor) -> Tensor:
    """result (1 + consistency / 2) + form / 2: (M,).

    Source: Zhang et al., "R1-Reward", section 4.3.
    """
    return result * (1 + 0.5 * consistency) + 0.5 * form


@torch.no_grad()
def novelty_reward(counts: Tensor) -> Tensor:
    """1 / n, n being how often such a state was met, this time included (EMPO2's intrinsic reward)."""
    return 1.0 / counts


@torch.no_grad()
def shared_reward(pioneer: Tensor, observer: Tensor) -> Tensor:
    """What each of two copies of a policy gets, r1 + r2: the pioneer, and the observer who saw the pioneer's answer.

    The copies exchange their roles every few steps.

    Source: Ma et al., "Coevolving with the Other You" (CORY), section 4.
    """
    return pioneer + observer


@torch.no_grad()
def repetition_penalty(tokens: Tensor, mask: Tensor, length: int = 3) -> Tensor:
    """-(1 - distinct / all n-grams) of each row: (M, U) integers -> (M,), 0 where a row is shorter than an n-gram.

    Args:
        tokens: (M, U).
        mask: (M, U), ones on the left of each row.
        length: n.

    Source: Yeo et al., "Demystifying Long Chain-of-Thought Reasoning in LLMs", repetition penalty.
    """
    found = torch.zeros(len(tokens), device=tokens.device)
    for row, (ids, kept) in enumerate(zip(tokens, mask, strict=True)):
        count = int((kept != 0).sum()) - length + 1
        if count > 0:
            distinct = torch.unique(ids[: count + length - 1].unfold(0, length, 1), dim=0)
            found[row] = len(distinct) / count - 1
    return found


@torch.no_grad()
def process_reward(log_prob: Tensor, reference_log_prob: Tensor, mask: Tensor, scale: float = 0.05) -> Tensor:
    """scale (log pi_phi - log ref) for each token, of a model phi trained on outcomes alone: (M, U).

    Source: Yuan et al., "Free Process Rewards without Process Labels", and Cui et al., "PRIME".
    """
    return scale * keep(log_prob - reference_log_prob, mask)


@torch.no_grad()
def outcome_rewards(returns: Tensor, mask: Tensor) -> Tensor:
    """Each sequence's reward at its last kept unit: (M,), (M, U) -> (M, U).

    Raises:
        ConfigError: a row that keeps no unit.
    """
    places = torch.arange(mask.shape[-1], device=mask.device)
    last = torch.where(mask != 0, places, -1).amax(-1, keepdim=True)
    if bool((last < 0).any()):
        raise ConfigError(f"row {int((last[:, 0] < 0).nonzero()[0])} keeps no unit that a reward could be given at")
    return torch.where(places == last, returns.unsqueeze(-1), 0.0)


@torch.no_grad()
def kl_penalised_rewards(rewards: Tensor, kl: Tensor, mask: Tensor, coefficient: float) -> Tensor:
    """r_t - coefficient kl_t at each unit: the KL penalty in the reward.

    Args:
        rewards: (M, U), as from `outcome_rewards`.
        kl: (M, U), `kl_k1` of the policy that acted.
        mask: (M, U).
        coefficient: beta. Its sum over a sequence is what RLOO takes from the return before its baseline.

    Source: Ziegler et al. (2019); Hu et al., "REINFORCE++".
    """
    return keep(rewards - coefficient * kl, mask)


@torch.no_grad()
def combined_advantages(rewards: Tensor, weights: Tensor, groups: Tensor | int) -> Tensor:
    """Several rewards, each normalised in its group, weighed, summed and whitened over the batch: (M,).

    Args:
        rewards: (M, K).
        weights: (K,).
        groups: (M,) integers, or k.

    Source: "GDPO: Group reward-Decoupled Normalization Policy Optimization".
    """
    each = [group_baseline(column, groups, "meanstd") for column in rewards.unbind(-1)]
    return normalise((torch.stack(each, -1) * weights).sum(-1))
