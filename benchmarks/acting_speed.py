"""Steps of a single environment, acting and learning, before and after a change: PPO's blocks and SAC's loop.

    git worktree add /tmp/before COMMIT        # and install it there, in an environment /tmp/before/.venv
    python benchmarks/acting_speed.py --before /tmp/before   # writes results/acting_speed.*
    python benchmarks/acting_speed.py --quick                # this checkout alone, few steps, for CI

PPO with blocks of 2,048 steps, ten epochs of minibatches of 64 and networks of 64-64; SAC with 256-256 and an update
of 256 rows a step. Each measurement is a process of its own on one core. Before and after alternate, which of both is
first changes from round to round, and a round's ratio is of its own two processes; reported is the median of the
ratios. Times are of the CPU. All tensors that a resumed run would need are compared after the steps: they must be equal
to the bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "results"
BLOCK = 2048
PPO_OPTIONS: dict[str, Any] = {
    "num_envs": 1, "horizon": BLOCK, "minibatches": BLOCK // 64, "epochs": 10, "hidden": (64, 64)
}  # fmt: skip
INITIAL = 500
MEASURES = {
    "PPO in Hopper-v5": ("PPO", "Hopper-v5", 2.0),
    "PPO in HalfCheetah-v5": ("PPO", "HalfCheetah-v5", 2.0),
    "SAC in HalfCheetah-v5": ("SAC", "HalfCheetah-v5", 1.2),
    "SAC in surefoot/Pendulum-v0": ("SAC", "surefoot/Pendulum-v0", None),
}
"""Name -> algorithm, environment, and how many times as fast the loop is to be."""


def one(algorithm: str, environment: str, steps: int) -> dict[str, Any]:
    """Microseconds of the CPU a step: of the loop, of acting in it, and of MuJoCo's physics; and what it came to."""
    import torch

    from surefoot import online
    from surefoot.envs import make_vec
    from surefoot.online.loops.loop import make_loop

    torch.set_num_threads(1)
    env: Any = make_vec(environment, 1)
    options = PPO_OPTIONS if algorithm == "PPO" else {"num_envs": 1, "initial_steps": INITIAL}
    agent = getattr(online, algorithm)(online.spec_of(env), **options).fresh(0)
    warm = BLOCK if algorithm == "PPO" else INITIAL + 100
    loop: Any = make_loop([agent], [0], env, planned_steps=warm + steps, kernels=True)
    loop.run(warm)
    spent = {"acting": 0.0, "physics": 0.0}

    def counted(name: str, call: Any) -> Any:
        def counting(*arguments: Any) -> Any:
            start = time.process_time()
            try:
                return call(*arguments)
            finally:
                spent[name] += time.process_time() - start

        return counting

    if algorithm == "PPO":
        loop.blocks.fill = counted("acting", loop.blocks.fill)
    else:
        loop.act = counted("acting", loop.act)
    start = time.process_time()
    loop.run(steps)
    taken = time.process_time() - start
    digest, state = hashlib.sha256(), loop.state(0)
    for name in sorted(state):
        digest.update(name.encode() + state[name].contiguous().numpy().tobytes())
    if hasattr(env, "batch"):  # after the state was taken: what a step of these simulations takes by itself
        start = time.process_time()
        for _ in range(count := min(steps, 1000)):
            env.batch.step(None, env.task.frame_skip)
        spent["physics"] = (time.process_time() - start) / count * steps
    share = {name: value / steps * 1e6 for name, value in spent.items()}
    return {"loop": taken / steps * 1e6, **share, "digest": digest.hexdigest()}


def measure(checkout: pathlib.Path, name: str, steps: int, core: int) -> dict[str, Any]:
    """`one` in a process of its own, by the environment of that checkout."""
    algorithm, environment, _ = MEASURES[name]
    python = checkout / ".venv" / "bin" / "python"
    pin = ["taskset", "-c", str(core)] if shutil.which("taskset") else []
    single = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    line = [*pin, str(python), str(HERE / "acting_speed.py"), "--one", algorithm, environment, str(steps)]
    done = subprocess.run(line, capture_output=True, text=True, env={**os.environ, **single}, cwd=checkout, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(line)} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def table(record: dict[str, Any]) -> list[str]:
    """The page of results."""
    lines = [
        "# Acting in one environment, before and after",
        "",
        f"Microseconds of the CPU a step, one thread on one core of {os.cpu_count()}, which {record['load']:.0f} "
        f"processes wanted; medians of {record['repeats']} rounds, in which before ({record['before']}) and after "
        f"({record['after']}) alternate. The ratio is the median of the rounds' ratios, with its smallest and largest. "
        "Physics is the simulator's call by itself. `python benchmarks/acting_speed.py`.",
        "",
        "| loop | loop before | after | acting before | after | physics | before / after | from, to | wanted |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, pairs in record["rounds"].items():
        wanted = MEASURES[name][2]
        ratios = [before["loop"] / after["loop"] for before, after in pairs]
        middle = {
            (side, key): statistics.median(pair[side][key] for pair in pairs)
            for side in (0, 1)
            for key in ("loop", "acting", "physics")
        }
        cells = [middle[0, "loop"], middle[1, "loop"], middle[0, "acting"], middle[1, "acting"]]
        found = statistics.median(ratios)
        met = "-" if wanted is None else f"{wanted:g}: {'met' if found >= wanted else 'NOT met'}"
        physics = f"{middle[1, 'physics']:.0f}" if middle[1, "physics"] else "-"
        numbers = " | ".join(f"{cell:.0f}" for cell in cells)
        lines.append(f"| {name} | {numbers} | {physics} | {found:.2f} | {min(ratios):.2f}, {max(ratios):.2f} | {met} |")
    lines.append("")
    for name, pairs in record["rounds"].items():
        wanted = MEASURES[name][2]
        if wanted is not None and statistics.median(b["loop"] / a["loop"] for b, a in pairs) < wanted:
            lines.append(_missed(name, pairs))
    same = all(before["digest"] == after["digest"] for pairs in record["rounds"].values() for before, after in pairs)
    lines += ["", f"What a resumed run would need was {'equal to the bit' if same else 'NOT EQUAL'} after these steps."]
    return lines


def _missed(name: str, pairs: list[list[dict[str, Any]]]) -> str:
    """Where the time of a loop is that is not as fast as it is to be."""
    before, after, acting, was, physics = (
        statistics.median(pair[side][key] for pair in pairs)
        for side, key in ((0, "loop"), (1, "loop"), (1, "acting"), (0, "acting"), (1, "physics"))
    )
    return (
        f"- {name}: acting took {was:.0f} of {before:.0f} before, so that without any acting the loop would be "
        f"{before / (before - was):.2f} times as fast. Of {after:.0f} after, {after - acting:.0f} are training steps, "
        f"{physics:.0f} physics and {acting - physics:.0f} the rest of acting."
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=pathlib.Path, help="a checkout with an environment .venv of its own")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=4, help="of PPO's steps")
    parser.add_argument("--steps", type=int, default=3000, help="of SAC's")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--page", action="store_true", help="write the page of the committed results anew")
    parser.add_argument("--one", nargs=3, metavar=("ALGORITHM", "ENVIRONMENT", "STEPS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(one(given.one[0], given.one[1], int(given.one[2]))))
        return
    if given.page:
        lines = table(json.loads((RESULTS / "acting_speed.json").read_text(encoding="utf-8")))
        (RESULTS / "acting_speed.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return
    if given.quick:
        print(json.dumps({name: one(*MEASURES[name][:2], BLOCK if "PPO" in name else 50) for name in MEASURES}))
        return
    after = HERE.parent
    if given.before is None or not (given.before / ".venv" / "bin" / "python").exists():
        parser.error("--before CHECKOUT is needed, which has an environment .venv of its own")
    from before_after import commit

    from surefoot.core.base.files import write_json

    before = given.before.resolve()
    rounds: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in MEASURES}
    for turn in range(given.repeats):
        for name in MEASURES:
            steps = given.blocks * BLOCK if "PPO" in name else given.steps
            order = (before, after) if turn % 2 == 0 else (after, before)
            found = [measure(checkout, name, steps, given.core) for checkout in order]
            rounds[name].append(found if turn % 2 == 0 else found[::-1])
            print(
                f"{name}, round {turn + 1}: {rounds[name][-1][0]['loop'] / rounds[name][-1][1]['loop']:.2f}", flush=True
            )
    record = {
        "before": commit(before),
        "after": commit(after),
        "repeats": given.repeats,
        "load": os.getloadavg()[0],
        "rounds": rounds,
    }
    lines = table(record)
    write_json(RESULTS / "acting_speed.json", record)
    (RESULTS / "acting_speed.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
