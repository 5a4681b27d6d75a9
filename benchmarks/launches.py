"""Launch `surefoot train` many times at the same moment: has each run a folder of its own, and is any result lost?

    python benchmarks/launches.py [--launches 64]    # writes results/launches.json
    python benchmarks/launches.py --quick            # four at once, for CI

With the same `out=` one must train, and the others be refused in one sentence with exit code 2. With default folders
each must end well, in a folder that no other has, whole and with its own settings in it: each has a seed of its own.
The commands are forks of one process (commands.py), for memory. All are started at once; where there is no memory for
as many workers, those that have not started theirs are halted for a while, and below 2 GB all are ended.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import signal
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from typing import Any

import psutil
from commands import Commands

from surefoot.core.base import checkpoint
from surefoot.core.base.files import read_json, write_json
from surefoot.runs.run import Run

RESULTS = pathlib.Path(__file__).parent / "results" / "launches.json"
PLAN = ["algo=bc", "dataset=native/pendulum-mixed", "steps=50", "algo.hidden=[8,8]", "episodes=1"]
PLAN += ["evaluate_episodes=1", "batch_size=32"]
LEAST, WORKER = 2 << 30, 500 << 20
"""Bytes: of free memory, below which all is ended; and of a worker and its command."""


def all_ended(processes: list[BaseProcess]) -> int:
    """Wait for all; the most that ran at the same moment.

    Where memory is short for as many workers, commands that have none yet are halted for a while, wherever they are.
    """
    most, halted = 0, set[int]()
    places = max(1, (psutil.virtual_memory().available // 2 - LEAST) // WORKER)
    while alive := [process for process in processes if process.exitcode is None]:
        most = max(most, len(alive))
        if psutil.virtual_memory().available < LEAST:
            for process in alive:
                process.kill()
            raise SystemExit(f"less than {LEAST >> 30} GB of memory are left: {len(alive)} commands were ended")
        pids = [process.pid for process in alive if process.pid is not None]
        working = {pid for pid in pids if children(pid)}
        if len(working) >= places:
            for pid in set(pids) - working - halted:
                os.kill(pid, signal.SIGSTOP)
                halted.add(pid)
        elif halted:
            os.kill(halted.pop(), signal.SIGCONT)
        time.sleep(0.1)
    return most


def children(pid: int) -> str:
    """Process ids of what a process has started."""
    try:
        return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().strip()
    except OSError:
        return ""


def launched(commands: Commands, count: int, root: pathlib.Path, out: str | None) -> tuple[list[BaseProcess], int]:
    """So many commands, ended; their seeds are 0, 1, ..., and what they print lies in `root` under these names."""
    processes = [
        commands.start([*PLAN, f"seeds=[{seed}]", *([] if out is None else [f"out={out}"])], root, root / f"{seed}.txt")
        for seed in range(count)
    ]
    return processes, all_ended(processes)


def whole(folder: pathlib.Path) -> int | None:
    """The seed of a run that is complete and readable; None of another folder."""
    run = Run.open(folder)
    (seed,) = run.plan.seeds
    complete = run.complete and len(run.summary["per_seed_returns"]) == 1
    checkpoint.load(run.checkpoint_path(seed))
    run.policy(seed)
    left = [path for path in folder.rglob(".*")]
    return seed if complete and not left else None


def default_folders(commands: Commands, count: int) -> dict[str, Any]:
    """Launches without `out=`."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        root = pathlib.Path(place).resolve()
        processes, most = launched(commands, count, root, None)
        folders = sorted((root / "runs").iterdir())
        seeds = [whole(folder) for folder in folders]
        return {
            "launches": count,
            "at the same moment": most,
            "exit code 0": sum(process.exitcode == 0 for process in processes),
            "folders": len(folders),
            "whole results, each of another launch": len(set(seeds) - {None}),
            "seconds": round(time.monotonic() - begin),
        }


def one_folder(commands: Commands, count: int) -> dict[str, Any]:
    """Launches with one `out=`."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        root = pathlib.Path(place).resolve()
        processes, most = launched(commands, count, root, "one")
        printed = [(root / f"{seed}.txt").read_text().strip() for seed in range(count)]
        refused = [
            process.exitcode == 2
            and text.count("\n") == 0
            and text.startswith("surefoot: error: ")
            and ("in use by process" in text or "exists already" in text)
            for process, text in zip(processes, printed, strict=True)
        ]
        winners = [seed for seed, process in enumerate(processes) if process.exitcode == 0]
        return {
            "launches": count,
            "at the same moment": most,
            "exit code 0": sum(process.exitcode == 0 for process in processes),
            "refused in one sentence, exit code 2": sum(refused),
            "the folder is that of the one that went on": [whole(root / "one")] == winners,
            "seconds": round(time.monotonic() - begin),
        }


PARTS = {"one folder": one_folder, "default folders": default_folders}


def wanted(name: str, count: int) -> dict[str, Any]:
    """What a part must come to."""
    if name == "one folder":
        refused = {"refused in one sentence, exit code 2": count - 1}
        return {"exit code 0": 1, **refused, "the folder is that of the one that went on": True}
    return {"exit code 0": count, "folders": count, "whole results, each of another launch": count}


def main() -> int:
    """Launch; 1 where something was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--launches", type=int, default=64)
    parser.add_argument("--only", choices=PARTS)
    arguments = parser.parse_args()
    count, commands = 4 if arguments.quick else arguments.launches, Commands()
    fine = True
    for name, part in PARTS.items():
        if arguments.only in (None, name):
            found = part(commands, count)
            print(f"{name}:", found, flush=True)
            fine = fine and all(found[key] == value for key, value in wanted(name, count).items())
            if not arguments.quick:
                record = read_json(RESULTS) if RESULTS.is_file() else {}
                write_json(RESULTS, {**record, name: found})
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
