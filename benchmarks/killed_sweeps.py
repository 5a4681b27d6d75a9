"""Sweeps, studies and suites that are killed again and again, command and workers, beside undisturbed ones.

    python benchmarks/killed_sweeps.py             # computes what is missing in results/killed_sweeps.jsonl
    python benchmarks/killed_sweeps.py --quick     # four trials, two kills, for CI
    python benchmarks/killed_sweeps.py --table

One cell of 64 trials and ten kills for `surefoot train -m` and one for `surefoot tune`; beside them short chains of
these and of `surefoot bench`, each with random numbers and a seed of its own. A kill is SIGKILL to the command and all
that it has started, when a number of trials drawn beforehand is finished and a random moment later; then `--resume`
continues, and `bench` by the same command. Trials are BC runs of 40 steps, a suite's of four seeds. Command and workers
are forks of a process that has imported them, pictures are not drawn and git is not asked, since each of these takes
longer than a trial; all else is the command line's own.
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
CHAINS, KILLS_A_CHAIN = 8, 2
"""Of each command, and in each."""
SHORT = 4
"""Trials of a short chain."""
WHERE = ("[0-9]*", "trials/*", "entries/*/*")
"""Folders of trials in that of a sweep, a study and a suite."""
MARKS = {"train -m": "sweep.json", "tune": "tune.json", "bench": "entries"}
"""What is there as soon as one of them can be resumed."""
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
    return len(summaries(sweep))


def summaries(sweep: pathlib.Path) -> list[pathlib.Path]:
    """The summary of each trial that is over."""
    return sorted(path for where in WHERE for path in sweep.glob(f"{where}/summary.json"))


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
    for path in summaries(sweep):
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


def asked(kind: str, dataset: pathlib.Path, count: int, seed: int, root: pathlib.Path, out: pathlib.Path) -> list[str]:
    """The command of a sweep, study or suite of so many trials."""
    shared = [*TINY, f"dataset={dataset}"]
    if kind == "bench":
        tasks = "".join(f"  task{task}: {{dataset: \"'{dataset}'\"}}\n" for task in range(count // 2))
        run = "steps: 40, episodes: 2, evaluate_every: 20, evaluate_episodes: 1, batch_size: 8"
        text = f"version: 1\nwhat: a suite that is killed\nseeds: {[*range(4 * seed, 4 * seed + 4)]}\nrun: {{{run}}}\n"
        (root / "small.yaml").write_text(f"{text}tasks:\n{tasks}algorithms: [bc, td3bc]\n")
        return ["bench", "run", str(root / "small.yaml"), "-q", "-o", str(out)]
    if kind == "tune":
        (root / "space.yaml").write_text(SPACE)
        seeds = [f"seeds=[{seed}]", "test_seeds=[100,101,102,103]"] if seed else ["seeds=1", "test_seeds=4"]
        space = ["--trials", str(count), "--space", str(root / "space.yaml")]
        return ["tune", "-q", *shared, *seeds, *space, f"out={out}"]
    width = int(count**0.5)
    rates, sizes = (",".join(map(str, values[:width])) for values in (RATES, SIZES))
    swept = [f"algo.learning_rate={rates}", f"batch_size={sizes}"]
    return ["train", "-q", "-m", *shared, f"seeds=[{seed}]" if seed else "seeds=1", *swept, f"out={out}"]


def chosen(kind: str, folder: pathlib.Path) -> Any:
    """What a study found or a leaderboard says, without what names the folder; None of a sweep."""
    if kind == "tune":
        return read_json(folder / "tuned.json")
    if kind == "bench":
        lines = [json.loads(line) for line in (folder / "leaderboard.jsonl").read_text().splitlines()]
        return [{key: line[key] for key in ("entry", "task", "scores", "mean", "rank", "verdicts")} for line in lines]
    return None


def killed_sweep(kind: str, count: int, kills: int, seed: int = 0) -> dict[str, Any]:
    """One sweep undisturbed and one killed again and again."""
    draw, was_started = random.Random(seed), time.perf_counter()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        root = pathlib.Path(temporary).resolve()
        save(generate("native/pendulum-mixed", 0, transitions=400), root / "small.hdf5")
        whole, killed = root / "whole", root / "killed"
        process = started(asked(kind, root / "small.hdf5", count, seed, root, whole), root)
        process.join()
        if process.exitcode != 0:
            raise SystemExit((root / "log.txt").read_text()[-2000:])
        each = (time.perf_counter() - was_started) / count
        moments = sorted(draw.sample(range(count), kills))
        ended, line = 0, asked(kind, root / "small.hdf5", count, seed, root, killed)
        for moment in [*moments, None]:
            resumed = line if kind == "bench" else [line[0], "-q", "--resume", str(killed)]
            process = started(resumed if (killed / MARKS[kind]).exists() else line, root)
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
        results = [chosen(kind, folder) for folder in (whole, killed)]
        return {
            "trials": len(first),
            "kills": kills,
            "processes_killed": ended,
            "finished": len(second),
            "lost": len(first.keys() - second.keys()),
            "besides": len(second.keys() - first.keys()),
            "same_bits": sum(same(value, second.get(name)) for name, value in first.items()),
            "stored_by_optuna": stored if kind == "tune" else None,
            "left_running": running if kind == "tune" else None,
            "same_result": None if results[0] is None else results[0] == results[1],
            "seconds": round(time.perf_counter() - was_started),
            "git": git_commit(),
        }


def short(kind: str, seed: int) -> Cell:
    """A short chain."""
    return Cell(f"{kind}, chain {seed}", lambda: killed_sweep(kind, SHORT, KILLS_A_CHAIN, seed))


CELLS = [
    *(short(kind, seed) for seed in range(1, CHAINS + 1) for kind in MARKS),
    Cell("train -m", lambda: killed_sweep("train -m", 64, 10)),
    Cell("tune", lambda: killed_sweep("tune", 64, 10)),
]


def table(found: dict[str, dict[str, Any]]) -> list[str]:
    """The page."""
    lines = [
        "# Sweeps that are killed",
        "",
        "Sweeps, studies and suites of BC runs (suites also of TD3+BC), killed by SIGKILL, command and workers, and",
        "resumed each time, beside undisturbed ones: values, scores and all numbers of the policies of each trial are",
        "compared to the bit, and what a study chose or a leaderboard says.",
        "`benchmarks/killed_sweeps.py` says when the kills come. Other work ran on the machine (two cores).",
        "",
        "| command | chains | trials | kills | processes killed | finished | lost | twice | bits equal | result |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in ("train -m", "tune", "bench"):
        whole = [one for name, one in found.items() if name == kind]
        chains = [one for name, one in found.items() if name.startswith(f"{kind}, chain")]
        for several in filter(None, (whole, chains)):
            sums = {key: sum(one[key] for one in several) for key in ("kills", "processes_killed", "finished")}
            sums |= {key: sum(one[key] for one in several) for key in ("lost", "besides")}
            count, equal = (sum(one[key] for one in several) for key in ("trials", "same_bits"))
            results = [one["same_result"] for one in several]
            given = "-" if None in results else f"{sum(results)} of {len(results)} equal"
            cells = [f"`{kind}`", len(several), count, *sums.values(), f"{equal} of {count}", given]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


if __name__ == "__main__":
    study_main(__doc__, "killed_sweeps", CELLS, table, Cell("quick", lambda: killed_sweep("bench", 4, 2, seed=1)))
