"""Kill a run at random moments, resume it each time, and compare its weights with an undisturbed run's.

    python benchmarks/kill_resume.py [--families offline streaming] [--kills 100]   # writes results/kill_resume.json
    python benchmarks/kill_resume.py --quick                                       # one family, two kills, for CI

Every other time the command is killed by SIGKILL, and by SIGTERM, on which it writes a checkpoint. The process group is
not killed, only the command: its workers must notice and end. A family's runs may end before all kills have come; then
another one is begun, with other seeds.
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
from surefoot.core.files import read_json, write_json
from surefoot.experiment.run import Run

RESULTS = pathlib.Path(__file__).parent / "results" / "kill_resume.json"
SMALL = ["algo.hidden=[64,64]", "episodes=2", "evaluate_episodes=1"]
FAMILIES = {
    "offline": ["algo=iql", "dataset=native/pendulum-mixed", "steps=20000", "evaluate_every=1000"],
    "safe offline": ["algo=fisor", "dataset=native/dubins-obstacles-mixed", "steps=4000", "evaluate_every=200"],
    "off-policy": ["algo=sac", "env=native/pendulum", "steps=8000", "algo.initial_steps=500", "evaluate_every=500"],
    "off-policy, MuJoCo": ["algo=sac", "env=Hopper-v5", "steps=8000", "algo.initial_steps=500", "evaluate_every=500"],
    "on-policy": ["algo=ppo", "env=native/pendulum", "envs=4", "steps=100000", "evaluate_every=5000"],
    "streaming": ["algo=stream_ac", "env=native/pendulum", "steps=300000", "evaluate_every=10000"],
    "not restorable": ["algo=sac", "env=Pendulum-v1", "steps=8000", "algo.initial_steps=500", "evaluate_every=500"],
}
"""What is trained. The state of gymnasium's own Pendulum-v1 can't be saved: those runs resume, but not bit for bit."""
QUICK = ["algo=iql", "dataset=native/pendulum-mixed", "steps=2000", "evaluate_every=250"]


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    """The command `surefoot train` with these arguments."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "surefoot", "train", "-q", *arguments], stdout=subprocess.DEVNULL
    )


def workers(folder: pathlib.Path) -> list[psutil.Process]:
    """Worker processes of a run that are alive."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if str(folder) in command and any(part.startswith("surefoot.") and "worker" in part for part in command):
            found.append(process)
    return found


def all_ended(folder: pathlib.Path, patience: float = 30.0) -> tuple[bool, float]:
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


def same(first: Run, second: Run) -> bool:
    """Whether two runs ended with equal weights, replay buffers, optimisers and returns."""
    for seed in first.plan.seeds:
        ours, theirs = (checkpoint.load(run.checkpoint_path(seed))[0] for run in (first, second))
        if ours.keys() != theirs.keys() or not all(torch.equal(value, theirs[name]) for name, value in ours.items()):
            return False
    return bool(first.summary["per_seed_returns"] == second.summary["per_seed_returns"])


def chain(plan: list[str], kills: int, moments: random.Random, root: pathlib.Path) -> dict[str, Any]:
    """One run that is killed up to `kills` times, beside an undisturbed one."""
    whole, killed = root / "whole", root / "killed"
    begin = time.monotonic()
    if start([*plan, f"out={whole}"]).wait() != 0:
        raise SystemExit("the undisturbed run failed")
    duration = time.monotonic() - begin
    found: dict[str, Any] = {"kills": 0, "asked": 0, "orphans": 0, "unreadable": [], "seconds_until_workers_ended": 0.0}
    while not (killed / "summary.json").exists():
        begun = (killed / "config.json").exists()
        process = start(["--resume", str(killed)] if begun else [*plan, f"out={killed}"])
        disturbed = found["kills"] + found["asked"]
        try:
            code = process.wait(moments.uniform(0.5, max(6.0, duration / 4)) if disturbed < kills else None)
            if code != 0:
                raise SystemExit(f"a run ended by itself with code {code}")
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL if disturbed % 2 == 0 else signal.SIGTERM)
            found["kills" if disturbed % 2 == 0 else "asked"] += 1
            process.wait()
            ended, seconds = all_ended(killed)
            found["orphans"] += not ended
            found["seconds_until_workers_ended"] = max(found["seconds_until_workers_ended"], seconds)
            found["unreadable"] += unreadable(killed)
    left = [path.name for path in killed.rglob(".*")]
    return {**found, "left": left, "same": same(Run.open(whole), Run.open(killed))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--kills", type=int, default=100, help="of each family")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    moments = random.Random(arguments.seed)
    before = read_json(RESULTS) if RESULTS.is_file() and not arguments.quick else {}
    record: dict[str, Any] = {name: found for name, found in before.items() if name in FAMILIES}
    families = {"quick": QUICK} if arguments.quick else {name: FAMILIES[name] for name in arguments.families}
    good = True
    for name, options in families.items():
        chains: list[dict[str, Any]] = []
        kills = 2 if arguments.quick else arguments.kills
        while (done := sum(one["kills"] + one["asked"] for one in chains)) < kills:
            seeds = f"seeds=[{2 * len(chains)},{2 * len(chains) + 1}]"
            with tempfile.TemporaryDirectory() as root:
                place = pathlib.Path(root).resolve()
                chains.append(chain([*options, *SMALL, seeds], kills - done, moments, place))
            print(name, chains[-1], flush=True)
            if arguments.quick:
                break
        record[name] = {
            "settings": options,
            "chains": len(chains),
            "same": sum(one["same"] for one in chains),
            **{key: sum(one[key] for one in chains) for key in ("kills", "asked", "orphans")},
            "seconds_until_workers_ended": max(one["seconds_until_workers_ended"] for one in chains),
            "unreadable": [text for one in chains for text in one["unreadable"]],
            "left": [text for one in chains for text in one["left"]],
        }
        if not arguments.quick:
            write_json(RESULTS, record)
        found = record[name]
        whole = found["same"] == found["chains"] or name == "not restorable"
        good = good and whole and not found["orphans"] and not found["unreadable"] and not found["left"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
