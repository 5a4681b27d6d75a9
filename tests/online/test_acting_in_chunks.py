"""On-policy agents that decide once a chunk: what a block holds then, how steps are counted, which policy leaves."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from on_policy_problems import loop
from refusals import refused

from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.envs import make_vec
from surefoot.envs.adapters import adapt
from surefoot.envs.side_by_side import PausingVectorEnv
from surefoot.evaluation import evaluate
from surefoot.online import PPO

PLAIN: dict[str, Any] = {"normalize_observations": False, "normalize_rewards": False, "minibatches": 2}


class Line(gymnasium.Env[Any, Any]):
    """Observes 10 times the episode's number plus the steps in it; episodes of 5 steps, even ones terminate."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self) -> None:
        self.episode, self.count = -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, self.episode = 0, self.episode + 1
        return np.array([10 * self.episode], np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        over = self.count == 5
        even = self.episode % 2 == 0
        now = np.array([10 * self.episode + self.count], np.float32)
        return now, float(self.count), over and even, over and not even, {}


def line(rows: int = 2) -> Any:
    return adapt(PausingVectorEnv([Line] * rows))


def test_a_block_of_chunks_has_what_happened_in_each_and_steps_are_counted_as_they_were_taken() -> None:
    made = loop("ppo", line(), num_envs=2, horizon=4, chunk=3, **PLAIN)
    block = made.blocks.fill(0)
    seen = block["observations"][0, :, 0, 0].tolist()
    assert seen == [0, 3, 10, 13]  # episodes of 5 steps are 3 and 2
    assert block["rewards"][0, :, 0].tolist() == [6, 9, 6, 9]
    assert block["next_observations"][0, :, 0, 0].tolist() == [3, 5, 13, 15]
    assert block["terminations"][0, :, 0].tolist() == [False, True, False, False]
    assert block["truncations"][0, :, 0].tolist() == [False, False, False, True]
    assert block["actions"].shape == (1, 4, 2, 3)
    assert made.blocks.taken.tolist() == [2 * (3 + 2 + 3 + 2)]
    assert made.blocks.episodes.take() == {"episode_return": [15.0], "episode_length": [5.0]}
    made.run(1)
    assert made.step == 40


def test_advantages_stop_at_a_time_limit_inside_a_chunk_and_bootstrap_from_its_own_last_observation() -> None:
    made = loop("ppo", line(), num_envs=2, horizon=4, chunk=3, discount=0.9, gae_lambda=0.5, **PLAIN)
    block = made.blocks.fill(0)
    agent: Any = made.agent
    agent.values = lambda observations: observations[..., 0]  # V(s) = s, a known critic
    found = agent.advantages({name: value[0] for name, value in block.items()})["advantages"][:, 0].tolist()
    last = 9 + 0.9 * 15 - 13  # the truncated episode's own end is 15; V of what came next, 20, is the slip
    third = 6 + 0.9 * 13 - 10 + 0.45 * last
    second = 9 - 3  # terminated: no bootstrap, and no sum across the border
    first = 6 + 0.9 * 3 - 0 + 0.45 * second
    assert found == pytest.approx([first, second, third, last])
    slips = {"next episode's value": 9 + 0.9 * 20 - 13, "sum over the border": second + 0.45 * third}
    assert all(abs(value - right) > 1 for value, right in zip(slips.values(), (last, second), strict=True))


def test_the_policy_that_leaves_plays_its_chunks_in_the_plain_environment() -> None:
    made = loop("ppo", "native/pendulum", num_envs=4, horizon=8, chunk=5, **PLAIN)
    made.run(160)
    assert made.step == 160
    policy = made.learner.extract(0).policy()
    assert isinstance(policy.actor, ChunkActor)
    assert (policy.actor.chunk, policy.action_dim) == (5, 1)
    observation, memory = torch.tensor([[1.0, 0.0, 0.3]]), policy.begin(1)
    with torch.no_grad():
        whole = made.agent.actor.act(policy.normalizer(observation))[0]
    played = []
    for shift in range(5):  # what is seen within a chunk changes nothing
        action, memory = policy.act(observation + shift, memory)
        played.append(float(action))
    half = float(policy.action_high)
    np.testing.assert_allclose(played, half * whole.clamp(-1, 1), rtol=1e-5)
    assert evaluate([policy], "native/pendulum", 2, seed=0)[0].lengths.tolist() == [200, 200]


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "trpo"])
def test_chunks_stacked_seeds_are_single_seeds(algorithm: str) -> None:
    options: dict[str, Any] = {"num_envs": 2, "horizon": 8, "chunk": 3}
    both = loop(algorithm, "native/pendulum", (3, 5), **options)
    alone = [loop(algorithm, "native/pendulum", (seed,), kernels=False, **options) for seed in (3, 5)]
    both.run(96)
    for position, one in enumerate(alone):
        one.run(96)
        mine, theirs = both.learner.agents_parameters(position), one.learner.agents_parameters(0)
        for name, value in theirs.items():
            torch.testing.assert_close(mine[name], value, rtol=1e-4, atol=1e-5)


def test_a_run_in_chunks_goes_on_bit_for_bit_and_with_its_own_count_of_steps() -> None:
    options: dict[str, Any] = {"num_envs": 4, "horizon": 8, "chunk": 7}
    whole = loop("ppo", "native/cartpole-balance", **options)
    whole.run(150)
    state, step = {name: value.clone() for name, value in whole.state(0).items()}, whole.step
    whole.run(300)
    other = loop("ppo", "native/cartpole-balance", **options)
    assert other.restore([state], step) is None
    assert other.step == step
    other.run(300)
    assert other.step == whole.step
    assert other.step % (8 * 4 * 7) != 0  # poles fell inside chunks
    for name, value in whole.state(0).items():
        assert torch.equal(value, other.state(0)[name]), name


def test_chunks_are_refused_where_they_mean_nothing() -> None:
    with refused("chunk", "range"):
        PPO.configure(chunk=0)
    with refused("chunk", "conflict"):
        loop("ppo", "CartPole-v1", chunk=2)


def test_ppo_learns_the_double_integrator_in_chunks() -> None:
    made = loop("ppo", make_vec("native/double-integrator", 16), num_envs=16, horizon=32, chunk=4, epochs=5,
                minibatches=4, learning_rate=1e-3, planned=40_000)  # fmt: skip
    before = evaluate([made.agent.policy()], "native/double-integrator", 20, seed=0)[0].returns.mean()
    made.run(40_000)
    after = evaluate([made.agent.policy()], "native/double-integrator", 20, seed=0)[0].returns.mean()
    assert after > before + 20, (before, after)  # measured: -139 to -100
