"""`surefoot algorithms`: what can be trained, and the options of one."""

from __future__ import annotations

import argparse
from typing import Any

from surefoot.cli.support import output

WHAT_AUTO_IS = "Trains several algorithms on one dataset and hands over the one that the data support, else the clone"


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("algorithms", help="list the algorithms, or the options of one")
    parser.add_argument("name", nargs="?", help="show this one's options")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the list, or one algorithm's options."""
    from surefoot.cli.support import config
    from surefoot.cli.support.help_text import summary
    from surefoot.runs.algorithms import ALGORITHMS, AUTO
    from surefoot.runs.plan import agent_class
    from surefoot.runs.trust import allow

    if arguments.name is None:
        rows = [
            {"name": name, "what": summary(agent), "presets": sorted(agent.PRESETS)}
            for name, agent in sorted(ALGORITHMS.items())
        ]
        rows.append({"name": AUTO, "what": WHAT_AUTO_IS, "presets": []})
        if arguments.json:
            output.print_json(rows)
        else:
            output.print_rows(rows, ["name", "what", "presets"])
        return 0
    if arguments.name == AUTO:
        _show(AUTO, WHAT_AUTO_IS, _options_of_auto(), {}, arguments.json)
        return 0
    allow(arguments.name)  # for the user names it
    agent = agent_class(arguments.name)
    _show(agent.name, summary(agent), config.described(agent.Config), agent.PRESETS, arguments.json)
    return 0


def _options_of_auto() -> list[dict[str, Any]]:
    from surefoot.cli.support.auto import OPTIONS
    from surefoot.studies.auto import PORTFOLIO

    defaults = {"portfolio": PORTFOLIO, "budget": None, "judge": "critics"}
    return [{"name": name, "default": defaults[name], "what": what} for name, what in OPTIONS.items()]


def _show(name: str, what: str, options: list[dict[str, Any]], presets: dict[str, Any], as_json: bool) -> None:
    from surefoot.cli.support.help_text import shown

    if as_json:
        output.print_json({"name": name, "what": what, "options": options, "presets": presets})
        return
    output.say(f"{name}: {what}\n")
    rows = [{"option": f"algo.{row['name']}", "default": shown(row["default"]), "what": row["what"]} for row in options]
    output.print_rows(rows, ["option", "default", "what"])
    for preset, changes in sorted(presets.items()):
        listed = ", ".join(f"{key}={shown(value)}" for key, value in changes.items())
        output.say(f"algo.preset={preset}: {listed or 'the defaults'}")
