"""An environment and a dataset of your own, used with surefoot.

python examples/custom_environment.py point_mass.hdf5
PYTHONPATH=examples surefoot train algo=iql dataset=point_mass.hdf5 steps=6000 --trust

The file says in which environment it was recorded, `custom_environment:PointMass-v0`: gymnasium's way of naming a
module that is imported before the id is looked up. PYTHONPATH lets it find the module; an installed package needs none.
A file alone must not decide what is imported, so --trust says that this one may (or name the environment with env=).
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np

from surefoot.data import Dataset, save


class PointMass(gymnasium.Env[np.ndarray, np.ndarray]):
    """A mass on a line that a force in [-1, 1] brings to rest at the origin; observed are position and velocity."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start at rest, up to 1 from the origin."""
        super().reset(seed=seed)
        self.state = np.array([self.np_random.uniform(-1, 1), 0.0])
        return self.state.astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """A tenth of a second; leaving [-2, 2] ends the task."""
        position, velocity = self.state
        velocity = velocity + 0.1 * float(np.clip(action[0], -1, 1))
        self.state = np.array([position + 0.1 * velocity, velocity])
        reward = -float(self.state @ self.state)
        return self.state.astype(np.float32), reward, bool(abs(self.state[0]) > 2), False, {}


gymnasium.register("PointMass-v0", entry_point=PointMass, max_episode_steps=100)


def record(episodes: int, seed: int = 0) -> Dataset:
    """Episodes of a noisy controller, some of them with a bad gain."""
    env = gymnasium.make("PointMass-v0")
    generator = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {}
    for episode in range(episodes):
        observation, _ = env.reset(seed=seed + episode)
        gain, over = generator.uniform(-0.2, 1.5), False
        while not over:
            force = -gain * observation[0] - observation[1] + 0.3 * generator.standard_normal()
            action = np.clip([force], -1, 1).astype(np.float32)
            following, reward, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
            row = {
                "observations": observation,
                "actions": action,
                "rewards": np.float32(reward),
                "next_observations": following,
                "terminations": terminated,
                "truncations": truncated and not terminated,
                "episode_ids": episode,
                "valid": True,
            }
            for key, value in row.items():
                rows.setdefault(key, []).append(value)
            observation = following
    columns = {key: np.array(values) for key, values in rows.items()}
    return Dataset(**columns, env_id="custom_environment:PointMass-v0", name="point mass")


def main() -> None:
    """Record and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", help="a new .hdf5, .npz or .csv file (only the first two keep the environment's id)")
    parser.add_argument("--episodes", type=int, default=200)
    arguments = parser.parse_args()
    dataset = record(arguments.episodes)
    save(dataset, arguments.output)
    print(f"{arguments.output}: {len(dataset)} transitions, mean return {dataset.episode_returns.mean():.1f}")


if __name__ == "__main__":
    main()
