"""Tuning IQL on embedded data: is the winner better than the default on fresh seeds, and how much too good did it look?

    python benchmarks/tuning.py             # computes what is missing in results/tuning.jsonl
    python benchmarks/tuning.py --quick     # two trials of 50 steps, for CI
    python benchmarks/tuning.py --table

A cell is one study of `surefoot tune`: 32 trials of three tuning seeds, then incumbent and default on ten test seeds,
compared by the group-sequential test. Its folder is kept, so that a killed one continues. Processes are started as in
killed_sweeps.py.
"""

from __future__ import annotations

import pathlib
import tempfile
import time
from typing import Any

from killed_sweeps import started
from study import Cell, git_commit, study_main

from surefoot.core.base.files import read_json

SPACE = """\
algo.expectile: {low: 0.5, high: 0.95}
algo.temperature: {low: 0.5, high: 10, log: true}
algo.learning_rate: {low: 1e-4, high: 3e-3, log: true}
algo.target_rate: {low: 0.001, high: 0.05, log: true}
"""
FOLDERS = pathlib.Path(tempfile.gettempdir()) / "surefoot-tuning"
SETTINGS = ["batch_size=64", "algo.hidden=[64,64]", "episodes=20", "evaluate_episodes=1"]


def tuned(dataset: str, trials: int, steps: int, test_seeds: int = 10) -> dict[str, Any]:
    """What a study came to, and what it cost."""
    folder = FOLDERS / f"{dataset.rpartition('/')[2]}-{trials}-{steps}"
    space = folder.with_suffix(".yaml")
    space.parent.mkdir(parents=True, exist_ok=True)
    space.write_text(SPACE)
    begin = ["algo=iql", f"dataset={dataset}", f"steps={steps}", f"evaluate_every={steps}", "seeds=3", *SETTINGS]
    begin += [f"test_seeds={test_seeds}", f"out={folder}", "--trials", str(trials), "--space", str(space)]
    again = ["--resume", str(folder)]
    start = time.perf_counter()
    process = started(["tune", "-q", *(again if (folder / "tune.json").is_file() else begin)], folder.parent)
    process.join()
    if process.exitcode != 0:
        raise SystemExit((folder.parent / "log.txt").read_text()[-2000:])
    cpu = float((folder.parent / "cpu.txt").read_text())
    found = read_json(folder / "tuned.json")
    looks = found["decision"]["looks"]
    return {
        "dataset": dataset,
        "trials": trials,
        "steps": steps,
        "settings": SETTINGS,
        "incumbent": found["incumbent"],
        "tuning": found["tuning"],
        "test": found["test"],
        "winners_curse": found["winners_curse"],
        "budget": found["budget"],
        "answer": found["decision"]["answer"],
        "difference": looks[-1]["difference"],
        "over_states": found["over_states"],
        "minutes": round((time.perf_counter() - start) / 60, 1),
        "cpu_minutes": round(cpu / 60, 1),
        "git": git_commit(),
    }


CELLS = [Cell("quadrotor-2d-mixed", lambda: tuned("native/quadrotor-2d-mixed", 32, 2000))]


def table(found: dict[str, dict[str, Any]]) -> list[str]:
    """The page."""
    lines = [
        "# Tuning",
        "",
        "`surefoot tune` on IQL: each trial is trained on three tuning seeds, the best one and the default then on",
        "fresh test seeds, judged from fresh initial states and compared by the group-sequential test (level 5 %).",
        "Two hidden layers of 64, batches of 64, 20 episodes a seed; one core at a time of a busy machine.",
        "`benchmarks/tuning.py` has the space.",
        "",
        "| dataset | trials x seeds x steps | default, test | tuned, test | difference [95 %], over states too | "
        "decision | tuned, on its tuning seeds | too good by | by luck alone among equals | minutes (CPU) |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    words = {"larger": "tuned is better", "smaller": "tuned is worse"}
    for name, one in found.items():
        curse, test, gap, wide = one["winners_curse"], one["test"], one["difference"], one["over_states"]
        luck = curse["expected_of_equal_ones"]
        lines.append(
            f"| {name} | {one['trials']} x {one['budget']['seeds']} x {one['steps']:,} | "
            f"{test['default']['mean']:.1f} ({test['default']['seeds']} seeds) | {test['incumbent']['mean']:.1f} "
            f"({test['incumbent']['seeds']} seeds) | {gap['mean']:.1f} [{gap['low']:.1f}, {gap['high']:.1f}], "
            f"[{wide['low']:.1f}, {wide['high']:.1f}] | "
            f"{words.get(one['answer'], 'not given to be better')} | {one['tuning']['mean']:.1f} | "
            f"{curse['measured']:.1f} | {'-' if luck is None else f'{luck:.1f}'} | "
            f"{one['minutes']:.0f} ({one['cpu_minutes']:.0f}) |"
        )
    return lines


if __name__ == "__main__":
    study_main(__doc__, "tuning", CELLS, table, Cell("quick", lambda: tuned("native/pendulum-mixed", 2, 50, 4)))
