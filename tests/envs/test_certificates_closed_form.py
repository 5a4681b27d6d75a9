"""Certificates of a policy whose probability of a violation is known in closed form: braking before a wall."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from surefoot import cuda_ext
from surefoot.cuda_ext.policy import NativePolicy
from surefoot.cuda_ext.rollout import rollout
from surefoot.envs.systems import system
from surefoot.evaluation.certificates import certificate

REPETITIONS = 200
EPISODES = 2000
CONFIDENCE = 0.95
SPEED = 1.0
"""Initial velocities are uniform in +-SPEED m/s, positions in +-1 m, on both axes; the walls are at +-1 m."""

pytestmark = pytest.mark.skipif(cuda_ext.native() is None, reason=cuda_ext.why_not_native())


def violation_probability(speed: float, step: float) -> float:
    """That full braking from a uniform initial state passes a wall: the area outside the safe set, in closed form.

    At unit deceleration, held over steps of h s, a mass of speed v = n h + r stops after v^2 / 2 + (h r - r^2) / 2: n
    full steps, and one with -r / h. It begins anywhere between walls 2 m apart, so it passes one with that distance
    divided by 2; the mean over v in [0, V], V a multiple of h, is V^2 / 12 + h^2 / 24. The axes are independent.
    """
    axis = speed**2 / 12 + step**2 / 24
    return 1 - (1 - axis) ** 2


def braking(step: float) -> NativePolicy:
    """u = -v / h, clipped to the bounds of +-1: full braking, then a stop without overshoot."""
    weight = torch.tensor([[0.0, 0.0, -1 / step, 0.0], [0.0, 0.0, 0.0, -1 / step]])
    return NativePolicy([weight], [torch.zeros(2)], torch.zeros(2), torch.ones(2), squash=False)


@pytest.fixture(scope="module")
def violations() -> np.ndarray:
    """(REPETITIONS,) episodes with a violation, of EPISODES each; every repetition has a seed of its own."""
    walls = system("double_integrator")
    altered = {"wall": 1.0, "start": 1.0, "start_speed": SPEED}
    values = [altered.get(parameter.name, parameter.default) for parameter in walls.parameters]
    policy = braking(walls.time_step)
    horizon = math.ceil(SPEED / walls.time_step) + 2
    counts = []
    for repetition in range(REPETITIONS):
        found = rollout(
            walls, policy=policy, num_envs=EPISODES, seeds=1000 + repetition, horizon=horizon, parameters=values
        )
        counts.append(int((found.costs > 0).sum()))
    return np.array(counts)


def covered(counts: np.ndarray, probability: float) -> int:
    """Repetitions whose interval holds `probability`."""
    certificates = [certificate(int(count), EPISODES, CONFIDENCE) for count in counts]
    return sum(found.low <= probability <= found.high for found in certificates)


def coverage(probability: float) -> float:
    """Exact probability that an interval holds `probability`, from the binomial distribution; 0.95 or a little more."""
    counts = np.arange(EPISODES + 1)
    near = counts[np.abs(counts - EPISODES * probability) < 6 * math.sqrt(EPISODES)]
    held = [covered(np.array([count]), probability) for count in near]
    return float(np.sum(binom.pmf(near, EPISODES, probability) * held))


def test_the_rate_of_violations_is_the_area_outside_the_safe_set(violations: np.ndarray) -> None:
    probability = violation_probability(SPEED, system("double_integrator").time_step)
    assert probability == pytest.approx(0.1599, abs=1e-4)
    deviation = math.sqrt(probability * (1 - probability) / (REPETITIONS * EPISODES))
    assert abs(violations.mean() / EPISODES - probability) < 4 * deviation  # 0.0023


def test_counts_of_different_seeds_scatter_like_independent_episodes(violations: np.ndarray) -> None:
    probability = violation_probability(SPEED, 0.05)
    ratio = violations.var(ddof=1) / (EPISODES * probability * (1 - probability))
    assert abs(ratio - 1) < 4 * math.sqrt(2 / (REPETITIONS - 1))


def test_clopper_pearson_intervals_hold_the_known_probability_in_95_of_100_repetitions(violations: np.ndarray) -> None:
    probability = violation_probability(SPEED, system("double_integrator").time_step)
    expected = coverage(probability)
    assert CONFIDENCE <= expected < 0.96
    low, high = binom.ppf([0.0005, 0.9995], REPETITIONS, expected)
    assert low <= covered(violations, probability) <= high
    assert low >= 179  # a method that held it 85 times in 100 would be found out 19 times in 20


def test_the_intervals_are_narrow_enough_to_refuse_a_wrong_probability(violations: np.ndarray) -> None:
    probability = violation_probability(SPEED, system("double_integrator").time_step)
    assert covered(violations, 0.8 * probability) < 10


def test_the_upper_bound_holds_the_known_probability_as_often_as_it_says(violations: np.ndarray) -> None:
    probability = violation_probability(SPEED, system("double_integrator").time_step)
    held = sum(probability <= certificate(int(count), EPISODES, CONFIDENCE).upper for count in violations)
    assert held >= binom.ppf(0.0005, REPETITIONS, CONFIDENCE)
