"""Cloned flows of a few numbers, and bandits of one step, for algorithms that fine-tune a flow."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from online_problems import Scripted

from surefoot.core.losses.flow import flow_matching_loss, interpolate
from surefoot.core.nn.velocity import VelocityNetwork
from surefoot.envs import make_vec
from surefoot.online import ALGORITHMS, spec_of
from surefoot.online.loops.on_policy import OnPolicyLoop

SMALL: dict[str, Any] = {
    "num_envs": 4,
    "horizon": 8,
    "epochs": 2,
    "minibatches": 2,
    "hidden": (8, 6),
    "velocity_hidden": (16, 16),
    "chunk": 3,
}


def flow_loop(
    algorithm: str, env: Any = "native/pendulum", seeds: tuple[int, ...] = (0,), planned: int = 4096, **options: Any
) -> OnPolicyLoop:
    """A loop of a small agent on an environment, or on an id of one."""
    chosen = {**SMALL, **options}
    env = make_vec(env, len(seeds) * chosen["num_envs"]) if isinstance(env, str) else env
    kernels = chosen.pop("kernels", len(seeds) == 1)
    kind: Any = ALGORITHMS[algorithm]
    made = [kind(spec_of(env), **chosen).fresh(seed) for seed in seeds]
    return OnPolicyLoop(made, list(seeds), env, planned_steps=planned, kernels=kernels)


class TwoModes(Scripted):
    """One step; the reward of an action near .5 is 1, of one near -.5 a half, of others less."""

    limit = 1

    def begin(self, source: np.random.Generator) -> np.ndarray:
        return np.zeros(1)

    def follow(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        a = actions[:, 0]
        rewards = np.exp(-((a - 0.5) ** 2) / 0.08) + 0.5 * np.exp(-((a + 0.5) ** 2) / 0.08)
        return states, rewards, np.ones(len(states), bool)


def clone_two_modes(network: VelocityNetwork, steps: int = 1500) -> None:
    """Train a velocity on actions of deviation .05 around .5 and -.5, as many of each."""
    torch.manual_seed(0)
    own = copy.deepcopy(network).requires_grad_(True)  # the network may be a Learner's
    optimizer = torch.optim.Adam(own.parameters(), 2e-3)
    for _ in range(steps):
        sign = 2.0 * (torch.rand(256, 1) < 0.5).float() - 1
        x, velocity = interpolate(torch.randn(256, 1), 0.5 * sign + 0.05 * torch.randn(256, 1), time := torch.rand(256))
        optimizer.zero_grad()
        flow_matching_loss(own(torch.zeros(256, 1), x, time), velocity).backward()
        optimizer.step()
    network.load_state_dict(own.state_dict())


def share_above(policy: Any, count: int = 2000) -> tuple[float, float]:
    """Shares of a policy's actions at 0 that are near the better mode, and near the worse."""
    torch.manual_seed(1)
    with torch.no_grad():
        actions = policy.actor.act(torch.zeros(count, 1), torch.randn(count, policy.actor.noise_dim))
    near = ((actions - torch.tensor([[0.5, -0.5]])).abs() < 0.2).float().mean(0)
    return float(near[0]), float(near[1])
