"""Environment steps per second of systems built outside of the checkout, beside the native ones with the same header.

    python benchmarks/cpp_system_speed.py     # prints the table of docs/cpp_systems.md

A native system's header is copied to a folder under another name, described as one of a user's, and built. Per second
of CPU time of one thread, which other jobs disturb little; both run in turn, the best round counts.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import tempfile
import time
from typing import Any

import torch

from surefoot.cuda_ext.cubin import NATIVE
from surefoot.cuda_ext.library import build
from surefoot.cuda_ext.policy import NativePolicy
from surefoot.cuda_ext.rollout import rollout
from surefoot.cuda_ext.system import System
from surefoot.envs.cpp_system import CppSystem
from surefoot.envs.systems import system

SYSTEMS = ("cartpole_balance", "quadrotor_2d")
ENVS, ROUNDS = 8192, 15
STEPS = {"random": 500, "policy of 2 x 64 tanh": 50}


def outside(native: System, folder: pathlib.Path) -> CppSystem:
    """The same system as a user's own."""
    text = (NATIVE / "systems" / f"{native.name}.h").read_text(encoding="utf-8")
    header = folder / f"my_{native.name}.h"
    header.write_text(text.replace(f"struct {native.name} ", f"struct my_{native.name} "), encoding="utf-8")
    build(header)
    return CppSystem(
        header,
        states=native.states,
        actions=dict(zip(native.actions, zip(native.action_low, native.action_high))),
        observations=native.observations,
        parameters=native.parameters,
        uniforms=native.uniforms,
        normals=native.normals,
        time_step=native.time_step,
        max_steps=native.max_steps,
    )


def policy(native: System) -> NativePolicy:
    """Two hidden layers of 64 tanh units."""
    generator = torch.Generator().manual_seed(0)
    widths = [len(native.observations), 64, 64, len(native.actions)]
    weights = [torch.randn(b, a, generator=generator) / a**0.5 for a, b in itertools.pairwise(widths)]
    biases = [torch.zeros(width) for width in widths[1:]]
    low, high = (torch.tensor(bound) for bound in (native.action_low, native.action_high))
    return NativePolicy(weights, biases, (low + high) / 2, (high - low) / 2, "tanh")


def rates(pair: tuple[System, System], steps: int, rounds: int, **source: Any) -> list[float]:
    """Million steps per second of each; their sums of rewards must be the same bits."""
    best = [float("inf")] * 2
    for _ in range(rounds):
        returns = []
        for k, one in enumerate(pair):
            began = time.process_time()
            found = rollout(one, num_envs=ENVS, horizon=steps, episodes="many", threads=1, **source)
            best[k] = min(best[k], time.process_time() - began)
            returns.append(found.returns)
        assert torch.equal(*returns), "the two don't do the same"
    return [ENVS * steps / seconds / 1e6 for seconds in best]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one system, two rounds")
    arguments = parser.parse_args()
    names, rounds = (SYSTEMS[:1], 2) if arguments.quick else (SYSTEMS, ROUNDS)
    print("| header of | actions | native | outside | outside / native |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            native = system(name)
            pair = (native, outside(native, pathlib.Path(folder)))
            for what, steps in STEPS.items():
                source = {"random": True} if what == "random" else {"policy": policy(native)}
                inside, own = rates(pair, steps, rounds, **source)
                print(f"| {name} | {what} | {inside:.1f} | {own:.1f} | {own / inside:.2f} |", flush=True)


if __name__ == "__main__":
    main()
