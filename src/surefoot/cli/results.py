"""`surefoot results`: hundreds of runs as one table, one page, or the tables and figures of a paper."""

from __future__ import annotations

import argparse
import math
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError

if TYPE_CHECKING:
    from surefoot.evaluation.results import Results
    from surefoot.evaluation.tabular import Tabular

PAGE = "results.html"
SHOWN = 5
"""Folders that are left out, and seeds that several hold, that are named one by one; the others are counted, and
the page and --json name all."""
FORMATS = ("text", "csv", "markdown", "latex")
METRICS = ("return", "normalized", "success", "cost", "pass_k")
WIDTHS = ("column", "page")
LEAST_WIDTH, MOST_WIDTH = 1.5, 40.0
"""Inches of a figure."""


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "results", help="all runs below some folders as one table or page; tables and figures for a paper"
    )
    parser.add_argument("roots", metavar="FOLDER", nargs="+", help="run folders, or folders that hold some")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="results.csv, .jsonl or .parquet: every number, the runs go to FILE-runs; of pooled runs (--group-by) "
        "table.tex, .md, .csv or .txt, or figure.pdf, .svg or .png",
    )
    parser.add_argument("--plot", nargs="?", const=PAGE, metavar="PAGE", help=f"an HTML page (default {PAGE})")
    parser.add_argument("--episodes", action="store_true", help="also a row for each episode")
    parser.add_argument("--best", action="store_true", help="score runs by their best policies (keep_best=true)")
    pooled = parser.add_argument_group("pooled runs")
    pooled.add_argument(
        "--group-by",
        metavar="KEYS",
        help="one line for all runs that agree in these, as in algorithm,task or task,algo.expectile: task, setting, "
        "algorithm, preset, dataset, environment, split, run, an option algo.NAME, or a field of the run such as "
        "batch_size (default: task,setting, runs that differ in their seeds alone)",
    )
    pooled.add_argument(
        "--pivot",
        nargs="?",
        const="",
        metavar="KEYS",
        help="these keys across and the others down (default: algorithm)",
    )
    pooled.add_argument("--metric", choices=METRICS, help="of --pivot and of a figure (default return)")
    pooled.add_argument("--format", choices=FORMATS, help="of the table: printed, or written to -o whatever its ending")
    pooled.add_argument(
        "--figure", choices=("curves", "scores"), help="what a figure shows (default: curves if logged)"
    )
    pooled.add_argument(
        "--width", metavar="W", help=f"of a figure: {' or '.join(WIDTHS)} of a paper (default column), or inches"
    )
    parser.add_argument("--quiet", "-q", action="store_true", help="print no table of runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=gather)


def gather(arguments: argparse.Namespace) -> int:
    """Collect, write, show."""
    from surefoot.evaluation.results import collect

    pooled = _check(arguments)
    found = collect(arguments.roots, arguments.episodes, arguments.best)
    if not found.runs:  # before anything is written over
        left_out = "".join(f"; left out: {why}" for why in list(found.left_out.values())[:SHOWN])
        raise ConfigError(f"{', '.join(map(str, arguments.roots))}: holds no finished run{left_out}")
    table = _table(found, arguments) if pooled else None
    written, caption = _write(found, table, arguments)
    if arguments.json:
        _print_json(found, table, written)
        return 0
    return _say(found, table, written, caption, arguments)


def _write(
    found: Results, table: Tabular | None, arguments: argparse.Namespace
) -> tuple[dict[str, str | None], str | None]:
    """Write what -o and --plot name: what -> where, and the caption of a figure."""
    from surefoot.evaluation.results import write

    written: dict[str, str | None] = {"numbers": None, "runs": None, "table": None, "figure": None, "page": None}
    caption = None
    if arguments.output is not None and table is None:
        numbers, runs = write(found, arguments.output)
        written |= {"numbers": str(numbers), "runs": str(runs)}
    elif arguments.output is not None and table is not None:
        if _is_figure(arguments):
            caption = _write_figure(found, arguments)
            written["figure"] = arguments.output
        else:
            _write_table(table, arguments)
            written["table"] = arguments.output
    if arguments.plot is not None:
        from surefoot.evaluation.overview import write_overview

        write_overview(found, arguments.plot)
        written["page"] = str(arguments.plot)
    return written, caption


def _print_json(found: Results, table: Tabular | None, written: Mapping[str, str | None]) -> None:
    """What --json prints."""
    from surefoot.evaluation.pooling import repeated_seeds

    counts: dict[str, Any] = {"runs": len(found.runs), "rows": len(found.numbers)}
    if table is not None:
        from surefoot.evaluation.tabular import to_json

        counts |= {
            "table": to_json(table),
            "caption": table.caption,
            "notes": list(table.notes),
            "hints": list(table.hints),
        }
    notes = {"left_out": found.left_out, "repeated": repeated_seeds(found), "copies": found.copies}
    output.print_json({**counts, "written": written, **notes})


def _say(
    found: Results,
    table: Tabular | None,
    written: Mapping[str, str | None],
    caption: str | None,
    arguments: argparse.Namespace,
) -> int:
    """Print what was found, or the table in the format that is asked for; the exit code."""
    from surefoot.evaluation.pooling import repeated_seeds
    from surefoot.evaluation.results import copied

    repeated = repeated_seeds(found)
    copies = [copied(*pair) for pair in found.copies.items()]
    _tell(list(found.left_out.values()), "left out: ", "folders are left out")
    _tell(copies, "note: ", "copies of runs are counted once")
    if table is None:  # whose notes say it
        _tell(repeated, "note: ", "seeds are in several folders")
    printed = table is not None and arguments.format is not None and arguments.output is None
    if table is not None and (arguments.quiet or (printed and arguments.format != "text")):
        _tell(list(table.hints), "note: ", "notes")  # which a table on the terminal has below it
    if table is not None and printed:
        from surefoot.evaluation.tabular import FORMATS as WRITERS

        print(WRITERS[arguments.format](table), end="" if arguments.format != "text" else "\n")
        return 0
    _show(found, table, arguments.quiet)
    if caption is not None:
        output.say(f"caption: {caption}")
    for what, path in written.items():
        if path is not None:
            output.say(f"{what}: {output.short(path)}")
    return 0


def _tell(sentences: list[str], before: str, rest: str) -> None:
    """The first of some sentences on standard error, and how many there are besides."""
    for stated in sentences[:SHOWN]:
        output.say(f"{before}{stated}", stderr=True)
    if len(sentences) > SHOWN:
        output.say(f"and {len(sentences) - SHOWN} more {rest}; --json names all", stderr=True)


def _show(found: Results, table: Tabular | None, quiet: bool) -> None:
    from surefoot.evaluation import tables

    if not quiet:
        if table is None:
            output.print_table(tables.rows(found.runs), details=True)
        else:
            output.print_tabular(table)
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


# -- pooled runs ---------------------------------------------------------------------------------------------


def _check(arguments: argparse.Namespace) -> bool:
    """Whether runs are pooled; refuse options that don't go together, before anything is read.

    Raises:
        ConfigError: such options, an ending that names no format, or a name of a page that is a folder.
    """
    from surefoot.evaluation.tabular import ENDINGS

    ending = "" if arguments.output is None else pathlib.Path(arguments.output).suffix.lower()
    asked = arguments.group_by or arguments.pivot is not None or arguments.format
    figure = _is_figure(arguments)
    pooled = bool(asked) or figure or (ending in ENDINGS and ending != ".csv")
    _check_files(arguments, ending, pooled)
    for name, given in (("--figure", arguments.figure), ("--width", arguments.width)):
        if given is not None and not figure:
            raise ConfigError(f"{name} is of a figure; add -o figure.pdf (or .svg, .png), or leave it out")
    if arguments.metric is not None and not figure and arguments.pivot is None:
        raise ConfigError("--metric is of --pivot and of a figure; a table without --pivot has all metrics")
    if arguments.episodes and pooled:
        raise ConfigError("--episodes is of the table of all numbers (-o results.csv); pooled runs are one line")
    if figure and arguments.format is not None:
        raise ConfigError(f"--format is of a table, and {arguments.output} is a figure; leave one of them out")
    _width(arguments)
    return pooled


def _check_files(arguments: argparse.Namespace, ending: str, pooled: bool) -> None:
    from surefoot.evaluation.plots import FIGURES
    from surefoot.evaluation.results import WRITERS
    from surefoot.evaluation.tabular import ENDINGS

    known = [*ENDINGS, *FIGURES] if pooled else [*WRITERS]
    if arguments.output is not None and ending not in known and (arguments.format is None or ending in WRITERS):
        other = f" ({', '.join(WRITERS)} of all numbers, without --group-by)" if pooled else (
            f"; or {', '.join([*ENDINGS, *FIGURES])} of pooled runs, with --group-by"
        )  # fmt: skip
        raise ConfigError(f"{arguments.output}: its ending names no format; give {', '.join(known)}{other}")
    if arguments.plot is not None and pathlib.Path(arguments.plot).is_dir():
        raise ConfigError(f"--plot {arguments.plot}: is a folder; give the name of a page, or put --plot last")
    if arguments.plot is not None:
        output.check_page(arguments.plot)


def _is_figure(arguments: argparse.Namespace) -> bool:
    from surefoot.evaluation.plots import FIGURES

    return arguments.output is not None and pathlib.Path(arguments.output).suffix.lower() in FIGURES


def _keys(arguments: argparse.Namespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Keys to group by, and those of them that stand across."""
    from surefoot.evaluation.group_tables import BY_SETTING, parse_keys

    across = parse_keys(arguments.pivot, "--pivot") if arguments.pivot else ()
    if arguments.group_by:
        keys = parse_keys(arguments.group_by, "--group-by")
    else:
        keys = BY_SETTING if set(across) <= set(BY_SETTING) else ("task", *(key for key in across if key != "task"))
    if arguments.pivot == "":
        across = ("algorithm",) if "algorithm" in keys else ("setting",) if "setting" in keys else keys[-1:]
    return keys, across


def _table(found: Results, arguments: argparse.Namespace) -> Tabular:
    from surefoot.evaluation import group_tables

    keys, across = _keys(arguments)
    if not across:
        return group_tables.long_table(found, keys)
    return group_tables.pivot_table(found, keys, across, group_tables.METRICS[arguments.metric or "return"])


def _write_table(table: Tabular, arguments: argparse.Namespace) -> None:
    from surefoot.core.base.files import written_aside
    from surefoot.evaluation.tabular import ENDINGS
    from surefoot.evaluation.tabular import FORMATS as WRITERS

    path = pathlib.Path(arguments.output)
    text = WRITERS[arguments.format or ENDINGS[path.suffix.lower()]](table)
    with written_aside(path) as aside:
        aside.write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")


def _write_figure(found: Results, arguments: argparse.Namespace) -> str:
    """Write the figure; its caption."""
    from surefoot.evaluation import group_figures, group_tables, plots

    keys, _ = _keys(arguments)
    metric = group_tables.METRICS[arguments.metric or "return"]
    figure, caption = group_figures.figure_of(found, keys, metric, arguments.figure, _width(arguments))
    plots.save(figure, arguments.output)
    return caption


def _width(arguments: argparse.Namespace) -> float:
    """Inches of a figure."""
    from surefoot.evaluation import plots

    named = {None: plots.COLUMN, "column": plots.COLUMN, "page": plots.PAGE}
    if arguments.width in named:
        return named[arguments.width]
    try:
        inches = float(arguments.width)
    except ValueError:
        inches = math.nan
    if not LEAST_WIDTH <= inches <= MOST_WIDTH:
        raise ConfigError(
            f"--width {arguments.width}: give {', '.join(WIDTHS)}, or inches from {LEAST_WIDTH:g} to {MOST_WIDTH:g}"
        )
    return inches
