"""Environment steps per second of the native rollouts, beside gymnax and gymnasium's SyncVectorEnv.

    python benchmarks/rollout_speed.py             # five rounds, all implementations in turn; writes the table
    python benchmarks/rollout_speed.py --quick     # one short round of ours, for CI
    python benchmarks/rollout_speed.py --rounds 1 --no-peers

Rates are per second of CPU time of the process (user + system), which other jobs disturb little; "wall" is per
second of the clock. Every measurement is a process of its own. The policy has two hidden layers of 64 tanh units;
its share of the processor's limit counts its multiply-adds only. gymnax needs benchmarks/peers/setup.sh gymnax; it runs
as it starts by itself, with a thread for each processor, and once more on one processor, where XLA's threads do not
wait for each other: that gives twice as many of its steps per second of CPU time.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

from machine import processor

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "results"
SYSTEMS = {"pendulum": "pendulum", "cartpole": "cartpole_balance"}
INPUTS = {"pendulum": 3, "cartpole": 4}
PINNED = "gymnax, 1 processor"
ENVS, STEPS = 4096, 200


def policy_flops(system: str) -> int:
    """Multiply-adds of one step of the policy, times two."""
    return 2 * (INPUTS[system] * 64 + 64 * 64 + 64)


def measure(system: str, actions: str, threads: int, seconds: float) -> dict[str, Any]:
    """Our rollout of ENVS environments by STEPS steps, repeated for at least `seconds` of CPU time."""
    import torch

    from surefoot import cuda_ext
    from surefoot.cuda_ext.policy import NativePolicy
    from surefoot.cuda_ext.rollout import rollout
    from surefoot.envs.systems import system as system_of

    native = cuda_ext.native()
    if native is None:
        sys.exit(f"the native module is not there: {cuda_ext.why_not_native()}")
    torch.manual_seed(0)
    simulated = system_of(SYSTEMS[system])
    widths = [len(simulated.observations), 64, 64, len(simulated.actions)]
    weights = [torch.randn(b, a) / a**0.5 for a, b in itertools.pairwise(widths)]
    high = torch.tensor(simulated.action_high)
    policy = NativePolicy(
        weights=weights,
        biases=[torch.zeros(width) for width in widths[1:]],
        action_middle=torch.zeros_like(high),
        action_half=high,
        activation="tanh",
    )
    how: dict[str, Any] = {"policy": policy} if actions == "policy" else {"random": True}

    def once(seed: int) -> None:
        rollout(simulated, num_envs=ENVS, horizon=STEPS, seeds=seed, episodes="many", threads=threads, **how)

    once(0)
    start, cpu, rounds = time.perf_counter(), time.process_time(), 0
    while time.process_time() - cpu < seconds or rounds < 3:
        rounds += 1
        once(rounds)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    steps = ENVS * STEPS * rounds
    return {
        "steps_per_cpu_second": steps / cpu,
        "steps_per_second": steps / wall,
        "peak_gflops": native.peak(5),
        "level": native.level(),
    }


def measure_step(seconds: float) -> dict[str, Any]:
    """The plain `step` interface of 4,096 cart-poles with numpy actions drawn beforehand."""
    import gymnasium
    import numpy as np

    vector = gymnasium.make_vec("surefoot:surefoot/CartPoleBalance-v0", num_envs=ENVS)
    vector.reset(seed=0)
    actions = [np.asarray(vector.action_space.sample()) for _ in range(8)]
    for action in actions:
        vector.step(action)
    start, cpu, steps = time.perf_counter(), time.process_time(), 0
    while time.process_time() - cpu < seconds:
        for action in actions:
            vector.step(action)
        steps += len(actions) * ENVS
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {"steps_per_cpu_second": steps / cpu, "steps_per_second": steps / wall}


def command(name: str, system: str, actions: str) -> list[str] | None:
    """The process that measures one implementation; None where it can't be run here."""
    own = [sys.executable, str(HERE / "rollout_speed.py"), "--one"]
    if name.startswith("ours"):
        return [*own, f"{system},{actions},{2 if name.endswith('2 threads') else 1}"]
    if name == "SyncVectorEnv":
        return [sys.executable, str(HERE / "peers" / "sync_speed.py"), "--system", system, "--actions", actions]
    environments = pathlib.Path(os.environ.get("SUREFOOT_PEERS", "/tmp/surefoot-peers"))
    python = environments / "gymnax" / "bin" / "python"
    script = str(HERE / "peers" / "gymnax_speed.py")
    return [str(python), script, "--system", system, "--actions", actions] if python.exists() else None


def run(line: list[str], pinned: bool = False) -> dict[str, Any]:
    """Run one measurement, `pinned` to one processor, and read its line of JSON."""
    alone = functools.partial(os.sched_setaffinity, 0, {max(os.sched_getaffinity(0))}) if pinned else None
    done = subprocess.run(line, capture_output=True, text=True, check=False, preexec_fn=alone)
    if done.returncode:
        sys.exit(f"{' '.join(line)} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found.setdefault("steps_per_second", found.get("steps", 0) / found.get("seconds", 1))
    return found


def measure_all(rounds: int, peers: bool) -> dict[str, Any]:
    """All implementations in turn, `rounds` times: the largest rate of each (others' load only lowers it)."""
    names = ["ours", "ours, 2 threads"] + (["gymnax", PINNED, "SyncVectorEnv"] if peers else [])
    cases = [(n, s, a) for s in SYSTEMS for a in ("policy", "random") for n in names]
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for name, system, actions in cases:
            line = command(name, system, actions)
            if line is not None:
                found.setdefault(f"{name}|{system}|{actions}", []).append(run(line, name == PINNED))
        found.setdefault("ours, step|cartpole|given", []).append(run([*command_step()]))
    return {"machine": processor(), "rounds": rounds, "measurements": found}


def command_step() -> list[str]:
    return [sys.executable, str(HERE / "rollout_speed.py"), "--one", "step"]


def best(results: dict[str, Any], name: str, system: str, actions: str, key: str) -> float | None:
    """The largest rate of the rounds, or None where nothing was measured."""
    values = [entry[key] for entry in results["measurements"].get(f"{name}|{system}|{actions}", [])]
    return max(values) if values else None


def table(results: dict[str, Any]) -> list[str]:
    """Rates, ratios and goals."""
    peaks = [e["peak_gflops"] for k, v in results["measurements"].items() if k.startswith("ours|") for e in v]
    peak = max(peaks)
    lines = [
        "# Native rollouts: environment steps per second",
        "",
        f"{results['machine']}; {ENVS:,} environments, {STEPS} steps a call, best of {results['rounds']} rounds. "
        f"Millions of steps per second of CPU time; multiply-add limit of a core, measured: {peak:.0f} GFLOP/s. "
        "`python benchmarks/rollout_speed.py`",
        "",
        "| system | actions | ours | of limit | gymnax | gymnax, 1 processor | Sync | ours / gymnax "
        "| ours / gymnax, 1 processor | ours / Sync | 2 threads / 1, wall |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for system in SYSTEMS:
        for actions in ("policy", "random"):
            peers = ("gymnax", PINNED, "SyncVectorEnv")
            rate = {n: best(results, n, system, actions, "steps_per_cpu_second") for n in ("ours", *peers)}
            ours = rate["ours"]
            assert ours is not None
            share = f"{ours * policy_flops(system) / peak / 1e9:.2f}" if actions == "policy" else ""
            walls = [best(results, n, system, actions, "steps_per_second") for n in ("ours", "ours, 2 threads")]
            scaling = f"{walls[1] / walls[0]:.2f}" if walls[0] and walls[1] else "not measured"
            cells = [system, actions, f"{ours / 1e6:.1f}", share]
            cells += [f"{rate[n] / 1e6:.3g}" if rate[n] else "not run" for n in peers]
            cells += [f"{ours / rate[n]:.3g}" if rate[n] else "not run" for n in peers]
            lines.append("| " + " | ".join([*cells, scaling]) + " |")
    step = best(results, "ours, step", "cartpole", "given", "steps_per_cpu_second")
    sync = best(results, "SyncVectorEnv", "cartpole", "random", "steps_per_cpu_second")
    ratio = f", {step / sync:.0f} times SyncVectorEnv's" if step and sync else ""
    lines += ["", f"The plain `step` interface, {ENVS:,} cart-poles, numpy: {(step or 0) / 1e6:.1f} M steps/s{ratio}."]
    lines += ["", "Goals: with the policy at least 100 (pendulum) and 60 (cart-pole) times SyncVectorEnv, 2.5 "
              "times gymnax, 0.40 of the limit; random actions at least 200 and 80 times gymnax; two threads 1.7 times "
              "one; `step` 100 times SyncVectorEnv."]  # fmt: skip
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round of ours in memory, for CI")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one == "step":
        print(json.dumps(measure_step(1.0)))
    elif arguments.one:
        system, actions, threads = arguments.one.split(",")
        print(json.dumps(measure(system, actions, int(threads), 1.0)))
    elif arguments.quick:
        print("\n".join(table(measure_all(1, peers=False))))
    else:
        path = RESULTS / "rollout_speed.json"
        if not arguments.table:
            path.write_text(json.dumps(measure_all(arguments.rounds, not arguments.no_peers), indent=1) + "\n")
        lines = table(json.loads(path.read_text()))
        (RESULTS / "rollout_speed.md").write_text("\n".join(lines) + "\n")
        print("\n".join(lines))


if __name__ == "__main__":
    main()
