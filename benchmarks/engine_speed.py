"""Updates per second of one core: ours beside CORL, d3rlpy and JAX, in turn; seeds together; the limit.

    python benchmarks/engine_speed.py               # all that is installed, medians of 5, writes results/engine_speed.*
    python benchmarks/engine_speed.py --quick       # ours alone, a few updates, for CI
    bash benchmarks/peers/setup.sh                  # installs the peers, each in an environment of its own

One IQL update: batch 256, hidden 256-256, observation 17, action 6, sampling from 200,000 rows included. Each
measurement is a process of its own on one core; rates are per second of that process's CPU time, so that a busy
machine changes them less; wall-clock rates are kept beside them. The limit is what a core's multiply-adds reach on
registers alone (`native.peak`), which no implementation exceeds; what torch's own product reaches stands beside it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
from machine import first_core, load, record, sentence

from surefoot.core.files import write_json
from surefoot.core.sources import Uniform
from surefoot.cuda_ext import native, why_not_native
from surefoot.experiment.workers import at_once

HERE = pathlib.Path(__file__).parent
OFFICIAL, CORL = "surefoot, official order", "surefoot, CORL's order"
PLAIN = "surefoot, CORL's order, SUREFOOT_NATIVE=0"
BARS = {"corl": 1.5, "d3rlpy": 2.5, "jax": 1.0}
"""Peer -> what our slower order must reach of its rate."""
ROWS, OBSERVATION, ACTION, BATCH = 200_000, 17, 6, 256
SECONDS_OF_MATRIX_PRODUCTS = 1.0
PEAK_RUNS = 60
"""Runs of 5 ms of which `native.peak` takes the best: a neighbour on the core can only make it smaller."""


def learner(algorithm: str, options: dict[str, Any], seed: int) -> Any:
    """A learner on random rows, as a worker of `surefoot train` makes it."""
    import torch

    from surefoot.core import kernels
    from surefoot.core.agent import Spec
    from surefoot.core.learner import Learner
    from surefoot.data.store import Store
    from surefoot.experiment.plan import agent_class

    torch.set_num_threads(1)
    kernels.keep_memory()
    generator = np.random.default_rng(seed)
    columns = {
        "observations": generator.standard_normal((ROWS, OBSERVATION), dtype=np.float32),
        "actions": generator.uniform(-1, 1, (ROWS, ACTION)).astype(np.float32),
        "rewards": generator.standard_normal(ROWS, dtype=np.float32),
        "terminations": np.zeros(ROWS, bool),
        "next_observations": generator.standard_normal((ROWS, OBSERVATION), dtype=np.float32),
    }
    store = Store.pack(columns)
    spec = Spec(OBSERVATION, ACTION, (-1.0,) * ACTION, (1.0,) * ACTION)
    agent = agent_class(algorithm)(spec, **options).fresh(seed)
    return Learner([agent], [seed], Uniform(store), batch_size=BATCH, kernels=True)


def measure_ours(algorithm: str, preset: str | None, updates: int, seed: int) -> dict[str, Any]:
    """Run `updates` updates in this process."""
    trained = learner(algorithm, {} if preset is None else {"preset": preset}, seed)
    trained.run(50)
    wall, cpu = time.perf_counter(), time.process_time()
    trained.run(updates)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "updates": updates,
        "seconds": wall,
        "cpu_seconds": cpu,
        "updates_per_second": updates / wall,
        "eager": trained.eager_because(),
    }


def measure_limit() -> dict[str, float | None]:
    """GFLOP/s of one core: of multiply-adds on registers, the peak, and of torch's product of 256x256x256.

    The peak is None where the native module, which measures it, is not there.
    """
    import torch

    torch.set_num_threads(1)
    a, b = torch.randn(BATCH, 256), torch.randn(256, 256)
    out = torch.empty(BATCH, 256)
    best = 0.0
    begin = time.perf_counter()
    while time.perf_counter() - begin < SECONDS_OF_MATRIX_PRODUCTS:
        start = time.process_time_ns()
        for _ in range(20):
            torch.mm(a, b, out=out)
        best = max(best, 20 * 2 * BATCH * 256 * 256 / (time.process_time_ns() - start))
    module = native()
    peak = None if module is None else module.peak(PEAK_RUNS)
    return {"peak_gflops_per_second": peak, "torch_product_gflops_per_second": best}


def best_limit(found: list[dict[str, float | None]]) -> dict[str, float | None]:
    """The highest of several `measure_limit`: whatever else runs on the machine makes them only smaller."""
    values = {name: [value for one in found if (value := one[name]) is not None] for name in found[0]}
    return {name: max(many, default=None) for name, many in values.items()}


def of_the_limit(limit: dict[str, float | None], flops: float, rates: dict[str, float], unit: str = "updates") -> str:
    """Sentences: what a core's peak would give, and what part of it each of the named rates per CPU second reaches."""
    peak, product = limit["peak_gflops_per_second"], limit["torch_product_gflops_per_second"]
    if peak is None:
        return f"The limit of a core is not measured: {why_not_native()}."
    most = peak * 1e9 / flops
    reached = ", ".join(f"{name} {rate / most:.2f}" for name, rate in rates.items())
    return (
        f"Limit of a core: {flops / 1e9:.2f} GFLOP of products at its peak of {peak:.0f} GFLOP/s (float32 "
        f"multiply-adds on registers, `native.peak()`) are {most:.0f} {unit}/s. Reached of it: {reached}. torch's own "
        f"product of 256x256x256 reaches {product:.0f} GFLOP/s here, {(product or 0) / peak:.2f} of the peak."
    )


def flops_of_update() -> float:
    """Floating-point operations of one IQL update (CORL's order): products only."""

    def forward(inputs: int, outputs: int) -> float:
        return 2.0 * BATCH * (inputs * 256 + 256 * 256 + 256 * outputs)

    def backward(inputs: int, outputs: int) -> float:  # weight gradients, and input gradients but for the first layer
        return forward(inputs, outputs) + 2.0 * BATCH * (256 * 256 + 256 * outputs)

    pair = OBSERVATION + ACTION
    critics = 2 * (forward(pair, 1) + backward(pair, 1)) + 2 * forward(pair, 1)
    value = 2 * forward(OBSERVATION, 1) + backward(OBSERVATION, 1)
    actor = forward(OBSERVATION, ACTION) + backward(OBSERVATION, ACTION)
    return critics + value + actor


def ours(algorithm: str, preset: str | None, updates: int, seed: int, core: int) -> list[str]:
    """The command line that measures us on one core."""
    own = [sys.executable, str(HERE / "engine_speed.py"), "--child", algorithm, preset or "-", str(updates), str(seed)]
    return ["taskset", "-c", str(core), *own]


def run(command: list[str]) -> dict[str, Any]:
    """The JSON on the last line of what a command prints."""
    single = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    found = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **single}, check=False)
    if found.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{found.stderr[-2000:]}")
    value: dict[str, Any] = json.loads(found.stdout.strip().splitlines()[-1])
    return value


def together(seeds: int, updates: int) -> dict[str, Any]:
    """`seeds` processes over all cores, as many at once as a run has: rate per core, as a fraction of one alone."""
    cores = sorted(os.sched_getaffinity(0))
    command = [sys.executable, str(HERE / "engine_speed.py"), "--child", "iql", "-", str(updates)]
    single = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

    def rate(count: int) -> float:
        def one(seed: int) -> dict[str, Any]:
            done = subprocess.run([*command, str(seed)], stdout=subprocess.PIPE, text=True, env=single, check=True)
            value: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
            return value

        workers = at_once(count, len(cores))
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            found = list(pool.map(one, range(count)))
        return workers * statistics.median(item["updates"] / item["seconds"] for item in found)

    alone, all_of_them = rate(1), rate(seeds)
    return {
        "seeds": seeds,
        "cores": len(cores),
        "alone": alone,
        "together": all_of_them,
        "fraction": all_of_them / len(cores) / alone,
    }


def bars(summary: dict[str, dict[str, float]]) -> list[str]:
    """One line a peer that was measured: what our slower order reaches of it, and what it must."""
    slower = min(summary[name]["updates_per_cpu_second"] for name in (OFFICIAL, CORL))
    lines = []
    for peer, bar in BARS.items():
        if peer in summary:
            ratio = slower / summary[peer]["updates_per_cpu_second"]
            lines.append(f"- {peer}: {ratio:.2f} times, at least {bar} wanted: {'met' if ratio >= bar else 'MISSED'}")
    return ["Goals, per CPU second, for the slower of our two orders:", "", *lines] if lines else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ours alone, 100 updates, once")
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--core", type=int, default=first_core())
    parser.add_argument("--seeds", type=int, default=8, help="trained together at the end; 0: not measured")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        algorithm, preset, updates, seed = arguments.child
        print(json.dumps(measure_ours(algorithm, None if preset == "-" else preset, int(updates), int(seed))))
        return
    updates, repeats = (100, 1) if arguments.quick else (arguments.updates, arguments.repeats)
    commands = {
        OFFICIAL: ours("iql", None, updates, 0, arguments.core),
        CORL: ours("iql", "corl", updates, 0, arguments.core),
        PLAIN: ["env", "SUREFOOT_NATIVE=0", *ours("iql", "corl", updates, 0, arguments.core)],
    }
    if native() is None:
        print(f"the native module is not measured: {why_not_native()}")
        del commands[PLAIN]
    if not arguments.quick:
        sys.path.insert(0, str(HERE / "peers"))
        import speed

        for name, reason in speed.missing().items():
            print(f"{name} is left out: {reason}")
        commands |= speed.commands(updates=updates, core=arguments.core)
    rates: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    loads, limits = [load()], []
    for _ in range(repeats):
        for name, command in commands.items():
            rates[name].append(run(command))
            loads.append(load())
        limits.append(measure_limit())
    limit, machine = best_limit(limits), record(loads)
    summary = {
        name: {
            "updates_per_cpu_second": statistics.median(i["updates"] / i["cpu_seconds"] for i in items),
            "updates_per_second": statistics.median(i["updates"] / i["seconds"] for i in items),
        }
        for name, items in rates.items()
    }
    first = summary[CORL]["updates_per_cpu_second"]
    lines = [
        "# IQL updates per second on one core",
        "",
        f"Batch {BATCH}, hidden 256-256, {OBSERVATION}/{ACTION} dimensions, sampling included; medians of {repeats} "
        f"measurements of {updates} updates, in turn. {sentence(machine)} `python benchmarks/engine_speed.py`.",
        "",
        "| implementation | per CPU second | per second | ours (CORL's order) / this |",
        "|---|---|---|---|",
        *(
            f"| {name} | {v['updates_per_cpu_second']:.0f} | {v['updates_per_second']:.0f} | "
            f"{first / v['updates_per_cpu_second']:.2f} |"
            for name, v in summary.items()
        ),
        "",
        of_the_limit(limit, flops_of_update(), {CORL: first}),
        "",
        *bars(summary),
    ]
    result: dict[str, Any] = {"machine": machine, "repeats": repeats, "updates": updates, "summary": summary}
    result |= {"limit": limit, "runs": rates}
    if not arguments.quick and arguments.seeds:
        result["together"] = together(arguments.seeds, updates // 2)
        lines += [
            "",
            f"{arguments.seeds} seeds on {result['together']['cores']} cores, as many at once as a run has: "
            f"{result['together']['fraction']:.2f} of the rate of one alone, per core (measured once, {updates // 2} "
            "updates a seed, start-up of the processes left out).",
        ]
    if not arguments.quick:
        write_json(HERE / "results" / "engine_speed.json", result)
        (HERE / "results" / "engine_speed.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
