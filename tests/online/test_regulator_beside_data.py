"""The linear regulator has a known gain: agents that learn from data and online find it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hybrid_problems import dataset
from online_problems import RICCATI, Regulator, regulators_gain, spec

from surefoot.core.engine.agent import Agent
from surefoot.data.dataset import Dataset
from surefoot.online import MOORL, RLPD, WSRL, IQLOnline
from surefoot.online.loops.loop import make_loop

SHAPE: dict[str, Any] = {"hidden": (32, 32), "num_envs": 8, "initial_steps": 200, "discount": 0.95, "target_rate": 0.1}
SOFT: dict[str, Any] = {"temperature": 0.1, "learn_temperature": False, "actor_learning_rate": 3e-3,
                        "critic_learning_rate": 3e-3}  # fmt: skip
OWN: dict[type[Agent], dict[str, Any]] = {
    RLPD: {**SOFT, "critics": 3, "critic_steps": 1, "updates_per_step": 0.5},
    WSRL: {**SOFT, "critic_steps": 1, "updates_per_step": 0.5},
    MOORL: {**SOFT, "updates_per_step": 0.5, "meta_rate": 1.0},
    IQLOnline: {"learning_rate": 3e-3, "updates_per_step": 0.5, "temperature": 20.0, "expectile": 0.9,
                "rewards": "none", "normalization": "none"},  # the gain is read off the network itself
}  # fmt: skip


def recorded(count: int = 2000) -> Dataset:
    """The regulator's transitions by uniform actions."""
    source = np.random.default_rng(0)
    x, a = source.uniform(-1, 1, (count, 1)), source.uniform(-1, 1, (count, 1))
    return dataset(x, a, 0.9 * x + a + source.normal(0, 0.05, (count, 1)), -10 * (x**2 + 0.4 * a**2)[:, 0])


class Rewarding(Regulator):
    """Wrong: what costs is rewarded."""

    def follow(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        following, rewards, ends = super().follow(states, actions)
        return following, -rewards, ends


def gain(kind: Any, right: bool) -> float:
    """The trained policy's gain, averaged over the last steps."""
    env = Regulator(8) if right else Rewarding(8)
    data = recorded() if right else recorded().replace(rewards=-recorded().rewards)
    agent = kind(spec(env), **{**SHAPE, **OWN[kind]}).fresh(0)
    given = None if kind is WSRL else agent.prepare(data)
    trained = make_loop([agent], [0], env, planned_steps=8000, batch_size=128, kernels=True, dataset=given)
    trained.run(5000)
    gains = []
    for _ in range(8):
        trained.run(250)
        gains.append(regulators_gain(trained.agent))
    return float(np.mean(gains))


@pytest.mark.parametrize("kind", list(OWN))
def test_the_regulators_gain_is_found(kind: type[Agent]) -> None:
    assert gain(kind, right=True) == pytest.approx(RICCATI, rel=0.12)


@pytest.mark.parametrize("kind", list(OWN))
def test_with_the_rewards_sign_flipped_it_is_not(kind: type[Agent]) -> None:
    assert abs(gain(kind, right=False) - RICCATI) > 0.5
