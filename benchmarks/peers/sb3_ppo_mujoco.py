"""stable-baselines3's PPO on one MuJoCo environment: steps per second, acting and learning; prints a line of JSON.

usage: sb3_ppo_mujoco.py ENVIRONMENT STEPS SEED
"""

import json
import sys
import time

import torch
from stable_baselines3 import PPO

torch.set_num_threads(1)
name, steps, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
policy = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}}
model = PPO("MlpPolicy", name, n_steps=2048, batch_size=64, n_epochs=10, policy_kwargs=policy, seed=seed, device="cpu")
model.learn(2048)
start, cpu_start = time.perf_counter(), time.process_time()
model.learn(steps, reset_num_timesteps=False)
print(
    json.dumps(
        {"updates": steps, "seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu_start}
    )
)
