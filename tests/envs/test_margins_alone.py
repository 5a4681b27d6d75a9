"""Environments that give margins and no costs, or margins in some steps: evaluation counts them as training does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from surefoot.envs.adapters import adapt
from surefoot.envs.episodes import episode_seeds, run_episodes
from surefoot.envs.vector import make_vec
from surefoot.evaluation import evaluate, safety
from surefoot.evaluation.rollout import RandomPolicy

STEPS = 10


class Corridor(gymnasium.Env[Any, Any]):
    """x moves by 0.3 a from a random start; |x| <= 1 is to be kept. Told everywhere, or where x > 0 only."""

    observation_space = Box(-10, 10, (1,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def __init__(self, everywhere: bool = True) -> None:
        self.everywhere = everywhere

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(-1, 1))
        return np.array([self.x], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.x += 0.3 * float(action[0])
        info = {"margin": 1 - abs(self.x)} if self.everywhere or self.x > 0 else {}
        return np.array([self.x], np.float32), 1.0, False, False, info


@pytest.fixture(autouse=True)
def ids() -> Iterator[None]:
    for name, everywhere in (("Corridor-v0", True), ("HalfTold-v0", False)):
        gymnasium.register(name, Corridor, max_episode_steps=STEPS, kwargs={"everywhere": everywhere})
    yield
    for name in ("Corridor-v0", "HalfTold-v0"):
        del gymnasium.registry[name]


def right(observations: Any) -> Any:
    return np.ones((len(observations), 1), np.float32)


def test_steps_of_a_negative_margin_cost_1_in_evaluation_as_in_training() -> None:
    batch = run_episodes(right, "Corridor-v0", episode_seeds(0, 0, 6))
    env = adapt(make_vec("Corridor-v0", 6))
    env.reset(seed=episode_seeds(0, 0, 6).tolist())
    trained = np.stack([env.step(right(range(6)))[-1]["cost"] for _ in range(STEPS)]).sum(0)
    assert trained.max() > 0
    assert batch.costs is not None
    assert batch.margins is not None
    np.testing.assert_array_equal(batch.costs, trained)
    assert batch.violations == int((trained > 0).sum())
    found = safety(evaluate([RandomPolicy(np.full(1, -1.0), np.full(1, 1.0))], "Corridor-v0", 4))
    assert found is not None


def test_a_margin_that_a_row_does_not_tell_is_not_taken_for_0() -> None:
    seeds = episode_seeds(1, 0, 4)
    slowly = lambda observations: 0.1 * right(observations)  # noqa: E731
    together = run_episodes(slowly, "HalfTold-v0", seeds)
    alone = [run_episodes(slowly, "HalfTold-v0", seeds[i : i + 1]) for i in range(4)]
    assert together.margins is not None
    assert together.margins.max() > 0
    np.testing.assert_array_equal(together.margins, [one.margins[0] for one in alone if one.margins is not None])
