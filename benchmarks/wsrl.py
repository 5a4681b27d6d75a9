"""WSRL's claim on real data: fine-tuning without the data needs a warm-up by the pre-trained policy.

    python benchmarks/wsrl.py                  # compute what is missing, then write the table
    python benchmarks/wsrl.py --only pair-s0
    python benchmarks/wsrl.py --table          # only the table
    python benchmarks/wsrl.py --quick          # one small cell, for CI

`pair-s*`: CQL on walker2d-v5-mixed (30,000 updates, 2 critics, 4 sampled actions a block), then 10,000 online steps:
with the warm-up; without it as in the authors' code, which then waits for 1,024 steps of that policy; and from the
first step on. `calql-s0` the same from Cal-QL. `long-*`: 10 critics, 50,000 online steps of four critic steps each,
beside IQL fine-tuning that keeps the data. `mini-s*`: on the pendulum, from Cal-QL, with a warm-up of 1,000 steps and
with none; `half-s*` the same with ten critics and data of a SAC agent that is half trained.
All but IQL have layer norms, as everywhere in zhouzypaul/wsrl, and networks of half its width, with which the study
fits an evening of two cores. What a return is measured against is the frozen policy's in the same initial states: the
evaluations during warm-up. Runs are kept under build/wsrl and resumed.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from cells import Results
from study import Cell, carried_out, difference, entry, git_commit, shared, study_main

from surefoot.core.base.files import read_json
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Dataset
from surefoot.envs import make_vec
from surefoot.envs.names import gymnasium_id
from surefoot.evaluation import hierarchical_interval
from surefoot.runs.embedded import generate
from surefoot.runs.plan import Plan, agent_class
from surefoot.runs.run import Run

DATASET, ENVIRONMENT = "walker2d-v5-mixed-sb3", "Walker2d-v5"
PRETRAINING, ONLINE, EPISODES, SEEDS = 30_000, 10_000, 20, (0, 1, 2, 3, 4)
EARLY = 5_000
"""Training steps within which the lowest return is looked for."""
MINI, MINI_DATA, MINI_PRETRAINING, MINI_ONLINE, MINI_EARLY = "native/pendulum", 20_000, 10_000, 5_000, 1_000
HALF_STEPS = 2_500
"""Of a SAC agent on the pendulum that is then half trained."""
LONG_ONLINE, LONG_SEEDS = 50_000, (0, 1, 2)
RUNS = pathlib.Path(__file__).parent.parent / "build" / "wsrl"
AUTHORS, NONE = {"initial_steps": 1_024}, {"initial_steps": 1}
"""Without warm-up: as in zhouzypaul/wsrl, when there are as many steps as rows in a training step; or at once."""
TITLES = {"warm": "warm-up", "authors": "1,024 steps", "none": "none"}
"""Arm -> how the tables name it."""
NARROW = {"layer_norm_critic": True, "layer_norm_actor": True, "hidden": (128, 128)}
"""Of all CQL, Cal-QL and WSRL here; at the usual width one seed of 200,000 critic steps takes two hours of a core."""
BIG = {**NARROW, "critics": 10}


def part(folder: pathlib.Path, algorithm: str, options: dict[str, Any], steps: int, seed: int, **fields: Any) -> Run:
    """A run in this folder: started, resumed, or finished already."""
    dataset: Dataset | None = fields.pop("dataset", None)
    config = dataclasses.asdict(agent_class(algorithm).configure(**options))
    plan = Plan(
        algorithm=algorithm,
        config=config,
        dataset=None if dataset is None else "<memory>",
        environment=fields.pop("environment", ENVIRONMENT),
        steps=steps,
        seeds=(seed,),
        episodes=EPISODES,
        evaluate_episodes=EPISODES,
        **fields,
    )
    return carried_out(plan, folder, dataset)


def facts(run: Run) -> dict[str, Any]:
    """Scores and curve of a run's only seed as JSON values."""
    seed = run.plan.seeds[0]
    result = read_json(run.seed_folder(seed) / "result.json")
    return {
        "algorithm": run.plan.algorithm,
        "config": run.plan.config,
        "steps": run.plan.steps,
        "returns": [round(value, 3) for value in result["evaluation"]["returns"]],
        "curve": [
            (line["step"], round(line["values"]["return_mean"], 3))
            for line in result["metrics"]
            if line["kind"] == "eval"
        ],
        "updates_per_second": round(result["updates_per_second"], 1),
    }


def pretrained(algorithm: str, seed: int, name: str, options: dict[str, Any]) -> Run:
    """The offline run that fine-tuning starts from."""
    data = shared(DATASET)
    return part(RUNS / f"{name}-s{seed}", algorithm, {"sampled_actions": 4, **options}, PRETRAINING, seed, dataset=data)


def pair(algorithm: str, seed: int) -> dict[str, Any]:
    """Pre-training, and fine-tuning with and without warm-up."""
    start = pretrained(algorithm, seed, algorithm, NARROW)
    found: dict[str, Any] = {"seed": seed, "git": git_commit(), "pretrained": facts(start)}
    for arm, begins in (("warm", {}), ("authors", AUTHORS), ("none", NONE)):
        folder = RUNS / f"{algorithm}-{arm}-s{seed}"
        more = {"init": str(start.folder), "evaluate_every": 500}
        found[arm] = facts(part(folder, "wsrl", {**NARROW, **begins}, ONLINE, seed, **more))
    return found


def mini(seed: int) -> dict[str, Any]:
    """A small pair, from data of a half-trained policy."""
    data = generate(MINI, 0, MINI_DATA, "medium")
    where, options = {"environment": MINI}, {**NARROW, "sampled_actions": 4}
    start = part(RUNS / f"mini-s{seed}", "calql", options, MINI_PRETRAINING, seed, dataset=data, **where)
    found: dict[str, Any] = {"seed": seed, "git": git_commit(), "pretrained": facts(start)}
    return found | small_arms("mini", start, NARROW, seed)


def half_trained(seed: int) -> dict[str, Any]:
    """The small pair with ten critics, from samples of a SAC agent that has learned for a while."""
    where, options = {"environment": MINI}, {**BIG, "sampled_actions": 4}
    teacher = part(RUNS / f"half-sac-s{seed}", "sac", {}, HALF_STEPS, seed, **where)
    data = recorded(Policy.load(teacher.policy_path(seed)), seed)
    start = part(RUNS / f"half-s{seed}", "calql", options, MINI_PRETRAINING, seed, dataset=data, **where)
    found: dict[str, Any] = {"seed": seed, "git": git_commit(), "pretrained": facts(start)}
    found["data"] = round(float(data.episode_returns.mean()), 1)
    return found | small_arms("half", start, BIG, seed)


def small_arms(name: str, start: Run, options: dict[str, Any], seed: int) -> dict[str, Any]:
    """Fine-tuning on the pendulum with and without warm-up."""
    found = {}
    for arm, begins in (("warm", {"initial_steps": 1_000}), ("none", NONE)):
        more = {"init": str(start.folder), "evaluate_every": 100, "environment": MINI}
        folder = RUNS / f"{name}-{arm}-s{seed}"
        found[arm] = facts(part(folder, "wsrl", {**options, **begins}, MINI_ONLINE, seed, **more))
    return found


def recorded(policy: Policy, seed: int) -> Dataset:
    """MINI_DATA transitions of native/pendulum by samples of a policy, in whole episodes."""
    length = 200
    env: Any = make_vec(MINI, MINI_DATA // length)
    observations, _ = env.reset(seed=[1_000 * (seed + 1) + row for row in range(env.num_envs)])
    source, steps = np.random.default_rng(seed), []
    for _ in range(length):
        noise = torch.from_numpy(source.standard_normal((env.num_envs, 1)).astype(np.float32))
        actions = policy(torch.from_numpy(observations), noise).numpy()
        after, rewards, terminations, truncations, info = env.step(actions)
        step = (observations, actions, rewards.astype(np.float32), info.get("final_obs", after))
        steps.append((*step, terminations, truncations))
        observations = after
    names = ("observations", "actions", "rewards", "next_observations", "terminations", "truncations")
    columns = {
        name: np.stack(column, 1).reshape(MINI_DATA, *column[0].shape[1:])
        for name, column in zip(names, zip(*steps, strict=True), strict=True)
    }
    episodes = np.repeat(np.arange(env.num_envs), length)
    name = f"half-trained-sac-s{seed}"
    return Dataset(
        **columns, episode_ids=episodes, valid=np.ones(MINI_DATA, bool), env_id=gymnasium_id(MINI), name=name
    )


def long_wsrl(seed: int) -> dict[str, Any]:
    """Ten critics, pre-trained and fine-tuned."""
    start = pretrained("cql", seed, "cql10", BIG)
    run = part(RUNS / f"wsrl10-s{seed}", "wsrl", BIG, LONG_ONLINE, seed, init=str(start.folder), evaluate_every=5000)
    return {"seed": seed, "git": git_commit(), "pretrained": facts(start), "online": facts(run)}


def long_iql(seed: int) -> dict[str, Any]:
    """IQL, pre-trained and fine-tuned beside the data."""
    data = shared(DATASET)
    start = part(RUNS / f"iql-s{seed}", "iql", {"preset": "corl"}, PRETRAINING, seed, dataset=data)
    more = {"init": str(start.folder), "evaluate_every": 5000, "dataset": data}
    run = part(RUNS / f"iql_online-s{seed}", "iql_online", {"preset": "corl"}, LONG_ONLINE, seed, **more)
    return {"seed": seed, "git": git_commit(), "pretrained": facts(start), "online": facts(run)}


def cells() -> list[Cell]:
    """All cells, the claim's first."""
    claimed: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        *((f"pair-s{seed}", functools.partial(pair, "cql", seed)) for seed in SEEDS),
        ("calql-s0", functools.partial(pair, "calql", 0)),
        *((f"mini-s{seed}", functools.partial(mini, seed)) for seed in SEEDS),
    ]
    for seed in LONG_SEEDS:
        claimed += [(f"long-iql-s{seed}", functools.partial(long_iql, seed))]
        claimed += [(f"long-wsrl-s{seed}", functools.partial(long_wsrl, seed))]
    claimed += [(f"half-s{seed}", functools.partial(half_trained, seed)) for seed in SEEDS]
    return [Cell(name, compute) for name, compute in claimed]


def lowest(arm: dict[str, Any], early: int) -> float:
    """Lowest mean return of the evaluations within the first `early` training steps."""
    started = arm["config"]["initial_steps"]
    return min(value for step, value in arm["curve"] if started < step <= started + early)


def before(cell: dict[str, Any]) -> float:
    """Mean return of the pre-trained policy in the initial states of the curves: evaluations while it is frozen."""
    warm = cell["warm"]
    return float(np.mean([value for step, value in warm["curve"] if step <= warm["config"]["initial_steps"]]))


def relative(cell: dict[str, Any], arm: str, early: int = EARLY) -> float:
    """Lowest return of an arm minus the pre-trained policy's, as a fraction of the latter."""
    return (lowest(cell[arm], early) - before(cell)) / abs(before(cell))


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    pairs = [f"pair-s{seed}" for seed in SEEDS]
    lines = [
        "# WSRL: fine-tuning without the data",
        "",
        f"{DATASET}; {EPISODES} episodes a seed, mean action, and as many every 500 steps of fine-tuning. Lowest: of "
        f"the evaluations within the first {EARLY:,} training steps (four critic steps each), relative to the "
        f"pre-trained policy in the same initial states. Arms differ in how long that policy acts before training "
        f"begins: 5,000 steps (warm-up), {AUTHORS['initial_steps']:,} (the authors' code without warm-up), one (none); "
        "the later, the less training after as many steps. CQL, Cal-QL and WSRL: networks of 128-128 with layer norms. "
        "Written by `python benchmarks/wsrl.py`.",
        "",
        *pair_table([*pairs, "calql-s0"], found, ("warm", "authors", "none"), EARLY),
        *all_gaps(pairs, found, ("authors", "none"), EARLY),
        "",
        *long_table(found),
        "",
        *mini_table(found),
    ]
    lines += ["", f"{len(found)} of {len(cells())} cells are there."]
    return lines


def pair_table(names: list[str], found: dict[str, dict[str, Any]], arms: tuple[str, ...], early: int) -> list[str]:
    """A line for each pair."""
    titles = ["cell", "pre-trained", *(f"{what}, {TITLES[arm]}" for what in ("lowest", "after") for arm in arms)]
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for name in names:
        if name not in found:
            lines.append("| " + " | ".join([name, *["missing"] * (len(titles) - 1)]) + " |")
            continue
        cell = found[name]
        row = [name, f"{before(cell):.0f}"]
        row += [f"{relative(cell, arm, early):+.0%}" for arm in arms]
        row += [f"{np.mean(cell[arm]['returns']):.0f}" for arm in arms]
        lines.append("| " + " | ".join(row) + " |")
    return lines


def all_gaps(names: list[str], found: dict[str, dict[str, Any]], arms: tuple[str, ...], early: int) -> list[str]:
    """What the warm-up is worth beside the other arms, over the pairs that are there."""
    there = [found[name] for name in names if name in found]
    return [line for arm in arms for line in gap_lines(there, len(names), arm, early)]


def gap_lines(there: list[dict[str, Any]], seeds: int, arm: str, early: int) -> list[str]:
    """What the warm-up is worth beside one other arm."""
    if len(there) < 2:
        return []
    gaps = [relative(cell, "warm", early) - relative(cell, arm, early) for cell in there]
    whole = [gap * abs(before(cell)) for gap, cell in zip(gaps, there, strict=True)]
    share, returns = (
        hierarchical_interval([np.asarray([v]) for v in values], shared_episodes=False) for values in (gaps, whole)
    )
    return [
        "",
        f"Lowest return with warm-up minus that of `{TITLES[arm]}`, as a fraction of the pre-trained return, paired by "
        f"seed: {share.estimate:.2f} [{share.low:.2f}, {share.high:.2f}]; in units of return {returns.estimate:.0f} "
        f"[{returns.low:.0f}, {returns.high:.0f}]; {len(there)} of {seeds} seeds; `{TITLES[arm]}` is lower in "
        f"{sum(gap > 0 for gap in gaps)}.",
    ]


def mini_table(found: dict[str, dict[str, Any]]) -> list[str]:
    """The pairs on the pendulum."""
    lines = [
        "## The same on the pendulum",
        "",
        f"{MINI_DATA:,} transitions of {MINI}, Cal-QL for {MINI_PRETRAINING:,} updates, {MINI_ONLINE:,} online steps, "
        f"lowest within the first {MINI_EARLY:,} training steps. Wanted: with warm-up at most 30 % below the "
        "pre-trained policy, and without lower in at least 4 of 5 seeds.",
    ]
    for kind, title in (
        ("mini", "By a controller of middling skill; two critics"),
        ("half", f"By samples of SAC after {HALF_STEPS:,} steps; ten critics"),
    ):
        names = [f"{kind}-s{seed}" for seed in SEEDS]
        data = [found[name]["data"] for name in names if "data" in found.get(name, {})]
        returns = f" (mean returns {', '.join(f'{one:.0f}' for one in data)})" if data else ""
        lines += ["", f"{title}{returns}:", "", *pair_table(names, found, ("warm", "none"), MINI_EARLY)]
        there = [relative(found[name], "warm", MINI_EARLY) for name in names if name in found]
        if there:
            lines += ["", f"Lowest with warm-up: {np.mean(there):+.0%} on average."]
        lines += all_gaps(names, found, ("none",), MINI_EARLY)
    return lines


def long_table(found: dict[str, dict[str, Any]]) -> list[str]:
    """WSRL with ten critics beside IQL that keeps the data."""
    lines = [
        f"## {LONG_ONLINE:,} online steps",
        "",
        "| algorithm | pre-trained | after |",
        "|---|---|---|",
    ]
    after = {}
    for side, title in (
        ("wsrl", "WSRL, 10 critics of 128-128, keeps no data"),
        ("iql", "IQL, 256-256, keeps the data"),
    ):
        cells_there = [found[n] for n in (f"long-{side}-s{seed}" for seed in LONG_SEEDS) if n in found]
        returns = {k: [np.asarray(cell[k]["returns"]) for cell in cells_there] for k in ("pretrained", "online")}
        after[side] = returns["online"]
        lines.append("| " + " | ".join([title, *(entry(v, len(LONG_SEEDS)) for v in returns.values())]) + " |")
    lines += ["", f"WSRL minus IQL: {difference(after['wsrl'], after['iql'])}."]
    return lines


def quick_cell() -> dict[str, Any]:
    """A few steps of each stage."""
    data, where = generate("native/pendulum", 0, 400, "medium"), {"environment": "native/pendulum"}
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root)
        start = part(folder / "cql", "cql", {"sampled_actions": 2}, 20, 0, dataset=data, **where)
        more = {"init": str(start.folder), "evaluate_every": 50, **where}
        return facts(part(folder / "warm", "wsrl", {"initial_steps": 80}, 100, 0, **more))


def main() -> None:
    """The command line."""
    study_main(__doc__, "wsrl", cells(), table, Cell("quick", quick_cell))


if __name__ == "__main__":
    main()
