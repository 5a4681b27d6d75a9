"""Returns and generalised advantages against numbers by hand, definitions and masks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from value_numbers import f64

from surefoot.core.base.errors import DataError
from surefoot.core.losses.value_learning import (
    gae,
    gae_off_policy,
    lambda_returns,
    mc_return,
    shifted_values,
    td_target,
    value_loss,
    vtrace,
)

# -- returns over time -------------------------------------------------------------------------------------

REWARDS, VALUES, NEXT = [1.0, 0, 2, 1], [0.5, 0.4, 0.3, 0.2], [0.4, 0.3, 0.2, 0.7]
NEVER, AT_ONE = [0.0] * 4, [0.0, 1, 0, 0]


def advantages_of(
    terminations: list[float],
    truncations: list[float],
    following: list[float] = NEXT,
    trace: float = 0.8,
    rewards: list[float] = REWARDS,
) -> Tensor:
    given = (f64(x) for x in (rewards, VALUES, following, terminations, truncations))
    advantages, returns = gae(*given, 0.9, trace)
    torch.testing.assert_close(returns, advantages + f64(VALUES))
    return advantages


def test_gae_gives_the_numbers_worked_out_by_hand_at_terminations_truncations_and_without_an_end() -> None:
    torch.testing.assert_close(advantages_of(NEVER, NEVER), f64([2.27473664, 1.964912, 2.9096, 1.43]))
    torch.testing.assert_close(advantages_of(AT_ONE, NEVER), f64([0.572, -0.4, 2.9096, 1.43]))
    final = [0.4, 0.9, 0.2, 0.7]  # the value of the final observation, not of the reset one
    cut = advantages_of(NEVER, AT_ONE, final)
    torch.testing.assert_close(cut, f64([1.1552, 0.41, 2.9096, 1.43]))
    torch.testing.assert_close(advantages_of(AT_ONE, AT_ONE, final), f64([0.572, -0.4, 2.9096, 1.43]))
    torch.testing.assert_close(
        advantages_of(NEVER, NEVER, trace=1.0), f64([3.30827, 2.7203, 3.167, 1.43]), atol=1e-9, rtol=0
    )


def test_wrong_truncations_give_wrong_numbers_and_an_augmented_reward_the_right_ones() -> None:
    final = [0.4, 0.9, 0.2, 0.7]
    right = advantages_of(NEVER, AT_ONE, final)
    before = advantages_of(NEVER, AT_ONE, [0.4, VALUES[1], 0.2, 0.7])  # V(s_t) for V(final)
    leak = advantages_of(NEVER, NEVER, final)  # over the boundary
    torch.testing.assert_close(before[:2], f64([0.8312, -0.04]))
    torch.testing.assert_close(leak[:2], f64([2.6635, 2.5049]), atol=1e-4, rtol=0)
    assert all(float((wrong - right)[:2].abs().min()) > 0.1 for wrong in (before, leak))
    augmented = advantages_of(AT_ONE, NEVER, final, rewards=[1.0, 0 + 0.9 * final[1], 2, 1])
    torch.testing.assert_close(augmented, right)


def episodes(seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Twelve steps of five columns with random ends: rewards, values, next values, terminations, truncations."""
    source = torch.Generator().manual_seed(seed)
    rewards, values, following = torch.randn(3, 12, 5, generator=source, dtype=dtype)
    terminations, truncations = (torch.rand(2, 12, 5, generator=source) < 0.2).to(dtype)
    return rewards, values, following, terminations, truncations


def by_hand(column: list[list[float]], discount: float, trace: float) -> list[float]:
    """The sum of discounted TD errors up to the end, from its definition."""
    rewards, values, following, terminations, truncations = column
    found = []
    for start in range(len(rewards)):
        total, factor = 0.0, 1.0
        for t in range(start, len(rewards)):
            total += factor * (rewards[t] + discount * (1 - terminations[t]) * following[t] - values[t])
            if terminations[t] or truncations[t]:
                break
            factor *= discount * trace
        found.append(total)
    return found


@given(st.integers(0, 2**31), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=25, deadline=None)
def test_gae_is_the_sum_of_its_definition_and_the_lambda_returns_are_its_returns(
    seed: int, discount: float, trace: float
) -> None:
    data = episodes(seed)
    before = [tensor.clone() for tensor in data]
    advantages, returns = gae(*data, discount, trace)
    expected = [by_hand([tensor[:, e].tolist() for tensor in data], discount, trace) for e in range(5)]
    torch.testing.assert_close(advantages, f64(expected).T)
    rewards, values, following, terminations, truncations = data
    for flags in ((terminations, truncations), (terminations.bool(), truncations.bool())):
        torch.testing.assert_close(gae(rewards, values, following, *flags, discount, trace)[0], advantages)
    # lambda-returns know V(s_{t+1}) only as the next value, so compare where the two agree
    joined = torch.where((terminations + truncations) > 0, following, shifted_values(values, following[-1]))
    _, returns = gae(rewards, values, joined, terminations, truncations, discount, trace)
    found = lambda_returns(rewards, joined, terminations, truncations, discount, trace)
    torch.testing.assert_close(found, returns)
    assert all(torch.equal(now, then) for now, then in zip(data, before))  # nothing that was given is changed


def test_monte_carlo_returns_stop_at_ends_and_bootstrap_where_they_are_told_to() -> None:
    rewards, terminations, truncations = f64([1, 2, 4, 8]), f64([0, 1, 0, 0]), f64([0, 0, 1, 0])
    torch.testing.assert_close(mc_return(rewards, terminations, truncations, 0.5), f64([2, 2, 4, 8]))
    beyond = f64([100, 100, 10, 20])
    torch.testing.assert_close(mc_return(rewards, terminations, truncations, 0.5, beyond), f64([2, 2, 9, 18]))


def test_a_constant_reward_cut_by_time_limits_is_worth_what_it_is_worth_forever() -> None:
    steps, discount = 40, 0.95
    rewards = torch.ones(steps, 1, dtype=torch.float64)
    ends = ((torch.arange(steps) % 10) == 9).double().unsqueeze(1)
    forever = torch.full_like(rewards, 1 / (1 - discount))
    _, right = gae(rewards, forever, forever, torch.zeros_like(ends), ends, discount, 0.9)
    torch.testing.assert_close(right, forever)
    _, as_death = gae(rewards, forever, forever, ends, torch.zeros_like(ends), discount, 0.9)
    assert float((as_death - forever).abs().max()) > 10


@given(st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_vtrace_of_the_own_policy_is_the_lambda_return_and_otherwise_its_definition(seed: int) -> None:
    data = episodes(seed)
    rewards, values, following, terminations, truncations = data
    ends = (terminations + truncations) > 0
    following = torch.where(ends, following, shifted_values(values, following[-1]))
    data = (rewards, values, following, terminations, truncations)
    targets, _ = vtrace(torch.zeros_like(rewards), *data, 0.9, trace=0.7)
    torch.testing.assert_close(targets, gae(*data, 0.9, 0.7)[1])

    logs = torch.randn(12, 5, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    targets, advantages = vtrace(logs, *data, 0.9, largest_weight=1.5, largest_trace=0.8)
    rho, c = logs.exp().clamp(max=1.5), logs.exp().clamp(max=0.8)
    errors = rho * (rewards + 0.9 * (1 - terminations) * following - values)
    for column in range(5):
        for start in range(12):
            total, factor = 0.0, 1.0
            for t in range(start, 12):
                total += factor * float(errors[t, column])
                if ends[t, column]:
                    break
                factor *= 0.9 * float(c[t, column])
            assert float(targets[start, column] - values[start, column]) == pytest.approx(total, abs=1e-10)
            last = start == 11 or bool(ends[start, column])
            after = following[start, column] if last else targets[start + 1, column]
            bootstrap = 0.9 * (1 - terminations[start, column]) * after
            expected = rho[start, column] * (rewards[start, column] + bootstrap - values[start, column])
            torch.testing.assert_close(advantages[start, column], expected)


@given(st.integers(0, 2**31), st.integers(0, 11), st.sampled_from([0.0, math.nan, math.inf, -1e30]))
@settings(max_examples=30, deadline=None)
def test_masked_steps_anywhere_change_no_return(seed: int, place: int, rubbish: float) -> None:
    rewards, values, _, terminations, truncations = episodes(seed)
    data = [rewards, values, terminations, truncations]
    last = torch.ones(5, dtype=torch.float64)

    def with_gap(tensor: Tensor, fill: float) -> Tensor:
        return torch.cat([tensor[:place], torch.full((2, 5), fill, dtype=tensor.dtype), tensor[place:]])

    def results(rewards: Tensor, values: Tensor, over: Tensor, cut: Tensor, mask: Tensor | None) -> list[Tensor]:
        following = shifted_values(values, last, mask)
        logs = 0.3 * rewards
        return [
            *gae(rewards, values, following, over, cut, 0.9, 0.8, mask),
            lambda_returns(rewards, following, over, cut, 0.9, 0.8, mask),
            mc_return(rewards, over, cut, 0.9, following, mask),
            *vtrace(logs, rewards, values, following, over, cut, 0.9, mask=mask),
        ]

    mask = with_gap(torch.ones(12, 5, dtype=torch.float64), 0.0)
    plain = results(*data, mask=None)
    wide = results(*(with_gap(tensor, rubbish) for tensor in data), mask=mask)
    for found, expected in zip(wide, plain):
        torch.testing.assert_close(found, with_gap(expected, 0.0))


def test_float32_returns_are_those_of_float64_to_its_precision() -> None:
    exact, single = gae(*episodes(3), 0.99, 0.95)[0], gae(*episodes(3, torch.float32), 0.99, 0.95)[0]
    assert single.dtype == torch.float32
    again = gae(*(tensor.double() for tensor in episodes(3, torch.float32)), 0.99, 0.95)[0]
    torch.testing.assert_close(single.double(), again, rtol=1e-5, atol=1e-5)
    assert exact.dtype == torch.float64


def test_off_policy_advantages_of_the_own_policy_are_gae_and_otherwise_their_definition() -> None:
    source = np.random.default_rng(3)
    rewards, values, following, logs = (torch.from_numpy(source.normal(size=(6, 2))) for _ in range(4))
    over, cut = (torch.from_numpy(source.random((6, 2)) < 0.25) for _ in range(2))
    data = (rewards, values, following, over, cut)
    for found, wanted in zip(
        gae_off_policy(torch.zeros_like(rewards), *data, 0.9, 0.8), gae(*data, 0.9, 0.8), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    advantages, targets = gae_off_policy(logs, *data, 0.9, 0.8)
    wanted_targets, _ = vtrace(logs, *data, 0.9, trace=0.8)
    torch.testing.assert_close(targets, wanted_targets, rtol=0, atol=1e-12)
    for e in range(2):
        for t in range(6):
            alive = 0.0 if over[t, e] else 0.9
            ends = bool(over[t, e] | cut[t, e]) or t == 5
            after = (
                following[t, e]
                if ends
                else 0.2 * following[t, e] + 0.8 * (following[t, e] + targets[t + 1, e] - values[t + 1, e])
            )
            assert float(advantages[t, e]) == pytest.approx(float(rewards[t, e] + alive * after - values[t, e]))


def test_shapes_that_would_broadcast_are_refused_by_name() -> None:
    rows, column, none = torch.zeros(6), torch.zeros(6, 1), torch.zeros(6)
    with pytest.raises(DataError, match=r"rewards are \(6,\) and values \(6, 1\): give them one shape"):
        gae(rows, column, rows, none, none, 0.9, 1.0)
    with pytest.raises(DataError, match="next_values"):
        lambda_returns(rows, column, none, none, 0.9, 0.5)
    for of_others in (vtrace, gae_off_policy):
        with pytest.raises(DataError, match="terminations"):
            of_others(rows, rows, rows, rows, torch.zeros(5), none, 0.9, 1.0)
    with pytest.raises(DataError, match="returns"):
        value_loss(column, rows)
    with pytest.raises(DataError, match="next values"):
        td_target(rows, none, column, 0.9)
    assert td_target(rows, none, torch.zeros(2, 6), 0.9).shape == (2, 6)  # of several critics
