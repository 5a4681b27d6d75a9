"""Stream AC and stream Q on CartPole-v1, what each ingredient is worth, and prediction on a random walk.

    python benchmarks/streaming_cartpole.py              # compute what is missing, then write the table
    python benchmarks/streaming_cartpole.py --table      # only the table
    python benchmarks/streaming_cartpole.py --quick      # one small cell, for CI

Scores are of training itself: the mean return of the episodes that end in each quarter of the steps.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from cells import Results
from study import Cell, git_commit, study_main

from surefoot.core.base.errors import DivergenceError
from surefoot.core.engine.agent import Spec
from surefoot.evaluation import Interval, difference_interval, hierarchical_interval
from surefoot.runs.plan import agent_class
from surefoot.streaming import traces

CARTPOLE_STEPS, CHEETAH_STEPS = 150_000, 200_000
SEEDS, CHEETAH_SEEDS = 10, 5
SLOW_SEEDS = 3  # of what has no native kernel
WALK_SEEDS, WALK_EPISODES = 30, 2_000


class Variant(NamedTuple):
    """An algorithm, and what was changed."""

    name: str
    title: str
    algorithm: str
    options: dict[str, Any]
    environment: str = "CartPole-v1"
    steps: int = CARTPOLE_STEPS
    seeds: int = SEEDS
    wanted: float = -math.inf  # at least this in the last quarter


def ablations(algorithm: str, title: str, wanted: float) -> list[Variant]:
    """An algorithm as it is, as published, and without one ingredient at a time."""
    changes: list[tuple[str, str, dict[str, Any]]] = [
        (
            "official",
            "official choices (rows of zeros, late trace cut, limits as ends) but for the clock",
            {"preset": "official"},
        ),
        *(
            (f"sgd{r:g}", f"plain steps of {r:g} instead of ObGD", {"optimizer": "sgd", "learning_rate": r})
            for r in RATES
        ),
        ("adaptive", "adaptive ObGD", {"optimizer": "adaptive"}),
        ("no-layer-norm", "no layer norm", {"layer_norm": False}),
        ("no-observation-norm", "observations as they are", {"normalize_observations": False}),
        ("no-reward-scale", "rewards as they are", {"scale_rewards": False}),
        ("dense", "dense initial weights", {"sparsity": 0.0}),
    ]
    first = Variant(algorithm, title, algorithm, {}, wanted=wanted)
    return [first, *(Variant(f"{algorithm}-{n}", f"{title}, {t}", algorithm, o) for n, t, o in changes)]


RATES = (1e-2, 1e-3, 1e-4)
CHEETAH = ("HalfCheetah-v5", CHEETAH_STEPS, CHEETAH_SEEDS)
VARIANTS = (
    *ablations("stream_ac", "stream AC", 430),
    *ablations("stream_q", "stream Q", 330),
    Variant("stream_sarsa", "stream SARSA", "stream_sarsa", {}),
    Variant("intentional_ac", "intentional AC", "intentional_ac", {}, seeds=SLOW_SEEDS),
    Variant("intentional_q", "intentional Q", "intentional_q", {}, seeds=SLOW_SEEDS),
    Variant("cheetah-sparse", "stream AC", "stream_ac", {}, *CHEETAH),
    Variant("cheetah-dense", "stream AC, dense initial weights", "stream_ac", {"sparsity": 0.0}, *CHEETAH),
)
AGAINST = {"stream_ac": "stream_ac", "stream_q": "stream_q", "cheetah-dense": "cheetah-sparse"}
"""Beginning of a variant's name -> the variant that it is compared with."""


def learn(variant: Variant, seed: int, steps: int | None = None) -> dict[str, Any]:
    """Returns of the training episodes and where they ended."""
    steps = variant.steps if steps is None else steps
    torch.set_num_threads(1)
    env: Any = gymnasium.make(variant.environment)
    if isinstance(env.action_space, gymnasium.spaces.Discrete):
        spec = Spec.of_choices(env.observation_space.shape[0], int(env.action_space.n))
    else:
        low, high = env.action_space.low, env.action_space.high
        spec = Spec(env.observation_space.shape[0], len(low), tuple(low.tolist()), tuple(high.tolist()))
    kind: Any = agent_class(variant.algorithm)
    agent = kind(spec, kind.configure(**variant.options), seeds=[seed])
    agent.plan(steps)
    action = agent.begin(env.reset(seed=seed)[0])
    ends, returns, total, failed = [], [], 0.0, False
    for step in range(steps):
        observation, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        try:
            action = agent.step(observation, reward, terminated, truncated)
        except DivergenceError:  # an ablation may diverge: it scores what it reached, and nothing after
            failed = True
            break
        if terminated or truncated:
            ends.append(step)
            returns.append(total)
            total = 0.0
            action = agent.begin(env.reset()[0])
    quarters = [[r for end, r in zip(ends, returns, strict=True) if end * 4 // steps == q] for q in range(4)]
    return {
        "variant": variant.name,
        "algorithm": variant.algorithm,
        "options": variant.options,
        "environment": variant.environment,
        "seed": seed,
        "steps": steps,
        "quarters": [round(float(np.mean(q)), 3) if q else 0.0 for q in quarters],
        "diverged": failed,
        "git": git_commit(),
    }


def random_walk() -> dict[str, Any]:
    """Root mean square error of values learned on the five-state random walk, one weight a state: WALK_SEEDS streams.

    Source: Sutton and Barto, "Reinforcement Learning", example 6.2.
    """
    walk, truth, rows = np.random.default_rng(0), np.arange(1, 6) / 6, np.arange(WALK_SEEDS)
    weights, trace = torch.full((WALK_SEEDS, 5), 0.5).double(), torch.zeros(WALK_SEEDS, 5).double()
    places, episodes = np.full(WALK_SEEDS, 2), np.zeros(WALK_SEEDS, int)
    errors = np.zeros((WALK_SEEDS, WALK_EPISODES))
    while episodes.min() < WALK_EPISODES:
        after = places + walk.choice([-1, 1], WALK_SEEDS)
        ended = (after < 0) | (after > 4)
        values = weights.numpy()
        following = np.where(ended, (after > 4).astype(float), values[rows, after.clip(0, 4)])  # the right exit pays 1
        trace = traces.accumulate(trace, torch.eye(5).double()[places], 0.8)
        weights, _ = traces.obgd_step(weights, trace, torch.from_numpy(following - values[rows, places]), kappa=2.0)
        trace[torch.from_numpy(ended)] = 0
        counted = ended & (episodes < WALK_EPISODES)
        errors[rows[counted], episodes[counted]] = np.sqrt(((weights.numpy() - truth) ** 2).mean(1))[counted]
        places, episodes = np.where(ended, 2, after), episodes + ended
    return {
        "after_10": errors[:, 9].round(6).tolist(),
        "after_100": errors[:, 99].round(6).tolist(),
        "late": errors[:, 1000:].mean(1).round(6).tolist(),
        "git": git_commit(),
    }


def cells() -> list[Cell]:
    """All cells, one seed of everything before the next; the slow ones last."""
    listed = [(variant, seed) for seed in range(SEEDS) for variant in VARIANTS if seed < variant.seeds]
    listed.sort(key=lambda one: one[0].seeds == SLOW_SEEDS)
    return [Cell("walk", random_walk)] + [
        Cell(f"{variant.name}-s{seed}", functools.partial(learn, variant, seed)) for variant, seed in listed
    ]


def last_quarters(found: dict[str, dict[str, Any]], variant: Variant) -> list[np.ndarray]:
    """Score of each seed that is there."""
    names = [f"{variant.name}-s{seed}" for seed in range(variant.seeds)]
    return [np.asarray([found[name]["quarters"][3]]) for name in names if name in found]


def shown(interval: Interval) -> str:
    """An interval in the table's manner."""
    return f"{interval.estimate:.0f} [{interval.low:.0f}, {interval.high:.0f}]"


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    lines = [
        "# Streaming on CartPole",
        "",
        "Mean return of the training episodes that end in a quarter of the steps; the last quarter with its 95 % "
        "interval over seeds, and its difference to the first line of the same algorithm and task. CartPole-v1 with "
        "its limit of 500, 150,000 steps; HalfCheetah-v5, 200,000 steps. Written by "
        "`python benchmarks/streaming_cartpole.py`.",
        "",
        "| task | variant | seeds | quarters 1 to 3 | last quarter | difference | wanted |",
        "|---|---|---|---|---|---|---|",
    ]
    by_name = {variant.name: variant for variant in VARIANTS}
    for variant in VARIANTS:
        scores = last_quarters(found, variant)
        row = [variant.environment, variant.title, f"{len(scores)} of {variant.seeds}"]
        if len(scores) < 2:
            lines.append("| " + " | ".join([*row, "missing", "missing", "missing", ""]) + " |")
            continue
        rows = [found[f"{variant.name}-s{seed}"] for seed in range(variant.seeds) if f"{variant.name}-s{seed}" in found]
        quarters = np.mean([one["quarters"] for one in rows], 0)
        diverged = sum(one["diverged"] for one in rows)
        own = shown(hierarchical_interval(scores, shared_episodes=False))
        row += [", ".join(f"{q:.0f}" for q in quarters[:3]), own + (f" ({diverged} diverged)" if diverged else "")]
        base = next((b for stem, b in AGAINST.items() if variant.name.startswith(stem) and b != variant.name), None)
        row.append(compared(found, scores, by_name[base]) if base else "-")
        met = "met" if np.mean(scores) >= variant.wanted else "NOT met"
        row.append(f">= {variant.wanted:.0f}: {met}" if variant.wanted > -math.inf else "")
        lines.append("| " + " | ".join(row) + " |")
    lines += ["", *walk_table(found.get("walk"))]
    lines += ["", f"{len(found)} of {len(cells())} cells are there."]
    return lines


def compared(found: dict[str, dict[str, Any]], scores: list[np.ndarray], base: Variant) -> str:
    """Difference to another variant."""
    others = last_quarters(found, base)
    if len(others) < 2:
        return "missing"
    return shown(difference_interval(scores, others, shared_episodes=False))


def walk_table(walk: dict[str, Any] | None) -> list[str]:
    """Prediction beside the reference figures."""
    lines = [
        "## Prediction: the five-state random walk",
        "",
        f"ObGD with traces, one weight a state, lambda 0.8, kappa 2: root mean square error, mean of {WALK_SEEDS} "
        "seeds (standard deviation over seeds). Reference: 0.115, 0.115 and 0.113.",
        "",
        f"| after 10 episodes | after 100 | episodes 1,001 to {WALK_EPISODES:,} |",
        "|---|---|---|",
    ]
    if walk is None:
        return [*lines, "| missing | missing | missing |"]
    columns = [np.asarray(walk[key]) for key in ("after_10", "after_100", "late")]
    return [*lines, "| " + " | ".join(f"{c.mean():.3f} ({c.std():.3f})" for c in columns) + " |"]


def main() -> None:
    """The command line."""
    study_main(__doc__, "streaming_cartpole", cells(), table, Cell("quick", lambda: learn(VARIANTS[0], 0, 3_000)))


if __name__ == "__main__":
    main()
