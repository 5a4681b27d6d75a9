"""The commands that measure the peers, for the speed benchmark to run in turn with ours.

    commands() -> {"corl": [...], "d3rlpy": [...], "jax": [...]}

Each command is one process, prints one JSON line last and runs on one core. Peers that can't be run here are
left out of `commands()` and named, with what is missing, by `missing()`. Run as a script, this measures the
peers alone, in turn.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PEERS = ("corl", "d3rlpy", "jax")


def environments() -> Path:
    """Return the folder with the peers' virtual environments (setup.sh makes them)."""
    return Path(os.environ.get("SUREFOOT_PEERS", "/tmp/surefoot-peers"))


def missing() -> dict[str, str]:
    """Return, per peer that can't be run here, one sentence that says what to do."""
    reasons = {}
    for peer in PEERS:
        if not (environments() / peer / ".complete-for").exists():
            reasons[peer] = f"no environment {environments() / peer}: run benchmarks/peers/setup.sh {peer}"
    if "corl" not in reasons and not corl_source().exists():
        reasons["corl"] = f"no {corl_source()}: set SUREFOOT_CORL to CORL's folder algorithms/offline"
    return reasons


def corl_source() -> Path:
    """Return the place of CORL's iql.py; the folder algorithms/offline of a checkout is SUREFOOT_CORL."""
    return Path(os.environ.get("SUREFOOT_CORL", "/tmp/corl-src")) / "iql.py"


def commands(updates: int = 2000, seed: int = 0, core: int | None = 0) -> dict[str, list[str]]:
    """Return one command per runnable peer, pinned to CPU `core` where there is `taskset` (None: free)."""
    pin = ["taskset", "-c", str(core)] if core is not None and shutil.which("taskset") else []
    absent = missing()
    result = {}
    for peer in PEERS:
        if peer in absent:
            continue
        python = str(environments() / peer / "bin" / "python")
        options = ["--updates", str(updates), "--seed", str(seed)]
        if peer == "corl":
            options += ["--source", str(corl_source())]
        result[peer] = [*pin, python, str(HERE / f"{peer}_speed.py"), *options]
    return result


def measure(command: list[str]) -> dict[str, Any]:
    """Run one command and return its JSON line."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    line: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description="Updates per second of the peers, in turn.")
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--core", type=int, default=0)
    options = parser.parse_args()
    for peer, reason in missing().items():
        print(f"{peer}: left out, {reason}")
    lines: dict[str, list[dict[str, Any]]] = {}
    for repeat in range(options.repeats):
        for peer, command in commands(options.updates, repeat, options.core).items():
            lines.setdefault(peer, []).append(measure(command))
    for peer, repeats in lines.items():
        wall = [line["updates_per_second"] for line in repeats]
        processor = [round(line["updates"] / line["cpu_seconds"], 2) for line in repeats]
        summary = {
            "peer": peer,
            "median_updates_per_second": statistics.median(wall),
            "updates_per_second": wall,
            "median_updates_per_cpu_second": statistics.median(processor),
            "updates_per_cpu_second": processor,
        }
        print(json.dumps(summary))


if __name__ == "__main__":
    main()
