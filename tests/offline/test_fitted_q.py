"""Fitted-Q evaluation against returns that are known."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.base.actions import to_agent
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.random import STEPS_PER_BLOCK
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.native import native
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.data import prepare
from surefoot.data.dataset import Array, Dataset
from surefoot.data.prepare import best_episodes, discounted_returns, scale_actions, short_notes
from surefoot.data.store import store_from_dataset
from surefoot.offline import BC, DT, IQL, RCSL, ReCOIL
from surefoot.offline.evaluation import fitted_q, single_actions
from surefoot.offline.evaluation.fitted_q import FittedQ, Rows, fitted_q_estimate


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


def at_once(policy: Policy, data: Dataset, steps: int, seed: int) -> Array:
    """The estimate by the whole dataset made ready before training, in one store."""
    low, high = policy.action_low.numpy(), policy.action_high.numpy()
    memory = policy.begin(len(data))

    def scaled(observations: Array) -> Array:
        nonlocal memory
        actions, memory = policy.act(
            torch.from_numpy(observations), {k: v[: len(observations)] for k, v in memory.items()}
        )
        return np.asarray(to_agent(actions.numpy(), low, high), np.float32)

    normalizer = Normalizer(data.observation_dim)
    normalizer.fit(torch.from_numpy(data.observations))
    scale = 1 / float(discounted_returns(data, 0.99).std())
    seen, after = (normalizer(torch.from_numpy(one)).numpy() for one in (data.observations, data.next_observations))
    extras = {"next_actions": scaled(data.next_observations)}
    rewards = (data.rewards * scale).astype(np.float32)
    ready = scale_actions(data, low, high).replace(
        rewards=rewards, observations=seen, next_observations=after, extras=extras
    )
    torch.manual_seed(seed)
    agent = FittedQ(Spec.of(data, low, high), discount=0.99)
    Learner([agent], [seed], Uniform(store_from_dataset(ready, agent.required_columns)), planned_steps=steps).run(steps)
    first = data.episode_starts[:-1]
    pairs = np.concatenate([seen[first], scaled(data.observations[first])], 1)
    with torch.no_grad():
        return agent.critic(torch.from_numpy(pairs))[0].double().numpy() / scale


def random_data(rows: int, length: int = 50, dim: int = 3) -> Dataset:
    source = np.random.default_rng(0)
    ends = np.arange(1, rows + 1) % length == 0
    seen = source.standard_normal((rows, dim), np.float32)
    valid = np.ones(rows, bool)
    valid[7] = False
    return Dataset(
        observations=seen,
        actions=source.uniform(-1, 1, (rows, 2)).astype(np.float32),
        rewards=source.standard_normal(rows, np.float32),
        next_observations=np.roll(seen, -1, 0),
        terminations=np.zeros(rows, bool),
        truncations=ends,
        episode_ids=np.arange(rows) // length,
        valid=valid,
    )


@pytest.mark.parametrize("sampled", [False, True])
def test_blocks_give_the_estimate_of_all_rows_at_once(sampled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(single_actions, "PART", 1_024)
    data = random_data(3_000)
    policy = IQL(Spec.of(data, -np.ones(2), np.ones(2))).policy()
    policy = policy.sampled() if sampled else policy
    found = fitted_q_estimate(policy, data, steps=40, seed=3, kernels=False).values
    assert len(found) == 60
    if sampled:  # drawn in the same order, and acted on in parts of 1,024 rows whoever asks
        np.testing.assert_array_equal(found, at_once(policy, data, 40, 3))
    np.testing.assert_allclose(found, at_once(policy, data, 40, 3), rtol=1e-4, atol=1e-5)


def test_next_actions_made_for_each_block_are_those_made_before_training() -> None:
    data = random_data(3_000)
    policy = IQL(Spec.of(data, -np.ones(2), np.ones(2))).policy()
    kept, made = Rows(policy, data, 0.99, drawn=3_000), Rows(policy, data, 0.99, drawn=2_999)
    assert kept.following is not None
    assert made.following is None
    rows = np.array([0, 6, 7, 2_998])  # of those that may be sampled: row 7 is none
    columns = made.ready(rows)
    for name, column in kept.ready(rows).items():
        np.testing.assert_allclose(columns[name], column, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(columns["terminations"], [False] * 4)
    np.testing.assert_allclose(columns["rewards"] / made.scale, data.rewards[[0, 6, 8, 2_999]], rtol=1e-5)


class Largest(TorchDispatchMode):
    """Bytes of the largest tensor that anything gives."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, kinds: Any, given: Any = (), named: Any = None) -> Any:
        found = function(*given, **(named or {}))
        for one in tree_flatten(found)[0]:
            if isinstance(one, torch.Tensor):
                self.bytes = max(self.bytes, one.numel() * one.element_size())
        return found


def test_the_memory_of_an_estimate_does_not_grow_with_the_rows() -> None:
    needed: list[tuple[int, int]] = []
    for rows in (20_000, 220_000):
        gc.collect()  # what other tests left would be freed, or counted, inside
        data = random_data(rows, length=1_000)
        policy = IQL(Spec.of(data, -np.ones(2), np.ones(2))).policy()
        largest = Largest()
        tracemalloc.start()
        try:
            with largest:
                fitted_q_estimate(policy, data, steps=10, seed=0, kernels=False)
            needed.append((largest.bytes, tracemalloc.get_traced_memory()[1]))
        finally:
            tracemalloc.stop()
    (few, small), (many, large) = needed
    block = STEPS_PER_BLOCK * 256 * 256 * 4  # activations of a layer of 256 units, at the rows of a block of steps
    assert 0.8 * block < few <= many <= block
    # Of the copies that are left, rows that are valid take 8 bytes a row; observations alone would take 12.
    assert (large - small) / 200_000 < 12


@pytest.mark.parametrize("kernels", [True, False])
def test_the_critic_is_trained_over_the_native_kernels_unless_they_are_off(
    kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native.library() is None:
        pytest.skip(native.why_not())
    learners: list[Learner] = []

    class Kept(Learner):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            learners.append(self)

    monkeypatch.setattr(fitted_q, "Learner", Kept)
    data = random_data(500)
    policy = IQL(Spec.of(data, -np.ones(2), np.ones(2))).policy()
    options: dict[str, Any] = {} if kernels else {"kernels": False}
    fitted_q_estimate(policy, data, steps=10, seed=0, **options)
    (learner,) = learners
    assert learner.capture.how == ("tape" if kernels else "eager")
    assert learner.eager_because() == ({} if kernels else {"all": "kernels are off"})


def test_statistics_in_parts_are_those_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    values = 1e3 + np.random.default_rng(0).standard_normal((1_000, 4), np.float32)
    monkeypatch.setattr(fitted_q, "PART", 64)
    parts, whole = Normalizer(4), Normalizer(4)
    fitted_q.fit_in_parts(parts, values)
    whole.fit(torch.from_numpy(values))
    torch.testing.assert_close(parts.mean, whole.mean, rtol=1e-7, atol=0)
    torch.testing.assert_close(parts.scale, whole.scale, rtol=1e-6, atol=0)


def test_returns_are_discounted_some_episodes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_data(1_000)
    whole = discounted_returns(data, 0.9)
    by_hand = [sum(0.9**k * float(r) for k, r in enumerate(data.rewards[50 * e : 50 * e + 50])) for e in range(20)]
    np.testing.assert_allclose(whole, by_hand, rtol=1e-9, atol=1e-12)
    for part in (1, 50, 120, 999):
        monkeypatch.setattr(prepare, "PART", part)
        np.testing.assert_array_equal(discounted_returns(data, 0.9), whole)


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
