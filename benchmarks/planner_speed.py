"""Plans per second of MPPI on cart-poles: native, in plain torch, and pytorch-mppi's batched version.

    python benchmarks/planner_speed.py             # three rounds, all in turn; writes the table
    python benchmarks/planner_speed.py --quick     # one short round of ours, for CI
    benchmarks/peers/setup.sh mppi                 # the peer, in an environment of its own

1,024 candidates of 50 steps are one plan. Rates are per second of CPU time of one process with one thread, which
others' load disturbs little; each measurement is a process of its own. Every implementation plans for 1, 8 or 64 states
a call, and its best counts. The peer's cart-pole is written in torch with scalars for constants, which is faster there
than our twin's table of parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "results"
SYSTEMS = {"balance": "native/cartpole-balance", "swingup": "native/cartpole-swingup"}
STATES = (1, 8, 64)
SAMPLES, HORIZON = 1024, 50


def measure(system: str, backend: str, states: int, seconds: float) -> dict[str, Any]:
    """Our plans for `states` states a call, for at least `seconds` of CPU time."""
    import torch

    from surefoot import cuda_ext
    from surefoot.world_models.known.exact import NativeDynamics
    from surefoot.world_models.planners import MPPI

    torch.set_num_threads(1)
    world = NativeDynamics(SYSTEMS[system], backend=backend)
    planner = MPPI(horizon=HORIZON, samples=SAMPLES, temperature=0.1, color=0.0)  # as the peer
    start = 0.05 * torch.randn(states, 4, generator=torch.Generator().manual_seed(0))
    memory = planner.begin(states, 1)
    _, memory = planner.plan(world, start, memory)
    wall, cpu, calls = time.perf_counter(), time.process_time(), 0
    while time.process_time() - cpu < seconds or calls < 3:
        _, memory = planner.plan(world, start, memory)
        calls += 1
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    plans, native = calls * states, cuda_ext.native()
    level = native.level() if native is not None else "none"
    return {"plans_per_cpu_second": plans / cpu, "plans_per_second": plans / wall, "level": level}


def command(name: str, system: str, states: int, seconds: float) -> list[str] | None:
    """The process that measures one implementation; None where it can't be run here."""
    if name != "pytorch-mppi":
        return [sys.executable, __file__, "--one", f"{system},{name},{states},{seconds}"]
    environments = pathlib.Path(os.environ.get("SUREFOOT_PEERS", "/tmp/surefoot-peers"))
    python = environments / "mppi" / "bin" / "python"
    options = ["--system", system, "--states", str(states), "--seconds", str(seconds)]
    return [str(python), str(HERE / "peers" / "mppi_speed.py"), *options] if python.exists() else None


def measure_all(rounds: int, names: tuple[str, ...], states: tuple[int, ...], seconds: float) -> dict[str, Any]:
    """All implementations in turn, `rounds` times."""
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for system in SYSTEMS:
            for name in names:
                for count in states:
                    line = command(name, system, count, seconds)
                    if line is None:
                        continue
                    done = subprocess.run(line, capture_output=True, text=True, check=False)
                    if done.returncode:
                        sys.exit(f"{' '.join(line)} failed:\n{done.stderr[-2000:]}")
                    found.setdefault(f"{name}|{system}|{count}", []).append(json.loads(done.stdout.splitlines()[-1]))
    lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines()
    processor = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), "?")
    return {"machine": f"{processor}, {os.cpu_count()} cores", "rounds": rounds, "measurements": found}


def best(results: dict[str, Any], name: str, system: str) -> tuple[float, int] | None:
    """The largest rate, and for how many states a call."""
    rates = [
        (entry["plans_per_cpu_second"], count)
        for count in STATES
        for entry in results["measurements"].get(f"{name}|{system}|{count}", [])
    ]
    return max(rates) if rates else None


def table(results: dict[str, Any]) -> list[str]:
    """Rates, ratios and goals."""
    lines = [
        "# Plans per second: MPPI on cart-poles",
        "",
        f"{results['machine']}; {SAMPLES:,} candidates of {HORIZON} steps a plan; best of {results['rounds']} rounds "
        "and of 1, 8 and 64 states a call (in brackets), per second of CPU time, one thread. "
        "`python benchmarks/planner_speed.py`",
        "",
        "| cart-pole | native | M steps/s | torch twin | pytorch-mppi, batched | native / pytorch-mppi |",
        "|---|---|---|---|---|---|",
    ]
    for system in SYSTEMS:
        rates = {name: best(results, name, system) for name in ("native", "twin", "pytorch-mppi")}
        shown = [f"{rate[0]:,.4g} ({rate[1]})" if rate else "not run" for rate in rates.values()]
        ours, theirs = rates["native"], rates["pytorch-mppi"]
        steps = f"{ours[0] * SAMPLES * HORIZON / 1e6:.1f}" if ours else ""
        ratio = f"{ours[0] / theirs[0]:.3g}" if ours and theirs else "not run"
        lines.append(f"| {system} | {shown[0]} | {steps} | {shown[1]} | {shown[2]} | {ratio} |")
    return [*lines, "", "Goals: 1,000 plans a second a core, and 10 times pytorch-mppi."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round of ours in memory, for CI")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", action="store_true", help="only write the table again")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        system, backend, states, seconds = arguments.one.split(",")
        print(json.dumps(measure(system, backend, int(states), float(seconds))))
    elif arguments.quick:
        print("\n".join(table(measure_all(1, ("native",), (8,), 0.2))))
    else:
        path = RESULTS / "planner_speed.json"
        if not arguments.table:
            found = measure_all(arguments.rounds, ("native", "twin", "pytorch-mppi"), STATES, 1.0)
            path.write_text(json.dumps(found, indent=1) + "\n")
        lines = table(json.loads(path.read_text()))
        (RESULTS / "planner_speed.md").write_text("\n".join(lines) + "\n")
        print("\n".join(lines))


if __name__ == "__main__":
    main()
