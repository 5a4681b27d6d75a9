"""`surefoot evaluate RUN --weights PARTS`: what a policy of several objectives earns by each weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError

MOST_WEIGHTS = 500


def evaluate_weights(
    policies: Sequence[Any], env: str, parts: int, reference: str | None, episodes: int, seed: int, quiet: bool
) -> dict[str, Any]:
    """Mean returns by all weights that are multiples of 1 / `parts`, their Pareto front and hypervolume.

    Args:
        policies: one of each training seed.
        env: name of an environment `weighted:...`.
        parts: at least 1.
        reference: R1,R2,... of the hypervolume; None: the worst mean return of each objective.
        episodes: of each weight and policy.
        seed: of the initial states.
        quiet: no progress.

    Raises:
        ConfigError: another environment, too many weights, or a reference of another length.
    """
    from surefoot.envs.make import split_options, with_options
    from surefoot.envs.names import WEIGHTED
    from surefoot.envs.objectives.several import simplex
    from surefoot.evaluation import evaluate
    from surefoot.evaluation.pareto import hypervolume, pareto_front

    base, options = split_options(env)
    if not base.startswith(WEIGHTED):
        raise ConfigError(f"--weights is of environments {WEIGHTED}NAME?objectives=M, and this is {env}")
    objectives = int(options["objectives"])
    if parts < 1 or episodes < 1:
        raise ConfigError(f"--weights is {parts} and --episodes {episodes}; both must be at least 1")
    every = simplex(objectives, parts)
    if len(every) > MOST_WEIGHTS:
        raise ConfigError(f"--weights {parts}: {len(every):,} weights, at most {MOST_WEIGHTS}; give fewer parts")
    returns = np.zeros((len(policies), len(every), objectives))
    with output.episodes_bar(quiet, lines=False, what="weights") as progress:
        for number, weights in enumerate(every):
            name = with_options(base, {**options, "weights": [round(float(one), 9) for one in weights]})
            for p, found in enumerate(evaluate(policies, name, episodes, seed)):
                terms = [found.reward_terms[f"objective/{i}"].mean() for i in range(objectives)]
                returns[p, number] = terms
            if progress is not None:
                progress(number + 1, len(every))
    origin = returns.min((0, 1)).tolist() if reference is None else _numbers(reference, objectives)
    means = returns.mean(0)
    return {
        "weights": every.tolist(),
        "returns": means.tolist(),
        "front": pareto_front(means).tolist(),
        "reference": origin,
        "hypervolume": hypervolume(means, origin),
        "per_seed_hypervolume": [hypervolume(one, origin) for one in returns],
        "episodes": episodes,
        "seed": seed,
    }


def print_front(found: dict[str, Any], seeds: int) -> None:
    """The table of weights, and the hypervolume."""
    rows = [
        {
            "weights": ", ".join(f"{one:g}" for one in np.round(weights, 3)),
            **{f"objective {i}": f"{value:,.2f}" for i, value in enumerate(returns)},
            "front": "yes" if best else "",
        }
        for weights, returns, best in zip(found["weights"], found["returns"], found["front"], strict=True)
    ]
    output.print_rows(rows, list(rows[0]))
    each = ", ".join(f"{one:,.4g}" for one in found["per_seed_hypervolume"])
    origin = ", ".join(f"{one:,.4g}" for one in found["reference"])
    output.say(
        f"{found['episodes']} episodes of each weight for each of {seeds} seeds, means over both; front: no other "
        "weight is as good in all objectives and better in one."
    )
    output.say(f"hypervolume above ({origin}): {found['hypervolume']:,.4g}; of each seed {each}")


def _numbers(text: str, count: int) -> list[float]:
    try:
        found = [float(one) for one in text.split(",")]
    except ValueError:
        found = []
    if len(found) != count or not np.isfinite(found).all():
        raise ConfigError(f"--reference {text}: give {count} numbers with commas between them")
    return found
