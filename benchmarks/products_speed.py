"""Updates whose products lie outside the plain MLP, and wide layers on the way back, beside a checkout from before.

    git worktree add /tmp/before COMMIT            # and install it there, in an environment /tmp/before/.venv
    python benchmarks/products_speed.py --before /tmp/before   # medians of 5, writes results/products_speed.{json,md}
    python benchmarks/products_speed.py --quick                # this checkout beside itself, once, for CI

Each measurement is a process of its own with one thread on one core, which runs this file with the environment of one
of the two checkouts; they alternate, and which of them begins changes from round to round. Reported are medians of the
rounds' ratios, and rates per second of CPU time. Batches are there already: neither pays for sampling them.

Shares are of the core's own limit (`native.peak()`), for the multiplications that the products of one update take.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

from before_after import commit

HERE = pathlib.Path(__file__).resolve().parent
OBSERVATIONS, ACTIONS, WINDOW, HORIZON, WARM = 17, 6, 20, 3, 3
UPDATES: dict[str, tuple[str, dict[str, Any], int]] = {
    "decision transformer": ("dt", {"target_return": 1.0}, 64),
    "TD-MPC2": ("surefoot.model_based:TDMPC2", {"episode_length": 1000}, 256),
    "EDAC": ("edac", {}, 256),
}
"""Name -> algorithm, options, rows of a batch."""
BACKWARD: dict[str, tuple[tuple[int, ...], int]] = {
    "256-256, 256 rows": ((17, 256, 256, 6), 256),
    "512-512, 256 rows": ((17, 512, 512, 6), 256),
    "1024-1024, 256 rows": ((17, 1024, 1024, 6), 256),
    "1024-1024-1024, 1024 rows": ((17, 1024, 1024, 1024, 6), 1024),
}
"""Name -> widths of an MLP of ReLU layers, rows of a batch."""
MEASURES = (*UPDATES, "way back")
"""What a process measures."""
WANTED = {"decision transformer": 1.5, "TD-MPC2": 1.3, "EDAC": 1.3}
WANTED_SHARE = 0.8
PROFILE = (
    "Where the time of an update goes, measured call by call on a busy Zen 4: of the decision transformer's 183 ms, "
    "products take 153 (124 at the core's limit), layer norms and softmax 7, "
    "GELU 7, copies, sums and other elementwise arithmetic 15; of EDAC's 78 ms, products 43 (34 at the limit), plain "
    "MLPs 24, elementwise arithmetic 10; of TD-MPC2's 406 ms, products 316, elementwise arithmetic 60, layer norms and "
    "softmax 15.",
)
"""Behind the tables."""
SINGLE = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


def batch(name: str, rows: int) -> dict[str, Any]:
    """Random rows or windows with the columns that the algorithm reads."""
    import torch

    torch.manual_seed(0)
    steps = {"decision transformer": (rows, WINDOW), "TD-MPC2": (rows, HORIZON), "EDAC": (rows,)}[name]
    observations, actions = torch.randn(*steps, OBSERVATIONS), torch.rand(*steps, ACTIONS) * 2 - 1
    return {
        "observations": observations,
        "actions": actions,
        "observation_actions": torch.cat([observations, actions], -1),
        "next_observations": torch.randn(*steps, OBSERVATIONS),
        "rewards": torch.randn(steps),
        "terminations": torch.zeros(steps),
        "returns_to_go": torch.randn(steps),
        "timesteps": torch.arange(float(steps[-1])).expand(steps).contiguous(),
        "mask": torch.ones(steps),
    }


def updates(name: str, count: int) -> dict[str, Any]:
    """CPU seconds of one update, and the calls that repeat it."""
    import torch

    from surefoot.core.base.spec import Spec
    from surefoot.core.engine.learner import Learner
    from surefoot.core.engine.sources import Uniform
    from surefoot.core.nn.native import kernels
    from surefoot.runs.plan import agent_class

    torch.set_num_threads(1)
    kernels.keep_memory()
    torch.manual_seed(0)
    algorithm, options, rows = UPDATES[name]
    spec = Spec(OBSERVATIONS, ACTIONS, (-1.0,) * ACTIONS, (1.0,) * ACTIONS)
    made, given = agent_class(algorithm)(spec, **options).fresh(0), batch(name, rows)
    source = Uniform(lambda indices: given, rows)
    learner = Learner([made], [0], source, batch_size=rows, planned_steps=1_000_000, kernels=True)
    learner.run(WARM)
    start = time.process_time()
    learner.run(count)
    seconds = (time.process_time() - start) / count
    return {"cpu_seconds": seconds, "not_taped": sorted(set(learner.eager_because().values()))}


def way_back(name: str, count: int) -> dict[str, Any]:
    """CPU seconds of the gradients of all parameters of an MLP, and their products' share of the core's limit."""
    import torch

    from surefoot.core.nn.native import native

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes, rows = BACKWARD[name]
    pairs = list(itertools.pairwise(sizes))
    weights, biases = [torch.randn(b, a) / a**0.5 for a, b in pairs], [torch.randn(b) for _, b in pairs]
    inputs, above = torch.randn(rows, sizes[0]), torch.randn(rows, sizes[-1])
    saved = native.forward(inputs, weights, biases, keep=True)[1]
    assert saved is not None
    places = [torch.empty_like(t) for t in weights], [torch.empty_like(t) for t in biases]
    native.backward(inputs, weights, biases, saved, above, *places, False)
    start = time.process_time()
    for _ in range(count):
        native.backward(inputs, weights, biases, saved, above, *places, False)
    seconds = (time.process_time() - start) / count
    products = sum(a * b for a, b in pairs) + sum(a * b for a, b in pairs[1:])
    return {"cpu_seconds": seconds, "share": 2 * rows * products / seconds / 1e9 / native.library().peak(30)}


def measure(checkout: pathlib.Path, name: str, count: int, core: int) -> dict[str, Any]:
    """One measurement in a process of its own, with the environment of a checkout."""
    line = [str(checkout / ".venv" / "bin" / "python"), str(HERE / "products_speed.py"), "--one", name, str(count)]
    pin = ["taskset", "-c", str(core)] if shutil.which("taskset") else []
    environment = {**os.environ, **SINGLE}
    done = subprocess.run([*pin, *line], capture_output=True, text=True, env=environment, cwd=checkout, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(line)} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def table(record: dict[str, Any]) -> list[str]:
    """The page of results."""
    rounds: dict[str, list[list[dict[str, Any]]]] = record["rounds"]
    lines = [
        "# Products outside the plain MLP",
        "",
        f"{record['before']} and {record['after']} in turn, one core, medians of {record['repeats']} rounds; the ratio "
        "is the median of the rounds' ratios, with its smallest and largest. "
        "`python benchmarks/products_speed.py --before CHECKOUT`.",
        "",
        "| update | before, a CPU second | after | after / before | from, to | wanted | met |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in UPDATES:
        ratios = [before["cpu_seconds"] / after["cpu_seconds"] for before, after in rounds[name]]
        rates = [statistics.median(1 / pair[side]["cpu_seconds"] for pair in rounds[name]) for side in range(2)]
        middle, wanted = statistics.median(ratios), WANTED[name]
        lines.append(
            f"| {name} | {rates[0]:.2f} | {rates[1]:.2f} | {middle:.2f} | {min(ratios):.2f}, {max(ratios):.2f} | "
            f"{wanted} | {'yes' if middle >= wanted else 'NO'} |"
        )
    lines += [
        "",
        "The way back through an MLP, all parameters' gradients, as a share of the core's limit; "
        f"wanted: {WANTED_SHARE}.",
        "",
        "| hidden layers | before | after | after / before | met |",
        "|---|---|---|---|---|",
    ]
    for name in BACKWARD:
        shares = [statistics.median(pair[side]["share"] for pair in rounds[name]) for side in range(2)]
        ratio = statistics.median(before["cpu_seconds"] / after["cpu_seconds"] for before, after in rounds[name])
        met = "yes" if shares[1] >= WANTED_SHARE else "NO"
        lines.append(f"| {name} | {shares[0]:.2f} | {shares[1]:.2f} | {ratio:.2f} | {met} |")
    lines += ["", *PROFILE]
    return lines


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=pathlib.Path, help="a checkout with an environment .venv of its own")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true", help="write the page of the record again")
    given = parser.parse_args()
    if given.one:
        name, count = given.one[0], int(given.one[1])
        print(
            json.dumps({name: updates(name, count)} if name in UPDATES else {n: way_back(n, count) for n in BACKWARD})
        )
        return
    from study import RESULTS, write_table

    from surefoot.core.base.files import write_json

    if given.table:
        write_table(RESULTS / "products_speed.md", table(json.loads((RESULTS / "products_speed.json").read_text())))
        return
    if given.before is None and not given.quick:
        parser.error("--before CHECKOUT is needed: what this checkout is compared with")
    after = HERE.parent
    before = after if given.before is None else given.before.resolve()
    for checkout in (before, after):
        if not (checkout / ".venv" / "bin" / "python").exists():
            parser.error(f"{checkout} has no .venv: install that checkout into one of its own")
    repeats, count = (1, 2) if given.quick else (given.repeats, given.updates)
    rounds: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in (*UPDATES, *BACKWARD)}
    for turn in range(repeats):
        for measured in MEASURES:
            order = (before, after) if turn % 2 == 0 else (after, before)
            both = [measure(checkout, measured, count, given.core) for checkout in order]
            for name in both[0]:
                rounds[name].append([found[name] for found in (both if turn % 2 == 0 else both[::-1])])
                ratio = rounds[name][-1][0]["cpu_seconds"] / rounds[name][-1][1]["cpu_seconds"]
                print(f"{name}, round {turn + 1}: {ratio:.3f}", flush=True)
    record = {"before": commit(before), "after": commit(after), "repeats": repeats, "updates": count, "rounds": rounds}
    if not given.quick:
        write_json(RESULTS / "products_speed.json", record)
        write_table(RESULTS / "products_speed.md", table(record))
    print("\n".join(table(record)))


if __name__ == "__main__":
    main()
