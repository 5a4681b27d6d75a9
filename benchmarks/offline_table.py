"""BC, TD3+BC, IQL and RIQL on three real datasets, and IQL and TD3+BC beside CORL on the same files.

    python benchmarks/offline_table.py              # computes what is missing, then writes the table
    python benchmarks/offline_table.py --table      # only writes the table
    python benchmarks/offline_table.py --quick      # one small cell, for CI

All algorithms see normalised observations here (IQL with its `corl` preset), so the comparison is of the
algorithms; the peer's cells come from benchmarks/peers/corl_train.py.
"""

from __future__ import annotations

import functools
import tempfile
from typing import Any

import gymnasium
import numpy as np
from cells import Results, read_cells
from study import Cell, git_commit, results, shared, study_main, training_cell

from surefoot import fit
from surefoot.data import normalized_score, reference_scores
from surefoot.evaluation import difference_interval, hierarchical_interval
from surefoot.offline import BC
from surefoot.offline.evaluation.fitted_q import FittedQConfig, fitted_q_estimate

STEPS, EPISODES, SEEDS = 30_000, 50, (0, 1, 2)
DATASETS = {
    "hopper-v5-medium-sb3": "Hopper-v5",
    "walker2d-v5-mixed-sb3": "Walker2d-v5",
    "pendulum-mixed-sb3": "Pendulum-v1",
}
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "bc": ("bc", {}),
    "td3bc": ("td3bc", {}),
    "iql": ("iql", {"preset": "corl"}),
    "riql": ("riql", {}),
}
MORE_ON = "pendulum-mixed-sb3"
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "bc10": ("bc", {"preset": "ten_percent"}),
    "iql-official": ("iql", {"preset": "official"}),
}
FITTED_Q_STEPS, ESTIMATED_EPISODES = 10_000, 100
PEERS = [("iql", dataset) for dataset in DATASETS] + [("td3bc", "hopper-v5-medium-sb3")]
PEER_FILES = {"iql": "iql", "td3bc": "td3bc"}


def cells() -> list[Cell]:
    """All cells, one seed of everything before the next seed."""
    return [
        Cell(
            f"{algorithm}-{dataset}-s{seed}",
            functools.partial(
                training_cell, name, options, functools.partial(shared, dataset), environment, seed, STEPS, EPISODES
            ),
        )
        for seed in SEEDS
        for dataset, environment in DATASETS.items()
        for algorithm, (name, options) in ALGORITHMS.items()
    ]


def more_cells() -> list[Cell]:
    """Variants that the large table leaves out, on the small dataset, and fitted-Q evaluation against the truth."""
    data, environment = functools.partial(shared, MORE_ON), DATASETS[MORE_ON]
    variants = [
        Cell(
            f"{variant}-{MORE_ON}-s{seed}",
            functools.partial(training_cell, name, options, data, environment, seed, STEPS, EPISODES),
        )
        for seed in SEEDS
        for variant, (name, options) in MORE.items()
    ]
    return variants + [Cell(f"fitted_q-{MORE_ON}-s{s}", functools.partial(fitted_q_cell, s)) for s in SEEDS]


def fitted_q_cell(seed: int) -> dict[str, Any]:
    """A BC policy's discounted return: estimated from the data, and measured in the simulator."""
    data = shared(MORE_ON)
    with tempfile.TemporaryDirectory() as folder:
        agent = BC(data)
        run = fit(agent, data, env=None, steps=STEPS // 3, seeds=[seed], out=f"{folder}/run", progress=False)
        policy = run.policy()
    discount = FittedQConfig().discount
    estimate = fitted_q_estimate(policy, data, FITTED_Q_STEPS, seed, discount)
    truth = []
    environment = gymnasium.make(DATASETS[MORE_ON])
    for episode in range(ESTIMATED_EPISODES):
        observation, _ = environment.reset(seed=1000 * seed + episode)
        value, factor, over = 0.0, 1.0, False
        while not over:
            observation, reward, terminated, truncated, _ = environment.step(policy.select_action(observation))
            value, factor, over = value + factor * float(reward), factor * discount, terminated or truncated
        truth.append(value)
    return {
        "algorithm": "fitted_q",
        "of": "bc",
        "dataset": MORE_ON,
        "seed": seed,
        "steps": FITTED_Q_STEPS,
        "discount": discount,
        "estimates": [round(float(value), 3) for value in estimate.values],
        "drift": round(estimate.drift, 3),
        "discounted_returns": [round(value, 3) for value in truth],
        "git": git_commit(),
    }


def returns_of(found: dict[str, dict[str, Any]], algorithm: str, dataset: str) -> list[np.ndarray]:
    """Per-episode returns of each seed that is there."""
    names = [f"{algorithm}-{dataset}-s{seed}" for seed in SEEDS]
    return [np.asarray(found[name]["returns"]) for name in names if name in found]


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    wanted = [f"{PEER_FILES[a]}-{d}-s{s}" for a, d in PEERS for s in SEEDS]
    peers = {name: one for name, one in read_cells(results("peers")).items() if name in wanted}
    lines = [
        "# Offline algorithms on three real datasets",
        "",
        f"{STEPS:,} updates, {len(SEEDS)} seeds, {EPISODES} episodes a seed with the mean action, last checkpoint. "
        "Mean return with its 95 % interval over seeds and initial states; in brackets the D4RL-normalised mean. "
        "Written by `python benchmarks/offline_table.py` on 2 cores of an x86 server CPU.",
        "",
        "| dataset | behaviour | BC | TD3+BC | IQL | RIQL |",
        "|---|---|---|---|---|---|",
    ]
    for dataset, environment in DATASETS.items():
        reference = reference_scores(environment)
        behaviour = shared(dataset).episode_returns.mean()
        entries = [f"{behaviour:.0f}"]
        for algorithm in ALGORITHMS:
            entries.append(entry(returns_of(found, algorithm, dataset), reference))
        lines.append(f"| {dataset} | " + " | ".join(entries) + " |")
    lines += ["", f"## More, on {MORE_ON}", "", "| algorithm | return |", "|---|---|"]
    titles = {"bc10": "BC of the best 10 % of the episodes", "iql-official": "IQL, preset `official`"}
    for variant, title in titles.items():
        lines.append(f"| {title} | {entry(returns_of(found, variant, MORE_ON), reference_scores(DATASETS[MORE_ON]))} |")
    lines += ["", *fitted_q_lines(found)]
    lines += ["", "## Beside CORL", ""]
    lines += ["CORL's own scripts, trained by us on the same files for the same steps with the same settings.", ""]
    lines += [
        "| algorithm | dataset | ours | CORL | ours - CORL, 95 % interval | half-width |",
        "|---|---|---|---|---|---|",
    ]
    for algorithm, dataset in PEERS:
        ours, theirs = returns_of(found, algorithm, dataset), returns_of(peers, PEER_FILES[algorithm], dataset)
        difference = "missing", "missing"
        if len(ours) > 1 and len(theirs) > 1:
            interval = difference_interval(ours, theirs, shared_episodes=False)
            difference = (
                f"{interval.estimate:.0f} [{interval.low:.0f}, {interval.high:.0f}]",
                f"{(interval.high - interval.low) / 2:.0f}",
            )
        cells_of = " | ".join([entry(ours, None), entry(theirs, None), *difference])
        lines.append(f"| {algorithm} | {dataset} | {cells_of} |")
    done = len(found) + len(peers)
    lines += ["", f"{done} of {len(cells()) + len(more_cells()) + len(PEERS) * len(SEEDS)} cells are there."]
    return lines


def fitted_q_lines(found: dict[str, dict[str, Any]]) -> list[str]:
    """Fitted-Q estimates of BC policies beside what they earn, one row a seed."""
    lines = [
        f"Fitted-Q evaluation of BC policies, {FITTED_Q_STEPS:,} steps; discounted return, mean over the data's "
        f"first states and over {ESTIMATED_EPISODES} simulated episodes.",
        "",
        "| seed | estimate from the data | in the simulator | drift in the last fifth |",
        "|---|---|---|---|",
    ]
    for seed in SEEDS:
        cell = found.get(f"fitted_q-{MORE_ON}-s{seed}")
        if cell is None:
            lines.append(f"| {seed} | missing | missing | |")
            continue
        truth = np.asarray(cell["discounted_returns"])
        error = 1.96 * truth.std(ddof=1) / np.sqrt(len(truth))
        estimate = np.mean(cell["estimates"])
        lines.append(f"| {seed} | {estimate:.1f} | {truth.mean():.1f} +- {error:.1f} | {cell['drift']:.1f} |")
    return lines


def entry(returns: list[np.ndarray], reference: tuple[float, float] | None) -> str:
    """Mean with interval and, where seeds are missing, how many there are."""
    if not returns:
        return "missing"
    interval = hierarchical_interval(returns)
    text = f"{interval.estimate:.0f} [{interval.low:.0f}, {interval.high:.0f}]"
    if reference is not None:
        text += f" ({normalized_score(interval.estimate, reference):.1f})"
    return text if len(returns) == len(SEEDS) else f"{text} ({len(returns)} of {len(SEEDS)} seeds)"


def main() -> None:
    data = functools.partial(shared, "pendulum-mixed-sb3")
    quick = Cell("quick", functools.partial(training_cell, "iql", {}, data, "Pendulum-v1", 0, 300, 2))
    study_main(__doc__, "offline_table", [*cells(), *more_cells()], table, quick)


if __name__ == "__main__":
    main()
