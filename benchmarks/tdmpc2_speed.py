"""Seconds of an update of TD-MPC2, ours and the official code's, eager and compiled, on this CPU.

    python benchmarks/tdmpc2_speed.py --official CLONE --python VENV/bin/python   # medians of 5, in turn
    python benchmarks/tdmpc2_speed.py --quick                                     # one short measurement of ours

CLONE is a checkout of github.com/nicklashansen/tdmpc2 (MIT), VENV an environment with torch and tensordict. The
official code is for GPUs; a copy in a temporary folder names the CPU in their place, does without Adam's `capturable`,
and does not move its networks from the CPU to the CPU, which the present tensordict can't. Both update the networks of
the 5-million-parameter agent on the sizes of HalfCheetah, with windows that are there already: neither pays for
sampling them. Ours draws its random numbers in the measured time, as theirs does. Each measurement is a process of its
own with one thread; the first updates, in which steps are recorded or compiled, are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

from study import RESULTS, git_commit

from surefoot.core.base.files import write_json

OBSERVATIONS, ACTIONS, ROWS, HORIZON, WARM = 17, 6, 256, 3, 3
KINDS = ("ours", "official, eager", "official, compiled")
DRIVER = """
import json, sys, time, types
sys.path.insert(0, sys.argv[1])
compiled, updates, warm, rows, horizon, observations, actions = json.loads(sys.argv[2])
import torch, yaml
torch.set_num_threads(1)
torch.manual_seed(0)
from common import world_model
world_model.WorldModel.to = lambda self, *given, **named: self
from tdmpc2 import TDMPC2
found = yaml.safe_load(open(sys.argv[1] + "/config.yaml"))
found = {k: float(v) if k == "entropy_coef" else v for k, v in found.items()}
found.update(obs_shape={"state": (observations,)}, action_dim=actions, episode_length=1000, multitask=False, task_dim=0,
             obs="state", episodic=False, compile=compiled, lr=float(found["lr"]), tasks=[], batch_size=rows,
             bin_size=(found["vmax"] - found["vmin"]) / (found["num_bins"] - 1))
agent = TDMPC2(types.SimpleNamespace(**found))
batch = (torch.randn(horizon + 1, rows, observations), torch.rand(horizon, rows, actions) * 2 - 1,
         torch.randn(horizon, rows, 1), torch.zeros(horizon, rows, 1))
for _ in range(warm):
    agent._update(*batch)
wall, cpu = time.perf_counter(), time.process_time()
for _ in range(updates):
    agent._update(*batch)
wall, cpu = (time.perf_counter() - wall) / updates, (time.process_time() - cpu) / updates
print(json.dumps({"seconds": wall, "cpu_seconds": cpu}))
"""


def ours(updates: int) -> dict[str, float]:
    """Seconds of one update, on this process's clock and on its processor."""
    import torch

    from surefoot.core.base.spec import Spec
    from surefoot.core.engine.learner import Learner
    from surefoot.core.engine.sources import Uniform
    from surefoot.core.nn.native import kernels
    from surefoot.model_based import TDMPC2

    torch.set_num_threads(1)
    kernels.keep_memory()
    torch.manual_seed(0)
    agent = TDMPC2(Spec(OBSERVATIONS, ACTIONS, (-1.0,) * ACTIONS, (1.0,) * ACTIONS), episode_length=1000).fresh(0)
    shape = (ROWS, HORIZON)
    batch = {
        "observations": torch.randn(*shape, OBSERVATIONS),
        "next_observations": torch.randn(*shape, OBSERVATIONS),
        "actions": torch.rand(*shape, ACTIONS) * 2 - 1,
        "rewards": torch.randn(shape),
        "terminations": torch.zeros(shape),
        "mask": torch.ones(shape),
    }
    learner = Learner([agent], [0], Uniform(lambda indices: batch, ROWS), batch_size=ROWS, kernels=True)
    learner.run(WARM)
    wall, cpu = time.perf_counter(), time.process_time()
    learner.run(updates)
    return {
        "seconds": (time.perf_counter() - wall) / updates,
        "cpu_seconds": (time.process_time() - cpu) / updates,
    }


def official(folder: pathlib.Path, python: str, compiled: bool, updates: int) -> dict[str, float]:
    """The same of the official code in `folder`."""
    arguments = json.dumps([compiled, updates, WARM, ROWS, HORIZON, OBSERVATIONS, ACTIONS])
    done = subprocess.run(
        [python, "-c", DRIVER, str(folder), arguments], capture_output=True, text=True, check=False, env=_environment()
    )
    if done.returncode:
        raise SystemExit(f"the official code failed: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def on_the_cpu(clone: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    """A copy of the official package whose device is the CPU."""
    source = clone / "tdmpc2"
    if not (source / "tdmpc2.py").is_file():
        raise SystemExit(f"{clone} has no tdmpc2/tdmpc2.py: give a checkout of github.com/nicklashansen/tdmpc2")
    for path in source.rglob("*"):
        if path.suffix in (".py", ".yaml"):
            copy = to / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8").replace("cuda:0", "cpu")
            copy.write_text(text.replace("capturable=True", "capturable=False"), encoding="utf-8")
    return to


def table(found: dict[str, list[dict[str, float]]]) -> list[str]:
    """The page of results."""
    cpu = {name: statistics.median(one["cpu_seconds"] for one in runs) for name, runs in found.items()}
    lines = [
        "# An update of TD-MPC2",
        "",
        f"The 5-million-parameter networks on {OBSERVATIONS} observations and {ACTIONS} actions, {ROWS} windows of "
        f"{HORIZON} steps, one thread; medians of {len(next(iter(found.values())))} in turn. "
        "`python benchmarks/tdmpc2_speed.py --official CLONE --python VENV/bin/python`.",
        "",
        "| code | CPU seconds | least | seconds | times ours |",
        "|---|---|---|---|---|",
    ]
    for name, runs in found.items():
        wall = statistics.median(one["seconds"] for one in runs)
        least = min(one["cpu_seconds"] for one in runs)
        lines.append(f"| {name} | {cpu[name]:.3f} | {least:.3f} | {wall:.3f} | {cpu[name] / cpu['ours']:.2f} |")
    lines += ["", "Seconds on the clock depend on what else ran on the machine; wanted: at least 1 times ours."]
    if len(found) < len(KINDS):
        lines += ["The official code under `torch.compile` was left out (`--eager`): compiling takes minutes."]
    return lines


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--official", type=pathlib.Path, help="a checkout of the official code")
    parser.add_argument("--python", default=sys.executable, help="of an environment with torch and tensordict")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--eager", action="store_true", help="leave the compiled one out: compiling takes minutes")
    parser.add_argument("--quick", action="store_true", help="one short measurement of ours")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(ours(options.one)))
        return
    kinds = KINDS[: 2 if options.eager else 3] if options.official is not None and not options.quick else KINDS[:1]
    rounds, updates = (1, 2) if options.quick else (options.rounds, options.updates)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as folder:
        copy = on_the_cpu(options.official, pathlib.Path(folder)) if len(kinds) > 1 else None
        for turn in range(rounds):
            for name in kinds:
                if name == "ours":
                    command = [sys.executable, __file__, "--one", str(updates)]
                    done = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment())
                    one = json.loads(done.stdout.strip().splitlines()[-1])
                else:
                    assert copy is not None
                    one = official(copy, options.python, name.endswith("compiled"), updates)
                found[name].append(one)
                print(
                    f"{turn + 1} of {rounds}, {name}: {one['cpu_seconds']:.3f} CPU s, {one['seconds']:.3f} s",
                    flush=True,
                )
    if options.quick:
        return
    (RESULTS / "tdmpc2_speed.md").write_text("\n".join(table(found)) + "\n", encoding="utf-8")
    write_json(
        RESULTS / "tdmpc2_speed.json",
        {"commit": git_commit(), "machine": platform.processor() or platform.machine(), "found": found},
    )


if __name__ == "__main__":
    main()
