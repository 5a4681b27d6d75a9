"""How often each rule for comparing algorithms is wrong where there is no difference, and finds one that there is.

    python benchmarks/deciding.py            # 10,000 comparisons a row, about 10 minutes on one core
    python benchmarks/deciding.py --quick    # a few hundred, seconds; writes nothing

Scores of seeds: standard normal, lognormal, normal with a fifth of the seeds collapsed to -5, and real ones: both sides
drawn with replacement from the 12 published seeds of one method on one task (`results/ogbench/qam_main.npz` of the
shared data: last step, cells with at least 6 different scores). Differences are d standard deviations of normal scores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from surefoot.core.base.files import write_json
from surefoot.evaluation import LookPlan, adastop, certificate, sequential_certificate, t_e_process
from surefoot.evaluation.anytime import mixture_e
from surefoot.evaluation.deciding import test_statistics
from surefoot.evaluation.selection import expected_maximum

RESULTS = pathlib.Path(__file__).parent / "results"
SHARED = pathlib.Path(os.environ.get("SUREFOOT_SHARED_DATA", pathlib.Path(__file__).parents[2] / "shared" / "data"))
CHUNK, PATHS = 500, 2000
Array = np.ndarray[Any, Any]
Draw = Callable[[np.random.Generator, int, int], tuple[Array, Array]]


def normal(generator: np.random.Generator, trials: int, seeds: int) -> tuple[Array, Array]:
    x, y = generator.normal(size=(2, trials, seeds))
    return x, y


def lognormal(generator: np.random.Generator, trials: int, seeds: int) -> tuple[Array, Array]:
    x, y = normal(generator, trials, seeds)
    return np.exp(x), np.exp(y)


def unequal(generator: np.random.Generator, trials: int, seeds: int) -> tuple[Array, Array]:
    x, y = normal(generator, trials, seeds)
    return x, 3 * y


def collapsed(generator: np.random.Generator, trials: int, seeds: int) -> tuple[Array, Array]:
    found = []
    for scores in normal(generator, trials, seeds):
        found.append(np.where(generator.random(scores.shape) < 0.2, -5.0, scores))
    return found[0], found[1]


def real() -> Draw | None:
    path = SHARED / "results" / "ogbench" / "qam_main.npz"
    if not path.is_file():
        print(f"{path} is not there: no row of real scores")
        return None
    with np.load(path, allow_pickle=False) as file:
        cells = file["successes"][:, :, :, -1].reshape(-1, 12) / float(file["episodes"])
    cells = cells[[len(set(cell)) >= 6 for cell in cells.tolist()]]

    def draw(generator: np.random.Generator, trials: int, seeds: int) -> tuple[Array, Array]:
        chosen = cells[generator.integers(len(cells), size=trials)][:, None, :]
        rows = generator.integers(12, size=(2, trials, seeds, 1))
        return tuple(np.take_along_axis(np.broadcast_to(chosen, (trials, seeds, 12)), r, 2)[..., 0] for r in rows)  # type: ignore[return-value]

    return draw


def group_sequential(draw: Draw, trials: int, plan: LookPlan, shift: float = 0.0) -> dict[str, float]:
    """Share that is called different, and the mean number of seeds of each side; new shuffles for every chunk."""
    generator, found, used = np.random.default_rng(1), 0, 0.0
    for start in range(0, trials, CHUNK):
        count = min(CHUNK, trials - start)
        x, y = draw(generator, count, plan.seeds)
        own = LookPlan(plan.per_stage, plan.stages, plan.level, plan.pairs, plan.paths, seed=start)
        crossed = test_statistics(x + shift, y, own)[2]
        any_crossed = crossed.any(axis=1)
        found += int(any_crossed.sum())
        used += float(np.where(any_crossed, crossed.argmax(axis=1) + 1, plan.stages).sum()) * plan.per_stage
    return {"different": found / trials, "seeds": used / trials}


def published(draw: Draw, trials: int, plan: LookPlan, shift: float = 0.0) -> dict[str, float]:
    generator, found, used = np.random.default_rng(2), 0, 0.0
    for start in range(0, trials, CHUNK):
        count = min(CHUNK, trials - start)
        x, y = draw(generator, count, plan.seeds)
        stopped = adastop(x + shift, y, LookPlan(plan.per_stage, plan.stages, plan.level, seed=start))
        found += int((stopped > 0).sum())
        used += float(np.where(stopped > 0, stopped, plan.stages).sum()) * plan.per_stage
    return {"different": found / trials, "seeds": used / trials}


def welch(draw: Draw, trials: int, seeds: tuple[int, ...], shift: float = 0.0) -> dict[str, float]:
    """Welch's t after each of the numbers of seeds, as one who stops at the first p below .05."""
    from scipy.stats import ttest_ind

    x, y = draw(np.random.default_rng(3), trials, max(seeds))
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about cells whose scores are all equal
        p = np.stack([ttest_ind(x[:, :n] + shift, y[:, :n], axis=1, equal_var=False).pvalue for n in seeds], 1)
    return _first(np.nan_to_num(p, nan=1.0) < 0.05, seeds)


def bootstrap(draw: Draw, trials: int, seeds: tuple[int, ...], shift: float = 0.0) -> dict[str, float]:
    """Percentile bootstrap of the difference of means, 500 resamples, after each of the numbers of seeds."""
    generator = np.random.default_rng(4)
    x, y = draw(generator, trials, max(seeds))
    crossed = np.zeros((trials, len(seeds)), dtype=bool)
    for i, n in enumerate(seeds):
        for start in range(0, trials, CHUNK):
            part = slice(start, min(start + CHUNK, trials))
            means = []
            for scores in (x[part, :n] + shift, y[part, :n]):
                rows = generator.integers(n, size=(500, n))
                means.append(scores[:, rows].mean(axis=2))
            low, high = np.quantile(means[0] - means[1], [0.025, 0.975], axis=1)
            crossed[part, i] = (low > 0) | (high < 0)
    return _first(crossed, seeds)


def t_process(draw: Draw, trials: int, most: int = 25, shift: float = 0.0) -> dict[str, float]:
    x, y = draw(np.random.default_rng(5), trials, most)
    return _first(t_e_process(x + shift - y) >= 20, tuple(range(1, most + 1)))


def _first(crossed: Array, seeds: tuple[int, ...]) -> dict[str, float]:
    any_crossed = crossed.any(axis=1)
    used = np.where(any_crossed, np.asarray(seeds)[crossed.argmax(axis=1)], seeds[-1])
    return {"different": float(any_crossed.mean()), "seeds": float(used.mean())}


def episodes(trials: int, most: int, first: float, second: float) -> dict[str, float]:
    """The betting mixture on differences of success, after each pair of episodes."""
    generator = np.random.default_rng(6)
    table: dict[tuple[int, int], bool] = {}

    def decides(up: int, down: int) -> bool:
        if (up, down) not in table:
            values = np.concatenate([np.ones(up), -np.ones(down)])
            table[up, down] = bool(len(values) and float(mixture_e(values)) >= 20)
        return table[up, down]

    stops = []
    for _ in range(trials):
        u = (generator.random(most) < first).astype(int) - (generator.random(most) < second).astype(int)
        changed = np.flatnonzero(u)
        up, down = np.cumsum(u[changed] == 1).tolist(), np.cumsum(u[changed] == -1).tolist()
        stops.append(next((int(changed[i]) + 1 for i in range(len(changed)) if decides(up[i], down[i])), most + 1))
    found = np.array(stops)
    return {"different": float((found <= most).mean()), "episodes": float(np.minimum(found, most).mean())}


def certificates(trials: int, p: float = 0.01, looks: int = 10) -> dict[str, float]:
    """Share of runs in which some look's upper bound lies below the truth; looks at 100, 200, ..., 51,200 episodes."""
    generator = np.random.default_rng(7)
    at = 100 * 2 ** np.arange(looks)
    counts = np.cumsum(generator.binomial(np.diff(at, prepend=0), p, (trials, looks)), axis=1)
    wrong = {"clopper_pearson": np.zeros(trials, bool), "sequential": np.zeros(trials, bool)}
    for column, n in enumerate(at.tolist()):
        values, place = np.unique(counts[:, column], return_inverse=True)
        fixed = np.array([certificate(int(k), n).upper < p for k in values])
        safe = np.array([sequential_certificate(int(k), n).upper < p for k in values])
        wrong["clopper_pearson"] |= fixed[place]
        wrong["sequential"] |= safe[place]
    return {name: float(found.mean()) for name, found in wrong.items()}


def winners_curse(repeats: int, configurations: int = 20, seeds: int = 3) -> dict[str, float]:
    tuning, testing = np.random.default_rng(8).normal(size=(2, repeats, configurations, seeds)).mean(axis=3)
    best = tuning.argmax(axis=1)
    rows = np.arange(repeats)
    return {
        "expected": expected_maximum(configurations) / math.sqrt(seeds),
        "tuning": float(tuning[rows, best].mean()),
        "test": float(testing[rows, best].mean()),
    }


def study(trials: int) -> dict[str, Any]:
    plan, every, five = LookPlan(paths=PATHS), tuple(range(3, 26)), (5, 10, 15, 20, 25)
    draws: dict[str, Draw | None] = {"normal": normal, "real": real(), "lognormal": lognormal, "collapsed": collapsed}
    rules: dict[str, Callable[[Draw, int, float], dict[str, float]]] = {
        "group-sequential permutation test, 5 seeds x 5 stages": lambda d, n, s: group_sequential(d, n, plan, s),
        "the same, 5 x 2": lambda d, n, s: group_sequential(d, n, LookPlan(5, 2, paths=PATHS), s),
        "the same, 5 x 3": lambda d, n, s: group_sequential(d, n, LookPlan(5, 3, paths=PATHS), s),
        "the same, 5 x 6": lambda d, n, s: group_sequential(d, n, LookPlan(5, 6, paths=PATHS), s),
        "t e-process, after every seed": lambda d, n, s: t_process(d, n, 25, s),
        "AdaStop as published, 5 x 5": lambda d, n, s: published(d, n, plan, s),
        "AdaStop as published, 5 x 1": lambda d, n, s: published(d, n, LookPlan(5, 1), s),
        "Welch, once at 5": lambda d, n, s: welch(d, n, (5,), s),
        "Welch, once at 25": lambda d, n, s: welch(d, n, (25,), s),
        "Welch, at 5, 10, ..., 25": lambda d, n, s: welch(d, n, five, s),
        "Welch, after every seed": lambda d, n, s: welch(d, n, every, s),
        "percentile bootstrap, once at 5": lambda d, n, s: bootstrap(d, n, (5,), s),
        "percentile bootstrap, at 5, 10, ..., 25": lambda d, n, s: bootstrap(d, n, five, s),
    }
    table: dict[str, Any] = {}
    for name, rule in rules.items():
        began = time.process_time()
        row = {f"no difference, {kind}": rule(draw, trials, 0.0) for kind, draw in draws.items() if draw is not None}
        row |= {f"d = {d:g}": rule(normal, trials, d) for d in (0.5, 1.0, 2.0)}
        table[name] = row
        print(f"{name}: {json.dumps({k: round(v['different'], 4) for k, v in row.items()})}"
              f" ({time.process_time() - began:.0f} s)", flush=True)  # fmt: skip
    null_looks, power = max(50, trials * 2 // 5), max(50, trials // 5)
    found = {
        "trials": trials,
        "paths": PATHS,
        "rules": table,
        "unequal_spread": group_sequential(unequal, trials, plan),
        "episodes": {
            "both .85, 1,000 looks": {"trials": null_looks, **episodes(null_looks, 1000, 0.85, 0.85)},
            ".85 beside .75": {"trials": power, **episodes(power, 5000, 0.85, 0.75)},
        },
        "certificates": {"trials": 2 * trials, **certificates(2 * trials)},
        "winners_curse": {"repeats": max(200, trials // 5), **winners_curse(max(200, trials // 5))},
    }
    print(json.dumps({key: found[key] for key in ("episodes", "certificates", "winners_curse")}, indent=1))
    return found


def markdown(found: dict[str, Any]) -> str:
    columns = list(next(iter(found["rules"].values())))
    lines = [
        "# Deciding between two algorithms: errors and power",
        "",
        f"`python benchmarks/deciding.py`: {found['trials']:,} simulated comparisons a cell, at most 25 seeds a side "
        f"(5 x 6: 30), level .05, {found['paths']:,} shuffles. A cell is the share that was called different; behind a "
        "difference the mean number of seeds of each side. The standard error of a .05 is "
        f"{math.sqrt(0.05 * 0.95 / found['trials']):.4f}.",
        "",
        "| rule | " + " | ".join(columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for name, row in found["rules"].items():
        cells = [
            f"{cell['different']:.3f}" + (f" ({cell['seeds']:.1f})" if key.startswith("d =") else "")
            for key, cell in row.items()
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    null, power = found["episodes"].values()
    bound, curse = found["certificates"], found["winners_curse"]
    lines += [
        "",
        f"Equal means, standard deviations 1 and 3, the first rule: {found['unequal_spread']['different']:.3f}.",
        "",
        f"Success of two fixed policies, betting mixture after every pair of episodes: both .85, {null['trials']:,} "
        f"comparisons of 1,000 looks, different in {null['different']:.3f}; .85 beside .75, {power['trials']:,} "
        f"comparisons, decided after {power['episodes']:.0f} pairs on average.",
        "",
        f"Upper bound on a violation's probability of .01, looked at after 100, 200, ..., 51,200 episodes "
        f"({bound['trials']:,} runs): below the truth at some look in {bound['clopper_pearson']:.3f} "
        f"(Clopper-Pearson) and {bound['sequential']:.4f} (sequential).",
        "",
        f"The best of 20 equal configurations by 3 tuning seeds, {curse['repeats']:,} repeats: {curse['tuning']:.3f} "
        f"standard deviations on those seeds (expected {curse['expected']:.3f}), {curse['test']:.3f} on new ones.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--trials", type=int, default=10_000)
    arguments = parser.parse_args()
    found = study(200 if arguments.quick else arguments.trials)
    if not arguments.quick:
        write_json(RESULTS / "deciding.json", found)
        (RESULTS / "deciding.md").write_text(markdown(found), encoding="utf-8")


if __name__ == "__main__":
    main()
