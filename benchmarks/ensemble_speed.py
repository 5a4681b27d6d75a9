"""Training steps of a dynamics ensemble per second beside a loop in plain PyTorch, in turn, in one run, one thread.

    python benchmarks/ensemble_speed.py             # both, medians of 5
    python benchmarks/ensemble_speed.py --quick     # both once, a few updates, writes nothing, for CI

Seven members of 4 x 200 with SiLU, 256 rows of its own for each, HalfCheetah's sizes (17 and 6 numbers), bootstrap
rows, weight decay by layer and learned bounds included. The loop is what a careful user writes: one `torch.baddbmm` a
layer, autograd and torch's Adam. Rates are per second of CPU time. Writes results/ensemble_speed.md and .json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import types
from typing import Any

import numpy as np
import torch
from beside import compare, line_of, timed

from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.core.nn.native import kernels
from surefoot.data.store import Store
from surefoot.model_based import LearnedDynamics
from surefoot.world_models.ensemble.gaussian import DECAYS

ROWS, STATE, ACTION, MEMBERS, BATCH, WIDTHS = 50_000, 17, 6, 7, 256, (200, 200, 200, 200)


def columns(seed: int) -> dict[str, np.ndarray]:
    """Random transitions."""
    source = np.random.default_rng(seed)
    return {
        "observations": source.standard_normal((ROWS, STATE), dtype=np.float32),
        "actions": source.uniform(-0.99, 0.99, (ROWS, ACTION)).astype(np.float32),
        "rewards": source.standard_normal(ROWS, dtype=np.float32),
        "next_observations": source.standard_normal((ROWS, STATE), dtype=np.float32),
    }


def ours(updates: int, seed: int) -> dict[str, Any]:
    """Updates of a worker of `surefoot train algo=dynamics`; no holdout is measured, as in the loop."""
    kernels.keep_memory()
    torch.manual_seed(seed)
    rows = columns(seed)
    agent = LearnedDynamics(Spec(STATE, ACTION, (-1.0,) * ACTION, (1.0,) * ACTION), model_epoch=10**9)
    agent.model.fit_statistics(rows)
    agent.model_best.epoch = 10**9
    stores = Stores(types.SimpleNamespace(valid=np.ones(ROWS, bool)), Store.pack(rows))
    learner = Learner([agent], [seed], agent.sources(stores), planned_steps=10**9, kernels=True)
    return {"peer": "surefoot", **timed(learner, updates, warm=3)}


def plain(updates: int, seed: int) -> dict[str, Any]:
    """The same in plain PyTorch."""
    torch.manual_seed(seed)
    rows = {name: torch.from_numpy(value) for name, value in columns(seed).items()}
    inputs = torch.cat([rows["observations"], rows["actions"]], -1)
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    targets = torch.cat([rows["next_observations"] - rows["observations"], rows["rewards"][:, None]], -1)
    sizes = (STATE + ACTION, *WIDTHS, 2 * (STATE + 1))
    weights = [torch.randn(MEMBERS, a, b) / (2 * a**0.5) for a, b in itertools.pairwise(sizes)]
    biases = [torch.zeros(MEMBERS, 1, b) for b in sizes[1:]]
    low, high = torch.full((STATE + 1,), -10.0), torch.full((STATE + 1,), 0.5)
    parameters = [value.requires_grad_() for value in (*weights, *biases, low, high)]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    samples = torch.randint(0, ROWS, (MEMBERS, ROWS))
    softplus, members = torch.nn.functional.softplus, torch.arange(MEMBERS)[:, None]

    def step() -> None:
        index = samples[members, torch.randint(0, ROWS, (MEMBERS, BATCH))]
        value, wanted = inputs[index], targets[index]
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            value = torch.baddbmm(bias, value, weight)
            value = torch.nn.functional.silu(value) if layer < len(WIDTHS) else value
        mean, raw = value.chunk(2, -1)
        log_variance = high - softplus(high - raw)
        log_variance = low + softplus(log_variance - low)
        loss = ((mean - wanted).square() * (-log_variance).exp() + log_variance).mean((1, 2)).sum()
        loss = loss + sum(0.5 * c * weight.square().sum() for c, weight in zip(DECAYS, weights, strict=True))
        loss = loss + 0.01 * (high.sum() - low.sum())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    for _ in range(3):
        step()
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(updates):
        step()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {"peer": "PyTorch", "updates": updates, "seconds": seconds, "cpu_seconds": cpu}


def commands(updates: int, seed: int) -> dict[str, list[str]]:
    """Ours and the loop."""
    common = ["--updates", str(updates), "--seed", str(seed)]
    return {
        "surefoot": [sys.executable, __file__, "--one", "ours", *common],
        "plain PyTorch": [sys.executable, __file__, "--one", "plain", *common],
    }


def main() -> None:
    """Measure in turn, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", choices=("ours", "plain"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        torch.set_num_threads(1)
        measure = ours if arguments.one == "ours" else plain
        print(json.dumps(measure(arguments.updates, arguments.seed)))
    elif arguments.quick:
        for command in commands(5, 0).values():
            print(line_of(command))
    else:
        title = f"Training steps of an ensemble of {MEMBERS} x 4 x 200, batch {BATCH}, HalfCheetah's sizes"
        rows = {"ensemble": lambda seed: commands(arguments.updates, seed)}
        compare("ensemble_speed", title, "python benchmarks/ensemble_speed.py", arguments.repeats, rows)


if __name__ == "__main__":
    main()
