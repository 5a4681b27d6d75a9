"""Latency of a learning step of stream AC, many streams in one call, and the official implementation beside it.

    python benchmarks/streaming_speed.py            # medians of 5, in turn; writes results/streaming_speed.*
    python benchmarks/streaming_speed.py --quick    # ours alone, few steps, for CI
    git clone https://github.com/mohmdelsayed/streaming-drl; export SUREFOOT_STREAMING_OFFICIAL=$PWD/streaming-drl

18 observations, 6 actions, two hidden layers of 128, float32, one core. `learning`: everything outside the environment,
from an observation to the next action: normalisers, both networks' gradients, traces and steps. `loop`: the same in
HalfCheetah-v5. Rates are per second of the process's CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import sys
import time
from typing import Any

import numpy as np
from online_speed import run
from study import RESULTS, git_commit

from surefoot.core.base.files import write_json

HERE = pathlib.Path(__file__).parent
OBSERVATIONS, ACTIONS, LIMIT, MANY = 18, 6, 1000, 64
MEDIAN_BAR, P99_BAR, OFFICIAL_BAR, MANY_BAR = 40.0, 120.0, 20.0, 0.8
"""Microseconds, microseconds, times the official steps/s, efficiency of 64 streams."""


def agent_of(streams: int, native: bool) -> Any:
    """Untrained streams."""
    from surefoot.core.engine.agent import Spec
    from surefoot.streaming import StreamAC

    spec = Spec(OBSERVATIONS, ACTIONS, (-1.0,) * ACTIONS, (1.0,) * ACTIONS)
    return StreamAC(spec, seeds=range(streams), native=native)


def learning(steps: int, streams: int, native: bool = True) -> dict[str, Any]:
    """Time each call of `step` on recorded observations."""
    agent, source = agent_of(streams, native), np.random.default_rng(0)
    shape = (1000, OBSERVATIONS) if streams == 1 else (1000, streams, OBSERVATIONS)
    rows = source.standard_normal(shape).astype(np.float32)
    rewards = source.standard_normal(shape[:-1])
    never = False if streams == 1 else np.zeros(streams, np.bool_)
    agent.begin(rows[0])
    for t in range(200):
        agent.step(rows[t], rewards[t], never, never)
    taken = np.empty(steps)
    cpu = time.process_time()
    for t in range(steps):
        start = time.perf_counter_ns()
        agent.step(rows[t % 1000], rewards[t % 1000], never, never)
        taken[t] = time.perf_counter_ns() - start
    cpu = time.process_time() - cpu
    found = {f"p{q:g}": float(np.percentile(taken, q)) / 1000 for q in (50, 99, 99.9)}
    return {"steps": steps, "streams": streams, "cpu_seconds": cpu, "seconds": float(taken.sum()) / 1e9, **found}


def loop(steps: int) -> dict[str, Any]:
    """Steps in HalfCheetah-v5, the simulator included."""
    import gymnasium

    from surefoot.core.engine.agent import Spec
    from surefoot.streaming import StreamAC

    env: Any = gymnasium.make("HalfCheetah-v5")
    agent = StreamAC(Spec(OBSERVATIONS - 1, ACTIONS, (-1.0,) * ACTIONS, (1.0,) * ACTIONS))
    action = agent.begin(env.reset(seed=0)[0])
    wall = cpu = 0.0
    for t in range(steps + 300):
        if t == 300:
            wall, cpu = time.perf_counter(), time.process_time()
        observation, reward, terminated, truncated, _ = env.step(action)
        action = agent.step(observation, reward, terminated, truncated)
        if terminated or truncated:
            action = agent.begin(env.reset()[0])
    return {"steps": steps, "seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


MEASURES = {
    "learning": lambda steps: learning(steps, 1),
    "many": lambda steps: learning(max(20, steps // MANY), MANY),
    "torch": lambda steps: learning(max(20, steps // 40), 1, native=False),
    "loop": loop,
}


def child(what: str, steps: int) -> list[str]:
    """The command that measures ours."""
    return [sys.executable, str(HERE / "streaming_speed.py"), "--child", what, str(steps)]


def official(steps: int) -> list[str] | None:
    """The command that measures the official code; None, and stated so, where it is not there."""
    source = os.environ.get("SUREFOOT_STREAMING_OFFICIAL", "/tmp/streaming-official")
    python = pathlib.Path(os.environ.get("SUREFOOT_PEERS", "/tmp/surefoot-peers")) / "sb3" / "bin" / "python"
    if not (pathlib.Path(source) / "stream_ac_continuous.py").is_file() or not python.exists():
        print("the official code is left out: set SUREFOOT_STREAMING_OFFICIAL, and run benchmarks/peers/setup.sh sb3")
        return None
    return [str(python), str(HERE / "peers" / "streaming_official.py"), source, str(steps)]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--core", type=int, default=1)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        import torch

        torch.set_num_threads(1)
        print(json.dumps(MEASURES[arguments.child[0]](int(arguments.child[1]))))
        return
    steps, repeats = (500, 1) if arguments.quick else (arguments.steps, arguments.repeats)
    pin = ["taskset", "-c", str(arguments.core)] if shutil.which("taskset") else []
    theirs = None if arguments.quick else official(steps // 10)
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(repeats):
        for what in MEASURES:
            found.setdefault(what, []).append(run([*pin, *child(what, steps)]))
        if theirs is not None:
            for what, value in run([*pin, *theirs]).items():
                found.setdefault(f"official {what}", []).append(value)
    lines = table(found, repeats)
    if not arguments.quick:
        write_json(
            RESULTS / "streaming_speed.json", {"machine": platform.machine(), "git": git_commit(), "runs": found}
        )
        (RESULTS / "streaming_speed.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def table(found: dict[str, list[dict[str, Any]]], repeats: int) -> list[str]:
    """The page of results."""

    def median(what: str, key: str) -> float:
        return statistics.median(one[key] for one in found[what])

    def rate(what: str) -> float:
        return statistics.median(one["steps"] * one.get("streams", 1) / one["cpu_seconds"] for one in found[what])

    titles = {
        "learning": "one stream",
        "many": f"{MANY} streams in one call",
        "torch": "one stream, plain torch",
        "loop": "one stream in HalfCheetah-v5",
        "official learning": "official code",
        "official loop": "official code in HalfCheetah-v5",
    }
    lines = [
        "# A learning step of stream AC",
        "",
        f"{OBSERVATIONS} observations, {ACTIONS} actions, hidden 128-128, float32, one core; medians of {repeats} runs "
        "in turn; rates per second of CPU time. `python benchmarks/streaming_speed.py`.",
        "",
        "| measured | steps/s of one stream | microseconds of a call: median | 99 % | 99.9 % |",
        "|---|---|---|---|---|",
    ]
    for what, title in titles.items():
        if what in found:
            calls = [f"{median(what, q):.1f}" if q in found[what][0] else "" for q in ("p50", "p99", "p99.9")]
            lines.append(f"| {title} | {rate(what):,.0f} | {' | '.join(calls)} |")
    lines.append("")

    def judge(text: str, value: float, bar: float, below: bool = False) -> None:
        met = value <= bar if below else value >= bar
        lines.append(
            f"- {text}: {value:.2f}, {'at most' if below else 'at least'} {bar:g}: {'met' if met else 'NOT met'}"
        )

    judge("median microseconds of a learning step", median("learning", "p50"), MEDIAN_BAR, below=True)
    judge("99th percentile, microseconds", median("learning", "p99"), P99_BAR, below=True)
    judge(f"efficiency of {MANY} streams in one call, per stream", rate("many") / rate("learning"), MANY_BAR)
    if "official learning" in found:
        judge(
            "steps/s over the official code's, outside the environment",
            rate("learning") / rate("official learning"),
            OFFICIAL_BAR,
        )
        ratio = rate("loop") / rate("official loop")
        lines.append(f"- steps/s over the official code's with HalfCheetah-v5 included: {ratio:.1f}")
    return lines


if __name__ == "__main__":
    main()
