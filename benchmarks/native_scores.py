"""What the catalogue knows of the native systems: `python benchmarks/native_scores.py` writes it again.

data/native_scores.json: a normalised score is 0 at the mean return of the behaviour `random` and 100 at that of
`expert`, as D4RL's. data/native_measures.json: TQ, SACo and projected coverage of the embedded datasets, each task's by
the limits that its datasets span together and beside the one of them that visits most cells, as `surefoot datasets map`
has them. A few minutes on one core.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from surefoot.core.base.files import write_json
from surefoot.cuda_ext.system import System
from surefoot.envs.acting.sums import EpisodeBatch
from surefoot.envs.episodes import episode_seeds, run_episodes
from surefoot.envs.systems import SYSTEMS
from surefoot.evaluation.dataset_map import mapped
from surefoot.runs.embedded import embedded, generate

EPISODES = 10_000
SEED = 0
DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
MEASURES = ("tq", "saco", "unique_cells", "projected_coverage", "saco_of", "limits_of")


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


def measures(system: System) -> dict[str, dict[str, Any]]:
    """Name of each embedded dataset of a system -> how good and how varied it is."""
    names = [name for name, (of, _) in embedded().items() if of.alias == system.alias]
    rows = mapped([generate(name) for name in names])
    return {row["dataset"]: {name: rounded(row[name]) for name in MEASURES} for row in rows}


def rounded(value: Any) -> Any:
    """Numbers to three digits behind the point."""
    return round(value, 3) if isinstance(value, float) else value


def main() -> None:
    """Compute all and write the files."""
    reference, coverage = {}, {}
    for known in SYSTEMS.values():
        system = known()
        reference[system.gym_id] = scores(system)
        print(f"{system.alias}: {reference[system.gym_id]}", flush=True)
    write_json(DATA / "native_scores.json", reference)
    for (
        known
    ) in SYSTEMS.values():  # their quality is by the scores in the package, those written now where installed so
        found = measures(known())
        coverage |= found
        print(*(f"{name}: {values}" for name, values in found.items()), sep="\n", flush=True)
    write_json(DATA / "native_measures.json", coverage)


if __name__ == "__main__":
    main()
