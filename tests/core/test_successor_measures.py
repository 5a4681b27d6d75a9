"""Losses of forward-backward representations: by hand, and on a chain whose successor measure is known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from surefoot.core.losses.successor_measures import (
    measure_loss,
    measure_penalty,
    orthonormality_loss,
    reward_direction,
    value_penalty,
)
from surefoot.offline.hilp import least_squares_task


def numbers(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


F = numbers([[1, 0], [0.5, 0.5], [0, 1]], [[0.8, 0.2], [0.4, 0.4], [0.1, 1.1]])
B = numbers([1, 1], [1, -1], [-1, 1])
FOLLOWING = numbers([[0.9, 0.1], [0.6, 0.4], [0.2, 0.9]], [[1, -0.1], [0.5, 0.6], [0.1, 0.8]])
SLOW_B = numbers([1.1, 0.9], [0.9, -1.1], [-0.9, 1.1])
SAMPLED = numbers([[0.5, 0.2], [0.3, 0.1], [0, 0.4]], [[1.2, 0], [0.2, 0.9], [0.3, 0.3]])[None]
TASKS = numbers([1, 1], [math.sqrt(2), 0], [0, -math.sqrt(2)])


def test_the_measure_loss_by_hand() -> None:
    """Three rows, the smaller of the two targets, gamma .98; a row's own next state is no negative."""
    target = 0.98 * (FOLLOWING @ SLOW_B.T).amin(0)
    assert measure_loss(F @ B.T, target).item() == pytest.approx(-1.2844663, abs=1e-7)


def test_orthonormality_by_hand() -> None:
    """Products (0, 0, -2): mean square 4 / 3, less twice the mean square length, 2."""
    assert orthonormality_loss(B).item() == pytest.approx(4 / 3 - 4, abs=1e-12)


def test_penalties_by_hand() -> None:
    assert value_penalty(SAMPLED, F[:1], TASKS).item() == pytest.approx(0.8770175, abs=1e-7)
    assert measure_penalty(SAMPLED, F[:1], B).item() == pytest.approx(0.6628942, abs=1e-7)


def test_copies_of_the_datas_action_are_among_those_considered() -> None:
    both = torch.cat([SAMPLED, F[:1].unsqueeze(1), F[:1].unsqueeze(1)], 1)
    for penalty, other in ((value_penalty, TASKS), (measure_penalty, B)):
        torch.testing.assert_close(penalty(SAMPLED, F[:1], other, 2), penalty(both, F[:1], other))


def test_tasks_of_rewards_by_hand() -> None:
    """Mean of r B is (1.5, .5) / 3; least squares of B z = r has B^T B = (3, -1; -1, 3) and B^T r = (1.5, .5)."""
    rewards = numbers(1, 0, -0.5)
    torch.testing.assert_close(reward_direction(B, rewards), numbers(0.5, 0.5 / 3))
    torch.testing.assert_close(least_squares_task(B, rewards), numbers(0.625, 0.375))


def test_the_successor_measure_of_a_chain_is_where_the_loss_is_flat() -> None:
    """M = P (1 - .9 P)^-1 of three states, over the density of next states: 2,000 rows in their exact shares."""
    p = numbers([0.1, 0.9, 0], [0, 0.2, 0.8], [0.7, 0, 0.3])
    measure = p @ torch.linalg.inv(torch.eye(3, dtype=torch.float64) - 0.9 * p)
    expected = numbers(
        [2.6400090, 3.7053748, 3.6546162], [2.8424793, 3.0517173, 4.1058034], [3.2372681, 3.1977892, 3.5649428]
    )
    torch.testing.assert_close(measure, expected, atol=1e-7, rtol=0)
    counts = (2000 * numbers(0.5, 0.3, 0.2)[:, None] * p).round().long()
    rows = [(s, t) for s in range(3) for t in range(3) for _ in range(int(counts[s, t]))]
    now, following = torch.tensor(rows).T
    density = torch.bincount(following, minlength=3) / len(rows)

    def gradient(at: torch.Tensor) -> float:
        m = at.clone().requires_grad_()
        loss = measure_loss(m[now][:, following][None], 0.9 * m.detach()[following][:, following])
        return float(torch.autograd.grad(loss, m)[0].abs().max())

    assert gradient(measure / density) < 5e-3
    assert gradient(1.1 * measure / density) > 2e-2
