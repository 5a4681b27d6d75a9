"""CPU seconds and memory of `surefoot results` on 1,000 run folders with 100,000 numbers, in a process of its own.

python benchmarks/results_speed.py            # writes results/results_speed.json
python benchmarks/results_speed.py --quick    # 50 folders; writes nothing
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from surefoot.core.base.files import write_json

RESULTS = pathlib.Path(__file__).parent / "results" / "results_speed.json"
LINES, SEEDS = 97, 3  # numbers of a folder: 97 logged, 3 final ones
CHILD = """
import resource, sys, json, time
began = time.process_time()
from surefoot.cli import main
code = main(["results", sys.argv[1], "-o", sys.argv[2], "--quiet"])
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"code": code, "cpu_seconds": used.ru_utime + used.ru_stime, "megabytes": used.ru_maxrss / 1024}))
"""


def make(root: pathlib.Path, count: int) -> None:
    """Run folders as `surefoot train` leaves them, without checkpoints and policies."""
    bounds = {"mean": -160.0, "low": -184.8, "high": -135.2, "method": "Student t over 3 seeds"}
    for number in range(count):
        folder = root / f"run{number:04}"
        folder.mkdir()
        summary = {
            "format": 1, "algorithm": ("iql", "bc")[number % 2], "dataset": "native/pendulum-mixed",
            "environment": "Pendulum-v1", "steps": 10_000, "seeds": list(range(SEEDS)), "episodes": 4,
            "per_seed_returns": [-150.0 - number / 7, -160.0, -170.0], "returns": bounds, "normalized": None,
            "behaviour": {"mean": -1060.0, "low": -1145.0, "high": -976.0, "episodes": 250, "normalized": None},
            "cost": None, "updates_per_second": 612.4, "versions": {"torch": "2.13.0"}, "date": "2026-11-21",
        }  # fmt: skip
        plan = {"config": {"expectile": 0.7 + number % 4 / 10, "hidden": [256, 256]}, "steps": 10_000}
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "config.json").write_text(json.dumps({"format": 1, "plan": plan}))
        lines = [
            {"format": 1, "seed": i % SEEDS, "step": 100 * i, "kind": "eval" if i % 2 else "train",
             "values": {"return_mean": -1000 + i / 3 + number}}
            for i in range(LINES)
        ]  # fmt: skip
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def measure(root: pathlib.Path, target: pathlib.Path) -> dict[str, Any]:
    command, alone = [sys.executable, "-c", CHILD, str(root), str(target)], {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.run(command, capture_output=True, text=True, check=True, env=alone)
    found: dict[str, Any] = json.loads(child.stdout.strip().splitlines()[-1])
    return {**found, "bytes": target.stat().st_size, "left_out": child.stderr.count("left out")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    count = 50 if parser.parse_args().quick else 1000
    with tempfile.TemporaryDirectory() as place:
        root = pathlib.Path(place) / "runs"
        root.mkdir()
        make(root, count)
        (root / "run0007" / "summary.json").write_text('{"algorithm": "iq')
        found: dict[str, Any] = {"folders": count, "numbers": (count - 1) * (LINES + SEEDS)}
        for ending in ("csv", "jsonl", "parquet"):
            try:
                found[ending] = measure(root, pathlib.Path(place) / f"table.{ending}")
            except subprocess.CalledProcessError as error:  # pyarrow may not be there
                found[ending] = error.stderr.strip().splitlines()[-1:]
    print(json.dumps(found, indent=1))
    if count == 1000:
        write_json(RESULTS, {**found, "limit": "5 s of CPU and 1,000 MB"})


if __name__ == "__main__":
    main()
