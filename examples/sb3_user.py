"""PPO of stable-baselines3 on a native system: pip install 'surefoot[sb3]'.

python examples/sb3_user.py --steps 1000000
"""

import sys

import gymnasium
import numpy as np

try:
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecMonitor
except ImportError:
    sys.exit("this example needs stable-baselines3: pip install 'surefoot[sb3]'")

from surefoot.envs.adapters import to_sb3

steps = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 1_000_000
envs = gymnasium.make_vec("surefoot:surefoot/CartPoleSwingUp-v0", num_envs=256)
envs = VecMonitor(to_sb3(gymnasium.wrappers.vector.RescaleAction(envs, *np.float32([-1, 1]))))
model = PPO("MlpPolicy", envs, n_steps=64, batch_size=2048, device="cpu", seed=0).learn(steps)
mean, deviation = evaluate_policy(model, envs, n_eval_episodes=64)
print(f"return {mean:.1f} +- {deviation:.1f} after {model.num_timesteps:,} steps")
