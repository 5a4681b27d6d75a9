"""gymnasium's SyncVectorEnv with a torch 2x64 tanh policy or random actions, one line of JSON."""

import argparse
import json
import os
import time

os.environ["OMP_NUM_THREADS"] = "1"

import gymnasium
import numpy as np
import torch

NAMES = {"pendulum": "Pendulum-v1", "cartpole": "CartPole-v1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", choices=sorted(NAMES), default="pendulum")
    parser.add_argument("--actions", choices=["policy", "random"], default="policy")
    parser.add_argument("--envs", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vector = gymnasium.make_vec(
        NAMES[arguments.system], num_envs=arguments.envs, vectorization_mode="sync", vector_kwargs={}
    )
    width = vector.single_observation_space.shape[0]
    layers = [torch.nn.Linear(width, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh()]
    policy = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1), torch.nn.Tanh())
    discrete = isinstance(vector.single_action_space, gymnasium.spaces.Discrete)
    observations, _ = vector.reset(seed=0)

    def run(steps: int) -> None:
        nonlocal observations
        for _ in range(steps):
            if arguments.actions == "random":
                actions = vector.action_space.sample()
            else:
                with torch.no_grad():
                    actions = policy(torch.from_numpy(np.asarray(observations, dtype=np.float32))).numpy()
                actions = (actions[:, 0] > 0).astype(np.int64) if discrete else 2 * actions
            observations, *_ = vector.step(actions)

    run(10)
    start, cpu = time.perf_counter(), time.process_time()
    run(arguments.steps)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    steps = arguments.envs * arguments.steps
    line = {"steps": steps, "seconds": seconds, "cpu_seconds": cpu_seconds, "steps_per_cpu_second": steps / cpu_seconds}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
