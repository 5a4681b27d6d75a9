"""SAC updates per second of stable-baselines3, or with --library sbx of its JAX twin SBX: their defaults, one thread.

Two measurements: `update` trains from 200,000 random rows, one gradient step a call as `learn` does (SBX also with
--steps-per-call, which its scan allows); `loop` is `learn` on HalfCheetah-v5, one update an environment step.
"""

import os

import common  # before torch and jax: it sets the number of threads

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import gymnasium
import numpy as np
import torch

LEARNING_STARTS = 100


class RandomSpaces(gymnasium.Env):
    """Spaces of HalfCheetah and nothing behind them, for updates alone."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (common.OBSERVATION_SIZE,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (common.ACTION_SIZE,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(common.OBSERVATION_SIZE, np.float32), {}

    def step(self, action):
        return np.zeros(common.OBSERVATION_SIZE, np.float32), 0.0, False, False, {}


def fill(model, seed: int) -> None:
    """Put 200,000 random rows into the replay buffer."""
    rows, buffer = common.random_rows(seed), model.replay_buffer
    count = common.ROWS
    buffer.observations[:count, 0], buffer.actions[:count, 0] = rows["observations"], rows["actions"]
    buffer.next_observations[:count, 0], buffer.rewards[:count, 0] = rows["next_observations"], rows["rewards"]
    buffer.pos = count


def main() -> None:
    parser = common.speed_arguments(__doc__)
    parser.add_argument("--library", choices=("sb3", "sbx"), default="sb3")
    parser.add_argument("--measure", choices=("update", "loop"), default="update")
    parser.add_argument("--steps-per-call", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.library == "sb3":
        from stable_baselines3 import SAC
    else:
        from sbx import SAC
    env = RandomSpaces() if options.measure == "update" else gymnasium.make("HalfCheetah-v5")
    network = {"net_arch": [256, 256]}
    settings = {"batch_size": common.BATCH_SIZE, "learning_starts": LEARNING_STARTS, "buffer_size": 2 * common.ROWS}
    model = SAC("MlpPolicy", env, policy_kwargs=network, seed=options.seed, **settings)
    model.learn(LEARNING_STARTS + 10)
    if options.measure == "update":
        fill(model, options.seed)

        def run(updates: int) -> None:
            for _ in range(updates // options.steps_per_call):
                model.train(gradient_steps=options.steps_per_call, batch_size=common.BATCH_SIZE)
    else:

        def run(updates: int) -> None:
            model.learn(updates, reset_num_timesteps=False)

    common.report_speed(options.library, run, options.updates)


if __name__ == "__main__":
    main()
