"""Policies that are given what to reach, in environments that say it at each reset."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.goal_actor import GoalActor
from surefoot.core.base.errors import EnvironmentMismatchError, SimulatorError
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.evaluation import evaluate


class Line(gymnasium.Env[Any, Any]):
    """A point between -1 and 1 that moves by its action; an episode is solved within .06 of its goal."""

    observation_space = gymnasium.spaces.Box(-2, 2, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, told: Any = "goal", steps: int = 12) -> None:
        self.reported, self.steps = told, steps

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.taken = np.zeros(1, np.float32), 0
        self.goal = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        told = (
            {"goal": self.goal, "none": None, "text": "left"}[self.reported]
            if isinstance(self.reported, str)
            else self.reported
        )
        return self.at.copy(), {} if told is None else {"goal": told}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at = np.clip(self.at + 0.2 * np.asarray(action, np.float32), -2, 2)
        self.taken += 1
        solved = bool(abs(self.at - self.goal) < 0.06)
        return self.at.copy(), float(solved), solved, self.taken >= self.steps, {"success": solved}


class Towards(Actor):
    """a = 4 (g - s): moves to its goal."""

    kind = "towards_in_tests"

    def __init__(self, observation_dim: int, action_dim: int) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.tensor(4.0))
        self.observation_dim, self.action_dim = observation_dim, action_dim

    @property
    def noise_dim(self) -> int:
        return 0

    def act(self, observations: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        return (self.gain * (observations[..., 1:] - observations[..., :1])).clamp(-1, 1)


@pytest.fixture(autouse=True)
def registered() -> Any:
    for name in ("goal", "none", "text"):
        gymnasium.register(f"TestLine-{name}-v0", entry_point=lambda name=name: Line(name))
    gymnasium.register("TestLine-wide-v0", entry_point=lambda: Line(np.zeros(2)))
    yield
    for name in ("goal", "none", "text", "wide"):
        del gymnasium.registry[f"TestLine-{name}-v0"]


def policy() -> Any:
    return Policy(GoalActor(Towards(2, 1), 1), Normalizer(1), torch.tensor([-1.0]), torch.tensor([1.0]))


def test_each_episode_has_the_goal_of_its_own_reset() -> None:
    """Nine episodes in two rows, solved at different steps: a goal that is kept too long is missed."""
    found = evaluate([policy(), policy()], "TestLine-goal-v0", episodes=9, num_envs=2)
    for episodes in found:
        assert episodes.successes is not None
        assert episodes.successes.all()
        assert len(set(episodes.lengths.tolist())) > 2
    one_by_one = evaluate([policy()], "TestLine-goal-v0", episodes=9, num_envs=1)[0]
    np.testing.assert_array_equal(one_by_one.lengths, found[0].lengths)


def test_an_environment_without_goals_is_refused_unless_the_policy_has_one() -> None:
    with pytest.raises(EnvironmentMismatchError, match="asked for a goal, and TestLine-none-v0 gives none"):
        evaluate([policy()], "TestLine-none-v0", episodes=2, num_envs=1)
    own = policy()
    own.actor.fix(torch.tensor([0.5]))
    found = evaluate([own], "TestLine-none-v0", episodes=4, num_envs=2)[0]
    assert found.successes is not None
    assert not found.successes.all()  # the environment's goals are others


def test_goals_of_another_width_or_kind_are_refused() -> None:
    with pytest.raises(EnvironmentMismatchError, match=r"goals of 1 numbers, and .* TestLine-wide-v0 give 2"):
        evaluate([policy()], "TestLine-wide-v0", episodes=1, num_envs=1)
    with pytest.raises(SimulatorError, match=r"reset gave info\['goal'\].*one row of numbers"):
        evaluate([policy()], "TestLine-text-v0", episodes=1, num_envs=1)
