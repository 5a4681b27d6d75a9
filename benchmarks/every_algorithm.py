"""What each algorithm that no other study has learns in a few minutes: a native system, its mixed data, small networks.

    python benchmarks/every_algorithm.py                  # compute what is missing, then write the table
    python benchmarks/every_algorithm.py --only edac      # some cells
    python benchmarks/every_algorithm.py --table          # only the table
    python benchmarks/every_algorithm.py --quick          # one small cell, for CI

`native/double-integrator` with 20,000 transitions of its behaviour `mixed`, whose mean return is the number to beat.
Such a run says that an algorithm learns as it stands in the library; it is no ranking: one setting each, few updates,
and a problem on which the best of the data is a good policy. Models without a policy are planned in, and that plans are
carried out is the result; the same planner in the exact system stands beside them. Most cells, each of one seed, take
less than five minutes of a core.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from cells import Results
from study import Cell, git_commit, study_main, training_cell

from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.data import normalized_score, reference_scores
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset
from surefoot.envs.vector import action_bounds
from surefoot.evaluation import evaluate, hierarchical_interval
from surefoot.play.plan import world_for
from surefoot.runs.embedded import generate
from surefoot.runs.plan import Plan, agent_class
from surefoot.runs.start import train
from surefoot.world_models.futures import Objective
from surefoot.world_models.planners import MPPI, PlannerPolicy

SYSTEM, TRANSITIONS, SEEDS = "native/double-integrator", 20_000, 3
SMALL: dict[str, Any] = {"hidden": (64, 64)}
FAST: dict[str, Any] = {**SMALL, "learning_rate": 1e-3}
SEEN: dict[str, Any] = {**FAST, "normalization": "observations"}
FLOW: dict[str, Any] = {**SEEN, "flow_steps": 5}
MODEL: dict[str, Any] = {"model_members": 4, "model_elites": 3, "model_hidden": (64, 64), "model_decays": ()}
IMAGINED: dict[str, Any] = {
    **MODEL, **SMALL, "model_updates": 1_500, "rollouts": 1_000, "imagine_every": 250, "critic_learning_rate": 1e-3,
    "actor_learning_rate": 3e-4, "normalization": "observations",
}  # fmt: skip
COCOA: dict[str, Any] = {**MODEL, "model_updates": 1_000, "seeker_updates": 500, "reverse_starts": 2_000,
                         "transducer": (32, 32), "embedding": 4}  # fmt: skip
ACTING: dict[str, Any] = {"num_envs": 4, "initial_steps": 500}


class Task(NamedTuple):
    """An algorithm's options and training steps, the run that it begins with, and whether it sees the data."""

    steps: int
    options: dict[str, Any]
    before: tuple[str, dict[str, Any], int] | None = None  # algorithm, options and steps
    data: bool = True
    batch_size: int = 256
    episodes: int = 20


CLONE = ("flow_bc", {**SEEN, "flow_steps": 4, "chunk": 2}, 2_000)
TASKS: dict[str, Task] = {
    "bc": Task(2_000, SMALL),
    "edac": Task(2_000, {**SEEN, "critics": 5}),
    "sac_n": Task(2_000, {**SEEN, "critics": 5}),
    "msg": Task(2_000, {**SEEN, "critics": 5, "deviations": 2.0}),
    "mcq": Task(3_000, {**SEEN, "vae_hidden": (64, 64), "sampled_actions": 4, "learning_rate": 3e-4}),
    "awac": Task(2_000, FAST),
    "xql": Task(2_000, SEEN),
    "dvl": Task(2_000, SEEN),
    "recoil": Task(2_000, SEEN),
    "bisim_iql": Task(2_000, FAST),
    "flow_bc": Task(2_000, FLOW),
    "diffusion_bc": Task(2_000, {**SEEN, "sampler_steps": 5}),
    "awr_flow": Task(2_000, FLOW),
    "raft_flow": Task(2_000, FLOW),
    "fql": Task(2_000, {**FLOW, "alpha": 3.0}),
    "qc_fql": Task(2_000, {**FLOW, "alpha": 3.0, "chunk": 2}),
    "ifql": Task(2_000, FLOW),
    "idql": Task(2_000, {**SEEN, "width": 64, "blocks": 2}),
    "qc": Task(2_000, {**FLOW, "chunk": 2, "samples": 16}),
    "qam": Task(2_000, {**FLOW, "critics": 2}),
    "qam_f": Task(2_000, {**FLOW, "critics": 2, "alpha": 3.0}),
    "qam_e": Task(2_000, {**FLOW, "critics": 2}),
    "aligndiff": Task(
        2_500,
        {**FAST, "attribute_updates": 500, "attributes": ("abs:0", "abs:1"), "wanted": (0.0, 0.0), "pairs": 1_000},
    ),
    "dt": Task(1_500, {"preset": "small"}, batch_size=64),
    "cocoa_iql": Task(3_000, {**COCOA, **FAST}),
    "cocoa_cql": Task(3_000, {**COCOA, **SMALL, "sampled_actions": 4, "actor_learning_rate": 3e-4}),
    "cocoa_mopo": Task(3_000, {**IMAGINED, **COCOA}),
    "cocoa_mobile": Task(3_000, {**IMAGINED, **COCOA}),
    "mopo": Task(3_000, IMAGINED),
    "mobile": Task(3_000, IMAGINED),
    "combo": Task(3_000, {**IMAGINED, "sampled_actions": 4}),
    "morel": Task(3_000, IMAGINED),
    "rambo": Task(3_000, IMAGINED),
    "mac": Task(2_000, {**FLOW, "chunk": 5, "rollout_length": 4, "discount": 0.99}),
    "trajectory_transformer": Task(5_000, {"preset": "small", "learning_rate": 1e-3}, batch_size=64, episodes=5),
    "dynamics": Task(2_000, MODEL),
    "token_dynamics": Task(2_000, {"width": 48, "layers": 2, "bins": 100}, batch_size=128, episodes=5),
    "rlcm": Task(40_000, {"num_envs": 16, "horizon": 50, "minibatches": 4, "learning_rate": 3e-4}, CLONE, data=False),
    "act": Task(2_000, {"preset": "small", "chunk": 4, "width": 32, "feed_forward": 64}, batch_size=64),
    "residual": Task(6_000, {**ACTING, **SMALL, "updates_per_step": 1.0, "progress": 1_000}, CLONE, data=False),
    "residual_ppo": Task(40_000, {"num_envs": 16, "horizon": 50, "minibatches": 4}, CLONE, data=False),
    "dsrl_na": Task(6_000, {**ACTING, **SMALL, "updates_per_step": 1.0}, CLONE, data=False),
    "fql_online": Task(4_000, {**FLOW, **ACTING, "alpha": 3.0}, ("fql", {**FLOW, "alpha": 3.0}, 1_500)),
    "qc_online": Task(
        4_000,
        {**FLOW, **ACTING, "chunk": 2, "samples": 16},
        ("qc", {**FLOW, "chunk": 2, "samples": 16}, 1_500),
    ),
    "pets": Task(1_200, {"preset": "small", "num_envs": 4, "updates_per_step": 1.0}, data=False),
    "mbpo": Task(
        4_000,
        {
            **MODEL,
            **SMALL,
            **ACTING,
            "updates_per_step": 2.0,
            "rollouts": 1_000,
            "imagine_every": 250,
            "model_updates": 500,
            "length_schedule": (1_000, 4_000, 1, 3),
            "critic_learning_rate": 1e-3,
        },
        data=False,
    ),
    "tdmpc2": Task(
        4_000,
        {"preset": "tiny", "pretrain": False, "episode_length": 100, "updates_per_step": 0.5, **ACTING},
        data=False,
        batch_size=128,
    ),
    "dreamer": Task(
        6_000,
        {
            "preset": "tiny",
            "length": 16,
            "imagined": 10,
            "updates_per_step": 0.5,
            "learning_rate": 1e-3,
            "discount": 0.97,
            **ACTING,
        },
        data=False,
        batch_size=8,
    ),
}
MODELS = ("dynamics", "token_dynamics")
"""Without a policy: planned in."""


@functools.cache
def data() -> Dataset:
    """The mixed data."""
    return generate(SYSTEM, 0, TRANSITIONS, "mixed")


def cell(name: str, seed: int, steps: int | None = None) -> dict[str, Any]:
    """Train and evaluate one seed."""
    task = TASKS[name]
    if name in MODELS:
        return planned(name, seed)
    return acting(name, seed) if task.before is not None or not task.data else from_data(name, seed, steps)


def from_data(name: str, seed: int, steps: int | None = None) -> dict[str, Any]:
    """From the data alone, in this process."""
    torch.set_num_threads(1)
    task, started = TASKS[name], time.perf_counter()
    kind = agent_class(name)
    low, high = action_bounds(SYSTEM)
    agent = kind(Spec.of(data(), low, high), kind.configure(**task.options)).fresh(seed)
    ready = agent.prepare(data())
    sources = agent.sources(Stores(ready, store_from_dataset(ready, agent.required_columns)))
    count = steps or task.steps
    learner = Learner([agent], [seed], sources, batch_size=task.batch_size, planned_steps=count, kernels=True)
    learner.run(count)
    seconds = time.perf_counter() - started
    (found,) = evaluate([learner.extract(0).policy()], SYSTEM, task.episodes)
    return {
        "algorithm": name,
        "config": dataclasses.asdict(agent.config),
        "seed": seed,
        "steps": count,
        "returns": [round(float(value), 3) for value in found.returns],
        "seconds": round(seconds, 1),
        "git": git_commit(),
    }


def acting(name: str, seed: int) -> dict[str, Any]:
    """Online, after the run that it begins with."""
    task = TASKS[name]
    facts = functools.partial(training_cell, environment=SYSTEM, seed=seed, episodes=task.episodes, evaluations=1)
    end = functools.partial(facts, name, task.options, None, steps=task.steps, batch_size=task.batch_size)
    if task.before is None:
        return end()
    algorithm, options, updates = task.before
    with tempfile.TemporaryDirectory(prefix="surefoot-study-") as folder:
        before = facts(algorithm, options, data(), steps=updates, out=f"{folder}/before")
        return {**end(init=f"{folder}/before"), "before": before}


def planned(name: str, seed: int) -> dict[str, Any]:
    """Learn a model of the data, plan in it, and carry the plans out; the same planner in the system itself beside."""
    task, kind = TASKS[name], agent_class(name)
    options: Any = kind.configure(**task.options)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="surefoot-study-", ignore_cleanup_errors=True) as folder:
        run = pathlib.Path(folder) / "run"
        config = {key: getattr(options, key) for key in options.__dataclass_fields__}
        plan = Plan(algorithm=name, config=config, dataset="<memory>", steps=task.steps, seeds=(seed,),
                    batch_size=task.batch_size)  # fmt: skip
        train(plan, run, dataset=data())
        seconds, shown = time.perf_counter() - started, {}
        low, high = (torch.from_numpy(bound) for bound in action_bounds(SYSTEM))
        for label, world in {"model": world_for(str(run), SYSTEM), "exact": world_for(SYSTEM, None)}.items():
            planner = MPPI(samples=64, iterations=2, horizon=10)
            policy = PlannerPolicy(planner, world.dynamics, low, high, Objective())
            (found,) = evaluate([policy], SYSTEM, task.episodes, num_envs=task.episodes)
            shown[label] = [round(float(value), 3) for value in found.returns]
    return {
        "algorithm": name,
        "seed": seed,
        "steps": task.steps,
        "returns": shown["model"],
        "exact": shown["exact"],
        "seconds": round(seconds, 1),
        "git": git_commit(),
    }


CELLS = [Cell(f"{name}-s{seed}", functools.partial(cell, name, seed)) for seed in range(SEEDS) for name in TASKS]


def table(found: Results) -> list[str]:
    """A row an algorithm: its return beside the data's, and whether it is above it."""
    reference = reference_scores(SYSTEM)
    assert reference is not None
    mean = float(data().episode_returns.mean())
    lines = [
        "# Every algorithm, a few minutes",
        "",
        f"{SYSTEM}, {TRANSITIONS:,} transitions of its behaviour `mixed`, small networks, one setting each, which was "
        "not tuned (but for Dreamer's and the trajectory transformer's search, on seed 100); last checkpoint, 20 "
        "episodes a seed (trajectory transformer and token dynamics: 5), mean return "
        "with a 95 % interval "
        "over seeds and initial states. It says whether an algorithm learns, and ranks none. Score: 0 for random "
        f"actions ({reference[0]:.0f}), 100 for the expert ({reference[1]:.0f}); the data's mean is {mean:.1f}, a "
        f"score of {normalized_score(mean, reference):.0f}, which is where a clone of all of the data should be. Steps "
        "are updates of those that learn from data, with those of their models, and steps in the system of those that "
        "act. PETS is given the system's reward, as in its paper; the others learn it. By "
        "`python benchmarks/every_algorithm.py` on one core of an x86 server CPU that other work shared.",
        "",
        "| algorithm | steps | seeds | return | score | before acting | above the data | seconds a seed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, task in TASKS.items():
        rows = [found[n] for seed in range(SEEDS) if (n := f"{name}-s{seed}") in found]
        if not rows:
            lines.append(f"| {name} | {task.steps:,} | 0 of {SEEDS} | missing | | | | |")
            continue
        interval = hierarchical_interval([np.asarray(row["returns"]) for row in rows])
        above = "yes" if interval.low > mean else "no" if interval.high < mean else "cannot tell"
        before = [np.mean(row["before"]["returns"]) for row in rows if "before" in row]
        beside = f"{np.mean(before):.1f}" if before else ""
        if name in MODELS:
            beside = f"planned in the system itself: {np.mean([np.mean(row['exact']) for row in rows]):.1f}"
        lines.append(
            f"| {name} | {task.steps:,} | {len(rows)} of {SEEDS} | {interval.estimate:.1f} [{interval.low:.1f}, "
            f"{interval.high:.1f}] | {normalized_score(interval.estimate, reference):.0f} | {beside} | {above} | "
            f"{np.mean([row['seconds'] for row in rows]):.0f} |"
        )
    return [*lines, "", f"{sum(c.name in found for c in CELLS)} of {len(CELLS)} cells are there."]


if __name__ == "__main__":
    study_main(__doc__, "every_algorithm", CELLS, table, Cell("quick", functools.partial(cell, "edac", 0, 20)))
