"""Identities that cut across algorithms: the order of environments changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hybrid_problems import regulated
from on_policy_problems import QUICK, loop
from online_problems import Regulator
from torch import Tensor

from surefoot.envs import make_vec
from surefoot.online import HNPG, spec_of
from surefoot.online.loops.on_policy import OnPolicyLoop

ORDER = [2, 0, 3, 1]


@pytest.mark.parametrize("env_id", ["native/pendulum", "native/cartpole-balance", "Hopper-v5", "CartPole-v1"])
def test_environments_in_another_order_go_the_same_ways_in_that_order(env_id: str) -> None:
    found = []
    for order in ([0, 1, 2, 3], ORDER):
        env: Any = make_vec(env_id, 4)
        steps = [env.reset(seed=[10 + row for row in order])[0]]
        discrete, source = not hasattr(env.single_action_space, "low"), np.random.default_rng(0)
        for _ in range(40):
            drawn = source.random((4, 1 if discrete else env.single_action_space.shape[0]))[order]
            space = env.single_action_space
            actions = (drawn[:, 0] > 0.5).astype(np.int64) if discrete else space.low + (space.high - space.low) * drawn
            after, rewards, ends, cut, _ = env.step(actions if discrete else actions.astype(np.float32))
            steps.append(np.column_stack([after, rewards, ends, cut]))
        found.append([np.array(step, np.float64) for step in steps])
    for mine, other in zip(*found, strict=True):
        np.testing.assert_array_equal(mine[ORDER], other)


def columns(made: OnPolicyLoop, block: dict[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = made.learner.apply("columns", block)
    return found


def assert_permuted(made: OnPolicyLoop) -> None:
    block = made.blocks.fill(0)
    if made.agent.anneals:
        block["progress"] = torch.zeros_like(block["rewards"])
    block |= made._data_rows() | made._noise()
    ended = block["terminations"] | block["truncations"]
    assert bool(ended[:, :-1].any())  # so that sums end at places of their own in each environment
    plain = columns(made, block)
    permuted = columns(made, {name: value[:, :, ORDER] for name, value in block.items()})
    assert not torch.equal(plain["advantages"], permuted["advantages"])
    for name, value in plain.items():
        torch.testing.assert_close(permuted[name], value[:, :, ORDER], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("algorithm", sorted(QUICK))
def test_what_is_learned_from_a_block_does_not_depend_on_the_order_of_its_environments(algorithm: str) -> None:
    assert_permuted(loop(algorithm, "CartPole-v1", horizon=64, minibatches=2) if algorithm in ("ppo", "trpo", "mdpo")
                    else loop(algorithm, "CartPole-v1", horizon=64))  # fmt: skip


def test_what_hnpg_learns_from_a_block_does_not_either() -> None:
    env = Regulator(4)
    agent = HNPG(spec_of(env), num_envs=4, horizon=16, hidden=(8,), minibatches=2).fresh(0)
    made = OnPolicyLoop([agent], [0], env, planned_steps=100, dataset=agent.prepare(regulated()))
    assert_permuted(made)
