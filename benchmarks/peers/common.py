"""What every peer runner shares: one thread, the same random rows, one line of JSON. Needs numpy only.

Import this module before torch, jax or d3rlpy: thread counts are read when those load.
"""

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402

OBSERVATION_SIZE = 17
ACTION_SIZE = 6
ROWS = 200_000
EPISODE_LENGTH = 1000
BATCH_SIZE = 256
WARM_UP = 200


def speed_arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the two options that every speed runner has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--updates", type=int, default=2000, help="timed updates")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def random_rows(seed: int) -> dict[str, np.ndarray]:
    """Return 200,000 rows in D4RL's layout: 200 episodes of 1000 steps, every other one terminated."""
    rng = np.random.default_rng(seed)
    observations = rng.standard_normal((ROWS, OBSERVATION_SIZE), dtype=np.float32)
    terminals = np.zeros(ROWS, dtype=np.float32)
    timeouts = np.zeros(ROWS, dtype=np.float32)
    terminals[EPISODE_LENGTH - 1 :: 2 * EPISODE_LENGTH] = 1.0
    timeouts[2 * EPISODE_LENGTH - 1 :: 2 * EPISODE_LENGTH] = 1.0
    return {
        "observations": observations,
        "actions": rng.uniform(-0.99, 0.99, (ROWS, ACTION_SIZE)).astype(np.float32),
        "rewards": rng.standard_normal(ROWS, dtype=np.float32),
        "next_observations": np.roll(observations, -1, axis=0),
        "terminals": terminals,
        "timeouts": timeouts,
    }


def report_speed(peer: str, run: Callable[[int], None], updates: int) -> None:
    """Warm up, time `run(updates)` and print one JSON line; `run` returns when the numbers are there.

    `cpu_seconds` is the processor time of the whole process: on a shared core it shows what others took.
    """
    run(WARM_UP)
    start, cpu_start = time.perf_counter(), time.process_time()
    run(updates)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    line = {
        "peer": peer,
        "updates_per_second": round(updates / seconds, 2),
        "updates": updates,
        "seconds": round(seconds, 4),
        "cpu_seconds": round(cpu_seconds, 4),
    }
    print(json.dumps(line), flush=True)


def report_official(
    peer: str, run: Callable[[int], None], updates: int, warm_up: int, source: Path, **versions: Any
) -> None:
    """Warm up, time `run(updates)` of an official code, and print a line that names its file by SHA-256."""
    run(warm_up)
    start, cpu_start = time.perf_counter(), time.process_time()
    run(updates)
    line = {
        "peer": peer,
        "updates": updates,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu_start,
        **versions,
        "source_sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
    }
    print(json.dumps(line), flush=True)
