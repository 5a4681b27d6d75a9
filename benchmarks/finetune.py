"""Fine-tuning one clone of near 50 % success: ReinFlow, DPPO, FPO++, DSRL and PPO with a Gaussian, in chunks of four.

    python benchmarks/finetune.py                 # compute what is missing, then write table and picture
    python benchmarks/finetune.py --only reinflow
    python benchmarks/finetune.py --table         # only table and picture
    python benchmarks/finetune.py --quick         # one small cell, for CI

The native point-maze, and 20,000 transitions of its middling controller, which often misses a corner. A flow clones
them in chunks of four; ReinFlow, FPO++ and DSRL fine-tune this flow. DPPO needs a diffusion and PPO a Gaussian: each
begins with a clone of its own kind of the same data, whose success stands beside. Success: an episode of 200 steps that
reaches the goal. Seconds are those of acting and learning, without evaluation.
"""

from __future__ import annotations

import functools
import pathlib
import time
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from cells import Results
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from study import RESULTS, Cell, git_commit, study_main

from surefoot.core.actors.chunks import decisions
from surefoot.core.actors.diffusion import Schedule, denoising_loss
from surefoot.core.base.random import generator
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import MAIN, Stores
from surefoot.data.store import store_from_dataset
from surefoot.envs import make_vec
from surefoot.evaluation import evaluate
from surefoot.evaluation.plots import COLOURS, MARKERS
from surefoot.offline import FlowBC
from surefoot.online import ALGORITHMS
from surefoot.online.loops.loop import make_loop
from surefoot.runs.embedded import generate

SYSTEM, BEHAVIOUR, TRANSITIONS = "native/point-maze", "medium", 20_000
CHUNK, FLOW_STEPS, HIDDEN, CLONING = 4, 4, (128, 128, 128), 8_000
GAUSSIAN_CLONING = 270
"""Updates of the regression; when it is left to converge it averages the controller's noise away."""
STEPS, EVERY, EPISODES, SEEDS = 300_000, 30_000, 100, (0, 1)
WANTED = 0.3
"""Gain of success."""
BLOCKS: dict[str, Any] = {"num_envs": 32, "horizon": 25, "minibatches": 4, "hidden": (128, 128), "chunk": CHUNK}
FLOW: dict[str, Any] = {"flow_steps": FLOW_STEPS, "velocity_hidden": HIDDEN, "network": "mlp"}
METHODS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "reinflow": (
        "ReinFlow",
        "reinflow",
        {**BLOCKS, **FLOW, "epochs": 5, "learning_rate": 3e-4, "value_learning_rate": 1e-3, "discount": 0.97},
    ),
    "dppo": (
        "DPPO (a diffusion of 10 steps, 5 of them trained)",
        "dppo",
        {
            **BLOCKS,
            "alphas": Schedule.cosine(10).alphas,
            "trained_steps": 5,
            "noise_hidden": HIDDEN,
            "epochs": 10,
            "learning_rate": 3e-4,
            "critic_warmup": 2,
            "discount": 0.97,
        },
    ),
    "fpo": ("FPO++", "fpo", {**BLOCKS, **FLOW, "epochs": 5, "clip": 0.05, "samples": 8, "discount": 0.97}),
    "dsrl": (
        "DSRL",
        "dsrl",
        {**FLOW, "chunk": CHUNK, "num_envs": 8, "updates_per_step": 1.0, "initial_steps": 2_000, "discount": 0.97},
    ),
    "gaussian": (
        "PPO, Gaussian (a regression that is stopped early)",
        "ppo",
        {
            **BLOCKS,
            "epochs": 5,
            "clip": 0.2,
            "initial_log_std": -1.5,
            "schedule": "constant",
            "learning_rate": 3e-4,
            "normalize_observations": False,
            "discount": 0.97,
        },
    ),
}
"""Cell -> title, algorithm and options."""


def cell(
    method: str, seed: int, steps: int = STEPS, every: int = EVERY, cloning: int = CLONING, episodes: int = EPISODES
) -> dict[str, Any]:
    """Clone, fine-tune one seed, and evaluate on the way."""
    _, algorithm, options = METHODS[method]
    torch.set_num_threads(1)
    data = generate(SYSTEM, 0, TRANSITIONS, BEHAVIOUR)
    env = make_vec(SYSTEM, options["num_envs"])
    flow = FlowBC(data, chunk=CHUNK, flow_steps=FLOW_STEPS, hidden=HIDDEN).fresh(0)
    ready = flow.prepare(data)
    stores = Stores(ready, store_from_dataset(ready, flow.required_columns, "cpu"), None)
    kind: Any = ALGORITHMS[algorithm]
    agent = kind(flow.spec, **options).fresh(seed)
    if algorithm in ("dppo", "ppo"):
        clone_otherwise(agent, flow, stores, min(cloning, GAUSSIAN_CLONING) if algorithm == "ppo" else cloning)
    else:
        learner = Learner([flow], [0], flow.sources(stores), planned_steps=cloning, kernels=True)
        learner.run(cloning)
        assert agent.load_from(learner.extract(0)) is not None
    agent.normalizer.load_state_dict(flow.normalizer.state_dict())
    agent.normalizer.fixed = True
    loop: Any = make_loop([agent], [seed], env, planned_steps=steps, kernels=True)
    curve, seconds = [point(loop, 0.0, episodes)], 0.0
    while loop.step < steps:
        started = time.perf_counter()
        loop.run(min(every, steps - loop.step))
        seconds += time.perf_counter() - started
        curve.append(point(loop, seconds, episodes))
    return {
        "method": method,
        "algorithm": algorithm,
        "seed": seed,
        "curve": curve,
        "episodes": episodes,
        "options": {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()},
        "git": git_commit(),
    }


def point(loop: Any, seconds: float, episodes: int) -> dict[str, float]:
    """Steps and seconds so far, and what the policy reaches in the same initial states each time."""
    found = evaluate([loop.learner.extract(0).policy()], SYSTEM, episodes, num_envs=50, seed=1)[0]
    success = float((found.returns > 0).mean())
    return {"step": loop.step, "seconds": round(seconds, 1), "success": success, "return": float(found.returns.mean())}


def clone_otherwise(agent: Any, flow: FlowBC, stores: Stores, steps: int) -> None:
    """Train the agent's own head on the chunks that the flow would clone: a diffusion, or the mean of a Gaussian."""
    source = flow.sources(stores)[MAIN]
    source.bind([0], 256, torch.device("cpu"))
    head = agent.actor.network if agent.name == "dppo" else agent.actor.mlp
    optimizer = torch.optim.Adam(head.parameters(), 3e-4 if agent.name == "dppo" else 1e-3)
    draws = generator(0, "clone", 0)
    for step in range(steps):
        batch = decisions(source.gather(source.rows(step)[0]), 1.0, CHUNK)
        actions, mask = batch["actions"], batch["mask"]
        if agent.name == "dppo":
            schedule = agent.actor.schedule
            noise = torch.from_numpy(draws.standard_normal(actions.shape, np.float32))
            when = schedule.step_of(torch.from_numpy(draws.random(len(actions), np.float32)))
            loss = denoising_loss(
                head(schedule.noisy(actions, noise, when), batch["observations"], when), noise, mask=mask
            )
        else:
            loss = ((head(batch["observations"]) - actions).square() * mask).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if agent.name == "dppo":
        agent.actor.refreeze()


CELLS = [Cell(f"{method}-s{seed}", functools.partial(cell, method, seed)) for seed in SEEDS for method in METHODS]
QUICK = Cell("quick", functools.partial(cell, "reinflow", 0, 6_400, 3_200, 20, 4))


def table(found: Results) -> list[str]:
    """Success before and after, and what it took; draws the picture beside it."""
    lines = [
        "# Fine-tuning one clone",
        "",
        f"{SYSTEM}, {TRANSITIONS:,} transitions of its behaviour `{BEHAVIOUR}`, chunks of {CHUNK}, networks of "
        f"{'-'.join(map(str, HIDDEN))}, {CLONING:,} updates of cloning; {STEPS:,} steps of fine-tuning, {EPISODES} "
        "episodes of 200 steps in the same initial states at each evaluation. Success: the goal is reached. Two seeds "
        "show a direction, not a ranking. Seconds: of acting and learning, on one core that other work shared. "
        "ReinFlow, FPO++ and DSRL begin with one flow: FPO++ plays it as it was cloned, ReinFlow clips it after each "
        "of its steps, and DSRL chooses its noise, at first by an untrained network, so that its clone here is that of "
        "FPO++. DPPO and PPO begin with clones of their own kind of the same data, one for each seed, and DPPO's are "
        f"below the flow. The Gaussian's is stopped after {GAUSSIAN_CLONING} updates: left to converge, a regression "
        "averages the controller's noise away, which a flow clones too, and begins at 95 %.",
        "",
        "| method | seed | clone | best | last | gain, points | return, clone to last | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    gains = []
    for method, (title, _, _) in METHODS.items():
        for seed in SEEDS:
            one = found.get(f"{method}-s{seed}")
            if one is None or (method == "dsrl" and f"fpo-s{seed}" not in found):
                lines.append(f"| {title} | {seed} | missing | | | | | |")
                continue
            last = one["curve"][-1]
            first = found[f"fpo-s{seed}"]["curve"][0] if method == "dsrl" else one["curve"][0]
            gains += [last["success"] - first["success"]] if method != "gaussian" else []
            best = max(each["success"] for each in one["curve"])
            lines.append(
                f"| {title} | {seed} | {first['success']:.0%} | {best:.0%} | {last['success']:.0%} | "
                f"{100 * (last['success'] - first['success']):+.0f} | {first['return']:.0f} to {last['return']:.0f} | "
                f"{last['seconds']:.0f} |"
            )
    reached = sum(gain >= WANTED for gain in gains)
    wanted = f"Of each flow method at least {100 * WANTED:.0f} points were wanted"
    lines += ["", f"{wanted}: {reached} of {len(gains)} cells have them."]
    if found:
        picture(found, RESULTS / "finetune.svg")
        lines += ["", "![success against steps and against seconds](finetune.svg)"]
    return [*lines, "", f"{len(found)} of {len(CELLS)} cells are there."]


def picture(found: Results, path: pathlib.Path) -> None:
    """Success against steps, and against seconds; a line a seed."""
    with mpl.rc_context({"svg.hashsalt": "surefoot", "svg.fonttype": "path"}):
        figure = Figure(figsize=(10, 4))
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, 2, sharey=True)
        for number, (method, (title, _, _)) in enumerate(METHODS.items()):
            for seed in SEEDS:
                one = found.get(f"{method}-s{seed}")
                if one is not None:
                    up = [each["success"] for each in one["curve"]]
                    look = {"color": COLOURS[number], "marker": MARKERS[number], "markersize": 3}
                    label = title if seed == SEEDS[0] else None
                    axes[0].plot([each["step"] for each in one["curve"]], up, label=label, **look)
                    axes[1].plot([each["seconds"] for each in one["curve"]], up, **look)
        axes[0].set_xlabel("steps in the environment")
        axes[1].set_xlabel("seconds of one core")
        axes[0].set_ylabel("success")
        axes[0].set_ylim(0, 1.02)
        axes[0].legend(fontsize=7, loc="lower right")
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    study_main(__doc__, "finetune", CELLS, table, QUICK)
