"""Gaps, radii and bounds against hand calculation, and critics whose gap is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.finite_mdp import FiniteMDP, optimal_values, softmax_policy
from surefoot.evaluation.cliff import (
    cliff_of_table,
    gaps,
    gaps_of_actions,
    gaps_of_choices,
    radius,
    smooth_noise,
    soft_bound,
)


def arms(*rewards: float) -> FiniteMDP:
    """One decision."""
    return FiniteMDP(np.full((1, len(rewards)), -1), np.array([rewards]))


def random_problem(seed: int = 0) -> FiniteMDP:
    """Five states, three actions."""
    generator = np.random.default_rng(seed)
    return FiniteMDP(generator.dirichlet(np.ones(5), (5, 3)), generator.uniform(size=(5, 3)))


def test_a_gap_of_one_is_a_radius_of_a_twentieth_at_a_discount_of_nine_tenths() -> None:
    assert float(radius(np.array(1.0), 0.9)) == pytest.approx(0.05)
    assert cliff_of_table(arms(0.0, 1.0), 0.9).certified == pytest.approx(0.05)


def test_two_arms_a_thousandth_apart_jump_when_greedy_and_hardly_move_when_soft() -> None:
    better, worse = (softmax_policy(np.array([pair]), 0.01)[0, 0] for pair in ((1e-3, 0.0), (0.0, 1e-3)))
    assert (better, worse) == pytest.approx((0.525, 0.475), abs=1e-4)
    better, worse = (softmax_policy(np.array([pair]), 1.0)[0, 0] for pair in ((1e-3, 0.0), (0.0, 1e-3)))
    assert (better, worse) == pytest.approx((0.50025, 0.49975), abs=1e-7)
    found = cliff_of_table(arms(1e-3, 0.0), 0.0, 0.1, draws=200, seed=1)
    assert found.changed is not None
    assert found.changed.estimate == pytest.approx(0.5, abs=0.1)  # either arm is ahead as often
    assert found.lost is not None
    assert found.lost.estimate == pytest.approx(1e-3 * found.changed.estimate)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_soft_policies_stay_within_their_bound_and_move(temperature: float) -> None:
    mdp = random_problem()
    found = cliff_of_table(mdp, 0.9, 0.01, draws=40, temperature=temperature)
    assert found.soft_limit == pytest.approx(0.01 / (temperature * 0.1))
    assert found.soft_moved is not None
    assert 0 < found.soft_moved < found.soft_limit
    ratios = []
    generator = np.random.default_rng(2)
    own = softmax_policy(optimal_values(mdp, 0.9, temperature), temperature)
    for _ in range(40):
        move = generator.uniform(-0.01, 0.01, mdp.rewards.shape)
        moved = FiniteMDP(mdp.transitions, mdp.rewards + move)
        other = softmax_policy(optimal_values(moved, 0.9, temperature), temperature)
        ratios.append(np.abs(other - own).sum(-1).max() / soft_bound(np.abs(move).max(), temperature, 0.9))
    assert 0.01 < max(ratios) < 0.3  # it holds, and is loose


def test_no_reward_within_the_radius_changes_the_greedy_policy_and_one_beyond_it_can() -> None:
    mdp = random_problem(3)
    found = cliff_of_table(mdp, 0.9)
    own = optimal_values(mdp, 0.9).argmax(-1)
    generator = np.random.default_rng(0)
    for _ in range(50):
        signs = generator.choice([-1.0, 1.0], mdp.rewards.shape)
        moved = FiniteMDP(mdp.transitions, mdp.rewards + 0.999 * found.certified * signs)
        assert (optimal_values(moved, 0.9).argmax(-1) == own).all()
    two = arms(0.0, 1.0)  # tight where nothing follows
    moved = FiniteMDP(two.transitions, np.array([[0.51, 0.49]]))
    assert float(cliff_of_table(two, 0.0).certified) == 0.5
    assert optimal_values(moved, 0.0).argmax() == 0


def test_gaps_of_ties_are_zero_and_those_of_a_single_action_infinite() -> None:
    assert gaps(np.array([[1.0, 1.0 + 1e-12, 0.0], [3.0, 1.0, 2.0]])).tolist() == [0.0, 1.0]
    assert gaps(np.ones((2, 1))).tolist() == [np.inf, np.inf]
    assert cliff_of_table(FiniteMDP(np.full((1, 1), -1), np.ones((1, 1))), 0.5).to_json()["gaps"] == [None]


def test_states_that_no_episode_meets_do_not_count() -> None:
    transitions = np.array([[-1, -1], [-1, -1]])
    rewards = np.array([[0.0, 1.0], [0.0, 1e-6]])
    assert cliff_of_table(FiniteMDP(transitions, rewards), 0.0).certified == pytest.approx(5e-7)
    assert cliff_of_table(FiniteMDP(transitions, rewards, np.array([1.0, 0])), 0.0).certified == 0.5


def test_the_gap_of_choices_is_that_of_the_critic_that_says_least() -> None:
    values = torch.tensor([[[1.0, 0.0, 0.5], [0.0, 2.0, 0.0]], [[3.0, 0.0, 1.0], [1.5, 1.0, 0.0]]])
    assert gaps_of_choices(values).gap.tolist() == pytest.approx([0.5, -0.5])
    assert gaps_of_choices(values[:1]).gap.tolist() == pytest.approx([0.5, 2.0])


def hills(heights: tuple[float, float]) -> object:
    """Two critics of one action: hills at -0.5 and 0.5, 0.2 wide on each side; the second critic's half as high."""

    def critic(pairs: Tensor) -> Tensor:
        action = pairs[:, -1]
        both = [(1 - (action - at).abs() / 0.2).clamp_min(0) * h for at, h in zip((-0.5, 0.5), heights, strict=True)]
        value = torch.stack(both).amax(0)
        return torch.stack([value, value / 2])

    return critic


def test_the_gap_of_actions_is_to_the_best_that_is_far_enough() -> None:
    read, own = torch.zeros(20, 1), torch.full((20, 1), 0.5)
    generator = torch.Generator().manual_seed(0)
    found = gaps_of_actions(hills((0.8, 1.0)), read, own, generator, 0.25, 2000)  # type: ignore[arg-type]
    assert found.gap == pytest.approx(np.full(20, 0.1), abs=0.01)  # half of 1 - 0.8, by the flatter critic
    assert found.lost is not None
    assert found.lost == pytest.approx(np.full(20, 1.0), abs=0.01)  # at the foot of the hill
    near = gaps_of_actions(hills((0.0, 1.0)), read, own, generator, 0.1, 2000)  # type: ignore[arg-type]
    assert near.gap == pytest.approx(np.full(20, 0.25), abs=0.02)  # half way down, again halved


def test_perturbed_rewards_are_smooth_and_within_the_noise() -> None:
    generator = np.random.default_rng(0)
    observations, actions = generator.normal(size=(500, 3)), generator.uniform(-1, 1, (500, 1))
    moved = smooth_noise(observations, actions, 0.2, 1)
    assert np.abs(moved).max() <= 0.2
    assert moved.std() > 0.05
    near = smooth_noise(np.concatenate([observations, observations + 1e-3]), np.concatenate([actions, actions]), 0.2, 1)
    assert np.abs(near[:500] - near[500:]).max() < 0.01
    assert not np.allclose(moved, smooth_noise(observations, actions, 0.2, 2))


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="discount is 1; the bound needs one in"):
        cliff_of_table(arms(0.0, 1.0), 1.0)
    with pytest.raises(ConfigError, match="noise is nan"):
        cliff_of_table(arms(0.0, 1.0), 0.9, float("nan"))
    with pytest.raises(ConfigError, match="perturbed by noise, which is 0"):
        cliff_of_table(arms(0.0, 1.0), 0.9, 0.0, draws=3)
    with pytest.raises(ConfigError, match="temperature is 0"):
        soft_bound(0.1, 0.0, 0.9)
    read = torch.zeros(1, 1)
    with pytest.raises(ConfigError, match=r"distance is 0\.7"):
        gaps_of_actions(hills((1, 1)), read, read, torch.Generator(), 0.7)  # type: ignore[arg-type]
