"""`surefoot cliff`: how far a policy jumps when the reward moves a little."""

from __future__ import annotations

import argparse
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError

if TYPE_CHECKING:
    from surefoot.data.dataset import Dataset
    from surefoot.runs.run import Run
    from surefoot.studies.cliff import Retrained, RunCliff

SHARE = 0.01
"""Of the range of rewards, that they move by where --noise is not given."""


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "cliff", help="how far a policy jumps when the reward changes: by a run's critics, or exactly for a table"
    )
    parser.add_argument("source", metavar="RUN", help="run folder, or a table of a small problem, FILE.npz")
    parser.add_argument("--dataset", metavar="FILE", help="dataset of the states, path or id (default: the RUN's own)")
    parser.add_argument(
        "--noise",
        type=float,
        metavar="R",
        help="largest change of the rewards, in their unit (default: 1 %% of their range)",
    )
    parser.add_argument(
        "--retrain", type=int, metavar="N", help="solve or train again on N perturbed rewards, and compare policies"
    )
    parser.add_argument("-o", "--output", metavar="FOLDER", help="of --retrain's runs (default: RUN-cliff)")
    parser.add_argument("--states", type=int, help="at most this many states of the dataset (default 2000)")
    parser.add_argument(
        "--distance",
        type=float,
        help="continuous actions: least distance of another action, in half ranges (default 0.1)",
    )
    parser.add_argument("--samples", type=int, help="continuous actions: samples drawn in each state (default 64)")
    parser.add_argument("--discount", type=float, help="of a table (default: the file's, else 0.99)")
    parser.add_argument(
        "--temperature", type=float, metavar="ALPHA", help="for a table: entropy weight of a soft policy"
    )
    parser.add_argument("--seed", type=int, default=0, help="of states, samples and perturbed rewards (default 0)")
    output.add_trust(parser)
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=cliff)


def cliff(arguments: argparse.Namespace) -> int:
    """Find the gaps, say what they mean, and compare with perturbed rewards where that is asked for."""
    if arguments.seed < 0:
        raise ConfigError(f"--seed is {arguments.seed}; it must be at least 0")
    if arguments.retrain is not None and arguments.retrain < 1:
        raise ConfigError(f"--retrain is {arguments.retrain}; give 1 or more, or leave it out")
    table = arguments.source.endswith(".npz")
    for name in ("dataset", "output", "states", "distance", "samples") if table else ("discount", "temperature"):
        if getattr(arguments, name) is not None:
            of = "a run's critics" if table else "a table"
            raise ConfigError(f"--{name} is of {of}: leave it out")
    if arguments.output is not None and arguments.retrain is None:
        raise ConfigError("-o is of the runs that --retrain trains: add it, or leave -o out")
    return _table(arguments) if table else _run(arguments)


def _table(arguments: argparse.Namespace) -> int:
    from surefoot.core.base.finite_mdp import load_mdp
    from surefoot.evaluation.cliff import cliff_of_table

    mdp = load_mdp(arguments.source)
    discount = arguments.discount if arguments.discount is not None else mdp.discount
    discount = 0.99 if discount is None else discount
    noise = _noise(arguments, mdp.rewards)
    found = cliff_of_table(mdp, discount, noise, arguments.retrain or 0, arguments.temperature, arguments.seed)
    if arguments.json:
        output.print_json({"table": arguments.source, **found.to_json()})
        return 0
    gaps = found.gaps[found.visited]
    ties = int((gaps == 0).sum())
    facts = {
        "table": f"{output.short(arguments.source)}: {mdp.states:,} states, {mdp.actions} actions",
        "discount": f"{discount:g}",
        "states that are met": f"{int(found.visited.sum()):,}"
        + ("" if mdp.start is not None else " (the file has no start: all)"),
        "gap": f"least {gaps.min():.4g}, median {np.median(gaps):.4g}",
        "states with a tie": f"{ties:,}",
        "certified radius": f"{found.certified:.4g}: no smaller change of the rewards changes the greedy policy",
        f"within {noise:.4g}": f"{100 * found.share_within:.1f} % of states may change their greedy action",
    }
    if found.soft_limit is not None:
        facts[f"entropy weight {arguments.temperature:g}"] = (
            f"a soft policy moves by at most {found.soft_limit:.4g} in any state (of 2)"
        )
    output.print_facts(facts)
    if found.changed is not None and found.lost is not None:
        from surefoot.evaluation.tables import format_bounds

        draws = output.counted(found.draws, "perturbed reward")
        output.say(
            f"{draws}: the greedy action changed in {format_bounds(found.changed.to_json(), 3)} of the states (share); "
            f"acting by it loses {found.lost.estimate:.4g} of the return from the start"
        )
        if found.soft_moved is not None:
            output.say(f"the soft policy moved by {found.soft_moved:.4g} at most")
    return 0


def _noise(arguments: argparse.Namespace, rewards: Any) -> float:
    if arguments.noise is not None:
        return float(arguments.noise)
    return SHARE * float(np.max(rewards) - np.min(rewards))


def _run(arguments: argparse.Namespace) -> int:
    from surefoot.api.fit import shown
    from surefoot.runs.embedded import load
    from surefoot.runs.run import Run
    from surefoot.runs.start import demand_names
    from surefoot.studies.cliff import cliff as look
    from surefoot.studies.cliff import data_of, retrain

    run = Run.open(arguments.source)
    demand_names(run, arguments.trust)
    given: Dataset | None = None
    if arguments.dataset is not None:
        with output.download_bar(arguments.quiet) as downloading:
            given = load(arguments.dataset, progress=downloading)
    data = data_of(run, given)
    noise = _noise(arguments, data.rewards)
    options = {name: getattr(arguments, name) for name in ("states", "distance", "samples")}
    asked = {name: value for name, value in options.items() if value is not None}
    found = look(run, data, noise=noise, seed=arguments.seed, trust=arguments.trust, **asked)
    again = None
    if arguments.retrain is not None:
        folder = pathlib.Path(arguments.output or f"{str(arguments.source).rstrip('/')}-cliff")
        with shown(not (arguments.quiet or arguments.json)) as heard:
            again = retrain(
                run, data, noise=noise, times=arguments.retrain, out=folder, seed=arguments.seed, listener=heard,
                trust=arguments.trust, **{name: asked[name] for name in asked if name == "states"},
            )  # fmt: skip
    if arguments.json:
        output.print_json({**found.to_json(), "retrained": None if again is None else again.to_json()})
        return 0
    _present(run, data, found, again)
    return 0


def _present(run: Run, data: Dataset, found: RunCliff, again: Retrained | None) -> None:
    from surefoot.evaluation.tables import format_bounds
    from surefoot.studies.cliff import QUANTILES

    rows = []
    for seed, gaps in found.gaps.items():
        quantiles = found.quantiles(seed)
        rows.append(
            {
                "seed": str(seed),
                **{f"gap, {100 * q:g} %": f"{quantiles[q]:.4g}" for q in QUANTILES},
                "critics_disagree": f"{100 * float((gaps < 0).mean()):.1f} %",
                "median_radius": f"{float(np.median(found.radii(seed))):.4g}",
                f"within {found.noise:.4g}": f"{100 * float((found.radii(seed) <= found.noise).mean()):.1f} %",
                **({} if found.lost is None else {"median_lost": f"{float(np.median(found.lost[seed])):.4g}"}),
            }
        )
    output.print_rows(rows, list(rows[0]), title=f"{found.algorithm}: gaps of its critics")
    share = found.share.to_json()
    share = {name: value if name == "method" or value is None else 100 * value for name, value in share.items()}
    output.say(
        f"{found.states:,} states of {output.counted(found.episodes, 'episode')} of {data.name}, discount "
        f"{found.discount:g}, in the unit of its rewards."
    )
    output.say(
        f"rewards that move by {found.noise:.4g} may change the best action in {format_bounds(share)} % of states"
    )
    if found.distance is not None:
        output.say(
            f"a gap is to actions at least {found.distance:g} half ranges away ({found.samples} samples a state); "
            "lost: the most that is lost nearer"
        )
    if found.between_seeds is not None:
        output.say(f"mean distance of two seeds' policies: {found.between_seeds:.3g}{_unit(run)}")
    if (limit := found.soft_limit()) is not None:
        output.say(f"by its entropy weight alone the optimal policy moves by at most {limit:.4g} in any state (of 2)")
    output.say("These are beliefs of trained critics, no certificate; a table, FILE.npz, gives one.")
    if again is not None:
        count = output.counted(len(again.folders), "perturbed reward")
        output.say(
            f"\nretrained on {count}, seed for seed: policies moved by {format_bounds(again.distance.to_json(), 3)}"
            f"{_unit(run)}"
        )
        if again.spread is not None:
            returns = ", ".join(f"{value:.4g}" for value in again.returns if value is not None)
            output.say(f"returns {returns} (first the run's own); difference {format_bounds(again.spread.to_json())}")
        output.say(f"runs: {', '.join(map(output.short, again.folders))}")


def _unit(run: Run) -> str:
    return " of the states with another choice (share)" if run.spec.discrete else " half ranges of the actions"
