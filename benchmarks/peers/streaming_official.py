"""Steps per second of the official stream AC (mohmdelsayed/streaming-drl), from a checkout of your own.

Runs in the peers' own environment (setup.sh sb3) and prints one line of JSON. That code is CC BY-NC 4.0: it is measured
here, and nothing of it is in this repository.

    python streaming_official.py CHECKOUT STEPS

`learning`: observation normalised, reward scaled, action sampled and both networks updated, on recorded observations
(17 and a clock, 6 actions), no simulator. `loop`: the same in HalfCheetah-v5.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import torch

OBSERVATIONS, ACTIONS, LIMIT = 17, 6, 1000


class Recorded(gymnasium.Env[Any, Any]):
    """Gives recorded observations and rewards at next to no cost."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATIONS,), np.float64)
    action_space = gymnasium.spaces.Box(-1, 1, (ACTIONS,), np.float32)

    def __init__(self) -> None:
        source = np.random.default_rng(0)
        self.rows, self.rewards = source.standard_normal((5000, OBSERVATIONS)), source.standard_normal(5000)
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.rows[self.t % 5000], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.rows[self.t % 5000], float(self.rewards[self.t % 5000]), False, self.t % LIMIT == 0, {}


def measure(env: Any, steps: int, modules: tuple[Any, Any, Any]) -> dict[str, float]:
    """Run `steps` steps after 300 that don't count."""
    agents, normalisers, clock = modules
    env = gymnasium.wrappers.ClipAction(env)
    env = normalisers.ScaleReward(env, gamma=0.99)
    env = normalisers.NormalizeObservation(env)
    env = clock.AddTimeInfo(env)
    agent = agents.StreamAC(n_obs=OBSERVATIONS + 1, n_actions=ACTIONS, hidden_size=128)
    state, _ = env.reset(seed=0)
    wall = cpu = 0.0
    for step in range(steps + 300):
        if step == 300:
            wall, cpu = time.perf_counter(), time.process_time()
        action = agent.sample_action(state)
        following, reward, terminated, truncated, _ = env.step(action)
        agent.update_params(state, action, reward, following, terminated or truncated, 0.01)
        state = env.reset()[0] if terminated or truncated else following
    return {"steps": steps, "seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    import normalization_wrappers
    import stream_ac_continuous
    import time_wrapper

    torch.set_num_threads(1)
    torch.manual_seed(0)
    modules = (stream_ac_continuous, normalization_wrappers, time_wrapper)
    recorded = Recorded()
    recorded.spec = gymnasium.spec("HalfCheetah-v5")  # where AddTimeInfo looks for the limit
    steps = int(sys.argv[2])
    found = {
        "learning": measure(recorded, steps, modules),
        "loop": measure(gymnasium.make("HalfCheetah-v5"), steps, modules),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
