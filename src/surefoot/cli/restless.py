"""`surefoot restless`: which of many arms to act on, when acting on all is not possible."""

from __future__ import annotations

import argparse
from typing import Any

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError

ROWS = 20
"""Arms that are listed."""


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "restless",
        help="restless bandits: Whittle's indices, the exact optimum of small ones, simulation of large ones",
    )
    parser.add_argument("table", metavar="FILE", help="the arms' tables, .npz (docs/measures.md)")
    parser.add_argument("--budget", type=int, help="arms that may be acted on at once (default: the file's)")
    parser.add_argument("--discount", type=float, help="in [0, 1) (default: the file's, else 0.99)")
    parser.add_argument(
        "--episodes", type=int, metavar="N", help="also simulate N episodes of each policy, from the file's start"
    )
    parser.add_argument("--steps", type=int, help="of a simulated episode (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="of the simulation (default 0)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=restless)


def restless(arguments: argparse.Namespace) -> int:
    """Indices, the exact optimum where it can be found, and simulated returns."""
    import numpy as np

    from surefoot.evaluation.restless import load_bandit, policies, simulate, solve, values_of
    from surefoot.evaluation.tables import format_bounds

    if arguments.steps is not None and arguments.episodes is None:
        raise ConfigError("--steps is of simulated episodes: say how many with --episodes N, or leave it out")
    if arguments.seed < 0:
        raise ConfigError(f"--seed is {arguments.seed}; it must be at least 0")
    bandit = load_bandit(arguments.table, arguments.discount, arguments.budget)
    indices = bandit.indices()
    compared = policies(bandit, indices)
    solved, start = solve(bandit), tuple(bandit.start.tolist())
    exact = None
    if solved is not None:
        exact = {"optimum": float(solved.values[start])}
        exact |= {name: float(values_of(bandit, solved, scores)[start]) for name, scores in compared.items()}
    simulated = None
    if arguments.episodes is not None:
        steps = 100 if arguments.steps is None else arguments.steps
        simulated = {
            name: simulate(bandit, scores, arguments.episodes, steps, arguments.seed)
            for name, scores in compared.items()
        }
    off = [arm for arm, one in enumerate(indices) if not one.indexable]
    now = np.flatnonzero(bandit.best_set(compared["index"](bandit.start), bandit.feasible())).tolist()
    if arguments.json:
        output.print_json(
            {
                "table": arguments.table,
                "arms": bandit.arms,
                "states": bandit.states,
                "discount": bandit.discount,
                "indices": [one.values.tolist() for one in indices],
                "not_indexable": off,
                "acts_on": now,
                "exact": exact,
                "simulated": None if simulated is None else {n: one.to_json() for n, one in simulated.items()},
            }
        )
        return 0
    output.print_facts(
        {
            "table": f"{output.short(arguments.table)}: {bandit.arms:,} arms of {bandit.states} states",
            "discount": f"{bandit.discount:g}",
            "constraints": output.counted(len(bandit.bounds), "linear rule"),
            "not indexable": ", ".join(map(str, off[:ROWS])) or "none",
            "at the start": f"acts on {', '.join(map(str, now[:ROWS])) or 'no arm'}" + " ..." * (len(now) > ROWS),
        }
    )
    rows = [
        {"arm": str(arm), **{f"state {s}": f"{value:.4f}" for s, value in enumerate(one.values)}}
        for arm, one in enumerate(indices[:ROWS])
    ]
    output.print_rows(rows, list(rows[0]), title="Whittle's index")
    if bandit.arms > ROWS:
        output.say(f"{bandit.arms - ROWS:,} more arms: --json lists all")
    if exact is None:
        output.say("too many joint states for the exact optimum; --episodes N compares policies by simulation")
    else:
        shown = ", ".join(f"{name} {value:.5g}" for name, value in exact.items())
        output.say(f"exact discounted return from the start: {shown}")
    if simulated is not None:
        for name, one in simulated.items():
            output.say(f"simulated, {arguments.episodes:,} episodes of {steps} steps, {name}: "
                       f"{format_bounds(one.to_json(), 3)}")  # fmt: skip
    return 0
