"""Two checkouts of this repository side by side: training, rollouts and streaming before and after a change.

    git worktree add /tmp/before COMMIT        # and install it there, in an environment /tmp/before/.venv
    python benchmarks/before_after.py --before /tmp/before   # writes results/before_after.*
    python benchmarks/before_after.py --quick                # this checkout beside itself, once, for CI

The measurements are those of `engine_speed.py`, `online_speed.py`, `rollout_speed.py` and `streaming_speed.py`, each a
process of its own on one core. Before and after alternate, which of both begins changes from round to round, and a
round's ratio is of its own two processes, so that a machine that gets slower or busier changes both; reported is the
median of the ratios. Rates are per second of CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
from typing import Any

from surefoot.core.base.files import write_json

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "results"
MEASURES: dict[str, list[str]] = {
    "IQL, official order": ["engine_speed.py", "--child", "iql", "-", "{updates}", "0"],
    "IQL, CORL's order": ["engine_speed.py", "--child", "iql", "corl", "{updates}", "0"],
    "SAC, updates": ["online_speed.py", "--child", "update", "{updates}"],
    "SAC in HalfCheetah-v5": ["online_speed.py", "--child", "loop", "{updates}"],
    "pendulum, with a policy": ["rollout_speed.py", "--one", "pendulum,policy,1"],
    "pendulum, random actions": ["rollout_speed.py", "--one", "pendulum,random,1"],
    "cart-pole, with a policy": ["rollout_speed.py", "--one", "cartpole,policy,1"],
    "cart-pole, random actions": ["rollout_speed.py", "--one", "cartpole,random,1"],
    "cart-pole, `step`": ["rollout_speed.py", "--one", "step"],
    "stream AC, one stream": ["streaming_speed.py", "--child", "learning", "{steps}"],
    "stream AC, many streams": ["streaming_speed.py", "--child", "many", "{steps}"],
    "stream AC, plain torch": ["streaming_speed.py", "--child", "torch", "{steps}"],
    "stream AC in HalfCheetah-v5": ["streaming_speed.py", "--child", "loop", "{steps}"],
}
"""What is measured -> the script and its arguments."""
WANTED = 0.97


def rate(found: dict[str, Any]) -> float:
    """Updates or steps per second of CPU time."""
    if "steps_per_cpu_second" in found:
        return float(found["steps_per_cpu_second"])
    done = found["updates"] if "updates" in found else found["steps"] * found.get("streams", 1)
    return float(done / found["cpu_seconds"])


def measure(checkout: pathlib.Path, name: str, sizes: dict[str, int], core: int) -> float:
    """The rate of one measurement in a process of its own, by the environment of that checkout."""
    script, *arguments = MEASURES[name]
    python = checkout / ".venv" / "bin" / "python"
    line = [str(python), str(checkout / "benchmarks" / script), *(a.format(**sizes) for a in arguments)]
    pin = ["taskset", "-c", str(core)] if shutil.which("taskset") else []
    single = {one: "1" for one in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run(
        [*pin, *line], capture_output=True, text=True, env={**os.environ, **single}, cwd=checkout, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(line)} failed:\n{done.stderr[-2000:]}")
    return rate(json.loads(done.stdout.strip().splitlines()[-1]))


def commit(checkout: pathlib.Path) -> str:
    """The commit of a checkout, short."""
    found = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def table(record: dict[str, Any]) -> list[str]:
    """The page of results."""
    rates: dict[str, list[list[float]]] = record["rates"]
    lines = [
        f"# {record['before']} and {record['after']} side by side",
        "",
        f"Rates per second of CPU time on one core, medians of {record['repeats']} rounds; the ratio is the median of "
        "the rounds' ratios, with its smallest and largest. `python benchmarks/before_after.py`.",
        "",
        f"| measured | before | after | after / before | from, to | at least {WANTED} |",
        "|---|---|---|---|---|---|",
    ]
    for name, pairs in rates.items():
        ratios = [after / before for before, after in pairs]
        before, after = (statistics.median(side) for side in zip(*pairs, strict=True))
        middle = statistics.median(ratios)
        span = f"{min(ratios):.2f}, {max(ratios):.2f}"
        met = "yes" if middle >= WANTED else "NO"
        lines.append(f"| {name} | {before:,.0f} | {after:,.0f} | {middle:.3f} | {span} | {met} |")
    return lines


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=pathlib.Path, help="a checkout with an environment .venv of its own")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--only", help="measurements whose name contains this")
    given = parser.parse_args()
    if given.before is None and not given.quick:
        parser.error("--before CHECKOUT is needed: what this checkout is compared with")
    after = HERE.parent
    before = after if given.before is None else given.before.resolve()
    for checkout in (before, after):
        if not (checkout / ".venv" / "bin" / "python").exists():
            parser.error(f"{checkout} has no .venv: install that checkout into one of its own")
    repeats = 1 if given.quick else given.repeats
    sizes = {"updates": 50, "steps": 400} if given.quick else {"updates": given.updates, "steps": given.steps}
    names = [name for name in MEASURES if given.only is None or given.only in name]
    if given.quick:
        names = names[:1]
    rates: dict[str, list[list[float]]] = {name: [] for name in names}
    for turn in range(repeats):
        for name in names:
            order = (before, after) if turn % 2 == 0 else (after, before)
            found = [measure(checkout, name, sizes, given.core) for checkout in order]
            rates[name].append(found if turn % 2 == 0 else found[::-1])
            print(f"{name}, round {turn + 1}: {rates[name][-1][1] / rates[name][-1][0]:.3f}", flush=True)
    record = {"before": commit(before), "after": commit(after), "repeats": repeats, "sizes": sizes, "rates": rates}
    lines = table(record)
    if not given.quick and given.only is None:
        write_json(RESULTS / "before_after.json", record)
        (RESULTS / "before_after.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
