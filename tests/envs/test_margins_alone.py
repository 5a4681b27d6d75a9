"""Environments that give margins and no costs, or margins in some steps: evaluation counts them as training does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.envs.adapters import adapt
from surefoot.envs.episodes import episode_seeds, run_episodes
from surefoot.envs.interface import costs_of
from surefoot.envs.vector import make_vec
from surefoot.evaluation import evaluate, safety
from surefoot.evaluation.rollout import RandomPolicy

STEPS = 10


class Corridor(gymnasium.Env[Any, Any]):
    """x moves by 0.3 a from a random start; |x| <= 1 is to be kept. Given everywhere, or where x > 0 only."""

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


class Told(Corridor):
    """Says of its steps what it was made to say."""

    def __init__(self, *infos: dict[str, Any]) -> None:
        super().__init__()
        self.infos = infos

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return *super().step(action)[:4], self.infos[min(self.count, len(self.infos)) - 1]


@pytest.fixture
def told() -> Iterator[Any]:
    def register(*infos: dict[str, Any]) -> str:
        gymnasium.register("Told-v0", lambda: Told(*infos), max_episode_steps=STEPS)
        return "Told-v0"

    yield register
    del gymnasium.registry["Told-v0"]


def test_a_margin_of_nan_is_no_safe_step(told: Any) -> None:
    name = told({"margin": 1.0}, {"margin": float("nan")})
    with pytest.raises(EnvironmentMismatchError, match="non-finite margin for policy 0 in episode 0, step 2"):
        run_episodes(right, name, episode_seeds(0, 0, 3))
    env = adapt(make_vec(name, 2))
    env.reset(seed=0)
    assert env.step(right(range(2)))[-1]["cost"].tolist() == [0, 0]
    assert np.isnan(env.step(right(range(2)))[-1]["cost"]).all()  # which constrained training refuses
    margins = np.array([0.5, -0.5, 0.0, np.nan], np.float32)
    for costs in (costs_of(margins), costs_of(torch.from_numpy(margins)).numpy()):
        np.testing.assert_array_equal(costs, np.array([0, 1, 0, np.nan], np.float32))


def test_a_negative_cost_pays_for_no_violation(told: Any) -> None:
    name = told({"cost": 5.0}, {"cost": -1.0})
    batch = run_episodes(right, name, episode_seeds(0, 0, 3))
    assert batch.costs is not None
    assert batch.costs.tolist() == [-4.0] * 3
    assert batch.violations == 3
    found = safety(evaluate([RandomPolicy(np.full(1, -1.0), np.full(1, 1.0))], name, 4))
    assert found is not None
    assert (found.violated, found.per_episode) == (1.0, 1.0)


def test_costs_under_another_name_are_read_by_nothing(told: Any) -> None:
    batch = run_episodes(right, told({"cost": 1.0, "costs": {"a": 1.0, "b": 0.0}}), episode_seeds(0, 0, 2))
    assert batch.costs is not None
    assert batch.costs.tolist() == [10.0] * 2
    gymnasium.registry["Told-v0"].entry_point = lambda: Told({"costs": 1.0})
    assert run_episodes(right, "Told-v0", episode_seeds(0, 0, 2)).costs is None
