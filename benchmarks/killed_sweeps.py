"""Sweeps of 64 trials that are killed ten times, command and workers, beside undisturbed ones.

    python benchmarks/killed_sweeps.py             # computes what is missing in results/killed_sweeps.jsonl
    python benchmarks/killed_sweeps.py --quick     # four trials, two kills, for CI
    python benchmarks/killed_sweeps.py --table

One cell for `surefoot train -m`, one for `surefoot tune`. A kill is SIGKILL to the command and all that it has started,
when a number of trials drawn beforehand is finished and a random moment later; then `--resume` goes on. Trials are BC
runs of 40 steps. Command and workers are forks of a process that has imported them, pictures are not drawn and git is
not asked, since each of these takes longer than a trial; all else is the command line's own.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from typing import Any

import psutil
import torch
from safetensors.torch import load_file
from study import Cell, git_commit, study_main

from surefoot.core.base.files import read_json
from surefoot.data import save
from surefoot.runs.embedded import generate
from surefoot.runs.progress_events import Listener
from surefoot.runs.run import Run

TINY = ["algo=bc", "steps=40", "episodes=2", "evaluate_every=20", "evaluate_episodes=1", "algo.hidden=[8,8]"]
RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SIZES = (4, 8, 12, 16, 24, 32, 48, 64)
SPACE = "algo.learning_rate: {low: 1e-5, high: 1e-1, log: true}\nbatch_size: {low: 4, high: 64}\n"
PRELOADED = ["surefoot.cli.train", "surefoot.cli.support.sweep", "surefoot.cli.tune", "surefoot.runs.trainers.trainer",
"optuna",
             "surefoot.runs.trainers.offline", "surefoot.evaluation.plots", "h5py"]  # fmt: skip


def command(arguments: Sequence[str], folder: str) -> None:
    """What a started process does: a command of surefoot's, whose workers are forks of it."""
    from surefoot.cli.main import main
    from surefoot.runs import run, summary
    from surefoot.runs import start as training

    os.setsid()
    training.work = work_in_forks
    summary.draw_curves = lambda *unused: None
    run._git_commit = lambda: None  # type: ignore[assignment]
    os.chdir(folder)
    log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = main(list(arguments))
    times = os.times()
    pathlib.Path("cpu.txt").write_text(str(times.user + times.system + times.children_user + times.children_system))
    sys.exit(code)


def work_in_forks(run: Run, groups: list[list[int]], notify: Listener, lock: int) -> None:
    """Train each group of seeds in a fork of this process, which trains nothing itself."""
    for seeds in groups:
        run.seed_folder(seeds[0]).mkdir(parents=True, exist_ok=True)
        process = multiprocessing.get_context("fork").Process(target=work, args=(run, seeds))
        process.start()
        process.join()
        if process.exitcode != 0:
            raise SystemExit(f"a worker ended with code {process.exitcode}")


def work(run: Run, seeds: list[int]) -> None:
    """Train some seeds."""
    from surefoot.runs.trainers.choose import seed_trainer

    torch.set_num_threads(1)
    trainer = seed_trainer(run, seeds, lambda event: None)
    trainer.train()
    trainer.finish()


def started(arguments: Sequence[str], folder: pathlib.Path) -> BaseProcess:
    """The process of a command."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=command, args=(arguments, str(folder)))
    process.start()
    return process


def finished(sweep: pathlib.Path) -> int:
    """Trials of a sweep or study that are over."""
    return len([*sweep.glob("[0-9]*/summary.json"), *sweep.glob("trials/*/summary.json")])


def kill(process: BaseProcess) -> int:
    """Kill a command and all that it has started; how many processes were there."""
    assert process.pid is not None
    there = [one.pid for one in psutil.process_iter() if session(one.pid) == process.pid] or [process.pid]
    for pid in there:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.join()
    return len(there)


def session(pid: int) -> int:
    """The session of a process; 0 of one that has ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def trials(sweep: pathlib.Path) -> dict[str, Any]:
    """What each trial came to: its values, scores, and all numbers of its policies."""
    found: dict[str, Any] = {}
    for path in sorted([*sweep.glob("[0-9]*/summary.json"), *sweep.glob("trials/*/summary.json")]):
        run = Run.open(path.parent)
        plan = {key: value for key, value in run.plan.to_json().items() if key != "dataset"}
        weights = {seed: load_file(run.policy_path(seed)) for seed in run.plan.seeds}
        found[str(path.parent.relative_to(sweep))] = (plan, read_json(path)["per_seed_returns"], weights)
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two trials are equal to the bit."""
    if one is None or other is None or one[:2] != other[:2]:
        return False
    return all(
        one[2][seed].keys() == other[2][seed].keys()
        and all(torch.equal(value, other[2][seed][name]) for name, value in one[2][seed].items())
        for seed in one[2]
    )


def asked(kind: str, dataset: pathlib.Path, count: int, root: pathlib.Path) -> list[str]:
    """The command of a sweep of so many trials, without its folder."""
    shared = [*TINY, f"dataset={dataset}", "seeds=1"]
    if kind == "tune":
        (root / "space.yaml").write_text(SPACE)
        return ["tune", "-q", *shared, "test_seeds=4", "--trials", str(count), "--space", str(root / "space.yaml")]
    width = int(count**0.5)
    rates, sizes = (",".join(map(str, values[:width])) for values in (RATES, SIZES))
    return ["train", "-q", "-m", *shared, f"algo.learning_rate={rates}", f"batch_size={sizes}"]


def killed_sweep(kind: str, count: int, kills: int) -> dict[str, Any]:
    """One sweep undisturbed and one killed again and again."""
    draw, begun = random.Random(0), time.perf_counter()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        root = pathlib.Path(temporary).resolve()
        save(generate("native/pendulum-mixed", 0, transitions=400), root / "small.hdf5")
        base = asked(kind, root / "small.hdf5", count, root)
        whole, killed = root / "whole", root / "killed"
        process = started([*base, f"out={whole}"], root)
        process.join()
        if process.exitcode != 0:
            raise SystemExit((root / "log.txt").read_text()[-2000:])
        each = (time.perf_counter() - begun) / count
        moments = sorted(draw.sample(range(count), kills))
        ended, marker = 0, "tune.json" if kind == "tune" else "sweep.json"
        for moment in [*moments, None]:
            resumed = [base[0], "-q", "--resume", str(killed)]
            process = started(resumed if (killed / marker).is_file() else [*base, f"out={killed}"], root)
            while process.is_alive() and (moment is None or finished(killed) < moment):
                time.sleep(0.02)
            if moment is None:
                process.join()
            else:
                time.sleep(draw.random() * each)
                ended += kill(process)
        if process.exitcode != 0:
            raise SystemExit((root / "log.txt").read_text()[-2000:])
        first, second = trials(whole), trials(killed)
        running = 0
        if kind == "tune":
            with sqlite3.connect(killed / "study.db") as database:
                ((running,),) = database.execute("select count(*) from trials where state = 'RUNNING'")
                ((stored,),) = database.execute("select count(*) from trials")
            results = [json.loads((folder / "tuned.json").read_text()) for folder in (whole, killed)]
        return {
            "trials": count,
            "kills": kills,
            "processes_killed": ended,
            "finished": len(second),
            "lost": len(first.keys() - second.keys()),
            "besides": len(second.keys() - first.keys()),
            "same_bits": sum(same(value, second.get(name)) for name, value in first.items()),
            "stored_by_optuna": stored if kind == "tune" else None,
            "left_running": running if kind == "tune" else None,
            "same_result": results[0] == results[1] if kind == "tune" else None,
            "seconds": round(time.perf_counter() - begun),
            "git": git_commit(),
        }


CELLS = [
    Cell("train -m", lambda: killed_sweep("train -m", 64, 10)),
    Cell("tune", lambda: killed_sweep("tune", 64, 10)),
]


def table(found: dict[str, dict[str, Any]]) -> list[str]:
    """The page."""
    lines = [
        "# Sweeps that are killed",
        "",
        "Sweeps of BC runs, killed by SIGKILL, command and workers, and resumed each time, beside undisturbed ones:",
        "values, scores and all numbers of the policies of each trial are compared to the bit.",
        "`benchmarks/killed_sweeps.py` says when the kills come. Other work ran on the machine (two cores).",
        "",
        "| sweep | trials | kills | processes killed | finished | lost | twice | equal to the bit | study's result |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        result = {None: "-", True: "equal", False: "differs"}[one["same_result"]]
        lines.append(
            f"| `{name}` | {one['trials']} | {one['kills']} | {one['processes_killed']} | {one['finished']} | "
            f"{one['lost']} | {one['besides']} | {one['same_bits']} of {one['trials']} | {result} |"
        )
    return lines


if __name__ == "__main__":
    study_main(__doc__, "killed_sweeps", CELLS, table, Cell("quick", lambda: killed_sweep("train -m", 4, 2)))
