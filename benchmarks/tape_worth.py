"""What repeating training steps from a tape is worth: native kernels and Adam with it and without it, in turn.

    python benchmarks/tape_worth.py                 # medians of 7, writes results/tape_worth.{json,md}
    python benchmarks/tape_worth.py --quick         # a few steps of each, for CI

Without the tape a step is eager PyTorch over the same native MLPs and the same native Adam. Both learners are in one
process on one core and take turns; rates are per second of CPU time. Hidden 256-256, batch 256, observation 17,
action 6, sampling included, unless the name says otherwise.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import time
from typing import Any

import numpy as np
import torch

from surefoot.core.base.files import write_json
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.capture import Capture
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.native import kernels
from surefoot.data.store import Store
from surefoot.runs.plan import agent_class

HERE = pathlib.Path(__file__).parent
ROWS, OBSERVATION, ACTION = 100_000, 17, 6
WIDE: dict[str, Any] = {"hidden": (256, 256)}
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "IQL": ("iql", {}, 256),
    "TD3+BC": ("td3bc", {}, 256),
    "SAC": ("surefoot.online:SAC", {}, 256),
    "PPO, minibatch 64, 64-64": ("surefoot.online:PPO", {}, 64),
    "PPO, minibatch 64": ("surefoot.online:PPO", WIDE, 64),
    "PPO, minibatch 2048, 64-64": ("surefoot.online:PPO", {}, 2048),
    "PPO, minibatch 2048": ("surefoot.online:PPO", WIDE, 2048),
    "CQL": ("cql", {}, 256),
    "FISOR, small": ("fisor", {"actor_updates": 2}, 256),
}
"""Name -> algorithm, options, rows of a batch."""
SECONDS = 0.6
"""CPU time of one measurement."""


def store(seed: int) -> Store:
    """Random rows with every column that the cases read."""
    source = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return source.standard_normal(shape, dtype=np.float32)

    rewards = normal(ROWS)
    return Store.pack(
        {
            "observations": normal(ROWS, OBSERVATION),
            "actions": source.uniform(-0.99, 0.99, (ROWS, ACTION)).astype(np.float32),
            "rewards": rewards,
            "signals": np.where(rewards > 1, 25, -1).astype(np.float32),
            "terminations": np.arange(ROWS) % 2000 == 999,
            "next_observations": normal(ROWS, OBSERVATION),
            "behaviour_log_prob": normal(ROWS) - 8,
            "advantages": normal(ROWS),
            "returns": normal(ROWS),
            "values": normal(ROWS),
        }
    )


def learner(algorithm: str, options: dict[str, Any], batch: int, rows: Store) -> Learner:
    """A learner as a worker of `surefoot train` makes it."""
    spec = Spec(OBSERVATION, ACTION, (-1.0,) * ACTION, (1.0,) * ACTION)
    agent = agent_class(algorithm)(spec, **options).fresh(0)
    return Learner([agent], [0], Uniform(rows), batch_size=batch, planned_steps=1_000_000, kernels=True)


def rate(of: Learner, steps: int) -> float:
    """Training steps per second of CPU time."""
    start = time.process_time()
    of.run(steps)
    return steps / (time.process_time() - start)


def measure(name: str, rows: Store, repeats: int, steps: int | None) -> dict[str, Any]:
    """Rates with and without, in turn, and what one is of the other."""
    algorithm, options, batch = CASES[name]
    taped, eager = (learner(algorithm, options, batch, rows) for _ in range(2))
    eager.capture = Capture(eager.capture.gather, eager.capture.work, "to compare")
    for one in (taped, eager):
        one.run(8)
    count = steps or max(4, int(SECONDS * rate(taped, 8)))
    found: dict[str, list[float]] = {"tape": [], "eager": []}
    for _ in range(repeats):
        found["tape"].append(rate(taped, count))
        found["eager"].append(rate(eager, count))
    worth = [with_it / without for with_it, without in zip(found["tape"], found["eager"], strict=True)]
    return {
        **{kind: statistics.median(rates) for kind, rates in found.items()},
        "worth": statistics.median(worth),
        "least": min(worth),
        "most": max(worth),
        "steps": count,
        "not_taped": taped.eager_because(),
        "rates": found,
    }


def main() -> None:
    """Measure, print the table, write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 steps a measurement, once")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--core", type=int, default=None, help="default: the last one that this process may use")
    parser.add_argument("--only", nargs="*", default=list(CASES))
    arguments = parser.parse_args()
    core = max(os.sched_getaffinity(0)) if arguments.core is None else arguments.core
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    kernels.keep_memory()
    rows, repeats = store(0), 1 if arguments.quick else arguments.repeats
    found = {name: measure(name, rows, repeats, 8 if arguments.quick else None) for name in arguments.only}
    lines = [
        "# What a tape is worth",
        "",
        f"Training steps per second of CPU time on one core, native kernels and Adam in both; medians of {repeats} "
        "measurements in turn, and the least and most that one pair gave. `python benchmarks/tape_worth.py`.",
        "",
        "| step | with a tape | eager | with / without | |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {v['tape']:.0f} | {v['eager']:.0f} | {v['worth']:.2f} ({v['least']:.2f} to {v['most']:.2f}) | "
            f"{'; '.join(sorted(set(v['not_taped'].values())))} |"
            for name, v in found.items()
        ),
    ]
    if not arguments.quick:
        write_json(HERE / "results" / "tape_worth.json", {"repeats": repeats, "summary": found})
        (HERE / "results" / "tape_worth.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
