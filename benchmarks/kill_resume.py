"""Kill a run at random moments, resume it each time, and compare its weights with an uninterrupted run's.

    python benchmarks/kill_resume.py [--kills 10]   # writes results/kill_resume.json
    python benchmarks/kill_resume.py --quick        # two kills, for CI

The whole process group is not killed, only the parent, by SIGKILL: its workers must notice and end.
"""

from __future__ import annotations

import argparse
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import psutil
import torch

from surefoot.core import checkpoint
from surefoot.core.errors import CheckpointError
from surefoot.core.files import write_json
from surefoot.run import Run

TRAIN = """
from surefoot.generate import generate
from surefoot.offline import IQL
from surefoot.training import fit
data = generate("native/pendulum-mixed")
fit(IQL(data, hidden=(64, 64)), data, env="native/pendulum", steps={steps}, seeds=2, evaluate_every=250, episodes=2,
    evaluate_episodes=1, out={folder!r})
"""
RESUME = "from surefoot.training import resume; resume({folder!r})"


def start(code: str) -> subprocess.Popen[bytes]:
    """A python process that runs `code`."""
    return subprocess.Popen([sys.executable, "-c", code])


def workers(folder: pathlib.Path) -> list[psutil.Process]:
    """Worker processes of a run that are alive."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = process.info["cmdline"] or []
        if "surefoot.worker" in command and str(folder) in command:
            found.append(process)
    return found


def all_ended(folder: pathlib.Path, patience: float = 10.0) -> tuple[bool, float]:
    """Whether all workers have ended within `patience` seconds, and after how many."""
    begin = time.monotonic()
    while time.monotonic() - begin < patience:
        if not workers(folder):
            return True, round(time.monotonic() - begin, 2)
        time.sleep(0.05)
    return False, patience


def unreadable(folder: pathlib.Path) -> list[str]:
    """Checkpoints and policies that can't be read."""
    bad = []
    for path in [*folder.glob("seeds/*/checkpoint.safetensors"), *folder.glob("policy/*.safetensors")]:
        try:
            checkpoint.load(path)
        except CheckpointError as error:
            bad.append(str(error))
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    kills, steps = (2, 2000) if arguments.quick else (arguments.kills, 8000)
    moments = random.Random(arguments.seed)
    record: dict[str, Any] = {
        "kills": [],
        "steps": steps,
        "orphans": 0,
        "unreadable": [],
        "seconds_until_workers_ended": [],
    }
    with tempfile.TemporaryDirectory() as root:
        whole, killed = pathlib.Path(root).resolve() / "whole", pathlib.Path(root).resolve() / "killed"
        begin = time.monotonic()
        if start(TRAIN.format(steps=steps, folder=str(whole))).wait() != 0:
            return 1
        duration = time.monotonic() - begin
        code = TRAIN.format(steps=steps, folder=str(killed))
        while len(record["kills"]) < kills:
            process = start(code)
            wait = moments.uniform(0.5, max(6.0, duration / kills))
            try:
                process.wait(wait)
                break  # it came to its end first
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
            record["kills"].append(round(wait, 2))
            ended, seconds = all_ended(killed)
            record["orphans"] += 0 if ended else 1
            record["seconds_until_workers_ended"].append(seconds)
            record["unreadable"] += unreadable(killed)
            if (killed / "config.json").exists():
                code = RESUME.format(folder=str(killed))
        if (killed / "config.json").exists():
            code = RESUME.format(folder=str(killed))
        if start(code).wait() != 0:
            return 1
        first, second = Run.open(whole), Run.open(killed)
        record["same"] = all(
            torch.equal(value, checkpoint.load(second.checkpoint_path(seed))[0][name])
            for seed in (0, 1)
            for name, value in checkpoint.load(first.checkpoint_path(seed))[0].items()
        ) and (first.summary["per_seed_returns"] == second.summary["per_seed_returns"])
    print(record)
    if not arguments.quick:
        write_json(pathlib.Path(__file__).parent / "results" / "kill_resume.json", record)
    return 0 if record["same"] and not record["orphans"] and not record["unreadable"] else 1


if __name__ == "__main__":
    sys.exit(main())
