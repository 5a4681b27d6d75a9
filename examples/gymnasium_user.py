"""4,096 cart-poles for a gymnasium user: surefoot is installed, and gymnasium imports it by the id.

python examples/gymnasium_user.py
"""

import gymnasium
import numpy as np

envs = gymnasium.make_vec("surefoot:surefoot/CartPoleSwingUp-v0", num_envs=4096, gap="wind")
observations, info = envs.reset(seed=0)
returns = np.zeros(envs.num_envs)
for _ in range(100):
    forces = 2.0 * observations[:, 4:] * observations[:, 2:3]  # along the rotation below, against it above
    observations, rewards, terminations, truncations, info = envs.step(np.clip(forces, -10, 10))
    returns += rewards
print(f"mean return {returns.mean():.2f}, {int(info['cost'].sum())} of {envs.num_envs} off the safe track")
