"""Offline safe algorithms on halfcheetah-v5-velocity-cost, and on three native systems with obstacles.

    python benchmarks/safe_offline.py                       # computes what is missing, then writes the table
    python benchmarks/safe_offline.py --only fisor          # only these cells
    python benchmarks/safe_offline.py --table               # only writes the table
    python benchmarks/safe_offline.py --quick               # one small cell, for CI

Limit: 25 an episode, undiscounted; what each policy costs is also judged at 10. Policies act by their mean (BCQ-Lag by
the mode of its prior); those that always sample (FISOR) as evaluation draws them. Steps and batches are of our choice,
so that a cell takes one to fifteen minutes on an idle core (CDT with batch 64 and 20,000 steps half an hour): see
`PLANS`. On the native systems a policy's violations are counted over 10,000 episodes (2,000 where it always samples).
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
import tempfile
from typing import Any

import numpy as np
from cells import Results
from study import Cell, git_commit, shared, study_main

from surefoot.core.base.files import read_json
from surefoot.data.dataset import Dataset
from surefoot.evaluation import Episodes, Interval, cost_interval, evaluate, hierarchical_interval, safety
from surefoot.evaluation.tables import format_bounds
from surefoot.play.actors import Actor
from surefoot.runs.algorithms import ALGORITHMS
from surefoot.runs.embedded import load
from surefoot.runs.plan import FINAL_EVALUATION_SEED, Plan, agent_class
from surefoot.runs.run import Run, load_agent
from surefoot.runs.start import train
from surefoot.safety.certify import certify

DATA, CHEETAH = "halfcheetah-v5-velocity-cost", "surefoot/HalfCheetahVelocity-v5"
LIMITS = (25.0, 10.0)
SEEDS, EPISODES = (0, 1, 2), 20
CERTIFIED, CERTIFIED_SAMPLING = 10_000, 2_000
CHOICES = ("lowest", "best")
"""Other ways in which a trained FISOR may choose among its samples."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How an algorithm is trained here."""

    title: str
    algorithm: str
    options: dict[str, Any]
    steps: int
    batch_size: int = 256


PLANS: dict[str, Settings] = {
    "bc": Settings("BC", "bc", {}, 30_000),
    "bc10": Settings("10%BC, of the highest returns", "bc", {"preset": "ten_percent"}, 30_000),
    "bc_safe": Settings("BC-Safe", "bc_safe", {}, 30_000),
    "iql": Settings("IQL", "iql", {"preset": "corl"}, 30_000),
    "fisor": Settings("FISOR `small`", "fisor", {"preset": "small"}, 50_000),
    "bcq_lag": Settings("BCQ-Lag `small`", "bcq_lag", {"preset": "small"}, 20_000),
    "bear_lag": Settings("BEAR-Lag `small`", "bear_lag", {"preset": "small"}, 20_000),
    "cpq": Settings("CPQ `small`", "cpq", {"preset": "small"}, 15_000),
    "coptidice": Settings("COptiDICE `small`", "coptidice", {"preset": "small"}, 30_000),
    "cdt": Settings("CDT `small`", "cdt", {"preset": "small"}, 20_000, 64),
}
HERE: dict[str, dict[str, Any]] = {
    "bc": {},
    "bc_safe": {"cost_limit": 0.0},  # clones the episodes without a violation
    "fisor": {},
}
SYSTEMS: dict[str, dict[str, dict[str, Any]]] = {
    "native/dubins-obstacles": HERE,
    "native/point-maze": {**HERE, "fisor": {"reward_temperature": 0.1, "target_rate": 0.03}},
    "native/quadrotor-3d": HERE,
}
"""Native systems, where no violation is wanted, with the algorithms trained there and their options.

In the maze the reward is 1 at a far goal and 0 elsewhere. Scaled, values come near 500, which averages that follow
slowly do not reach in the steps given, and a hundredth of that, the critics' error, is a weight of 12 at FISOR's
usual temperature.
"""
SYSTEM_STEPS = 20_000


def cheetah_data() -> Dataset:
    """The dataset under the environment that its costs are of."""
    return shared(DATA)


def native_data(system: str) -> Dataset:
    """The system's mixed dataset, generated once and kept."""
    return load(f"{system}-mixed")


def trained(
    name: str, data: Dataset, environment: str, seed: int, steps: int, episodes: int, folder: str, **options: Any
) -> Run:
    """A finished run of one seed; `options` over those of the plan."""
    settings = PLANS[name]
    config = agent_class(settings.algorithm).configure(**{**settings.options, **options})
    plan = Plan(
        algorithm=settings.algorithm,
        config=dataclasses.asdict(config),
        dataset="<memory>",
        environment=environment,
        steps=steps,
        batch_size=settings.batch_size,
        seeds=(seed,),
        episodes=episodes,
        evaluate_every=steps,
        evaluate_episodes=2,
    )
    return train(plan, f"{folder}/run", dataset=data)


def missing(name: str) -> dict[str, Any] | None:
    """The cell of an algorithm that is not installed."""
    algorithm = PLANS[name].algorithm
    return None if algorithm in ALGORITHMS else {"skipped": f"surefoot has no algorithm {algorithm!r} yet"}


def cell(name: str, seed: int, steps: int | None = None, episodes: int = EPISODES) -> dict[str, Any]:
    """Train one seed on the cheetah's data and evaluate it."""
    if (skipped := missing(name)) is not None:
        return skipped
    folder = tempfile.mkdtemp(prefix="surefoot-study-")
    try:
        run = trained(name, cheetah_data(), CHEETAH, seed, steps or PLANS[name].steps, episodes, folder)
        result = read_json(run.seed_folder(seed) / "result.json")
        other = {choice: by_choice(run, seed, choice, episodes) for choice in CHOICES if name == "fisor"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "algorithm": PLANS[name].algorithm,
        "config": run.plan.config,
        "dataset": DATA,
        "environment": CHEETAH,
        "seed": seed,
        "steps": run.plan.steps,
        "batch_size": run.plan.batch_size,
        "evaluation": result["evaluation"],
        **({"other_choices": other} if other else {}),
        "seconds": round(result["seconds"], 1),
        "updates_per_second": round(result["updates_per_second"], 1),
        "git": git_commit(),
    }


def by_choice(run: Run, seed: int, choice: str, episodes: int) -> dict[str, Any]:
    """Episodes of a trained FISOR that chooses among its samples in another way."""
    agent = load_agent(run, seed)
    agent.config = dataclasses.replace(agent.config, choice=choice)
    (found,) = evaluate([agent.policy()], CHEETAH, episodes, seed=FINAL_EVALUATION_SEED)
    return found.to_json()


def system_cell(name: str, system: str) -> dict[str, Any]:
    """Train one seed on a native system's mixed data, and count its violations."""
    if (skipped := missing(name)) is not None:
        return skipped
    folder = tempfile.mkdtemp(prefix="surefoot-study-")
    try:
        options = SYSTEMS[system][name]
        run = trained(name, native_data(system), system, 0, SYSTEM_STEPS, EPISODES, folder, **options)
        result = read_json(run.seed_folder(0) / "result.json")
        policy = run.policy(0)
        episodes = CERTIFIED_SAMPLING if policy.always_samples else CERTIFIED
        certified = certify(Actor(policy, name, system), episodes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "algorithm": PLANS[name].algorithm,
        "config": run.plan.config,
        "dataset": f"{system}-mixed",
        "environment": system,
        "seed": 0,
        "steps": run.plan.steps,
        "batch_size": run.plan.batch_size,
        "evaluation": result["evaluation"],
        "certificate": certified.to_json(),
        "seconds": round(result["seconds"], 1),
        "git": git_commit(),
    }


def cells() -> list[Cell]:
    """All cells, one seed of everything before the next seed, then the native systems."""
    cheetah = [Cell(f"{name}-s{s}", functools.partial(cell, name, s)) for s in SEEDS for name in PLANS]
    return cheetah + [
        Cell(f"{name}-{system.removeprefix('native/')}", functools.partial(system_cell, name, system))
        for system, algorithms in SYSTEMS.items()
        for name in algorithms
    ]


def interval(found: Interval, digits: int) -> str:
    """Mean and 95 % interval in a cell."""
    return f"{found.estimate:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def cheetah_rows(name: str, found: dict[str, dict[str, Any]]) -> list[str]:
    """One algorithm's lines: its own, and those of other choices among its samples."""
    settings = PLANS[name]
    there = [found[f"{name}-s{seed}"] for seed in SEEDS if f"{name}-s{seed}" in found]
    skipped = next((one["skipped"] for one in there if "skipped" in one), None)
    label = f"| {settings.title} | {settings.steps:,} x {settings.batch_size} "
    if skipped is not None or not there:
        return [label + f"| {skipped or 'missing'} | | | | | | |"]
    rows = [label + numbers([one["evaluation"] for one in there])]
    for choice in CHOICES if name == "fisor" else ():
        rows.append(
            f"| the same, `choice={choice}` | as above " + numbers([one["other_choices"][choice] for one in there])
        )
    return rows


def numbers(evaluations: list[dict[str, Any]]) -> str:
    """The columns that evaluations of several seeds fill."""
    episodes = [Episodes.from_json(one) for one in evaluations]
    costs = [e.costs for e in episodes if e.costs is not None]
    judged = [safety(episodes, limit) for limit in LIMITS]
    assert all(one is not None for one in judged)
    first = judged[0]
    assert first is not None
    within = ", ".join(f"{cost.mean():.1f}" for cost in costs)
    seeds = "" if len(episodes) == len(SEEDS) else f" ({len(episodes)} of {len(SEEDS)} seeds)"
    normalized = " | ".join(f"{one.normalized:.2f}" for one in judged if one is not None)
    mean_return, cost = hierarchical_interval([e.returns for e in episodes]), cost_interval(costs)
    return (
        f"| {interval(mean_return, 0)}{seeds} | {interval(cost, 1)} | {within} | {normalized} "
        f"| {first.percentile_95:.1f} | {100 * first.violated:.0f} % |"
    )


def system_row(name: str, system: str, found: dict[str, dict[str, Any]]) -> str:
    """One algorithm's line on a native system."""
    one = found.get(f"{name}-{system.removeprefix('native/')}")
    own = "".join(f", {key} {value:g}" for key, value in SYSTEMS[system][name].items())
    label = f"| {system} | {PLANS[name].title}{own} "
    if one is None or "skipped" in one:
        return label + f"| {'missing' if one is None else one['skipped']} | | | |"
    certificate = one["certificate"]
    returns = format_bounds(certificate["returns"])
    return label + (
        f"| {returns} | {certificate['violations']:,} of {certificate['episodes']:,} | {certificate['upper']:.3g} "
        f"| {np.mean(one['evaluation']['costs']):.2f} |"
    )


def table(found: Results) -> list[str]:
    """The Markdown tables of the cells that are there."""
    data = cheetah_data()
    costs: Any = data.episode_costs
    within = data.episode_returns[costs <= LIMITS[0]]
    lines = [
        "# Offline safe algorithms",
        "",
        f"{DATA} ({len(costs)} episodes; {len(within)} of them cost at most {LIMITS[0]:g}, and the best of those "
        f"returns {within.max():.0f}), {len(SEEDS)} seeds, {EPISODES} episodes a seed in {CHEETAH}. Mean with its "
        "95 % interval over seeds and initial states; costs are undiscounted sums over an episode. Normalised cost: "
        "mean cost over the limit; at most 1 keeps to it. Written by `python benchmarks/safe_offline.py` on 2 cores of "
        "an x86 server CPU.",
        "",
        f"| algorithm | steps x batch | return | cost | cost of each seed | normalised at {LIMITS[0]:g} "
        f"| normalised at {LIMITS[1]:g} | 95th percentile | episodes violating |",
        "|---|---|---|---|---|---|---|---|---|",
        *(row for name in PLANS for row in cheetah_rows(name, found)),
        "",
        "## Native systems with obstacles",
        "",
        f"Mixed data of 50,000 transitions, {SYSTEM_STEPS:,} steps, 1 seed. Return "
        f"and violations of {CERTIFIED:,} episodes ({CERTIFIED_SAMPLING:,} where the policy always "
        "samples), and the bound that the probability of one is below with 95 % confidence. BC-Safe clones episodes "
        "without a violation (limit 0). Options that are not those of the preset are named.",
        "",
        "| system | algorithm | return | violations | bound | mean cost |",
        "|---|---|---|---|---|---|",
        *(system_row(name, system, found) for system, algorithms in SYSTEMS.items() for name in algorithms),
    ]
    computed = sum("skipped" not in one for one in found.values())
    return [*lines, "", f"{computed} of {len(cells())} cells are there."]


def main() -> None:
    quick = Cell("quick", functools.partial(cell, "bc_safe", 0, 200, 2))
    study_main(__doc__, "safe_offline", cells(), table, quick)


if __name__ == "__main__":
    main()
