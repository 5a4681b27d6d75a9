"""Kill runs at random moments, resume them each time, and compare their weights with those of undisturbed runs.

    python benchmarks/kill_resume.py [--families offline streaming] [--kills 50]
    python benchmarks/kill_resume.py --table    # only writes the table
    python benchmarks/kill_resume.py --quick    # one short run, two kills, for CI
    python benchmarks/kill_resume.py --quick "latent model"    # the same of one family's run

Adds to results/kill_resume.json what is missing there of so many kills a family, and writes the table beside it.
Every other time the command is killed by SIGKILL, and by SIGTERM, on which it writes a checkpoint. The process group is
not killed, only the command: its workers must notice and end. A quarter of the kills come while the command starts, the
rest at a random moment after its first or second checkpoint. A chain is one run that is killed until it has had its
kills or has ended, beside an undisturbed run of the same seed; then the next chain begins, with another seed. The
command is `surefoot train`, in a fork of a process that has imported it (commands.py); its workers start as always.
`--alone` is several times as fast: the command trains in its own process, and SIGKILL ends both at once.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import psutil
import torch
from commands import Commands

from surefoot.core.base import checkpoint
from surefoot.core.base.errors import CheckpointError
from surefoot.core.base.files import read_json, write_json, written_aside
from surefoot.runs.run import Run

RESULTS = pathlib.Path(__file__).parent / "results" / "kill_resume.json"
SMALL = ["episodes=2", "evaluate_episodes=1"]
NARROW = ["algo.hidden=[64,64]"]
CLOUD, SAC = ["dataset=native/pendulum-mixed"], ["algo=sac", *NARROW]
SHORT_SAC = [*SAC, "algo.initial_steps=100", "evaluate_every=50"]
BLOCKS = ["envs=4", "algo.horizon=256", "evaluate_every=2048"]
DISCRIMINATORS = ["algo.discriminator_hidden=[32,32]", "batch_size=64"]


class Family(NamedTuple):
    """Algorithms that resume by the same code, and the run that stands for them."""

    plan: list[str]
    kills_a_chain: int = 25
    restorable: bool = True
    kills: int = 100
    """Of all its chains."""


FAMILIES = {
    "offline": Family(["algo=iql", *CLOUD, "steps=15000", "evaluate_every=750", *NARROW]),
    "off-policy": Family([*SAC, "algo.initial_steps=500", "evaluate_every=250", "env=native/pendulum", "steps=6000"]),
    "off-policy, InvertedPendulum": Family([*SHORT_SAC, "env=InvertedPendulum-v5", "steps=600"], kills_a_chain=3),
    "on-policy": Family(["algo=ppo", "env=native/pendulum", *BLOCKS, "steps=40960", *NARROW]),
    "streaming": Family(["algo=stream_ac", "env=native/pendulum", "steps=40000", "evaluate_every=2000", *NARROW]),
    "safe on-policy": Family(["algo=ppo_lag", "env=native/dubins-obstacles", *BLOCKS, "steps=32768", *NARROW]),
    "hybrid": Family(
        ["algo=h2o", *CLOUD, "env=native/pendulum", "steps=800", "algo.initial_steps=100", "evaluate_every=40"]
        + [*DISCRIMINATORS, *NARROW]
    ),
    "off-policy, MuJoCo": Family([*SHORT_SAC, "env=Hopper-v5", "steps=1000"]),
    "safe offline": Family(
        ["algo=fisor", "dataset=native/dubins-obstacles-mixed", "steps=800", "evaluate_every=40", *NARROW]
    ),
    "offline to online": Family(
        ["algo=rlpd", *CLOUD, "env=native/pendulum", "steps=400", "algo.initial_steps=100", "evaluate_every=20"]
        + ["batch_size=64", *NARROW]
    ),
    "safe off-policy": Family(
        ["algo=sac_lag", "env=native/dubins-obstacles", "steps=1200", "algo.initial_steps=100", "evaluate_every=60"]
        + NARROW
    ),
    "sequences": Family(
        ["algo=cdt", "dataset=native/dubins-obstacles-mixed", "algo.width=32", "algo.layers=1", "algo.heads=2"]
        + ["algo.context=5", "batch_size=64", "steps=600", "evaluate_every=30"]
    ),
    "images": Family(
        [*SHORT_SAC, "env=native/pendulum-pixels", "steps=300", "algo.encoder=small", "batch_size=16"],
    ),
    "model-based": Family(
        ["algo=mopo", *CLOUD, "steps=1200", "evaluate_every=60", "algo.model_updates=400", "algo.model_hidden=[32,32]"]
        + ["algo.model_decays=[]", "algo.rollouts=200", "algo.imagine_every=100", *NARROW]
    ),
    "latent model": Family(
        ["algo=tdmpc2", "env=native/pendulum", "algo.preset=tiny", "steps=150", "algo.initial_steps=50"]
        + ["evaluate_every=50", "batch_size=16", "algo.samples=32", "algo.iterations=2"],
        kills_a_chain=3,
        kills=24,
    ),
    "recurrent model": Family(
        ["algo=dreamer", "env=native/pendulum", "algo.preset=tiny", "steps=200", "algo.initial_steps=100"]
        + ["evaluate_every=50", "algo.windows=2", "algo.length=8", "algo.imagined=3"],
        kills_a_chain=3,
        kills=24,
    ),
    "on-policy, two learners": Family(
        ["algo=ppo", "env=native/pendulum", "learners=2", *BLOCKS, "steps=10240", *NARROW],
        kills_a_chain=3,
        kills=24,
    ),
    "images, large buffer": Family(
        [*SHORT_SAC, "env=native/pendulum-pixels", "steps=500", "evaluate_every=125", "algo.encoder=small"]
        + ["batch_size=16"],
        kills_a_chain=3,
        kills=24,
    ),
    "not restorable": Family([*SHORT_SAC, "env=Pendulum-v1", "steps=1000"], restorable=False),
}
"""The state of gymnasium's own Pendulum-v1 can't be saved: those runs resume, but not bit for bit."""
QUICK = Family(["algo=iql", *CLOUD, "steps=6000", "evaluate_every=500", *NARROW])


def workers(folder: pathlib.Path) -> list[psutil.Process]:
    """Worker processes of a run that are alive."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if str(folder) in line and any(part.startswith("surefoot.") and "worker" in part for part in line):
            found.append(process)
    return found


def all_ended(folder: pathlib.Path, patience: float = 60.0) -> tuple[bool, float]:
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
    """Whether two runs ended with equal weights, replay buffers, optimisers, policies and returns."""
    for seed in first.plan.seeds:
        for of in (Run.checkpoint_path, Run.policy_path):
            ours, theirs = (checkpoint.load(of(run, seed))[0] for run in (first, second))
            equal = all(torch.equal(value, theirs[name]) for name, value in ours.items() if name in theirs)
            if ours.keys() != theirs.keys() or not equal:
                return False
    return bool(first.summary["per_seed_returns"] == second.summary["per_seed_returns"])


def written(folder: pathlib.Path) -> float:
    """When the last checkpoint was written; 0 where there is none."""
    return max((path.stat().st_mtime for path in folder.glob("seeds/*/checkpoint.safetensors")), default=0.0)


class Moments:
    """When to kill: drawn anew each time, measured in the command's own checkpoints, for the machine is shared."""

    def __init__(self) -> None:
        self._random, self.to_first = random.Random(), 6.0

    def wait(self, process: BaseProcess, folder: pathlib.Path, kill: bool) -> None:
        """Wait for the process's end, or for the moment to kill it.

        A quarter of the kills come before the time that the last command took to its first checkpoint, the others some
        time after the first or second checkpoint, up to as long as a checkpoint takes.
        """
        begin, last, found, interval = time.monotonic(), written(folder), 0, 0.5
        early, wanted = self._random.random() < 0.25, self._random.choice([1, 1, 2])
        until = begin + self._random.uniform(0.0, self.to_first) if kill and early else None
        since = begin
        while process.exitcode is None and (until is None or time.monotonic() < until):
            process.join(0.05)
            if (now := written(folder)) != last:
                last, found, passed = now, found + 1, time.monotonic() - since
                since = time.monotonic()
                if found == 1:
                    self.to_first = passed
                else:
                    interval = passed
                if kill and not early and found == wanted:
                    until = since + self._random.uniform(0.0, interval)


def chain(
    plan: list[str], kills: int, moments: Moments, commands: Commands, root: pathlib.Path, alone: bool = False
) -> dict[str, Any]:
    """One run that is killed up to `kills` times, beside an undisturbed one."""
    whole, killed = root / "whole", root / "killed"
    undisturbed = commands.start([*plan, f"out={whole}"], alone=alone)
    moments.wait(undisturbed, whole, kill=False)
    if undisturbed.exitcode != 0:
        raise SystemExit(f"the undisturbed run ended with code {undisturbed.exitcode}")
    found: dict[str, Any] = {"kills": 0, "asked": 0, "after a checkpoint": 0, "orphans": 0, "unreadable": []}
    found["seconds_until_workers_ended"] = 0.0
    process = None
    while process is None or process.exitcode != 0:
        started = (killed / "config.json").exists()
        disturbed, before = found["kills"] + found["asked"], written(killed)
        process = commands.start(["--resume", str(killed)] if started else [*plan, f"out={killed}"], alone=alone)
        moments.wait(process, killed, kill=disturbed < kills)
        if process.exitcode is None:
            assert process.pid is not None
            asked = disturbed % 2 == 1 and not alone
            os.kill(process.pid, signal.SIGTERM if asked else signal.SIGKILL)
            found["asked" if asked else "kills"] += 1
            process.join()
            ended, seconds = all_ended(killed)
            found["after a checkpoint"] += written(killed) != before
            found["orphans"] += not ended
            found["seconds_until_workers_ended"] = max(found["seconds_until_workers_ended"], seconds)
            found["unreadable"] += unreadable(killed)
        elif process.exitcode != 0:
            raise SystemExit(f"a run ended by itself with code {process.exitcode}")
    left = [path.name for path in killed.rglob(".*")]
    return {**found, "left": left, "chains": 1, "same": int(same(Run.open(whole), Run.open(killed)))}


def together(family: Family, before: dict[str, Any] | None, found: dict[str, Any]) -> dict[str, Any]:
    """What a family's chains of before, if there are any of the same settings, and one more came to."""
    facts = {"settings": family.plan, "restorable": family.restorable}
    if before is None or before["settings"] != family.plan:
        return {**facts, **found}
    slowest = "seconds_until_workers_ended"
    return {**facts, **{key: found[key] + before[key] for key in found}, slowest: max(found[slowest], before[slowest])}


def good(found: dict[str, Any]) -> bool:
    """Whether a family is as it should be."""
    whole = found["same"] == found["chains"] or not found["restorable"]
    return whole and not (found["orphans"] or found["unreadable"] or found["left"])


def so_far(name: str) -> dict[str, Any] | None:
    """What is known of a family."""
    found: dict[str, Any] | None = (read_json(RESULTS) if RESULTS.is_file() else {}).get(name)
    return found if found is not None and found["settings"] == FAMILIES[name].plan else None


def keep(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Add a chain to the results, to which other processes may be adding; its family's results."""
    with open(pathlib.Path(tempfile.gettempdir()) / "surefoot-kill-resume.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = read_json(RESULTS) if RESULTS.is_file() else {}
        record[name] = together(FAMILIES[name], record.get(name), found)
        write_json(RESULTS, {one: record[one] for one in FAMILIES if one in record})
        write_table()
        return dict(record[name])


def write_table() -> None:
    """The table of the results, with the families that are missing."""
    record = read_json(RESULTS)
    header = ("family", "run", "SIGKILL", "SIGTERM", "of these after a checkpoint", "chains", "equal to the bit")
    header += ("workers left", "files unreadable or left", "slowest end of a worker, s")
    lines = [
        "# Killed and resumed",
        "",
        "Runs of each family, killed at random moments and resumed each time, beside undisturbed runs of the same",
        "seeds: are weights, optimisers, replay buffers, policies and returns equal to the bit?",
        "`benchmarks/kill_resume.py` says when the kills come. Other work ran on the machine.",
        "",
        f"| {' | '.join(header)} |",
        "|" + "---|" * len(header),
    ]
    for name, family in FAMILIES.items():
        found = record.get(name)
        what = ", ".join(part for part in family.plan if part.startswith(("algo=", "env=", "dataset=")))
        if found is None:
            lines.append(f"| {name} | {what} | missing |" + " |" * (len(header) - 3))
            continue
        bits = f"{found['same']} of {found['chains']}" + ("" if found["restorable"] else " (can't be restored)")
        left = len(found["unreadable"]) + len(found["left"])
        cells = [name, what, found["kills"], found["asked"], found["after a checkpoint"], found["chains"], bits]
        cells += [found["orphans"], left, found["seconds_until_workers_ended"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    with written_aside(RESULTS.with_suffix(".md")) as path:
        path.write_text("\n".join(lines) + "\n")


def main() -> int:
    """Run the chains of some families; 1 where something was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", nargs="?", const="", help="two kills of one short run; or of this family's run")
    parser.add_argument("--table", action="store_true", help="only write the table")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--kills", type=int, help="of each family (default: 24 where chains are slow, else 100)")
    parser.add_argument("--alone", action="store_true", help="train in the command's own process, and only SIGKILL")
    arguments = parser.parse_args()
    if arguments.table:
        write_table()
        return 0
    torch.set_num_threads(1)
    commands, moments, fine = Commands(), Moments(), True
    if arguments.quick is not None:
        family, seeds = (FAMILIES[arguments.quick], "[0]") if arguments.quick else (QUICK, "[0,1]")
        with tempfile.TemporaryDirectory() as root:
            found = chain([*family.plan, *SMALL, f"seeds={seeds}"], 2, moments, commands, pathlib.Path(root).resolve())
        print(found)
        return 0 if good(together(family, None, found)) else 1
    for name in arguments.families:
        family = FAMILIES[name]
        while True:
            before = so_far(name) or {"chains": 0, "kills": 0, "asked": 0}
            if (left := (arguments.kills or family.kills) - before["kills"] - before["asked"]) <= 0:
                break
            with tempfile.TemporaryDirectory() as root:
                plan, most = [*family.plan, *SMALL, f"seeds=[{before['chains']}]"], min(left, family.kills_a_chain)
                found = chain(plan, most, moments, commands, pathlib.Path(root).resolve(), arguments.alone)
            print(name, found, flush=True)
            fine = good(keep(name, found)) and fine
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
