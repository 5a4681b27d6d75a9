"""How fast a batch is gathered: packed rows against a column each, advanced indexing, and numpy.

One thread, fresh random rows for every batch, the ways taken in turn, medians of the repeats. Times are
microseconds; the ratio is to the packed row without a workspace (above 1 is slower).

    python benchmarks/replay.py            # 1,000,000 transitions, a minute
    python benchmarks/replay.py --quick    # 100,000 transitions, a few seconds
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from surefoot.data.store import PACKED, Store

OBSERVATION, ACTION = 17, 6  # HalfCheetah and Walker2d
BATCHES = (256, 1024, 4096, 16384)
RESULTS = pathlib.Path(__file__).parent / "results" / "replay.json"


def columns(rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "observations": rng.standard_normal((rows, OBSERVATION), dtype=np.float32),
        "actions": rng.standard_normal((rows, ACTION), dtype=np.float32),
        "rewards": rng.standard_normal(rows, dtype=np.float32),
        "terminations": (rng.random(rows) < 0.01).astype(np.float32),
        "next_observations": rng.standard_normal((rows, OBSERVATION), dtype=np.float32),
    }


def ways(data: dict[str, np.ndarray], batch: int) -> dict[str, Callable[[torch.Tensor], Any]]:
    """Name -> function of (batch,) int64 indices that gathers one batch."""
    store = Store.pack(data)
    workspace = store.workspace(batch)
    rows = store.groups[PACKED]
    separate = {key: torch.from_numpy(column) for key, column in data.items()}
    numpy_rows = rows.numpy()
    return {
        "store.gather": store.gather,
        "store.gather, workspace": lambda i: store.gather(i, out=workspace),
        "index_select per column": lambda i: {k: c.index_select(0, i) for k, c in separate.items()},
        "rows[indices]": lambda i: rows[i],
        "numpy take of rows": lambda i: numpy_rows.take(i.numpy(), axis=0),
        "numpy index per column": lambda i: {k: c[i.numpy()] for k, c in data.items()},
    }


def measure(data: dict[str, np.ndarray], batch: int, repeats: int, gathered: int) -> dict[str, float]:
    """Name -> median over repeats of the microseconds per batch; each repeat gathers `gathered` rows."""
    count = max(gathered // batch, 10)
    generator = torch.Generator().manual_seed(batch)
    functions = ways(data, batch)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for repeat in range(repeats + 1):  # the first is for warming up
        for name, function in functions.items():
            indices = torch.randint(len(data["rewards"]), (count, batch), generator=generator).unbind()
            start = time.perf_counter()
            for rows in indices:
                function(rows)
            if repeat:
                times[name].append((time.perf_counter() - start) / count * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer transitions and batches")
    parser.add_argument("-o", "--out", type=pathlib.Path, help="default: the committed file, or with --quick build/")
    options = parser.parse_args()
    place = RESULTS.parents[2] / "build" / RESULTS.name if options.quick else RESULTS  # a few steps are no result
    options.out = options.out or place
    torch.set_num_threads(1)
    transitions, gathered = (100_000, 100_000) if options.quick else (1_000_000, 1_000_000)
    data = columns(transitions)

    table = {batch: measure(data, batch, repeats=5, gathered=gathered) for batch in BATCHES}
    print(f"{transitions:,} transitions, microseconds per batch (ratio to store.gather)")
    print(f"{'batch':26s}" + "".join(f"{batch:>18,}" for batch in BATCHES))
    for name in table[BATCHES[0]]:
        cells = (f"{t[name]:10.1f} {t[name] / t['store.gather']:6.2f}x" for t in table.values())
        print(f"{name:26s}" + "".join(cells))

    report = {
        "transitions": transitions,
        "quick": options.quick,
        "threads": 1,
        "microseconds_per_batch": table,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.processor() or platform.machine(),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    aside = options.out.with_suffix(".tmp")
    try:
        aside.write_text(json.dumps(report, indent=1) + "\n")
        os.replace(aside, options.out)
    finally:
        aside.unlink(missing_ok=True)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
