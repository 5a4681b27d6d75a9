"""Stage 1: does it run at all. The machine, one rollout, plan and graph of each kind, the GPU tests, the waits."""

from __future__ import annotations

import collections
import functools
import importlib.metadata
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from learners import NAMES, made, moved, plans, policy_of
from measuring import ROOT, Bench

from surefoot.core.engine.capture import Graphed
from surefoot.cuda_ext import gpu
from surefoot.cuda_ext.rollout import rollout
from surefoot.envs import make_vec
from surefoot.envs.systems import system
from surefoot.online import PPO, spec_of
from surefoot.online.loops.on_policy import OnPolicyLoop

PACKAGES = (
    "torch numpy cuda-core cuda-bindings nvidia-cuda-nvrtc jax jaxlib triton gymnasium hydra-core nanobind numba mujoco"
)
TESTS = (
    "tests/cuda_ext/test_gpu_device.py",
    "tests/cuda_ext/test_gpu_plans.py",
    "tests/data/test_store.py",
    "tests/safe/test_reachability_solver.py",
    "tests/offline/test_engine.py",
    "tests/core/test_counter.py",
    "tests/core/test_pointwise.py",
)
"""Files with tests that need a GPU."""
SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")


def facts(bench: Bench) -> None:
    """The machine, its packages, and what its memory and multiprocessors reach."""
    versions: dict[str, str | None] = {}
    for name in PACKAGES.split():
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    bench.row("packages", None, packages=versions, python=platform.python_version())
    if bench.lacks_gpu("speed of the machine"):
        return
    device = torch.cuda.get_device_properties(0)
    more = {"memory": device.total_memory, "capability": [device.major, device.minor]}
    bench.row(device.name, device.multi_processor_count, "multiprocessors", **more)
    limits = gpu.driver_of(torch.device("cuda")).limits()
    bench.row("limits as the kernels are launched by", None, limits=str(limits))
    given = torch.empty(2**30, device="cuda")
    taken = torch.empty_like(given)
    bench.row("copy", 8 * 2**30 / bench.device_seconds_of(lambda: taken.copy_(given)) / 1e12, "TB/s")
    for name, dtype, shortened in (
        ("float32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("bfloat16", torch.bfloat16, False),
    ):
        torch.backends.cuda.matmul.allow_tf32 = shortened
        x = torch.randn(8192, 8192, device="cuda", dtype=dtype)
        seconds = bench.device_seconds_of(functools.partial(torch.mm, x, x))
        bench.row(f"product 8192^3 {name}", 2 * 8192**3 / seconds / 1e12, "TFLOP/s")
    torch.backends.cuda.matmul.allow_tf32 = False
    y = torch.randn(16, 256, 256, device="cuda")
    seconds = bench.device_seconds_of(lambda: torch.bmm(y, y), 50)
    bench.row("bmm 16 x 256^3 float32", 2 * 16 * 256**3 / seconds / 1e12, "TFLOP/s")
    _small_kernels(bench)


def _small_kernels(bench: Bench) -> None:
    z, graph = torch.zeros(16, device="cuda"), torch.cuda.CUDAGraph()

    def thousand() -> None:
        for _ in range(1000):
            z.add_(1)

    with torch.cuda.graph(graph):
        thousand()
    bench.row("a small kernel inside a graph", bench.device_seconds_of(graph.replay) / 1000 * 1e6, "us")
    bench.row("a small kernel, eager", bench.seconds_of(thousand) / 1000 * 1e6, "us")


def smoke(bench: Bench) -> None:
    """One rollout of each cut into threads beside the processor's, and one graph of each kind of Learner."""
    counts = (50, 4096, 20_000, 70_000) if bench.on_gpu else (50,)
    problems = [("pendulum", 50), *(("cartpole_balance", count) for count in counts), ("quadrotor_3d", counts[-1])]
    for name, envs in problems:
        bench.attempt(f"rollout {name} {envs}", functools.partial(_beside_processor, bench, name, envs))
    for name in NAMES:
        bench.attempt(f"graph {name}", functools.partial(_graph, bench, name))


def _beside_processor(bench: Bench, name: str, envs: int) -> None:
    s = system(name)
    options: Any = {"policy": policy_of(s), "num_envs": envs, "horizon": 50, "episodes": "many"}
    here, there = rollout(s, **options), rollout(s, **options, device=bench.device, backend="native")
    difference = float((there.returns.cpu() - here.returns).abs().max())
    bench.row(f"rollout {name} {envs}", difference, "largest difference of returns")


def _graph(bench: Bench, name: str) -> None:
    learner = made(name, 2, bench.device, 1000)
    learner.run(6 * learner.steps_per_graph + 5 if bench.on_gpu else 1)  # several steps at once, and single ones
    capture = learner.capture
    graphs = [*capture._graphs.values(), *capture._of_several.values()] if isinstance(capture, Graphed) else []
    captured = sum(graph.graph is not None for graph in graphs)
    bench.row(f"graph {name}", captured, f"of {len(graphs)} graphs", how=capture.how)
    if bench.on_gpu and captured == 0:
        bench.error(f"graph {name}", "no training step was captured")


def tests(bench: Bench) -> None:
    """The tests that need a GPU, several at a time; in a rehearsal they are only collected."""
    out = bench.out / "gpu-tests.xml"
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", *TESTS]
    command += ["-n", "10", "--timeout", "100", f"--junitxml={out}"] if bench.on_gpu else ["--collect-only"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    (bench.out / "gpu-tests.txt").write_text((done.stdout + done.stderr)[-400_000:])
    if not bench.on_gpu:
        found = re.search(r"(\d+)(?:/\d+)? tests collected", done.stdout)
        if found is None:
            bench.error("gpu tests", done.stdout[-500:] + done.stderr[-500:])
        else:
            bench.row("gpu tests", int(found[1]), "collected; they need a GPU")
        return
    text = out.read_text() if out.exists() else ""
    counts = dict(re.findall(r'(errors|failures|skipped|tests)="(\d+)"', text))
    bench.row("gpu tests", int(counts.get("tests", 0)), "run", **counts)
    for line in [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))][:40]:
        bench.error(line[:160], "failed")
    if not counts:
        bench.error("gpu tests", done.stdout[-500:] + done.stderr[-500:])


def sanitizer(bench: Bench) -> None:
    """compute-sanitizer on small rollouts and plans, of which only this library's kernels are instrumented."""
    if bench.lacks_gpu("compute-sanitizer"):
        return
    for tool in SANITIZERS:
        bench.attempt(tool, functools.partial(_sanitize, bench, tool))


def _sanitize(bench: Bench, tool: str) -> None:
    own = [sys.executable, str(ROOT / "tools/gpu/check.py"), "--one", "small", "--out", str(bench.out)]
    options = ["--tool", tool, "--kernel-regex", "kns=surefoot", "--error-exitcode", "9", "--print-limit", "20"]
    command = ["compute-sanitizer", *options, *own]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    text = done.stdout + done.stderr
    with (bench.out / "sanitizer.txt").open("a") as file:
        file.write(f"== {tool} {done.returncode}\n{text[-8000:]}\n")
    summary = [line for line in text.splitlines() if "SUMMARY" in line or "hazard" in line.lower()]
    if done.returncode == 0:
        bench.row(tool, 0, "exit code", summary=summary[:4])
    else:
        bench.error(tool, f"exit code {done.returncode}: {' '.join(summary[:4])}")


def small(bench: Bench) -> None:
    """What compute-sanitizer watches: 201 cart-poles, a policy with layer norm and odd widths, and 3 plans."""
    s = system("cartpole_balance")
    for hidden, norm in (((64, 64), False), ((70, 33), True)):
        policy = policy_of(s, hidden, norm)
        options: Any = {"num_envs": 201, "horizon": 6, "record": ("observations", "actions", "rewards")}
        rollout(s, policy=policy, episodes="many", device=bench.device, backend="native", **options)
    plans(bench.device, 3, 128, 8)
    bench.wait()
    bench.row("small rollouts and plans", 1, "done")


def syncs(bench: Bench) -> None:
    """Where the host waits for the GPU, by torch's own account."""
    for name in ("iql", "sac", "tdmpc2", "dynamics"):
        learner = made(name, 2, bench.device, 1000)
        steps = 64 if bench.on_gpu else 1
        learner.run(6 * learner.steps_per_graph if bench.on_gpu else 1)
        _count_waits(bench, f"{name}, 64 steps", functools.partial(learner.run, steps))
    s = system("cartpole_balance")
    options: Any = {"num_envs": 4096 if bench.on_gpu else 64, "horizon": 50, "episodes": "many"}
    options |= {"policy": moved(policy_of(s), bench.device), "device": bench.device}
    _count_waits(bench, "rollout", functools.partial(rollout, s, **options))
    sizes = (64, 1024, 50) if bench.on_gpu else (2, 16, 4)
    _count_waits(bench, "plan", plans(bench.device, *sizes))
    envs, horizon, parts = (2048, 32, 8) if bench.on_gpu else (16, 8, 2)
    env = make_vec("native/cartpole-swingup", envs)
    config = PPO.configure(num_envs=envs, horizon=horizon, minibatches=parts, epochs=4)
    loop = OnPolicyLoop([PPO(spec_of(env), config).fresh(0)], [0], env, planned_steps=10**8, device=bench.device)
    loop.run(2 * envs * horizon)
    _count_waits(bench, "PPO, a block", functools.partial(loop.run, envs * horizon))


def _count_waits(bench: Bench, name: str, function: Callable[[], Any]) -> None:
    def count() -> None:
        function()
        bench.wait()
        if not bench.on_gpu:
            bench.row(name, None, "ran; its waits need a GPU", skipped=True)
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                function()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        lines = [f"{w.filename}:{w.lineno}" for w in caught if "synchroniz" in str(w.message)]
        places = collections.Counter("/".join(line.split("/")[-2:]) for line in lines)
        bench.row(name, sum(places.values()), "waits", places=places.most_common(12))

    bench.attempt(name, count)
