"""PPO on one MuJoCo environment, acting and learning: ours beside stable-baselines3 in turn, at the same settings.

    python benchmarks/ppo_mujoco_speed.py --python PYTHON     # of an environment with stable-baselines3
    python benchmarks/ppo_mujoco_speed.py --quick             # ours alone, one block, for CI

Blocks of 2,048 steps of one environment, ten epochs of minibatches of 64, networks of 64-64 with tanh: the defaults of
stable-baselines3. The environment's own time is part of both.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from typing import Any

from beside import compare, peer_python

ENVIRONMENTS = ("Hopper-v5", "HalfCheetah-v5")
BLOCK, STEPS = 2048, 5 * 2048
SETTINGS: dict[str, Any] = {
    "num_envs": 1,
    "horizon": BLOCK,
    "minibatches": BLOCK // 64,
    "epochs": 10,
    "hidden": (64, 64),
}


def ours(environment: str, steps: int, seed: int) -> dict[str, Any]:
    """Steps of ours, of the clock and of the CPU, after a block that is not counted."""
    import torch

    from surefoot.envs import make_vec
    from surefoot.online import PPO, spec_of
    from surefoot.online.loops.loop import make_loop

    torch.set_num_threads(1)
    env = make_vec(environment, 1)
    agent = PPO(spec_of(env), **SETTINGS).fresh(seed)
    loop = make_loop([agent], [seed], env, planned_steps=BLOCK + steps, kernels=True)
    loop.run(BLOCK)
    start, cpu_start = time.perf_counter(), time.process_time()
    loop.run(steps)
    return {
        "updates": steps,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu_start,
    }


def main() -> None:
    """Run ours beside theirs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ours alone, one block, for CI")
    parser.add_argument("--python", help="of an environment with stable-baselines3 (default: peers/setup.sh's)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", nargs=2, metavar=("ENVIRONMENT", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        print(json.dumps(ours("Hopper-v5", BLOCK, 0)))
        return
    if arguments.one:
        print(json.dumps(ours(arguments.one[0], STEPS, int(arguments.one[1]))))
        return
    here = pathlib.Path(__file__).resolve()
    python = arguments.python or peer_python("sb3", "run benchmarks/peers/setup.sh sb3, or name one with --python")
    theirs = [python, str(here.parent / "peers" / "sb3_ppo_mujoco.py")]
    compare(
        "ppo_mujoco_speed",
        "PPO on one MuJoCo environment: steps in it, acting and learning",
        "python benchmarks/ppo_mujoco_speed.py",
        arguments.repeats,
        {
            name: lambda seed, name=name: {  # type: ignore[misc]
                "surefoot": [sys.executable, str(here), "--one", name, str(seed)],
                "stable-baselines3": [*theirs, name, str(STEPS), str(seed)],
            }
            for name in ENVIRONMENTS
        },
        unit="Steps",
    )


if __name__ == "__main__":
    main()
