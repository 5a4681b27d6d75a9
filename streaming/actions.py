"""How actions are drawn and what log pi and entropy are the derivatives of. Pure functions of K streams at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def sample_gaussian(outputs: Tensor, normal: Tensor) -> Tensor:
    """(K, A) mean + softplus(raw) noise of (K, 2 A) outputs (mean, raw) and (K, A) standard normal noise."""
    mean, raw = outputs.chunk(2, -1)
    return mean + nn.functional.softplus(raw) * normal


def gaussian_gradient(outputs: Tensor, actions: Tensor, entropy: Tensor) -> Tensor:
    """(K, 2 A) derivative of log pi(a) + entropy H by the outputs (mean, raw) of a normal with std softplus(raw).

    Args:
        outputs: (K, 2 A).
        actions: (K, A) as they were drawn, not clipped.
        entropy: (K,) weights of the entropy, which is the sum of log std and constants.
    """
    mean, raw = outputs.chunk(2, -1)
    std = nn.functional.softplus(raw)
    score = (actions - mean) / std
    by_std = (score.square() - 1 + entropy.unsqueeze(-1)) / std
    return torch.cat([score / std, by_std * torch.sigmoid(raw)], -1)


def sample_softmax(logits: Tensor, uniform: Tensor) -> Tensor:
    """(K,) first choice whose cumulative probability exceeds (K,) uniform numbers; (K, n) logits."""
    total = torch.softmax(logits, -1).cumsum(-1)
    return (total <= uniform.unsqueeze(-1)).sum(-1).clamp(max=logits.shape[-1] - 1)


def softmax_gradient(logits: Tensor, choices: Tensor, entropy: Tensor) -> Tensor:
    """(K, n) derivative of log pi(choice) + entropy H by (K, n) logits; (K,) weights of the entropy."""
    log_p = torch.log_softmax(logits, -1)
    p = log_p.exp()
    chosen = nn.functional.one_hot(choices, logits.shape[-1]).to(p.dtype)
    h = -(p * log_p).sum(-1, keepdim=True)
    return chosen - p - entropy.unsqueeze(-1) * p * (log_p + h)


def epsilon_greedy(values: Tensor, uniform: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor]:
    """(K,) choices, and (K,) whether they are not the greedy ones: a random draw of the greedy choice is greedy.

    Args:
        values: (K, n); the greedy choice is the first of the largest.
        uniform: (K, 2) in [0, 1): explore where the first is below epsilon; the second says which choice.
        epsilon: () share of random choices.
    """
    choices = values.shape[-1]
    greedy = values.argmax(-1)
    drawn = (uniform[:, 1] * choices).long().clamp(max=choices - 1)
    chosen = torch.where(uniform[:, 0] < epsilon, drawn, greedy)
    return chosen, chosen != greedy


def of_choice(values: Tensor, choices: Tensor) -> Tensor:
    """(K,) of (K, n) values, those of (K,) choices."""
    return values.gather(-1, choices.unsqueeze(-1)).squeeze(-1)


def epsilon_at(step: int, planned_steps: int, exploration_fraction: float, last: float) -> float:
    """Share of random choices at `step` >= 1: falls from 1 to `last` in a fraction of the planned steps."""
    return max(1 + (last - 1) * step / (exploration_fraction * planned_steps), last)
