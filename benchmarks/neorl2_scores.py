"""NeoRL-2's own files beside its nine published methods: one setting per algorithm for all tasks, nothing tuned.

The environments are those of polixir/NeoRL2, a checkout of which must be importable; Simglucose also needs
pandas below 3, and goes through benchmarks/peers/shims, since newer packages refuse parts of it:

export PYTHONPATH=CHECKOUT:benchmarks/peers/shims
python benchmarks/neorl2_scores.py            # compute what is missing, then write the table
python benchmarks/neorl2_scores.py --table    # only the table
python benchmarks/neorl2_scores.py --quick    # one small cell, for CI; without the checkout
"""

from __future__ import annotations

import csv
import functools
import importlib.util
import itertools
from typing import Any, NamedTuple

import numpy as np
from cells import Results
from study import SHARED, Cell, git_commit, shared, study_main, training_cell

from surefoot.data import normalized_score, reference_scores
from surefoot.evaluation import hierarchical_interval

UPDATES, SEEDS = 30_000, 3
STEPS = 480
"""Of a whole episode of Simglucose: a day, in steps of 3 minutes."""


class Task(NamedTuple):
    """A file, its simulator, and what of the state its observations hide."""

    name: str
    episodes: int
    wanted: float
    """The score to reach: of the best published method, or of the data where that is better."""

    @property
    def dataset(self) -> str:
        """Stem of the file."""
        return f"neorl2-{self.name.lower()}-high-train"

    @property
    def environment(self) -> str:
        """Where its policies are judged."""
        return "simglucose_today:SimglucoseToday-v0" if self.name == "Simglucose" else f"neorl2:{self.name}"


TASKS = (Task("DMSD", 50, 78.7), Task("SafetyHalfCheetah", 10, 73.6), Task("Simglucose", 20, 75.1))
METHODS: dict[str, dict[str, Any] | tuple[str, dict[str, Any]]] = {
    "bc": {},
    "bc10": ("bc", {"preset": "ten_percent"}),
    "td3bc": {},
    "td3bc-0.1": ("td3bc", {"alpha": 0.1}),
    "iql": {"preset": "corl"},
    "rebrac": {"normalization": "observations", "learning_rate": 3e-4},
    "cql": {"normalization": "observations"},
    "edac": {"normalization": "observations"},
    "mcq": {"normalization": "observations"},
}
"""Label -> options of the algorithm of that name, or algorithm and options."""
PUBLISHED = ("bc", "cql", "edac", "mcq", "td3bc", "mopo", "combo", "rambo", "mobile")


def cell(task: Task, method: str, seed: int) -> dict[str, Any]:
    """Train one seed without looking at the simulator, and evaluate its last policy."""
    _need_simulators(task)
    data = functools.partial(shared, task.dataset)
    setting = METHODS[method]
    algorithm, options = setting if isinstance(setting, tuple) else (method, setting)
    return training_cell(algorithm, options, data, task.environment, seed, UPDATES, task.episodes, evaluations=1)


def validation(task: Task) -> dict[str, Any]:
    """The simulator against the file: each recorded state is set and its recorded action taken, 500 times."""
    _need_simulators(task)
    import gymnasium

    data = shared(task.dataset)
    env = gymnasium.make(task.name).unwrapped
    env.reset(seed=0)
    states, rewards, actions = [], [], []
    rows = np.random.default_rng(0).choice(np.flatnonzero(~(data.terminations | data.truncations)), 500, replace=False)
    for row in rows:
        _set(env, task.name, data.observations[row].astype(np.float64), data.next_observations[row])
        found, reward, *_ = env.step(data.actions[row])
        states.append(np.abs(found - data.next_observations[row]).max() / np.abs(data.observations).std())
        rewards.append(abs(reward - data.rewards[row]))
        actions.append(np.abs(data.actions[row]).max())
    return {
        "task": task.name,
        "rows": len(rows),
        "state_error": [float(np.quantile(states, q)) for q in (0.5, 0.99)],
        "reward_error": [float(np.quantile(rewards, q)) for q in (0.5, 0.99)],
        "reward_scale": float(data.rewards.std()),
        "git": git_commit(),
    }


def glucose_rewards(readings: np.ndarray, following: np.ndarray) -> np.ndarray:
    """(N,) rewards of NeoRL-2's Simglucose by the (N,) sensor's readings before and after a step, in mg/dl.

    1 and a hundredth of by how much the risk falls, 10 (1.509 (log(g)^1.084 - 5.381))^2 of a reading g; -15 where it
    ends at 40 or below, 0 at 600 or above.
    """
    risks = [10 * (1.509 * (np.log(g.astype(np.float64)) ** 1.084 - 5.381)) ** 2 for g in (readings, following)]
    rewards = 1 + (risks[0] - risks[1]) / 100
    return np.where(following >= 600, 0.0, np.where(following <= 40, -15.0, rewards))


def glucose_validation(task: Task) -> dict[str, Any]:
    """Simglucose's file against the rules of its simulator, whose state can't be set; it needs the file alone."""
    data = shared(task.dataset)
    before, after = data.observations[:, 0], data.next_observations[:, 0]
    errors = np.abs(glucose_rewards(before, after) - data.rewards)
    read_as_end = (after < 40) | (after > 600)
    return {
        "task": task.name,
        "rows": len(data),
        "reward_error": [float(np.quantile(errors, q)) for q in (0.5, 0.99, 1.0)],
        "reward_scale": float(data.rewards.std()),
        "episodes": len(data.episode_lengths),
        "full_length": int((data.episode_lengths == STEPS).sum()),
        "terminations": int(data.terminations.sum()),
        "terminations_not_read": int((data.terminations & ~read_as_end).sum()),
        "read_without_termination": int((read_as_end & ~data.terminations).sum()),
        "git": git_commit(),
    }


def _set(env: Any, name: str, observation: np.ndarray, following: np.ndarray) -> None:
    """Put the simulator into a recorded state."""
    if name == "DMSD":  # positions, velocities, targets; the targets of the next step are in the next observation
        env.t = 0
        env.state = observation[:4].copy()
        env.obs = observation
        env.set_target(following[4:6])
    else:
        env.set_state(observation[:9], observation[9:])
        env.pre_observation = observation


def _need_simulators(task: Task) -> None:
    if importlib.util.find_spec("neorl2") is None:
        raise SystemExit("put a checkout of polixir/NeoRL2 on PYTHONPATH")


def cells() -> list[Cell]:
    """All cells: DMSD first, one seed of everything before the next."""
    ways = zip(TASKS, (validation, validation, glucose_validation), strict=True)
    checks = [Cell(f"{task.name}-validation", functools.partial(way, task)) for task, way in ways]
    return checks + [
        Cell(f"{task.name}-{method}-s{seed}", functools.partial(cell, task, method, seed))
        for task in TASKS
        for seed in range(SEEDS)
        for method in METHODS
    ]


SAME: dict[str, tuple[str, dict[str, str]]] = {
    "td3bc-0.1": ("td3bc", {"alpha": "0.1"}),
    "edac": ("edac", {"num_critics": "10", "eta": "1"}),
    "mcq": ("mcq", {"lam": "0.9", "auto_alpha": "True"}),
}
"""Label -> NeoRL-2's name of the method and what its own runs at the setting of `METHODS` are known by."""


def published_at_our_settings() -> dict[str, dict[str, list[float]]]:
    """Task -> label -> scores of NeoRL-2's own runs, a mean per seed; empty where its list of runs is not there."""
    path = SHARED / "results" / "neorl2_runs.csv"
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        runs = list(csv.DictReader(file))
    found: dict[str, dict[str, list[float]]] = {task.name: {} for task in TASKS}
    for task, (label, (method, setting)) in itertools.product(TASKS, SAME.items()):
        reference = reference_scores(f"neorl2:{task.name}")
        seeds: dict[str, list[float]] = {}
        for run in runs:
            if (run["env"], run["algo"]) == (task.name, method) and setting.items() <= run.items():
                seeds.setdefault(run["seed"], []).append(float(run["Reward_Mean_Env"]))
        if reference is not None:
            means = np.array([np.mean(returns) for returns in seeds.values()])
            found[task.name][label] = normalized_score(means, reference).tolist()
    return found


def published() -> dict[str, dict[str, str]]:
    """Task -> method -> score of NeoRL-2's table; empty where it is not there."""
    path = SHARED / "results" / "neorl2_task_score.csv"
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {row[""]: row for row in csv.DictReader(file)}


def table(found: Results) -> list[str]:
    """Ours, the nine published ones, and the checks of the simulators."""
    theirs = published()
    lines = [
        "# NeoRL-2",
        "",
        f"The very files of NeoRL-2, {UPDATES:,} updates, {SEEDS} seeds, one setting per algorithm for all tasks (the "
        "library's defaults, with observations normalised), the last policy; nothing was chosen by a simulator. Scores "
        "100 (return - low) / (high - low) with 95 % intervals over seeds and initial states. Published ones are of "
        "NeoRL-2's own table, tuned by task in the simulator, mean and standard deviation over 3 seeds. TD3+BC's "
        "default weight of the critic is 2.5; NeoRL-2 tried 0.05, 0.1 and 0.2, and `td3bc-0.1` is the middle of these. "
        "Reached is what the mean reaches, in the one decimal that is shown. "
        "Written by `python benchmarks/neorl2_scores.py` on one core of an x86 server CPU.",
        "",
        f"| task | the data | {' | '.join(METHODS)} | wanted | reached |",
        f"|---|---|{'---|' * len(METHODS)}---|---|",
    ]
    for task in TASKS:
        entries = {method: _score(found, task, method) for method in METHODS}
        data = theirs.get(task.name, {}).get("data")
        reached = [
            method for method, (mean, _) in entries.items() if mean is not None and round(mean, 1) >= task.wanted
        ]
        answer = "no" if any(mean is not None for mean, _ in entries.values()) else ""
        shown = " | ".join(text for _, text in entries.values())
        lines.append(
            f"| {task.name} | {'' if data is None else f'{float(data):.1f}'} | {shown} | {task.wanted} | "
            f"{', '.join(reached) or answer} |"
        )
    lines += ["", "Published, of the same files:", "", f"| task | {' | '.join(PUBLISHED)} |"]
    lines.append(f"|---|{'---|' * len(PUBLISHED)}")
    lines += [
        f"| {task.name} | {' | '.join(theirs[task.name][m] for m in PUBLISHED)} |"
        for task in TASKS
        if task.name in theirs
    ]
    same = published_at_our_settings()
    if same:
        lines += [
            "",
            "Each of these is the best of a grid for its task, chosen in the simulator. NeoRL-2's own runs with the "
            f"values of its grid that our columns have ({_named(SAME)}), after 1,000,000 updates, EDAC's 3,000,000: "
            "the mean and each seed's, TD3+BC's over its three noises:",
            "",
            f"| task | {' | '.join(SAME)} |",
            f"|---|{'---|' * len(SAME)}",
        ]
        lines += [f"| {task.name} | {' | '.join(_seeds(same[task.name][label]) for label in SAME)} |" for task in TASKS]
    lines += ["", "The simulators against the files, 500 recorded steps each taken again from the recorded state:", ""]
    lines += ["| task | state error / deviation: median, 99 % | reward error: same | deviation of rewards |"]
    lines += ["|---|---|---|---|"]
    for task in TASKS[:2]:
        check = found.get(f"{task.name}-validation")
        if check is not None:
            pair = [", ".join(f"{value:.1g}" for value in check[key]) for key in ("state_error", "reward_error")]
            lines.append(f"| {task.name} | {pair[0]} | {pair[1]} | {check['reward_scale']:.3g} |")
    check = found.get(f"{TASKS[2].name}-validation")
    return lines if check is None else [*lines, "", *_of_glucose(check)]


def _named(settings: dict[str, tuple[str, dict[str, str]]]) -> str:
    """How a sentence says them."""
    return "; ".join(
        f"{k}: {', '.join(f'{a} {b}' for a, b in setting.items())}" for k, (_, setting) in settings.items()
    )


def _seeds(scores: list[float]) -> str:
    """Their mean, and all of them."""
    return f"{np.mean(scores):.1f} ({', '.join(f'{score:.1f}' for score in scores)})"


def _of_glucose(check: dict[str, Any]) -> list[str]:
    """What is known of Simglucose's file and of the wrapper of its simulator."""
    return [
        "Simglucose's state can't be set from its observations, which are a sensor's reading and the patient's "
        f"constants. The package's formula of rewards, of the readings before and after, on all {check['rows']:,} "
        f"recorded rows: largest difference {check['reward_error'][2]:.1g} (median {check['reward_error'][0]:.1g}; "
        f"deviation of rewards {check['reward_scale']:.3g}). {check['full_length']} of {check['episodes']} episodes "
        f"({check['full_length'] / check['episodes']:.0%}) have all {STEPS} steps, the others terminate. The simulator "
        f"ends them by the glucose itself, below 40 or above 600: of {check['terminations']} terminations "
        f"{check['terminations_not_read']} have a reading between these; after readings beyond these episodes go "
        f"on: {check['read_without_termination']}. How the glucose moves is checked by BC beside the data alone.",
        "",
        "The wrapper (`benchmarks/peers/shims/simglucose_today.py`) changes nothing of the task: it hands the action "
        "over as a number, since newer numpy refuses an array for it; seeds numpy's global generator, from which the "
        "simulator draws patient, hour, meals and the sensor's noise, at each reset; gives observations as float32 and "
        f"steps an empty info; and cuts episodes at {STEPS} steps, as NeoRL-2 does.",
    ]


def _score(found: Results, task: Task, method: str) -> tuple[float | None, str]:
    rows = [found[name] for s in range(SEEDS) if (name := f"{task.name}-{method}-s{s}") in found]
    reference = reference_scores(f"neorl2:{task.name}")
    if not rows or reference is None:
        return None, "missing"
    interval = hierarchical_interval([normalized_score(np.asarray(row["returns"]), reference) for row in rows])
    text = f"{interval.estimate:.1f} [{interval.low:.1f}, {interval.high:.1f}]"
    return interval.estimate, text if len(rows) == SEEDS else f"{text} ({len(rows)} of {SEEDS} seeds)"


if __name__ == "__main__":
    data = functools.partial(shared, "pendulum-mixed-sb3")
    quick = Cell("quick", functools.partial(training_cell, "rebrac", {}, data, "Pendulum-v1", 0, 200, 2))
    study_main(__doc__, "neorl2_scores", cells(), table, quick)
