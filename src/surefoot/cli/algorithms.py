"""`surefoot algorithms`: what can be trained, and the options of one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.engine.needs import CONTINUOUS, DATA, DISCRETE, NEEDED, TAKEN

if TYPE_CHECKING:
    from surefoot.core.engine.agent import Agent

WHAT_AUTO_IS = "Trains several algorithms on one dataset and hands over the one that the data support, else the clone"


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "algorithms",
        help="list the algorithms with what each needs, or the options of one",
        description="Algorithms by family, with what each needs and can take; the options of one, where it is named. "
        f"Words of --needs and --without: {', '.join(NEEDED)} (to start from, init=). Words of --takes: "
        f"{', '.join(TAKEN)}. Several with commas: all of them.",
    )
    parser.add_argument("name", nargs="?", help="show this one's options")
    parser.add_argument("--family", metavar="NAME", help="only those of this family, such as safe")
    parser.add_argument("--needs", metavar="WORDS", help="only those that can't do without, as in --needs data,costs")
    parser.add_argument("--without", metavar="WORDS", help="only those that can, as in --without environment")
    parser.add_argument("--takes", metavar="WORDS", help="only those that can use it, as in --takes discrete,pictures")
    parser.add_argument("--json", action="store_true", help="print JSON, with a sentence of each")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the list, or one algorithm's options."""
    if arguments.name is None:
        return _list(arguments)
    for option in ("family", "needs", "without", "takes"):
        if getattr(arguments, option) is not None:
            raise ConfigError(f"--{option} filters the list, and {arguments.name} is one of them: leave one out")
    from surefoot.cli.support import config
    from surefoot.cli.support.help_text import summary
    from surefoot.runs.algorithms import AUTO
    from surefoot.runs.plan import agent_class
    from surefoot.runs.trust import allow

    if arguments.name == AUTO:
        _show(_row_of_auto(), _options_of_auto(), {}, arguments.json)
        return 0
    allow(arguments.name)  # for the user names it
    agent = agent_class(arguments.name)
    row = {"name": agent.name, "what": summary(agent), **_told(agent)}
    _show(row, config.described(agent.Config), agent.PRESETS, arguments.json)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    """The algorithms that the filters leave."""
    from surefoot.cli.support import listing

    rows = listing.kept(listing.ALGORITHMS, _rows)
    families = list(dict.fromkeys(row["family"] for row in rows))
    if arguments.family is not None and arguments.family not in families:
        raise ConfigError(f"--family {arguments.family}: {nearest(arguments.family, families)}")
    needed, without = (_words(arguments, option, NEEDED) for option in ("needs", "without"))
    taken = _words(arguments, "takes", TAKEN)
    rows = [
        row
        for row in rows
        if arguments.family in (None, row["family"])
        and needed <= set(row["needs"])
        and not without & set(row["needs"])
        and taken <= set(row["takes"])
    ]
    if arguments.json:
        output.print_json(rows)
    elif not rows:
        raise ConfigError("no algorithm is like that; `surefoot algorithms` shows all")
    else:
        _print(rows)
    return 0


def _words(arguments: argparse.Namespace, option: str, known: Sequence[str]) -> set[str]:
    """The words after an option."""
    text = getattr(arguments, option)
    words = [] if text is None else text.split(",")
    for word in words:
        if word not in known:
            raise ConfigError(f"--{option} {word}: {nearest(word, known)}")
    return set(words)


def _rows() -> list[dict[str, Any]]:
    """Of all algorithms, those of a family together; to read them takes the seconds that torch takes to be imported."""
    from surefoot.cli.support.help_text import summary
    from surefoot.runs.algorithms import FAMILIES

    rows = [
        {"name": name, "family": family, "what": summary(agent), **_told(agent), "presets": sorted(agent.PRESETS)}
        for family, agents in FAMILIES.items()
        for name, agent in sorted(agents.items())
    ]
    return [*rows, _row_of_auto()]


def _told(agent: type[Agent]) -> dict[str, list[str]]:
    """What an algorithm needs and takes, as JSON values."""
    needs = agent.needs()
    return {"needs": list(needs.needed), "takes": list(needs.taken)}


def _row_of_auto() -> dict[str, Any]:
    from surefoot.runs.algorithms import AUTO

    return {"name": AUTO, "family": "choice", "what": WHAT_AUTO_IS, "needs": [DATA], "takes": [DATA, CONTINUOUS],
            "presets": []}  # fmt: skip


def _print(rows: Sequence[dict[str, Any]]) -> None:
    """A line an algorithm, in 100 columns."""
    actions = (CONTINUOUS, DISCRETE)
    shown = [
        {
            "algorithm": row["name"],
            "family": row["family"].replace("_", "-"),
            "needs": ", ".join(row["needs"]),
            "takes too": ", ".join(word for word in row["takes"] if word not in (*row["needs"], *actions)),
            "actions": ", ".join(word for word in row["takes"] if word in actions),
        }
        for row in rows
    ]
    heads = list(shown[0])
    widths = [max(len(head), *(len(row[head]) for row in shown)) for head in heads]
    for line in ({head: head for head in heads}, *shown):
        output.say("  ".join(line[head].ljust(width) for head, width in zip(heads, widths, strict=True)).rstrip())
    output.say(
        "\nrun: one to start from (init=); environment under `takes too`: for evaluation alone.\n"
        "surefoot algorithms NAME: what it is, its options. --help: how to see fewer"
    )


def _options_of_auto() -> list[dict[str, Any]]:
    from surefoot.cli.support.auto import OPTIONS
    from surefoot.studies.auto import PORTFOLIO

    defaults = {"portfolio": PORTFOLIO, "budget": None, "judge": "critics"}
    return [{"name": name, "default": defaults[name], "what": what} for name, what in OPTIONS.items()]


def _show(row: dict[str, Any], options: list[dict[str, Any]], presets: dict[str, Any], as_json: bool) -> None:
    from surefoot.cli.support.help_text import shown

    if as_json:
        output.print_json({**row, "options": options, "presets": presets})
        return
    output.say(f"{row['name']}: {row['what']}\n")
    output.say(f"needs: {', '.join(row['needs'])}; can take: {', '.join(row['takes'])}\n")
    rows = [{"option": f"algo.{one['name']}", "default": shown(one["default"]), "what": one["what"]} for one in options]
    output.print_rows(rows, ["option", "default", "what"])
    for preset, changes in sorted(presets.items()):
        listed = ", ".join(f"{key}={shown(value)}" for key, value in changes.items())
        output.say(f"algo.preset={preset}: {listed or 'the defaults'}")
