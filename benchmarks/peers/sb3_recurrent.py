"""RecurrentPPO of sb3-contrib on one task: the cells that stand beside ours in recurrent_ppo.md.

Runs in the peers' own environment (setup.sh sb3) and prints one line of JSON. Its settings are its defaults, with 8
environments, which are our preset `sb3`.

    python sb3_recurrent.py ENVIRONMENT STEPS SEED EPISODES
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import gymnasium
import hidden_velocities  # noqa: F401  registers the environments
import numpy as np
import sb3_contrib
import stable_baselines3
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

ENVIRONMENTS, POINTS, EPISODES_OF_A_POINT, FIRST_SEED = 8, 10, 5, 1000


def evaluate(model: Any, environment: str, episodes: int) -> tuple[list[float], list[int]]:
    """Return each episode's return and length under the likeliest or mean action; episode k has seed 1000 + k."""
    env = gymnasium.make(environment)
    returns, lengths = [], []
    for episode in range(episodes):
        observation, _ = env.reset(seed=FIRST_SEED + episode)
        state, total, length, over = None, 0.0, 0, False
        while not over:
            begins = np.array([length == 0])
            action, state = model.predict(observation, state=state, episode_start=begins, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, length, over = total + float(reward), length + 1, terminated or truncated
        returns.append(total)
        lengths.append(length)
    env.close()
    return returns, lengths


class Curve(BaseCallback):
    """Evaluates ten times during training."""

    def __init__(self, environment: str, steps: int) -> None:
        super().__init__()
        self.environment, self.every = environment, steps // POINTS
        self.points: list[tuple[int, float]] = []
        self.seconds = self.cpu_seconds = 0.0

    def _on_step(self) -> bool:
        if self.num_timesteps // self.every > len(self.points):
            start, cpu = time.perf_counter(), time.process_time()
            returns, _ = evaluate(self.model, self.environment, EPISODES_OF_A_POINT)
            self.points.append((self.num_timesteps, round(float(np.mean(returns)), 3)))
            self.seconds += time.perf_counter() - start
            self.cpu_seconds += time.process_time() - cpu
        return True


def main() -> None:
    """The command line."""
    environment, steps, seed, episodes = sys.argv[1], *(int(word) for word in sys.argv[2:])
    torch.set_num_threads(1)
    env = make_vec_env(environment, ENVIRONMENTS, seed=seed)
    model = RecurrentPPO("MlpLstmPolicy", env, seed=seed, device="cpu")
    curve = Curve(environment, steps)
    start, cpu = time.perf_counter(), time.process_time()
    model.learn(steps, callback=curve)
    seconds, cpu_seconds = time.perf_counter() - start - curve.seconds, time.process_time() - cpu - curve.cpu_seconds
    returns, lengths = evaluate(model, environment, episodes)
    cell = {
        "peer": "sb3-contrib",
        "environment": environment,
        "seed": seed,
        "steps": steps,
        "episodes": episodes,
        "returns": [round(value, 3) for value in returns],
        "lengths": lengths,
        "curve": curve.points,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "versions": {
            "sb3-contrib": sb3_contrib.__version__,
            "stable-baselines3": stable_baselines3.__version__,
            "torch": torch.__version__,
            "gymnasium": gymnasium.__version__,
        },
    }
    print(json.dumps(cell))


if __name__ == "__main__":
    main()
