"""Learning from images beside learning from the state: SAC and BC on the native pendulum, one seed each.

`vector` observes the state, `pixels` three stacked 64 x 64 frames, `camera` a Dict of one frame and the velocity. All
else is the same. BC clones the same 100 episodes of the scripted expert. One seed says that it works, not how well.

    python benchmarks/pixels.py            # half an hour of one core
    python benchmarks/pixels.py --quick    # one small cell, for CI
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from cells import Results
from study import Cell, study_main, training_cell

from surefoot.data import reference_scores
from surefoot.runs.embedded import generate

ENVIRONMENTS = {"vector": "native/pendulum", "pixels": "native/pendulum-pixels", "camera": "native/pendulum-camera"}
RATE = 1e-3  # of all networks
SAC = {
    "initial_steps": 500,
    "actor_learning_rate": RATE,
    "critic_learning_rate": RATE,
    "temperature_learning_rate": RATE,
    "encoder": "small",
}
BC = {"learning_rate": RATE, "schedule": "cosine", "encoder": "small"}
STEPS = {"sac": 6_000, "bc": 6_000}
BATCH, EPISODES, TRANSITIONS = 64, 50, 20_000


def cell(algorithm: str, seen: str, steps: int | None = None, episodes: int = EPISODES) -> dict[str, Any]:
    """Train and evaluate one seed."""
    name = ENVIRONMENTS[seen]
    data = functools.partial(generate, name, 0, TRANSITIONS, "expert") if algorithm == "bc" else None
    options = SAC if algorithm == "sac" else BC
    steps = STEPS[algorithm] if steps is None else steps
    return training_cell(algorithm, options, data, name, 0, steps, episodes, evaluations=8, batch_size=BATCH)


CELLS = [
    Cell(f"{algorithm} {seen}", functools.partial(cell, algorithm, seen))
    for algorithm in STEPS
    for seen in ENVIRONMENTS
]
QUICK = Cell("bc camera", functools.partial(cell, "bc", "camera", 20, 2))


def table(found: Results) -> list[str]:
    """Mean returns, and what share of the way from random actions to the vector version's return they are."""
    reference = reference_scores("surefoot/Pendulum-v0")
    assert reference is not None
    lines = [
        "# Learning from images: the native pendulum",
        "",
        f"One seed, {EPISODES} episodes; the interval is over episodes. Share: of the way from random actions "
        f"({reference[0]:.0f}) to the return that the same algorithm reaches from the state. Batches of {BATCH}; SAC "
        f"takes {STEPS['sac']:,} steps, BC {STEPS['bc']:,} on {TRANSITIONS:,} transitions of the scripted expert. "
        "Minutes are those of a quarter of a core (SAC) and of a twentieth (BC): other work ran on the machine.",
        "",
        "| algorithm | observes | return | share | minutes | updates/s |",
        "|---|---|---|---|---|---|",
    ]
    for algorithm in STEPS:
        base = found.get(f"{algorithm} vector")
        for seen in ENVIRONMENTS:
            one = found.get(f"{algorithm} {seen}")
            if one is None:
                lines.append(f"| {algorithm} | {seen} | missing | | | |")
                continue
            returns = np.asarray(one["returns"])
            half = 1.96 * returns.std(ddof=1) / len(returns) ** 0.5
            share = "" if base is None else f"{_share(returns, base, reference[0]):.0%}"
            lines.append(
                f"| {algorithm} | {seen} | {returns.mean():.0f} ± {half:.0f} | {share} | {one['seconds'] / 60:.1f} | "
                f"{one['updates_per_second']:.0f} |"
            )
    return lines


def _share(returns: np.ndarray, base: dict[str, Any], random: float) -> float:
    return float((returns.mean() - random) / (np.mean(base["returns"]) - random))


if __name__ == "__main__":
    study_main(__doc__, "pixels", CELLS, table, QUICK)
