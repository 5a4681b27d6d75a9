"""Reference returns of the native systems: `python benchmarks/native_scores.py` writes data/native_scores.json again.

A normalised score is 0 at the mean return of the behaviour `random` and 100 at that of `expert`, as D4RL's. About a
minute on one core.
"""

from __future__ import annotations

import pathlib

import numpy as np

from surefoot.core.files import write_json
from surefoot.cuda_ext.system import System
from surefoot.envs.episodes import EpisodeBatch, episode_seeds, run_episodes
from surefoot.envs.systems import SYSTEMS

EPISODES = 10_000
SEED = 0
TARGET = pathlib.Path(__file__).resolve().parents[1] / "data" / "native_scores.json"


def episodes(system: System, behaviour: str, count: int) -> EpisodeBatch:
    """`count` episodes of a scripted behaviour."""
    generator, act = np.random.default_rng(SEED), system.behaviours[behaviour]
    return run_episodes(lambda seen: act(seen, generator), system.gym_id, episode_seeds(SEED, 0, count))


def scores(system: System, count: int = EPISODES) -> dict[str, str | float | int]:
    """Mean returns that count as 0 and 100."""
    random, expert = (float(episodes(system, name, count).returns.mean()) for name in ("random", "expert"))
    return {
        "name": system.alias,
        "random": round(random, 3),
        "expert": round(expert, 3),
        "episodes": count,
        "seed": SEED,
    }


def main() -> None:
    """Compute all and write the file."""
    table = {}
    for known in SYSTEMS.values():
        system = known()
        table[system.gym_id] = scores(system)
        print(f"{system.alias}: {table[system.gym_id]}")
    write_json(TARGET, table)


if __name__ == "__main__":
    main()
