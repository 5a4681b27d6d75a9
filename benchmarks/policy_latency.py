"""Latency of one action of a trained policy for a control loop, beside onnxruntime, plain numpy and plain torch.

    python benchmarks/policy_latency.py            # medians of 5, in turn; writes results/policy_latency.*
    python benchmarks/policy_latency.py --quick    # few calls, for CI; writes nothing

17 observations, 6 actions, float32, one thread: a Gaussian policy of two hidden layers of 256, a flow of four steps of
three layers of 512, and a one-step student of as many. `select_action` checks the observation's
shape, that it is finite, and that the action is, and draws the noise of a flow; the others check nothing and are given
the same noise at each call, and plain numpy runs the bare network.
"""

from __future__ import annotations

import argparse
import os
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

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.flow_actor import FlowActor, OneStepActor
from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.base.files import write_json
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.nn.velocity import EmbeddedVelocity, PlainVelocity
from surefoot.core.policy.policy import Policy

OBSERVATIONS, ACTIONS, HIDDEN, WIDE, STEPS = 17, 6, (256, 256), (512, 512, 512), 4
BAR = 1.1
"""Most that `select_action` may take, onnxruntime's median being 1."""
SIZES = (OBSERVATIONS, ACTIONS)
KINDS: dict[str, Callable[[], Actor]] = {
    "Gaussian": lambda: TanhGaussianActor(*SIZES, HIDDEN),
    "flow": lambda: FlowActor(PlainVelocity(*SIZES, WIDE), ACTIONS, STEPS),
    "ReinFlow's": lambda: FlowActor(EmbeddedVelocity(*SIZES, WIDE), ACTIONS, STEPS, clip_each=True),
    "one step": lambda: OneStepActor(*SIZES, WIDE),
}


def made(kind: str) -> Policy:
    """An untrained policy with a normaliser and bounds of its own."""
    torch.manual_seed(0)
    normalizer = Normalizer(OBSERVATIONS)
    normalizer.fit(torch.randn(1000, OBSERVATIONS) * 3 + 1)
    return Policy.of(KINDS[kind](), normalizer, torch.full((ACTIONS,), -2.0), torch.full((ACTIONS,), 3.0))


def ways(policy: Policy, folder: pathlib.Path) -> dict[str, Callable[[np.ndarray], Any]]:
    """Name -> a function of one observation (O,) float32."""
    noise = torch.randn(1, policy.noise_dim) if policy.always_samples else None
    mlp: Any = getattr(policy.actor, "mlp", None)

    def plain_numpy(observation: np.ndarray) -> np.ndarray:
        value = observation
        weights, biases = arrays
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            value = np.maximum(weight @ value + bias, 0)
        return np.tanh((weights[-1] @ value + biases[-1])[:ACTIONS])

    @torch.no_grad()
    def plain_torch(observation: np.ndarray) -> np.ndarray:
        return policy(torch.from_numpy(observation).unsqueeze(0), noise).squeeze(0).numpy()

    found = {"select_action": policy.select_action, "plain torch": plain_torch}
    if noise is None:
        arrays = tuple([p.numpy() for p in group] for group in (mlp.weights, mlp.biases))
        found["plain numpy"] = plain_numpy
    try:
        import onnxruntime
    except ImportError:
        print("onnxruntime is left out: it is not installed")
        return found
    policy.export(folder / "policy.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "policy.onnx"), options, providers=["CPUExecutionProvider"])
    given = {} if noise is None else {"noise": noise.numpy()}
    return {**found, "onnxruntime": lambda o: session.run(["actions"], {"observations": o[None], **given})[0][0]}


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
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        measured = {}
        for kind in KINDS:
            policy = made(kind)
            (place := pathlib.Path(folder) / kind.replace(" ", "_")).mkdir()
            measured[kind] = ways(policy, place)
            check(policy, rows[:50])
        for _ in range(repeats):
            for kind, acting in measured.items():
                for name, act in acting.items():
                    found.setdefault(kind, {}).setdefault(name, []).append(timed(act, rows, calls))
    lines = table(found, repeats)
    if not arguments.quick:
        value = {"machine": platform.machine(), "git": git_commit(), "calls": calls, "runs": found}
        write_json(RESULTS / "policy_latency.json", value)
        (RESULTS / "policy_latency.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def check(policy: Policy, rows: np.ndarray) -> None:
    """That `select_action` gives what the policy's `act` gives."""
    policy.reset(seed=1)
    memory = policy.begin(1, seed=1)
    for row in rows:
        expected, memory = policy.act(torch.from_numpy(row)[None], memory)
        tolerance = 1e-4 if policy.always_samples else 1e-6
        np.testing.assert_allclose(policy.select_action(row), expected[0].numpy(), rtol=0, atol=tolerance)


def table(found: dict[str, dict[str, list[dict[str, float]]]], repeats: int) -> list[str]:
    """The page of results."""
    lines = [
        "# One action of a policy",
        "",
        f"{OBSERVATIONS} observations, {ACTIONS} actions, float32: a Gaussian policy of 256-256; a flow of {STEPS} "
        "steps of 512-512-512, with FQL's network and with ReinFlow's; a one-step student of 512-512-512. Medians of "
        f"{repeats} runs in turn, one thread, on {os.cpu_count()} cores that {os.getloadavg()[0]:.0f} processes "
        "wanted: where these are more than the cores, the 99 % are the others'. `python benchmarks/policy_latency.py`.",
        "",
        "| policy | way | microseconds of a call: median | 99 % |",
        "|---|---|---|---|",
    ]
    medians = {
        kind: {
            name: {q: statistics.median(one[q] for one in runs) for q in ("p50", "p99")} for name, runs in ways.items()
        }
        for kind, ways in found.items()
    }
    for kind, ways in medians.items():
        for name, middle in ways.items():
            lines.append(f"| {kind} | {name} | {middle['p50']:.1f} | {middle['p99']:.1f} |")
    lines.append("")
    for kind, ways in medians.items():
        if "onnxruntime" in ways:
            share = ways["select_action"]["p50"] / ways["onnxruntime"]["p50"]
            met = "met" if share <= BAR else "NOT met"
            lines.append(
                f"- `select_action`, {kind}, checks and draws included: {share:.2f} of onnxruntime's time, at most "
                f"{BAR:g}: {met}"
            )
    return lines


if __name__ == "__main__":
    main()
