"""`surefoot algorithms`: what can be trained, and the options of one."""

from __future__ import annotations

import argparse
from typing import Any

from surefoot.cli import output


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("algorithms", help="list the algorithms, or the options of one")
    parser.add_argument("name", nargs="?", help="show this one's options")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the list, or one algorithm's options."""
    from surefoot.cli import config
    from surefoot.cli.helptext import shown, summary
    from surefoot.core.errors import ConfigError, nearest
    from surefoot.experiment.algorithms import ALGORITHMS

    if arguments.name is None:
        rows = [
            {"name": name, "what": summary(agent), "presets": sorted(agent.PRESETS)}
            for name, agent in sorted(ALGORITHMS.items())
        ]
        if arguments.json:
            output.print_json(rows)
        else:
            output.print_rows(rows, ["name", "what", "presets"])
        return 0
    if arguments.name not in ALGORITHMS:
        raise ConfigError(f"unknown algorithm {arguments.name!r}: {nearest(arguments.name, list(ALGORITHMS))}")
    agent = ALGORITHMS[arguments.name]
    options = config.described(agent.Config)
    if arguments.json:
        output.print_json({"name": agent.name, "what": summary(agent), "options": options, "presets": agent.PRESETS})
        return 0
    output.say(f"{agent.name}: {summary(agent)}\n")
    rows = [{"option": f"algo.{row['name']}", "default": shown(row["default"]), "what": row["what"]} for row in options]
    output.print_rows(rows, ["option", "default", "what"])
    for name, changes in sorted(agent.PRESETS.items()):
        listed = ", ".join(f"{key}={shown(value)}" for key, value in changes.items())
        output.say(f"algo.preset={name}: {listed or 'the defaults'}")
    return 0
