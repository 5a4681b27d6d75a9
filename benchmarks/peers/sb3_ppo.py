"""stable-baselines3's PPO on a native system until a return is reached; prints a line of JSON for each evaluation.

Runs in the peers' own environment (setup.sh sb3), and finds surefoot, for the system alone, behind its packages.
usage: sb3_ppo.py SITE_PACKAGES_OF_SUREFOOT SETTINGS_AS_JSON
"""

from __future__ import annotations

import json
import site
import sys
import time
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

site.addsitedir(sys.argv[1])
from surefoot.envs.native import NativeVectorEnv


class Rows(VecEnv):
    """A native vector environment as stable-baselines3 wants it: all rows in one call, no copy of the environment.

    Actions are in [-1, 1], as its documentation asks for, and are scaled to the system's: else its first policy, of a
    deviation of 1, would explore a tenth of the force that ours explores.
    """

    def __init__(self, env: NativeVectorEnv, seed: int) -> None:
        space = env.single_action_space
        super().__init__(env.num_envs, env.single_observation_space, Box(-1.0, 1.0, space.shape, np.float32))
        self.env, self.first_seed = env, seed

    def reset(self) -> Any:
        return self.env.reset(seed=self.first_seed)[0]

    def step_async(self, actions: Any) -> None:
        self.actions = forces(self.env, actions)

    def step_wait(self) -> Any:
        observations, rewards, terminations, truncations, info = self.env.step(self.actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for row in np.flatnonzero(terminations | truncations):
            cut = bool(truncations[row] and not terminations[row])
            infos[row] = {"terminal_observation": info["final_obs"][row], "TimeLimit.truncated": cut}
        return observations, rewards, terminations | truncations, infos

    def close(self) -> None:
        self.env.close()

    def get_attr(self, name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.env, name, None)] * self.num_envs

    def set_attr(self, name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, name: str, *arguments: Any, indices: Any = None, **options: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, kind: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


def forces(env: NativeVectorEnv, actions: Any) -> Any:
    """Actions in [-1, 1] in the system's own units."""
    low, high = env.single_action_space.low, env.single_action_space.high
    return low + (high - low) * (np.clip(actions, -1, 1) + 1) / 2


def evaluated(model: PPO, normal: VecNormalize, system: str, episodes: int) -> float:
    """Mean return of one deterministic episode of each of so many environments."""
    env = NativeVectorEnv(system, episodes)
    observations, _ = env.reset(seed=10_000)
    total, going = np.zeros(episodes), np.ones(episodes, bool)
    while going.any():
        actions, _ = model.predict(normal.normalize_obs(observations), deterministic=True)
        observations, rewards, terminations, truncations, _ = env.step(forces(env, actions))
        total += rewards * going
        going &= ~(terminations | truncations)
    return float(total.mean())


def main() -> None:
    """Train, evaluating after each part; evaluations are not timed."""
    torch.set_num_threads(1)
    s = json.loads(sys.argv[2])
    env = Rows(NativeVectorEnv(s["system"], s["num_envs"]), s["seed"])
    normal = VecNormalize(env)
    rate = s["learning_rate"]  # falls to 0 over the run, as ours does
    options = {"n_steps": s["horizon"], "batch_size": s["num_envs"] * s["horizon"] // s["minibatches"]}
    options |= {"n_epochs": s["epochs"], "learning_rate": lambda left: rate * left}
    model = PPO("MlpPolicy", normal, seed=s["seed"], device="cpu", **options)
    model._setup_learn(s["steps"], None, True)
    block = s["num_envs"] * model.n_steps
    wall, cpu, last = 0.0, 0.0, 0
    model._total_timesteps = s["steps"]
    while model.num_timesteps < s["steps"]:
        began, used = time.perf_counter(), time.process_time()
        model.collect_rollouts(model.env, _silent(model), model.rollout_buffer, n_rollout_steps=model.n_steps)
        model._update_current_progress_remaining(model.num_timesteps, s["steps"])
        model.train()
        wall, cpu = wall + time.perf_counter() - began, cpu + time.process_time() - used
        spent = cpu >= s["cap"]
        if model.num_timesteps - last >= s["every"] or model.num_timesteps + block > s["steps"] or spent:
            last = model.num_timesteps
            found = evaluated(model, normal, s["system"], s["episodes"])
            print(json.dumps({"steps": last, "wall": wall, "cpu": cpu, "return": found}), flush=True)
            if found >= s["target"] or spent:
                return


def _silent(model: PPO) -> Any:
    from stable_baselines3.common.callbacks import CallbackList
    from stable_baselines3.common.logger import Logger

    model.set_logger(Logger(folder=None, output_formats=[]))
    callback = CallbackList([])
    callback.init_callback(model)
    return callback


if __name__ == "__main__":
    main()
