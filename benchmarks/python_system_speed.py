"""Environment steps per second of systems written in python, compiled by numba, beside the native ones.

    python benchmarks/python_system_speed.py     # prints the table of docs/python_systems.md

Per second of CPU time of one thread, which other jobs disturb little; both kinds run in turn, the best round counts.
"""

from __future__ import annotations

import itertools
import pathlib
import sys
import time

import torch

from surefoot.cuda_ext.policy import NativePolicy
from surefoot.cuda_ext.rollout import rollout
from surefoot.envs.systems import system

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "envs"))
import python_twins

ENVS, STEPS, ROUNDS = 8192, 100, 9


def policy(observations: int) -> NativePolicy:
    """Two hidden layers of 64 tanh units."""
    generator = torch.Generator().manual_seed(0)
    widths = [observations, 64, 64, 1]
    weights = [torch.randn(b, a, generator=generator) / a**0.5 for a, b in itertools.pairwise(widths)]
    biases = [torch.zeros(width) for width in widths[1:]]
    return NativePolicy(weights, biases, torch.zeros(1), torch.ones(1), "tanh")


def rates(name: str, by_policy: bool) -> tuple[float, float]:
    """Million steps per second in python and native."""
    native = system(name)
    pair = (getattr(python_twins, name)(), native)
    source = {"policy": policy(len(native.observations))} if by_policy else {"random": True}
    best = [float("inf")] * 2
    for _ in range(ROUNDS):
        for k, simulated in enumerate(pair):
            began = time.process_time()
            rollout(simulated, num_envs=ENVS, horizon=STEPS, episodes="many", threads=1, **source)  # type: ignore[arg-type]
            best[k] = min(best[k], time.process_time() - began)
    return ENVS * STEPS / best[0] / 1e6, ENVS * STEPS / best[1] / 1e6


def main() -> None:
    """Print the table."""
    print("| system | actions | python | native | native / python |\n|---|---|---|---|---|")
    for name in ("pendulum", "cartpole_balance"):
        for by_policy in (True, False):
            python, native = rates(name, by_policy)
            what = "policy of 2 x 64 tanh" if by_policy else "random"
            print(f"| {name} | {what} | {python:.1f} | {native:.1f} | {native / python:.1f} |", flush=True)


if __name__ == "__main__":
    main()
