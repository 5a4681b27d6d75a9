"""`surefoot horizon`: will random exploration and a few steps of planning solve a task?"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError

TRIALS = 20


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "horizon", help="effective horizon of a small problem: how much exploration by random actions it takes"
    )
    parser.add_argument("table", metavar="FILE", help="table of the problem, .npz (docs/measures.md)")
    parser.add_argument("--horizon", type=int, metavar="T", help="steps of an episode (default: the file's)")
    parser.add_argument("--play", choices=("gorp", "sqirl"), help="also play the table, as often as --trials says")
    parser.add_argument("--k", type=int, help="of --play: planning steps (default: the best by the measure, else 1)")
    parser.add_argument("--episodes", type=int, metavar="M", help="of --play: m, random episodes of each try")
    parser.add_argument("--trials", type=int, help=f"of --play: how often (default {TRIALS})")
    parser.add_argument("--seed", type=int, default=0, help="of --play (default 0)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=horizon)


def horizon(arguments: argparse.Namespace) -> int:
    """Measure the table, and play it where that is asked for."""
    from surefoot.core.base.finite_mdp import load_mdp
    from surefoot.evaluation.horizon import PLAYERS, effective_horizon

    if arguments.play is None:
        for name in ("k", "episodes", "trials"):
            if getattr(arguments, name) is not None:
                raise ConfigError(f"--{name} is of --play: add it, or leave --{name} out")
    elif arguments.episodes is None:
        raise ConfigError("--play needs --episodes M: how many random episodes each try may take")
    if arguments.seed < 0:
        raise ConfigError(f"--seed is {arguments.seed}; it must be at least 0")
    trials = TRIALS if arguments.trials is None else arguments.trials
    if trials < 1:
        raise ConfigError(f"--trials is {trials}; it must be at least 1")
    mdp = load_mdp(arguments.table)
    found = effective_horizon(mdp, arguments.horizon)
    played: dict[str, Any] | None = None
    if arguments.play is not None:
        from surefoot.evaluation.certificates import certificate

        best = found.best
        k = arguments.k if arguments.k is not None else (found.solved_by or 1) if best is None else best.k
        player = PLAYERS[arguments.play]
        results = [
            player(mdp, k, arguments.episodes, np.random.default_rng([arguments.seed, trial]), arguments.horizon)
            for trial in range(trials)
        ]
        slack = 1e-9 * max(1.0, abs(found.optimum))
        missed = sum(one.value < found.optimum - slack for one in results)
        bound = certificate(missed, trials)
        played = {
            "player": arguments.play,
            "k": k,
            "episodes": arguments.episodes,
            "trials": trials,
            "solved": trials - missed,
            "solved_share": {"mean": 1 - bound.rate, "low": 1 - bound.high, "high": 1 - bound.low},
            "mean_return": float(np.mean([one.value for one in results])),
            "steps": float(np.mean([one.steps for one in results])),
        }
    if arguments.json:
        output.print_json({"table": arguments.table, **found.to_json(), "played": played})
        return 0
    facts = {
        "table": f"{output.short(arguments.table)}: {mdp.states:,} states, {mdp.actions} actions",
        "steps": f"{found.steps:,}",
        "return": f"{found.optimum:.4g} at best, {found.random:.4g} by random actions",
        "solved by": "no number of planning steps below the whole episode"
        if found.solved_by is None
        else f"k = {found.solved_by}: acting greedily by {_backups(found.solved_by)}",
    }
    if found.horizon is None:
        facts["effective horizon"] = "none: the bound is of tables without chance"
    else:
        facts["effective horizon"] = f"{found.horizon:.4f} of {found.steps:,}" + _how(found.best)
        facts["sampling bound"] = _bound(found.actions, found.steps, found.horizon)
    output.print_facts(facts)
    if len(found.backups) > 1:
        rows = [
            {"k": str(one.k), "random episodes m": f"{one.episodes:,}", "H_k": f"{one.horizon:.4f}"}
            for one in found.backups
        ]
        output.print_rows(rows, list(rows[0]))
    if played is not None:
        share = played["solved_share"]
        output.say(
            f"{played['player']}, k {played['k']}, m {played['episodes']:,}: optimal in {played['solved']} of {trials} "
            f"trials ({share['mean']:.2f} [{share['low']:.2f}, {share['high']:.2f}]), mean return "
            f"{played['mean_return']:.4g}, {played['steps']:,.0f} steps of the environment each"
        )
    return 0


def _backups(k: int) -> str:
    if k == 1:
        return "the values of random actions"
    return f"the values of random actions, backed up {output.counted(k - 1, 'time')}"


def _how(best: Any) -> str:
    return "" if best is None else f", by k = {best.k} and m = {best.episodes:,} random episodes of each sequence"


def _bound(actions: int, steps: int, horizon: float) -> str:
    exponent = 2 * np.log10(steps) + horizon * np.log10(actions)
    return f"about 10^{exponent:.1f} steps of the environment are enough (T^2 A^H)"
