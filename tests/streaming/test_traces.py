"""ObGD against steps worked out by hand, and the bounds that it promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surefoot.streaming import traces

FEATURES = torch.tensor([[1.0, 0.0], [0.5, 1.0], [0.0, 2.0]], dtype=torch.float64)
REWARDS = (1.0, -0.5, 2.0)
DISCOUNT, LAMBDA = 0.9, 0.8
START = torch.tensor([[0.3, -0.2]], dtype=torch.float64)


def delta_at(t: int, weights: Tensor) -> Tensor:
    following = DISCOUNT * weights @ FEATURES[t + 1] if t < 2 else torch.zeros(1, dtype=torch.float64)
    return REWARDS[t] + following - weights @ FEATURES[t]


def test_backward_and_forward_views_agree_on_frozen_weights() -> None:
    trace, backward = torch.zeros(1, 2, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    for t in range(3):
        trace = traces.accumulate(trace, FEATURES[t : t + 1], DISCOUNT * LAMBDA)
        backward += delta_at(t, START).unsqueeze(-1) * trace
    torch.testing.assert_close(trace, torch.tensor([[0.8784, 2.72]], dtype=torch.float64))
    values = [0.3, -0.05, -0.4, 0.0]
    returns, following = [0.0] * 3, 0.0
    for t in (2, 1, 0):  # G_t = r + gamma ((1 - lambda) v' + lambda G_{t+1})
        following = REWARDS[t] + DISCOUNT * ((1 - LAMBDA) * values[t + 1] + LAMBDA * following)
        returns[t] = following
    assert returns == pytest.approx([1.61596, 0.868, 2.0])
    forward = sum((returns[t] - values[t]) * FEATURES[t].numpy() for t in range(3))
    assert backward[0].tolist() == pytest.approx(list(forward)) == [1.77496, 5.718]


TABLE = {
    2.0: (
        (0.655, 0.5, (0.6275, -0.2)),
        (-0.97375, 0.2252252, (0.3599381, -0.4193131)),
        (2.8386261, 0.0489500, (0.4819923, -0.0413673)),
    ),
    3.0: (None, None, (2.6760260, 0.0346162, (0.4313270, -0.0860492))),
}


@pytest.mark.parametrize("kappa", TABLE)
def test_obgd_takes_the_steps_worked_out_by_hand(kappa: float) -> None:
    weights, trace = START, torch.zeros(1, 2, dtype=torch.float64)
    for t, row in enumerate(TABLE[kappa]):
        trace = traces.accumulate(trace, FEATURES[t : t + 1], DISCOUNT * LAMBDA)
        delta = delta_at(t, weights)
        weights, step = traces.obgd_step(weights, trace, delta, kappa=kappa)
        if row is not None:
            assert (float(delta), float(step)) == pytest.approx(row[:2], abs=1.5e-7)
            assert weights[0].tolist() == pytest.approx(row[2], abs=1.5e-7)


def test_adaptive_obgd_takes_the_steps_worked_out_by_hand() -> None:
    weights, trace, second = START, torch.zeros(1, 2, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    steps = (0.3275, 0.1835782, 0.1539051)
    after = ((0.6275, -0.2), (0.4001788, -0.4595538), (0.6357200, -0.1950950))
    for t in range(3):
        trace = traces.accumulate(trace, FEATURES[t : t + 1], DISCOUNT * LAMBDA)
        count = torch.tensor([t + 1])
        weights, second, step = traces.adaptive_obgd_step(
            weights, trace, second, count, delta_at(t, weights), kappa=2.0
        )
        assert float(step) == pytest.approx(steps[t], abs=1.5e-7)
        assert weights[0].tolist() == pytest.approx(after[t], abs=1.5e-7)


def test_plain_sgd_moves_by_rate_error_and_trace() -> None:
    trace, delta = torch.tensor([[1.0, -2.0]]), torch.tensor([-3.0])
    assert traces.sgd_step(torch.zeros(1, 2), trace, delta, learning_rate=0.1)[0].tolist() == pytest.approx([-0.3, 0.6])


vectors = st.lists(st.floats(-50, 50), min_size=1, max_size=20).map(lambda v: torch.tensor([v], dtype=torch.float64))
errors = st.floats(-1e3, 1e3).map(lambda v: torch.tensor([v], dtype=torch.float64))


@settings(max_examples=200, deadline=None)
@given(trace=vectors, delta=errors, kappa=st.floats(0.5, 10), step_size=st.floats(0.1, 10))
def test_a_step_never_moves_more_than_one_over_kappa(
    trace: Tensor, delta: Tensor, kappa: float, step_size: float
) -> None:
    weights, _ = traces.obgd_step(torch.zeros_like(trace), trace, delta, kappa=kappa, step_size=step_size)
    moved, size = float(weights.abs().sum()), float(trace.abs().sum())
    bound = step_size * kappa * max(abs(float(delta)), 1) * size
    assert moved <= (1 + 1e-12) / kappa
    if bound > 1 + 1e-9:
        assert moved == pytest.approx(abs(float(delta)) / (kappa * max(abs(float(delta)), 1)))
        other, _ = traces.obgd_step(torch.zeros_like(trace), trace, delta, kappa=kappa, step_size=2 * step_size)
        torch.testing.assert_close(other, weights)  # alpha cancels


@settings(max_examples=200, deadline=None)
@given(x=vectors, weight=st.floats(-5, 5), target=st.floats(-100, 100), kappa=st.floats(1, 10))
def test_regression_on_inputs_within_kappa_never_changes_the_errors_sign(
    x: Tensor, weight: float, target: float, kappa: float
) -> None:
    x = x.clamp(-kappa, kappa)
    weights = torch.full_like(x, weight)
    before = target - (weights * x).sum(-1)
    weights, step = traces.obgd_step(weights, x, before, kappa=kappa)
    after = target - (weights * x).sum(-1)
    slack = 1e-9 * (1 + abs(target) + float((weights * x).abs().sum()))
    assert float(before * after) >= -slack * abs(float(before))
    taken = float(step * x.square().sum())  # of the error, and no more than ObGD's bound
    assert taken <= float(x.abs().max()) / (kappa * max(abs(float(before)), 1)) + 1e-12


@settings(max_examples=100, deadline=None)
@given(trace=vectors, slope=vectors, delta=errors, kappa=st.floats(0.5, 10))
def test_the_share_of_an_error_that_a_linear_step_takes_is_bounded(
    trace: Tensor, slope: Tensor, delta: Tensor, kappa: float
) -> None:
    width = min(trace.shape[1], slope.shape[1])
    trace, slope = trace[:, :width], slope[:, :width]  # slope: grad v(s) - gamma grad v(s')
    moved, _ = traces.obgd_step(torch.zeros_like(trace), trace, delta, kappa=kappa)
    change = abs(float((moved * slope).sum()))  # of the TD error
    assert change <= float(slope.abs().max()) * min(abs(float(delta)), 1) / kappa * (1 + 1e-9) + 1e-12


def test_k_networks_are_stepped_as_each_alone() -> None:
    generator = torch.Generator().manual_seed(3)
    weights, trace, second = (torch.randn(4, 6, generator=generator, dtype=torch.float64) for _ in range(3))
    delta, second, count = torch.tensor([0.1, -2.0, 30.0, 0.0]).double(), second.abs(), torch.tensor([1, 2, 3, 400])
    together, moments, steps = traces.adaptive_obgd_step(weights, trace, second, count, delta, kappa=3.0)
    for k in range(4):
        rows = (value[k : k + 1] for value in (weights, trace, second, count, delta))
        alone, moment, step = traces.adaptive_obgd_step(*rows, kappa=3.0)
        torch.testing.assert_close(together[k : k + 1], alone)
        torch.testing.assert_close(moments[k : k + 1], moment)
        torch.testing.assert_close(steps[k : k + 1], step)


def test_the_random_walks_error_is_the_reference_value() -> None:
    """Five states, tabular, gamma 1, lambda 0.8: RMS error 0.115 after 10 and after 100 episodes, over 30 seeds."""
    streams = 30
    random = np.random.default_rng(7)
    weights, trace = torch.full((streams, 5), 0.5).double(), torch.zeros(streams, 5).double()
    places, episodes = np.full(streams, 2), np.zeros(streams, int)
    truth, errors = np.arange(1, 6) / 6, {10: np.full(streams, np.nan), 100: np.full(streams, np.nan)}
    while episodes.min() < 100:
        after = places + random.choice([-1, 1], streams)
        ended = (after < 0) | (after > 4)
        values = weights.numpy()
        rows = np.arange(streams)
        following = np.where(ended, (after > 4).astype(float), values[rows, after.clip(0, 4)])  # the exit's reward
        delta = torch.from_numpy(following - values[rows, places])
        trace = traces.accumulate(trace, torch.eye(5).double()[places], 0.8)
        weights, _ = traces.obgd_step(weights, trace, delta, kappa=2.0)
        trace[torch.from_numpy(ended)] = 0
        places, episodes = np.where(ended, 2, after), episodes + ended
        for number, error in errors.items():
            error[:] = np.where(ended & (episodes == number), np.sqrt(((weights.numpy() - truth) ** 2).mean(1)), error)
    assert errors[10].mean() == pytest.approx(0.115, abs=0.012)
    assert errors[100].mean() == pytest.approx(0.115, abs=0.012)
