"""Environments that refuse an action outside of their bounds are given none, by an agent at the end of its range."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch

from surefoot.envs.acting import Acting
from surefoot.envs.adapters import adapt

LOW, HIGH = np.array([-2.0, -0.1, -1.4], np.float32), np.array([-0.8, 0.7, 4.3], np.float32)


class Strict(gymnasium.Env[Any, Any]):
    """Ends the run at an action that its space does not contain."""

    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gymnasium.spaces.Box(LOW, HIGH)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.taken: list[np.ndarray] = []
        return np.zeros(2, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action.tolist()
        self.taken.append(action.copy())
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_an_agent_at_the_end_of_its_range_acts_within_the_bounds() -> None:
    strict = Strict()
    acting = Acting(adapt(strict), [0], (torch.from_numpy(LOW), torch.from_numpy(HIGH)), torch.device("cpu"))
    acting.begin(0)
    given = (1.0, -1.0, 3.0, 0.3)
    for value in given:
        acting.act(torch.full((1, 3), value))
    np.testing.assert_array_equal(strict.taken[0], strict.taken[2])
    np.testing.assert_allclose(strict.taken[:2], [HIGH, LOW], rtol=1e-6)
    middle, half = torch.from_numpy((HIGH + LOW) / 2), torch.from_numpy((HIGH - LOW) / 2)
    inside = torch.addcmul(middle, half, torch.full((3,), 0.3))
    np.testing.assert_array_equal(strict.taken[3], inside.numpy())  # as ever
