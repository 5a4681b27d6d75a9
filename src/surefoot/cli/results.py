"""`surefoot results`: hundreds of runs as one table and one page."""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError

PAGE = "results.html"
SHOWN = 5
"""Folders that are left out, and seeds that several hold, that are named one by one; the others are counted, and
the page and --json name all."""


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("results", help="all runs below some folders as one table, and as one page")
    parser.add_argument("roots", metavar="FOLDER", nargs="+", help="run folders, or folders that hold some")
    parser.add_argument("-o", "--output", metavar="FILE", help="results.csv, .jsonl or .parquet; runs go to FILE-runs")
    parser.add_argument("--plot", nargs="?", const=PAGE, metavar="PAGE", help=f"an HTML page (default {PAGE})")
    parser.add_argument("--episodes", action="store_true", help="also a row for each episode")
    parser.add_argument("--best", action="store_true", help="score runs by their best policies (keep_best=true)")
    parser.add_argument("--quiet", "-q", action="store_true", help="print no table of runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=gather)


def gather(arguments: argparse.Namespace) -> int:
    """Collect, write, show."""
    from surefoot.evaluation import tables
    from surefoot.evaluation.pooling import repeated_seeds
    from surefoot.evaluation.results import WRITERS, collect, write

    if arguments.output is not None and pathlib.Path(arguments.output).suffix not in WRITERS:
        raise ConfigError(f"{arguments.output}: its ending names no format; give {', '.join(WRITERS)}")
    if arguments.plot is not None and pathlib.Path(arguments.plot).is_dir():
        raise ConfigError(f"--plot {arguments.plot}: is a folder; give the name of a page, or put --plot last")
    if arguments.plot is not None:
        output.check_page(arguments.plot)
    found = collect(arguments.roots, arguments.episodes, arguments.best)
    if not found.runs:  # before anything is written over
        left_out = "".join(f"; left out: {why}" for why in list(found.left_out.values())[:SHOWN])
        raise ConfigError(f"{', '.join(map(str, arguments.roots))}: holds no finished run{left_out}")
    repeated = repeated_seeds(found)
    written: dict[str, str | None] = {"numbers": None, "runs": None, "page": None}
    if arguments.output is not None:
        numbers, runs = write(found, arguments.output)
        written |= {"numbers": str(numbers), "runs": str(runs)}
    if arguments.plot is not None:
        from surefoot.evaluation.overview import write_overview

        write_overview(found, arguments.plot)
        written["page"] = str(arguments.plot)
    if arguments.json:
        counts = {"runs": len(found.runs), "rows": len(found.numbers)}
        output.print_json({**counts, "written": written, "left_out": found.left_out, "repeated": repeated})
        return 0
    for why in list(found.left_out.values())[:SHOWN]:
        output.say(f"left out: {why}", stderr=True)
    if len(found.left_out) > SHOWN:
        output.say(f"and {len(found.left_out) - SHOWN} more are left out; --json names all", stderr=True)
    for said in repeated[:SHOWN]:
        output.say(f"note: {said}", stderr=True)
    if len(repeated) > SHOWN:
        output.say(f"and {len(repeated) - SHOWN} more seeds are in several folders; --json names all", stderr=True)
    if not arguments.quiet:
        output.print_table(tables.rows(found.runs), details=True)
        output.say()
    output.say(
        ", ".join(
            [
                output.counted(len(found.runs), "run"),
                output.counted(len(found.numbers), "number"),
                f"{output.counted(len(found.left_out), 'folder')} left out",
            ]
        )
    )
    for what, path in written.items():
        if path is not None:
            output.say(f"{what}: {output.short(path)}")
    return 0
