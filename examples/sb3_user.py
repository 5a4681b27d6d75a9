"""PPO of stable-baselines3 on a native system: `pip install stable-baselines3` beside surefoot.

python examples/sb3_user.py --steps 200000
"""

import argparse

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

from surefoot.envs.adapters import to_sb3

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=200_000)
steps = parser.parse_args().steps
envs = to_sb3(gymnasium.make_vec("surefoot/CartPoleSwingUp-v0", num_envs=64))
model = PPO("MlpPolicy", envs, n_steps=64, batch_size=512, device="cpu", seed=0).learn(steps)
mean, deviation = evaluate_policy(model, envs, n_eval_episodes=64)
print(f"return {mean:.1f} +- {deviation:.1f} after {model.num_timesteps:,} steps")
