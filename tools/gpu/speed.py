"""Stage 2: how fast. Rollouts, Learners, PPO and planners, and one kernel under Nsight Compute."""

from __future__ import annotations

import cProfile
import functools
import io
import itertools
import pstats
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from learners import made, moved, plans, policy_of
from measuring import ROOT, Bench

from surefoot.core.base.random import STEPS_PER_BLOCK
from surefoot.core.engine.capture import Capture, Graphed
from surefoot.core.engine.learner import Learner
from surefoot.cuda_ext import operation
from surefoot.cuda_ext.launch import THREADS
from surefoot.cuda_ext.rollout import rollout
from surefoot.envs import make_vec
from surefoot.envs.systems import system
from surefoot.online import PPO, spec_of
from surefoot.online.loops.on_policy import OnPolicyLoop

SYSTEMS = ("cartpole_balance", "pendulum", "quadrotor_3d")
ENVS = (4096, 65_536, 1_048_576)
SEEDS = {"iql": (1, 4, 16, 64), "sac": (1, 16, 64), "fql": (1, 16, 64), "tdmpc2": (1, 4, 16), "dynamics": (1, 16)}
"""Learner -> numbers of seeds."""
EAGER = (1, 16)
"""Seeds of which steps are taken without a graph too."""
BLOCKS = ((16_384, 32, 8), (2048, 64, 16))
"""Environments, steps and minibatches of PPO."""
STATES = (1, 64, 1024, 8192)
"""That are planned for at once."""
SECTIONS = ("SpeedOfLight", "Occupancy", "WarpStateStats", "MemoryWorkloadAnalysis_Tables", "InstructionStats")
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_"
METRICS = (f"{CONFLICTS}st.sum", f"{CONFLICTS}ld.sum", "smsp__inst_executed.sum", "sm__inst_executed_pipe_fma.sum")
SHOWN = (
    "Compute (SM) Throughput",
    "L1/TEX Cache Throughput",
    "Achieved Occupancy",
    "Executed Ipc Active",
    "Duration",
    *METRICS[:3],
)
"""Of Nsight Compute's report."""


@contextmanager
def batches_kept() -> Iterator[list[Any]]:
    """The native batches that rollouts make in the block."""
    kept: list[Any] = []
    usual = operation.batch_maker

    def maker(*arguments: Any) -> Callable[..., Any]:
        make = usual(*arguments)

        def keep(*given: Any) -> Any:
            kept.append(make(*given))
            return kept[-1]

        return keep

    operation.batch_maker = maker
    try:
        yield kept
    finally:
        operation.batch_maker = usual


def rollouts(bench: Bench) -> None:
    """Steps a second of the kernel alone and of the whole call, and how many blocks a multiprocessor holds."""
    for name, envs in itertools.product(SYSTEMS, ENVS if bench.on_gpu else (64,)):
        bench.attempt(f"{name} {envs}", functools.partial(_rollout, bench, name, envs))


def _rollout(bench: Bench, name: str, envs: int) -> None:
    s, steps = system(name), 500 if envs <= 65_536 else 100
    if not bench.on_gpu:
        steps = 5
    options: Any = {"policy": moved(policy_of(s), bench.device), "num_envs": envs, "horizon": steps}
    options |= {"episodes": "many", "device": bench.device}
    with batches_kept() as batches:
        start = time.perf_counter()
        rollout(s, **options)
        bench.wait()
        first = time.perf_counter() - start
    batch = batches[-1]
    alone = bench.device_seconds_of(lambda: batch.run(0 if bench.on_gpu else 1, True))
    whole = bench.seconds_of(lambda: rollout(s, **options), 0.5)
    more: dict[str, Any] = {"first_call_s": first}
    if bench.on_gpu:
        kernel, plan = batch._kernels[0], batch._plan
        occupancy = kernel.occupancy.max_active_blocks_per_multiprocessor(THREADS, plan.shared_bytes)
        more |= {"plan": str(plan), "blocks_a_multiprocessor": occupancy}
    bench.row(f"{name} {envs}: kernel", envs * steps / alone, "steps/s", **more)
    bench.row(f"{name} {envs}: whole call", envs * steps / whole, "steps/s", overhead_us=1e6 * (whole - alone))


def learners(bench: Bench) -> None:
    """Updates a second of the Learner by graphs and without, and the part of a graph's replay in it."""
    for name, counts in SEEDS.items():
        for seeds in counts if bench.on_gpu else counts[:1]:
            bench.attempt(f"{name} x{seeds}", functools.partial(_learner, bench, name, seeds))


def _learner(bench: Bench, name: str, seeds: int) -> None:
    if bench.on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    learner = made(name, seeds, bench.device, 200_000 if bench.on_gpu else 1000)
    learner.run(5 * learner.steps_per_graph if bench.on_gpu else 1)  # warm, and captured
    rate = bench.rate_of(learner.run, 64 if bench.on_gpu else 1, 1.6)
    more: dict[str, Any] = {"seed_updates": rate * seeds, "how": learner.capture.how}
    if bench.on_gpu:
        more |= {"memory_mb": torch.cuda.max_memory_allocated() / 1e6, **_replay(bench, learner, rate)}
    start = time.perf_counter()
    learner.stream._fill(10**6)
    bench.wait()
    more["host_noise_us_a_step"] = 1e6 * (time.perf_counter() - start) / STEPS_PER_BLOCK
    bench.row(f"{name} x{seeds}: graph", rate, "updates/s", **more)
    if seeds in EAGER and bench.on_gpu:
        learner.capture = Capture(learner.capture.gather, learner.capture.work, "to compare")
        learner.run(2)
        bench.row(f"{name} x{seeds}: eager", bench.rate_of(learner.run, 8, 0.8), "updates/s")


def _replay(bench: Bench, learner: Learner, rate: float) -> dict[str, float]:
    """Of a Learner with one graph: seconds of a replay, and the share of a step that is the host's."""
    assert isinstance(learner.capture, Graphed)
    graphs = [held.graph for held in learner.capture._of_several.values() if held.graph is not None]
    if len(graphs) != 1:
        return {}
    steps = 20 * learner.steps_per_graph

    def several() -> None:
        for _ in range(20):
            graphs[0].replay()

    seconds = bench.device_seconds_of(several) / steps
    return {"replay_us": 1e6 * seconds, "host_share": max(0.0, 1 - rate * seconds)}


def compiled(bench: Bench) -> None:
    """The same with each loss through torch.compile, inside the graph: what fusing operations would give."""
    if bench.lacks_gpu("compiled losses inside a graph"):
        return
    for seeds in (1, 16):
        bench.attempt(f"iql x{seeds}", functools.partial(_compiled, bench, seeds))


def _compiled(bench: Bench, seeds: int) -> None:
    learner = made("iql", seeds, bench.device, compiled=True)
    start = time.perf_counter()
    learner.run(5 * learner.steps_per_graph)
    bench.wait()
    first = time.perf_counter() - start
    bench.row(f"iql x{seeds}: graph", bench.rate_of(learner.run, 64, 1.5), "updates/s", compile_s=first)


def ppo(bench: Bench) -> None:
    """PPO from end to end on native environments: samples a second, and where the time goes."""
    for envs, horizon, parts in BLOCKS if bench.on_gpu else ((32, 8, 2),):
        bench.attempt(f"{envs} x {horizon}", functools.partial(_ppo, bench, envs, horizon, parts))


def _ppo(bench: Bench, envs: int, horizon: int, parts: int) -> None:
    config = PPO.configure(num_envs=envs, horizon=horizon, minibatches=parts, epochs=4, learning_rate=1e-3)
    env, block = make_vec("native/cartpole-swingup", envs), envs * horizon
    agent = PPO(spec_of(env), config).fresh(0)
    loop = OnPolicyLoop([agent], [0], env, planned_steps=10**9, device=bench.device)
    loop.run((3 if bench.on_gpu else 1) * block)
    rate = bench.rate_of(loop.run, block, 5.0)
    profile = cProfile.Profile()
    profile.enable()
    loop.run(block)
    bench.wait()
    profile.disable()
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("cumulative").print_stats(35)
    (bench.out / f"ppo-{envs}.txt").write_text(text.getvalue())
    bench.row(f"{envs} x {horizon}", rate, "samples/s", block_ms=1e3 * block / rate)


def planners(bench: Bench) -> None:
    """MPPI, 1,024 candidates of 50 steps: plans a second for several states a call."""
    for env_id in ("native/cartpole-balance", "native/cartpole-swingup"):
        for states in STATES if bench.on_gpu else (1,):
            bench.attempt(f"{env_id[7:]} {states}", functools.partial(_plans, bench, env_id, states))


def _plans(bench: Bench, env_id: str, states: int) -> None:
    samples, horizon = (1024, 50) if bench.on_gpu else (16, 4)
    seconds = bench.seconds_of(plans(bench.device, states, samples, horizon, env_id), 0.7)
    bench.row(f"{env_id[7:]} {states}", states / seconds, "plans/s")


def ncu(bench: Bench) -> None:
    """Nsight Compute of one launch of cart-poles: limits, stalls, bank conflicts."""
    if bench.lacks_gpu("Nsight Compute"):
        return
    for envs in ENVS[:2]:
        bench.attempt(f"{envs}", functools.partial(_profile, bench, envs))


def _profile(bench: Bench, envs: int) -> None:
    own = [sys.executable, str(ROOT / "tools/gpu/check.py"), "--one", "once", "--out", str(bench.out)]
    options = ["--clock-control", "none", "-k", "regex:surefoot_rollout", "-c", "1", "--metrics", ",".join(METRICS)]
    for section in SECTIONS:
        options += ["--section", section]
    command = ["ncu", *options, *own, "--envs", str(envs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    with (bench.out / "ncu.txt").open("a") as file:
        file.write(f"== {envs}\n{done.stdout[-30_000:]}{done.stderr[-2000:]}\n")
    found = 0
    for key in SHOWN:
        line = next((line for line in done.stdout.splitlines() if key in line), None)
        if line is not None:
            bench.row(f"{envs}: {key}", None, " ".join(line.split())[-60:])
            found += 1
    if found == 0:
        bench.error(f"{envs}", f"exit code {done.returncode}: {done.stdout[-300:]} {done.stderr[-300:]}")


def once(bench: Bench, envs: int) -> None:
    """What Nsight Compute watches."""
    s = system("cartpole_balance")
    rollout(s, policy=policy_of(s), num_envs=envs, horizon=50, episodes="many", device=bench.device)
    bench.wait()
