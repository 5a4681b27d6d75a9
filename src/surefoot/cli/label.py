"""`surefoot label`: comparisons of stretches of a dataset, for rewards from preferences."""

from __future__ import annotations

import argparse
from typing import Any

from surefoot.cli.support import output


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "label", help="compare stretches of a dataset, by a person or by rewards, for algo=preferences"
    )
    parser.add_argument("dataset", metavar="DATASET", help="path or id of data of vectors")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="a new .npz file")
    parser.add_argument("--pairs", type=int, default=100, help="pairs of stretches (default 100)")
    parser.add_argument("--horizon", type=int, default=25, help="steps of a stretch, algo.horizon (default 25)")
    parser.add_argument(
        "--by", default="person", metavar="WHO",
        help="person: asked in this terminal (default); rewards: the data's own; or module:function, a reward of yours",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the draw of pairs (default 0)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draw pairs, have them answered, and write them."""
    from surefoot.core.base.errors import ConfigError
    from surefoot.data.rewards import rewarded
    from surefoot.play.label import by_person, by_rewards, label
    from surefoot.runs.embedded import load
    from surefoot.runs.trust import allow, function_of

    if arguments.seed < 0:
        raise ConfigError(f"--seed is {arguments.seed}; it must be at least 0")
    with output.download_bar(quiet=arguments.json) as downloading:
        dataset = load(arguments.dataset, progress=downloading)
    if arguments.by == "person":
        answer = by_person(dataset, lambda text: output.say(text, stderr=arguments.json), input)
    elif arguments.by == "rewards":
        answer = by_rewards(dataset)
    else:
        allow(arguments.by)
        answer = by_rewards(rewarded(dataset, function_of(arguments.by, "--by"), arguments.by))
    found = label(
        dataset, arguments.output, answer, pairs=arguments.pairs, horizon=arguments.horizon, seed=arguments.seed
    )
    if arguments.json:
        output.print_json({"file": arguments.output, **found})
        return 0
    output.say(
        f"{output.counted(found['pairs'], 'comparison')} in {output.short(arguments.output)}, {found['equal']} of "
        f"equal stretches, {found['skipped']} skipped"
    )
    output.say(
        f"next: surefoot train algo=preferences dataset={output.typed(arguments.dataset)} "
        f"algo.labels={output.typed(arguments.output)} algo.horizon={arguments.horizon}"
    )
    return 0
