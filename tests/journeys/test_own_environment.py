"""A roboticist: an environment of her own with a camera and velocities, from nothing to a report and a policy.

Everything is what a user types or writes. A ball that no one pushes stays where it lies: returns of 10 on average.
"""

from __future__ import annotations

import csv
import pathlib

import numpy as np
import pytest

from surefoot import load_policy
from surefoot.cli import main

ENVIRONMENT = '''
"""A ball on a line, seen by a camera of 32 by 32 pixels, with its speed beside it."""
import gymnasium
import numpy as np
from gymnasium import spaces


class Ball(gymnasium.Env):
    observation_space = spaces.Dict(
        camera=spaces.Box(0, 255, (32, 32, 1), np.uint8), speed=spaces.Box(-2, 2, (1,), np.float32)
    )
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.speed = self.np_random.uniform(-1, 1), 0.0
        return self.observe(), {}

    def step(self, action):
        self.speed = float(np.clip(self.speed + 0.3 * np.clip(action[0], -1, 1), -2, 2))
        self.place = float(np.clip(self.place + 0.2 * self.speed, -1, 1))
        return self.observe(), 1 - abs(self.place), False, False, {}

    def observe(self):
        picture = np.zeros((32, 32, 1), np.uint8)
        picture[:, int(15.5 * (self.place + 1))] = 255
        return {"camera": picture, "speed": np.float32([self.speed])}


gymnasium.register("Ball-v0", Ball, max_episode_steps=20)
'''


@pytest.mark.slow
def test_an_environment_with_camera_and_velocities_comes_to_a_report_and_a_policy_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("my_ball.py").write_text(ENVIRONMENT)
    assert main(["envs", "check", "my_ball:Ball-v0"]) == 0  # found in this folder, without PYTHONPATH
    arguments = [
        "algo=ppo", "env=my_ball:Ball-v0", "algo.encoder=small", "algo.horizon=64", "algo.num_envs=4", "steps=2048",
        "seeds=1", "episodes=20", "evaluate_episodes=2", "out=runs/ball",
    ]  # fmt: skip
    assert main(["train", "-q", *arguments]) == 0
    capsys.readouterr()
    assert main(["report", "runs/ball", "-o", "report.html", "--csv", "table.csv"]) == 0
    assert "ppo (" in capsys.readouterr().out
    (row,) = csv.DictReader(pathlib.Path("table.csv").read_text().splitlines())
    assert float(row["returns_mean"]) > 12.5
    assert "my_ball:Ball-v0" in pathlib.Path("report.html").read_text(encoding="utf-8")
    policy = load_policy("runs/ball/policy/seed0.safetensors")
    action = policy.select_action({"camera": np.zeros((32, 32, 1), np.uint8), "speed": np.float32([0.5])})
    assert action.shape == (1,)
    assert np.abs(action).max() <= 1
