"""Fitted-Q evaluation against returns that are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.engine.agent import Spec
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import best_episodes, discounted_returns, short_notes
from surefoot.offline import BC, DT, RCSL, ReCOIL
from surefoot.offline.evaluation.fitted_q import FittedQ, fitted_q_estimate


def policy_of_constant(action: float) -> Policy:
    actor = DeterministicActor(1, 1, (4,))
    with torch.no_grad():
        for weight in actor.mlp.weights:
            weight.zero_()
        actor.mlp.biases[0].zero_()
        actor.mlp.biases[1].fill_(float(np.arctanh(action)))
    return Policy(actor, Normalizer(1), torch.tensor([-1.0]), torch.tensor([1.0]))


def two_step_episodes(count: int = 400) -> Dataset:
    """State 0, then state 1, then the end; reward a in state 0 and 2 a in state 1; actions uniform."""
    generator = np.random.default_rng(0)
    steps = 2 * count
    observations = np.tile([[0.0], [1.0]], (count, 1)).astype(np.float32)
    actions = generator.uniform(-1, 1, (steps, 1)).astype(np.float32)
    return Dataset(
        observations=observations,
        actions=actions,
        rewards=(actions[:, 0] * np.tile([1, 2], count)).astype(np.float32),
        next_observations=np.roll(observations, -1, 0),
        terminations=np.tile([False, True], count),
        truncations=np.zeros(steps, bool),
        episode_ids=np.repeat(np.arange(count), 2),
        valid=np.ones(steps, bool),
    )


def test_a_policy_that_remembers_its_episode_is_refused() -> None:
    data = two_step_episodes(4)
    policy = BC(Spec.of(data, np.array([-1.0]), np.array([1.0])), history=2).policy()
    with pytest.raises(ConfigError, match=r"remembers what came before them .*: evaluate it in its environment"):
        fitted_q_estimate(policy, data, steps=1, seed=0)


@pytest.mark.parametrize("action", [0.5, -0.5])
def test_the_estimate_is_the_policys_own_return_not_the_datas(action: float) -> None:
    # By hand: action + 0.9 * 2 * action = 2.8 * action from state 0; the data's own mean return is about 0.
    torch.set_num_threads(1)
    data = two_step_episodes()
    estimate = fitted_q_estimate(policy_of_constant(action), data, steps=600, seed=0, discount=0.9)
    assert estimate.values.shape == (400,)
    assert estimate.values.mean() == pytest.approx(2.8 * action, abs=0.03)
    assert abs(estimate.drift) < 0.1
    unfinished = fitted_q_estimate(policy_of_constant(action), data, steps=100, seed=0, discount=0.9)
    assert abs(unfinished.drift) > 2 * abs(estimate.drift), "too few steps show as drift"
    assert abs(discounted_returns(data, 0.9).mean()) < 0.2


def test_images_are_refused_with_what_they_are() -> None:
    data = two_step_episodes(2)
    frames = np.zeros((4, 3, 4, 4), np.uint8)
    seen = data.replace(
        observations=np.zeros((4, 0), np.float32),
        next_observations=np.zeros((4, 0), np.float32),
        extras={"observations/image": frames, "next_observations/image": frames},
    )
    with pytest.raises(DataError, match=r"learns from one vector, and observations are image \(3, 4, 4\)"):
        fitted_q_estimate(policy_of_constant(0.5), seen, steps=1, seed=0)


def test_the_loss_of_one_transition_is_the_squared_difference_worked_out_by_hand() -> None:
    agent = FittedQ(Spec(1, 1, (-1.0,), (1.0,)), discount=0.5, hidden=(1,)).double()
    with torch.no_grad():
        for network, slope in ((agent.critic, 2.0), (agent.target_critic, 4.0)):
            for weight, value in zip(network.mlp.weights, (1.0, slope), strict=True):
                weight.fill_(value)
            for bias in network.mlp.biases:
                bias.zero_()
    batch = {
        "observation_actions": torch.tensor([[1.0, 2.0]], dtype=torch.float64),  # Q = 2 (1 + 2) = 6
        "next_observations": torch.tensor([[3.0]], dtype=torch.float64),
        "next_actions": torch.tensor([[0.5]], dtype=torch.float64),  # target Q = 4 (3 + 0.5) = 14
        "rewards": torch.tensor([1.0], dtype=torch.float64),
        "terminations": torch.tensor([0.0], dtype=torch.float64),
    }
    loss, _ = agent.critic_loss(batch, {})
    assert loss.item() == pytest.approx((1 + 0.5 * 14 - 6) ** 2, rel=1e-12)  # 4
    ended, _ = agent.critic_loss({**batch, "terminations": torch.ones(1, dtype=torch.float64)}, {})
    assert ended.item() == pytest.approx((1 - 6) ** 2, rel=1e-12)  # 25: nothing follows


def test_ten_percent_bc_clones_the_best_episodes_by_discounted_return() -> None:
    # Ten episodes of two steps; undiscounted returns are all 1, but a late reward counts 0.99 and an early one 1.
    early = np.array([0, 0, 0, 1, 0, 0, 0, 0, 0, 0], np.float32)
    rewards = np.stack([early, 1 - early], 1).reshape(-1)
    data = two_step_episodes(10).replace(rewards=rewards)
    best = best_episodes(data, 0.1)
    assert len(best) == 2
    np.testing.assert_array_equal(best.actions, data.actions[6:8])
    agent = BC(data, preset="ten_percent")
    assert agent.config.fraction == 0.1
    assert len(agent.prepare(data)) == 2
    assert len(best_episodes(data, 0.01)) == 2, "at least one episode is kept"


def test_episodes_without_a_row_to_sample_are_not_the_best_ones() -> None:
    # As of a log that keeps no last observation, in which a step alone is the best of costs: nothing can be cloned.
    data = two_step_episodes(10)
    rewards = np.where(data.episode_ids == 3, 9, 1 + data.episode_ids).astype(np.float32)
    data = data.replace(rewards=rewards, valid=data.episode_ids != 3)
    np.testing.assert_array_equal(best_episodes(data, 0.1).actions, data.actions[18:])
    assert best_episodes(data.replace(valid=np.zeros(20, bool)), 0.1).episode_lengths.sum() == 20  # refused elsewhere


def test_that_negative_rewards_make_short_episodes_the_best_is_said() -> None:
    """Twenty episodes of 20 steps and five that fall after 4, each step at -1: the best tenth are two of the five."""
    lengths = np.array([20] * 20 + [4] * 5)
    ends = np.cumsum(lengths) - 1
    last = np.isin(np.arange(lengths.sum()), ends)
    data = two_step_episodes(len(last) // 2).replace(
        rewards=np.full(len(last), -1, np.float32),
        terminations=last & (np.arange(len(last)) >= 400),
        truncations=last & (np.arange(len(last)) < 400),
        episode_ids=np.repeat(np.arange(25), lengths),
    )
    (note,) = short_notes(data, 0.1)
    assert "episodes have 20 steps (median), and the best 2 by return have 4" in note
    assert "the one with the highest return has 4" in short_notes(data, 0)[0]
    assert short_notes(data, 1) == short_notes(data.replace(rewards=-data.rewards), 0.1) == []
    assert short_notes(data.select_episodes(np.arange(20)), 0.1) == []
    for kind, options, said in ((BC, {"fraction": 0.1}, 1), (BC, {}, 0), (ReCOIL, {}, 2), (DT, {}, 2), (RCSL, {}, 2)):
        agent = kind(Spec.of(data, np.array([-1.0]), np.array([1.0])), kind.configure(**options))
        assert len(agent.notes(data)) == said, kind
    asked = DT(Spec.of(data, np.array([-1.0]), np.array([1.0])), DT.configure(target_return=-10.0))
    assert len(asked.notes(data)) == 1, "what is asked for is the user's"
