"""Latency of one action of a trained policy for a control loop, beside onnxruntime, plain numpy and plain torch.

    python benchmarks/policy_latency.py            # medians of 5, in turn; writes results/policy_latency.*
    python benchmarks/policy_latency.py --quick    # few calls, for CI; writes nothing

17 observations, 6 actions, two hidden layers of 256, float32, one thread. `select_action` checks the observation's
shape, that it is finite, and that the action is; the others check nothing, and plain numpy runs the bare network.
"""

from __future__ import annotations

import argparse
import pathlib
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from study import RESULTS, git_commit

from surefoot.core.actors import TanhGaussianActor
from surefoot.core.files import write_json
from surefoot.core.normalizer import Normalizer
from surefoot.core.policy import Policy

OBSERVATIONS, ACTIONS, HIDDEN, BAR = 17, 6, (256, 256), 12.0
"""The bar is in microseconds, of the median."""


def made() -> Policy:
    """An untrained policy with a normaliser and bounds of its own."""
    torch.manual_seed(0)
    normalizer = Normalizer(OBSERVATIONS)
    normalizer.fit(torch.randn(1000, OBSERVATIONS) * 3 + 1)
    actor = TanhGaussianActor(OBSERVATIONS, ACTIONS, HIDDEN)
    return Policy.of(actor, normalizer, torch.full((ACTIONS,), -2.0), torch.full((ACTIONS,), 3.0))


def ways(policy: Policy, folder: pathlib.Path) -> dict[str, Callable[[np.ndarray], Any]]:
    """Name -> a function of one observation (O,) float32."""
    mlp: Any = policy.actor.mlp
    weights, biases = ([p.numpy() for p in group] for group in (mlp.weights, mlp.biases))

    def plain_numpy(observation: np.ndarray) -> np.ndarray:
        value = observation
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            value = np.maximum(weight @ value + bias, 0)
        return np.tanh((weights[-1] @ value + biases[-1])[:ACTIONS])

    @torch.no_grad()
    def plain_torch(observation: np.ndarray) -> np.ndarray:
        return policy(torch.from_numpy(observation).unsqueeze(0)).squeeze(0).numpy()

    found = {"select_action": policy.select_action, "plain numpy": plain_numpy, "plain torch": plain_torch}
    try:
        import onnxruntime
    except ImportError:
        print("onnxruntime is left out: it is not installed")
        return found
    policy.export(folder / "policy.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "policy.onnx"), options, providers=["CPUExecutionProvider"])
    return {**found, "onnxruntime": lambda o: session.run(["actions"], {"observations": o[None]})[0][0]}


def timed(act: Callable[[np.ndarray], Any], rows: np.ndarray, calls: int) -> dict[str, float]:
    """Percentiles of single calls, in microseconds."""
    taken = np.empty(calls)
    for call in range(-200, calls):
        row = rows[call % len(rows)]
        start = time.perf_counter_ns()
        act(row)
        taken[call] = time.perf_counter_ns() - start  # warming calls are written over
    return {f"p{q:g}": float(np.percentile(taken, q)) / 1000 for q in (50, 99)}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    calls, repeats = (500, 1) if arguments.quick else (arguments.calls, arguments.repeats)
    torch.set_num_threads(1)
    rows = np.random.default_rng(0).standard_normal((1000, OBSERVATIONS)).astype(np.float32)
    policy, found = made(), {}
    with tempfile.TemporaryDirectory() as folder:
        measured = ways(policy, pathlib.Path(folder))
        for row in rows[:50]:
            expected = policy(torch.from_numpy(row)[None])[0].numpy()
            np.testing.assert_allclose(policy.select_action(row), expected, rtol=0, atol=1e-6)
        for _ in range(repeats):
            for name, act in measured.items():
                found.setdefault(name, []).append(timed(act, rows, calls))
    lines = table(found, repeats)
    if not arguments.quick:
        value = {"machine": platform.machine(), "git": git_commit(), "calls": calls, "runs": found}
        write_json(RESULTS / "policy_latency.json", value)
        (RESULTS / "policy_latency.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def table(found: dict[str, list[dict[str, float]]], repeats: int) -> list[str]:
    """The page of results."""
    middle = {
        name: {q: statistics.median(one[q] for one in runs) for q in ("p50", "p99")} for name, runs in found.items()
    }
    ours = middle["select_action"]["p50"]
    return [
        "# One action of a policy",
        "",
        f"{OBSERVATIONS} observations, {ACTIONS} actions, hidden 256-256, float32; medians of {repeats} runs "
        "in turn, one thread. `python benchmarks/policy_latency.py`.",
        "",
        "| way | microseconds of a call: median | 99 % |",
        "|---|---|---|",
        *(f"| {name} | {one['p50']:.1f} | {one['p99']:.1f} |" for name, one in middle.items()),
        "",
        f"- median microseconds of `select_action`, checks included: {ours:.1f}, at most {BAR:g}: "
        f"{'met' if ours <= BAR else 'NOT met'}",
    ]


if __name__ == "__main__":
    main()
