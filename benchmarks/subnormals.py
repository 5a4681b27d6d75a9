"""Training steps per second with numbers below 1e-38 counted as 0 and with them kept, one thread on one core.

    python benchmarks/subnormals.py            # writes results/subnormals.md and .json
    python benchmarks/subnormals.py --quick    # a few steps, for CI

CQL (two critics of 256-256, 4 sampled actions a block) on random rows of HalfCheetah's sizes. Its soft maximum over
sampled actions gives most of them gradients that are the smaller the larger the values are: the critics' last layers
are multiplied by a factor beforehand, and the learning that would take them there is left out. Both ways by turns;
rates are per second of CPU time, medians over the repeats.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import time
from unittest import mock

import numpy as np
import torch

from surefoot.core.base.files import write_json
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.native import kernels
from surefoot.data.store import Store
from surefoot.offline.cql import CQL

RESULTS = pathlib.Path(__file__).parent / "results"
FACTORS = (1, 10, 100, 1000)
ROWS = 20_000


def learner(factor: float) -> Learner:
    """CQL whose values are about `factor` times as large as usual at the start."""
    source = np.random.default_rng(0)
    store = Store.pack(
        {
            "observations": source.standard_normal((ROWS, 17), dtype=np.float32),
            "actions": source.uniform(-0.99, 0.99, (ROWS, 6)).astype(np.float32),
            "rewards": source.standard_normal(ROWS, dtype=np.float32),
            "terminations": np.zeros(ROWS, bool),
            "next_observations": source.standard_normal((ROWS, 17), dtype=np.float32),
        }
    )
    agent = CQL(Spec(17, 6, (-1.0,) * 6, (1.0,) * 6), sampled_actions=4).fresh(0)
    with torch.no_grad():
        for critic in (agent.critic, agent.target_critic):
            critic.mlp.weights[-1].mul_(factor)
    return Learner([agent], [0], Uniform(store.gather, ROWS), planned_steps=1_000_000, kernels=True)


def rate(made: Learner, steps: int, flushed: bool) -> float:
    """Training steps per second of CPU time."""
    with mock.patch.object(torch, "set_flush_denormal", torch.set_flush_denormal if flushed else lambda mode: False):
        start = time.process_time()
        made.run(steps)
        return steps / (time.process_time() - start)


def main() -> None:
    """Measure by turns, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    repeats, steps, factors = (1, 2, FACTORS[-1:]) if given.quick else (given.repeats, given.steps, FACTORS)
    torch.set_num_threads(1)
    kernels.keep_memory()
    found: dict[str, dict[str, list[float]]] = {}
    sizes: dict[str, float] = {}
    for factor in factors:
        made = learner(factor)
        sizes[str(factor)] = abs(made.run(2)["q_sampled"][0])
        rates: dict[str, list[float]] = {"as 0": [], "kept": []}
        for _ in range(repeats):
            for name, values in rates.items():
                values.append(rate(made, steps, name == "as 0"))
        found[str(factor)] = rates
    text = [
        "# Numbers below 1e-38",
        "",
        "CQL's training steps per second of CPU time, one thread on one core, by turns; medians (lowest to highest) of "
        f"{repeats} repeats. Last layer times: what the critics' was multiplied by before the start; mean value: what "
        "sampled actions have then, without its sign. "
        "`python benchmarks/subnormals.py`.",
        "",
        "| last layer times | mean value | counted as 0 | kept | ratio of medians |",
        "|---|---|---|---|---|",
    ]
    for factor, rates in found.items():
        shown = [f"{statistics.median(v):.1f} ({min(v):.1f} to {max(v):.1f})" for v in rates.values()]
        ratio = statistics.median(rates["as 0"]) / statistics.median(rates["kept"])
        text.append(f"| {factor} | {sizes[factor]:.3g} | {' | '.join(shown)} | {ratio:.2f} |")
    print("\n".join(text))
    if not given.quick:
        write_json(RESULTS / "subnormals.json", {"mean_value": sizes, "steps_per_second": found})
        (RESULTS / "subnormals.md").write_text("\n".join([*text, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
