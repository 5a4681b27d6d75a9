"""64 half-cheetahs with a speed limit, half of them in twice the gravity: python examples/mujoco_vector.py"""

import gymnasium
import numpy as np

# a prefix "surefoot.envs:" makes gymnasium import us; after `import surefoot.envs` the id alone will do
gaps = [None] * 32 + ["gravity2"] * 32
env = gymnasium.make_vec("surefoot:surefoot/HalfCheetahVelocity-v5", num_envs=64, gap=gaps)
observations, info = env.reset(seed=0)
returns, costs = np.zeros(64), np.zeros(64)
for _ in range(100):
    observations, rewards, terminations, truncations, info = env.step(env.action_space.sample())
    returns += rewards
    costs += info["cost"]  # 1 where the step was faster than 3.2096 m/s; info["margin"] is the signed distance
print(f"{env.metadata['simulator']}: return {returns[:32].mean():.1f} as it is, {returns[32:].mean():.1f} in 2 g")
print(f"{costs.mean():.2f} steps of 100 above the limit")
