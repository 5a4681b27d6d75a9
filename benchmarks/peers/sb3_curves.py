"""stable-baselines3's SAC, TD3 and PPO on one task: the cells that stand beside ours in online_curves.md.

Runs in the peers' own environment (setup.sh sb3) and prints one line of JSON. The settings are rl-zoo's for SAC and TD3
(10,000 random steps first; TD3: rate 1e-3, hidden 400-300, exploration noise 0.1), which are our `zoo` presets, and for
PPO those of our defaults (CleanRL's): observations and rewards normalised, rate to 0 over the run, values clipped.

    python sb3_curves.py ALGORITHM ENVIRONMENT STEPS SEED EPISODES
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import gymnasium
import mujoco
import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecNormalize

POINTS, EPISODES_OF_A_POINT, FIRST_SEED = 10, 5, 1000


def evaluate(model: Any, environment: str, episodes: int) -> tuple[list[float], list[int]]:
    """Return each episode's return and length under the mean action; episode k has seed 1000 + k."""
    env, statistics = gymnasium.make(environment), model.get_vec_normalize_env()
    returns, lengths = [], []
    for episode in range(episodes):
        observation, _ = env.reset(seed=FIRST_SEED + episode)
        total, length, over = 0.0, 0, False
        while not over:
            seen = observation if statistics is None else statistics.normalize_obs(observation)
            observation, reward, terminated, truncated, _ = env.step(model.predict(seen, deterministic=True)[0])
            total, length, over = total + float(reward), length + 1, terminated or truncated
        returns.append(total)
        lengths.append(length)
    env.close()
    return returns, lengths


class Curve(BaseCallback):
    """Evaluates ten times during training."""

    def __init__(self, environment: str, steps: int) -> None:
        super().__init__()
        self.environment, self.every, self.points, self.seconds = environment, steps // POINTS, [], 0.0

    def _on_step(self) -> bool:
        if self.num_timesteps % self.every == 0:
            start = time.perf_counter()
            returns, _ = evaluate(self.model, self.environment, EPISODES_OF_A_POINT)
            self.points.append((self.num_timesteps, round(float(np.mean(returns)), 3)))
            self.seconds += time.perf_counter() - start
        return True


def build(algorithm: str, environment: str, seed: int) -> Any:
    """The model, untrained."""
    env: Any = make_vec_env(environment, 1, seed=seed)
    if algorithm == "ppo":
        env = VecNormalize(env, gamma=0.99)
        rate = lambda left: 3e-4 * left  # noqa: E731
        return PPO("MlpPolicy", env, learning_rate=rate, clip_range_vf=0.2, seed=seed, device="cpu")
    shared: dict[str, Any] = {"learning_starts": 10_000, "seed": seed, "device": "cpu"}
    if algorithm == "sac":
        return SAC("MlpPolicy", env, **shared)
    size = env.action_space.shape
    noise = NormalActionNoise(np.zeros(size), np.full(size, 0.1))
    net = {"net_arch": [400, 300]}
    return TD3("MlpPolicy", env, learning_rate=1e-3, action_noise=noise, policy_kwargs=net, **shared)


def main() -> None:
    algorithm, environment, steps, seed, episodes = sys.argv[1], sys.argv[2], *(int(word) for word in sys.argv[3:])
    torch.set_num_threads(1)
    model = build(algorithm, environment, seed)
    curve = Curve(environment, steps)
    start = time.perf_counter()
    model.learn(steps, callback=curve)
    seconds = time.perf_counter() - start - curve.seconds
    returns, lengths = evaluate(model, environment, episodes)
    cell = {
        "peer": "stable-baselines3",
        "algorithm": algorithm,
        "environment": environment,
        "seed": seed,
        "steps": steps,
        "episodes": episodes,
        "returns": [round(value, 3) for value in returns],
        "lengths": lengths,
        "curve": curve.points,
        "seconds": round(seconds, 1),
        "versions": {
            "stable-baselines3": stable_baselines3.__version__,
            "torch": torch.__version__,
            "gymnasium": gymnasium.__version__,
            "mujoco": mujoco.__version__,
        },
    }
    print(json.dumps(cell))


if __name__ == "__main__":
    main()
