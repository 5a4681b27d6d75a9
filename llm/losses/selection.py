"""Which units, rows and groups an update reads: masks of zeros and ones, without gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.losses.masked import group_moments, keep
from surefoot.llm.losses.advantages import group_numbers


@torch.no_grad()
def completion_mask(tokens: Tensor, ends: Sequence[int]) -> tuple[Tensor, Tensor]:
    """1 up to the first end token and at it, 0 after: ending is an action and is trained.

    Args:
        tokens: (B, U) integers.
        ends: the ids that end a sequence.

    Returns:
        (B, U) float32, and (B,) bool: whether a sequence has ended.
    """
    ended = torch.isin(tokens, torch.tensor(list(ends), device=tokens.device, dtype=tokens.dtype))
    before = ended.cumsum(-1) - ended.to(torch.int64)
    return (before == 0).float(), ended.any(-1)


@torch.no_grad()
def high_entropy_mask(entropy: Tensor, mask: Tensor, share: float = 0.2) -> Tensor:
    """The kept units whose entropy is among the highest `share` of all: where a text forks.

    Args:
        entropy: (B, U), in nats.
        mask: (B, U).
        share: rho in (0, 1].

    Returns:
        (B, U). Divide the loss by the number of units of `mask`, as the paper does.

    Raises:
        ConfigError: nothing is kept.

    Source: Wang et al., "Beyond the 80/20 Rule", eq. (5).
    """
    return mask * (entropy >= _quantile(entropy, mask, 1 - share))


@torch.no_grad()
def spurious_mask(
    log_prob: Tensor,
    entropy: Tensor,
    advantages: Tensor,
    mask: Tensor,
    least: float = 0.002,
    quantile: float = 0.75,
) -> Tensor:
    """Silences rare tokens of good answers where the policy was sure: A > 0, pi < `least`, entropy below a quantile.

    The quantile is over those rare tokens of good answers alone, so that the same share of them is silenced however the
    rest of the batch looks: of n with entropies that differ, about `quantile` n.

    Args:
        log_prob: (B, U).
        entropy: (B, U), in nats.
        advantages: (B, 1) or (B, U).
        mask: (B, U).
        least: probability.
        quantile: of the entropy over the rare tokens of good answers.

    Returns:
        (B, U). Divide the loss by the number of units of the result, as the paper does.

    Source: "STAPO" (2602.15620), version 4.
    """
    rare = (mask != 0) & (advantages > 0) & (log_prob < torch.tensor(least, dtype=log_prob.dtype).log())
    if not bool(rare.any()):
        return mask
    return mask * ~(rare & (entropy < _quantile(entropy, rare, quantile)))


def _quantile(values: Tensor, mask: Tensor, level: float) -> Tensor:
    kept = values.detach()[mask.expand_as(values) != 0]
    if not len(kept):
        raise ConfigError("every unit is masked: a quantile of their entropy needs one that is kept")
    return torch.quantile(kept, level)


@torch.no_grad()
def off_policy_mask(
    log_prob: Tensor, behaviour_log_prob: Tensor, advantages: Tensor, mask: Tensor, largest: float = 0.5
) -> Tensor:
    """Drops bad sequences that the policy has left behind: A < 0 and mean of log behaviour - log pi > `largest`.

    Args:
        log_prob: (B, U).
        behaviour_log_prob: (B, U).
        advantages: (B, 1).
        mask: (B, U).
        largest: in nats per unit.

    Returns:
        (B, U). Divide the loss by the number of units of `mask`.

    Source: DeepSeek-AI, "DeepSeek-V3.2", off-policy sequence masking.
    """
    gap = keep(behaviour_log_prob - log_prob, mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    return mask * ~((advantages < 0) & (gap > largest))


@torch.no_grad()
def fresh_mask(versions: Tensor, current: int, oldest: int) -> Tensor:
    """1 for what a policy of at most `oldest` updates ago produced, 0 for older.

    Args:
        versions: (B,) or, for sequences that were continued by a later policy, (B, U): the policy's number of updates.
        current: that of the policy that is trained.
        oldest: staleness that is allowed, 0 for none.

    Raises:
        ConfigError: a version above `current`.

    Source: Fu et al., "AReaL", eq. (3).
    """
    if bool((versions > current).any()):
        raise ConfigError(f"samples of version {int(versions.max())} are newer than the policy, version {current}")
    return (current - versions <= oldest).float()


@torch.no_grad()
def likely_mask(log_prob: Tensor, mask: Tensor, least: float) -> Tensor:
    """1[pi > least]: leaves out tokens that the policy would hardly say without the hint that they were sampled with.

    Source: EMPO2 (2602.23008), from a summary of the paper; the value of its threshold is not published.
    """
    return mask * (keep(log_prob, mask) > torch.tensor(least, dtype=log_prob.dtype).log())


@torch.no_grad()
def mixed_groups(metric: Tensor, groups: Tensor | int) -> Tensor:
    """1 for rows of groups whose metric is not everywhere the same: the others teach nothing (dynamic sampling).

    Args:
        metric: (M,); NaN rows are left aside.
        groups: (M,) integers, or k.

    Source: Yu et al., "DAPO", section 3.2.
    """
    scored = ~metric.isnan()
    group = group_numbers(metric, groups)
    low = torch.full_like(metric, torch.inf).scatter_reduce_(0, group, keep(metric, scored, torch.inf), "amin")[group]
    high = torch.full_like(metric, -torch.inf).scatter_reduce_(0, group, keep(metric, scored, -torch.inf), "amax")
    return (high[group] > low).to(metric.dtype)


@torch.no_grad()
def spread_groups(returns: Tensor, groups: Tensor | int, average: Tensor, share: float = 0.5) -> tuple[Tensor, Tensor]:
    """1 for rows of groups whose standard deviation is at least `share` of its running average.

    Args:
        returns: (M,).
        groups: (M,) integers, or k.
        average: scalar, the running average of standard deviations.
        share: beta; the paper has 0.5, 0.9 and 1 for three families of models.

    Returns:
        (M,), and the next running average: 0.99 of the old one and 0.01 of the mean over rows.

    Source: Yu et al., "RLPR", section 3.3, with the constants of its code.
    """
    _, variance, _ = group_moments(returns, group_numbers(returns, groups), (~returns.isnan()).to(returns.dtype))
    spread = variance.sqrt()
    return (spread >= share * average).to(returns.dtype), 0.99 * average + 0.01 * spread.mean()


@torch.no_grad()
def nucleus_mask(logits: Tensor, share: float = 0.9, always: Sequence[int] = ()) -> Tensor:
    """The smallest set of actions with at least `share` of a policy's probability, True where allowed.

    Args:
        logits: (..., V) of the mask policy, a copy refreshed now and then.
        share: in (0, 1].
        always: actions that are allowed in any case (special tokens).

    Returns:
        (..., V) bool. Keep it with the sample and apply it again, by `masked_logits`, where its probability is
        computed.

    Source: Ramamurthy et al., "Is Reinforcement Learning (Not) for Natural Language Processing?" (NLPO).
    """
    ordered, places = logits.softmax(-1).sort(-1, descending=True)
    inside = ordered.cumsum(-1) - ordered < share
    allowed = torch.zeros_like(inside).scatter(-1, places, inside)
    if always:
        allowed[..., list(always)] = True
    return allowed


def masked_logits(logits: Tensor, allowed: Tensor) -> Tensor:
    """Logits of the actions that are allowed, -inf for the others (NLPO, constrained decoding).

    Args:
        logits: (..., V) with gradient.
        allowed: (..., V) bool.

    Raises:
        ConfigError: a row that allows nothing.
    """
    if not bool(allowed.any(-1).all()):
        raise ConfigError("a row allows no action at all: a mask of actions needs at least one in each row")
    return logits.masked_fill(~allowed, -torch.inf)
