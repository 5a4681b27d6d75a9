"""What a command costs before its first training step, in CPU seconds of all its processes, beside a bare script.

    python benchmarks/start_up.py                        # five rounds, a few minutes; writes results/start_up.md
    python benchmarks/start_up.py --before PYTHON        # beside the python of another checkout's environment
    python benchmarks/start_up.py --quick                # one round, nothing recorded

Commands are taken in turn, round after round, each in a process of its own with its files in the page cache; medians
and the range over the rounds. The bare script imports torch, gymnasium and h5py, as any training must.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import machine

RESULTS = pathlib.Path(__file__).parent / "results"
ROUNDS, LISTED = 5, 8
TRAIN = "train algo=iql dataset=native/pendulum-mixed env=none steps=10 -q"
COMMANDS = {
    "a bare script: torch, gymnasium, h5py": "import torch, gymnasium, h5py",
    "`surefoot --help`": "--help",
    "a wrong option, refused": f"{TRAIN} algo.expectil=.7",
    "`surefoot train` of 10 steps, 1 seed": f"{TRAIN} seeds=1",
    "the same, 2 seeds": f"{TRAIN} seeds=2",
}
WANTED = {"`surefoot train` of 10 steps, 1 seed": 2.5, "one more seed": 0.8, "a wrong option, refused": 0.5}


def cpu_seconds(python: str, words: str, folder: str) -> float:
    """CPU seconds of a command and of all processes that it starts."""
    command = [python, "-P", "-c", words] if words.startswith("import") else [python, "-P", "-m", "surefoot"]
    if not words.startswith("import"):
        command += words.split()
        command += [f"out={folder}"] if "train" in words else []
    before = os.times()
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=False)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def imported(python: str) -> dict[str, float]:
    """Package -> milliseconds that its modules take to import in the command that trains, without its workers'.

    They are read of the wrong option, which ends where checks do: python's own `-X importtime`, self times added up.
    """
    words = COMMANDS["a wrong option, refused"].split()
    command = [python, "-X", "importtime", "-P", "-m", "surefoot", *words]
    reported = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    found: dict[str, float] = {}
    for line in reported.splitlines():
        parts = line.removeprefix("import time:").split("|")
        if line.startswith("import time:") and parts[0].strip().isdigit():
            package = parts[2].strip().split(".")[0]
            found[package] = found.get(package, 0.0) + int(parts[0]) / 1000
    most = sorted(found.items(), key=lambda one: -one[1])
    return dict(most[:LISTED]) | {"all others": sum(taken for _, taken in most[LISTED:])}


def rounds(pythons: dict[str, str], count: int) -> dict[str, dict[str, list[float]]]:
    """Whose python -> command -> CPU seconds of each round; a first round that warms files is left out."""
    found: dict[str, dict[str, list[float]]] = {whose: {name: [] for name in COMMANDS} for whose in pythons}
    with tempfile.TemporaryDirectory() as root:
        for turn in range(count + 1):
            for name, words in COMMANDS.items():
                for whose, python in pythons.items():
                    place = f"{root}/{whose}{turn}{len(name)}"
                    taken = cpu_seconds(python, words, place)
                    if turn > 0:
                        found[whose][name].append(taken)
    return found


def page(record: dict[str, Any]) -> str:
    """The result as a page."""
    found = record["seconds"]
    lines = ["# Start-up", "", "`python benchmarks/start_up.py`. " + machine.sentence(record["machine"]), ""]
    lines += [f"CPU seconds of all processes, median (least to greatest) of {record['rounds']} rounds in turn.", ""]
    lines += [f"| command | {' | '.join(found)} | wanted |", "|---" * (len(found) + 2) + "|"]

    def shown(values: list[float]) -> str:
        return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"

    for name in COMMANDS:
        cells = [shown(own[name]) for own in found.values()]
        lines.append(f"| {name} | {' | '.join(cells)} | {WANTED.get(name, '')} |")
    more = []
    for own in found.values():
        one, two = (own[name] for name in list(COMMANDS)[-2:])
        more.append(f"{statistics.median(two) - statistics.median(one):.2f}")
    lines.append(f"| one more seed | {' | '.join(more)} | {WANTED['one more seed']} |")
    parts = ", ".join(f"{name} {taken:.0f}" for name, taken in record["imports"].items())
    lines += ["", f"Milliseconds to import, in the command's own process: {parts}. Its worker imports torch once more."]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="python of another checkout's environment")
    parser.add_argument("--quick", action="store_true", help="one round; nothing is recorded")
    given = parser.parse_args()
    pythons = {**({"before": given.before} if given.before else {}), "now": sys.executable}
    count, loads = (1 if given.quick else ROUNDS), [machine.load()]
    record: dict[str, Any] = {"rounds": count, "seconds": rounds(pythons, count)}
    record["imports"] = imported(sys.executable)
    record["machine"] = machine.record([*loads, machine.load()])
    if not given.quick:
        (RESULTS / "start_up.json").write_text(json.dumps(record, indent=1) + "\n")
        (RESULTS / "start_up.md").write_text(page(record))
    print(page(record))


if __name__ == "__main__":
    main()
