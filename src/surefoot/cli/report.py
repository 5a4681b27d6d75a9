"""`surefoot report`: finished runs in one page."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from surefoot.cli.support import output
from surefoot.core.base.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from surefoot.evaluation.runs import RunData


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("report", help="compare runs in one HTML page that opens from disk")
    parser.add_argument("folders", metavar="RUN", nargs="+", help="run folders")
    parser.add_argument("-o", "--output", default="report.html", help="the page (default report.html)")
    parser.add_argument("--csv", metavar="FILE", help="write the table with all its numbers as CSV too")
    parser.add_argument("--cost-limit", type=float, help="judge all runs by this limit (default: each by its own)")
    parser.add_argument("--best", action="store_true", help="score runs by their best policies (keep_best=true)")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.set_defaults(run=report)


def report(arguments: argparse.Namespace) -> int:
    """Write the page, and print its table."""
    from surefoot.evaluation import load_runs, tables, write_report
    from surefoot.evaluation.results import without_copies
    from surefoot.evaluation.safety import check_limit

    path = pathlib.Path(arguments.output)
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; give the name of a file, as in -o report.html")
    output.check_page(path)
    check_limit(arguments.cost_limit)
    folders, left_out = finished_runs(arguments.folders)
    for why in left_out:
        output.say(f"left out: {why}", stderr=True)
    loaded, copies = without_copies(load_runs(folders))
    for stated in copies:
        output.say(f"note: {stated}", stderr=True)
    left_out += copies
    loaded = [run.of_best() for run in loaded] if arguments.best else loaded
    runs = [run.judged_by(arguments.cost_limit) for run in loaded]
    write_report(runs, path)
    if arguments.csv is not None:
        tables.write_csv(tables.rows(runs), arguments.csv)
    certificates = {run.name: list(run.certificates) for run in runs if run.certificates}
    if arguments.json:
        rows = [row.to_json() for row in tables.rows(runs)]
        output.print_json({"report": str(path), "rows": rows, "certificates": certificates, "left_out": left_out})
        return 0
    output.print_table(tables.rows(runs), details=True)
    _say_runs(runs, certificates)
    output.say(f"\nreport: {output.short(path)}")
    if arguments.csv is not None:
        output.say(f"csv:    {output.short(arguments.csv)}")
    return 0


def _say_runs(runs: Sequence[RunData], certificates: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """What the table has no room for: of each run, and of what was certified."""
    from surefoot.evaluation import broken_promise, filter_words, where_certified
    from surefoot.evaluation.estimates import estimate_lines
    from surefoot.evaluation.passes import pass_lines
    from surefoot.evaluation.run_warnings import alarm_lines, best_lines, limit_lines

    for run in runs:
        if run.safety is not None:
            output.say(f"{run.name}: {run.safety.sentence()}")
        for line in (*estimate_lines(run), *pass_lines(run), *limit_lines(run), *best_lines(run)):
            output.say(f"{run.name}: {line}")
        for line in alarm_lines(run):
            output.say(f"*** {run.name}: {line}", stderr=True)
    for name, all_found in certificates.items():
        for found in all_found:
            output.say(
                f"{name}, certified in {where_certified(found)}: {found['sentence']} (filter: {filter_words(found)})"
            )
            for line in broken_promise(found):
                output.say(f"*** {line}", stderr=True)


def finished_runs(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Of folders as a shell's * lists them the finished runs, and a sentence for each that is left out.

    A folder of a sweep stands for the runs in it; files beside the runs are passed over.

    Raises:
        CheckpointError: a folder is no run and holds none, or there is no finished one.
    """
    from surefoot.runs.run import is_language

    found: list[str] = []
    left_out: list[str] = []
    for name in given:
        folder = pathlib.Path(name)
        if folder.is_file() and len(given) > 1:
            left_out.append(f"{name} is a file, not a run folder")
            continue
        inside = [] if (folder / "config.json").is_file() else sorted(folder.glob("*/config.json"))
        for run in [path.parent for path in inside] or [folder]:
            unfinished = (run / "config.json").is_file() and not (run / "summary.json").is_file()
            if unfinished:
                train = "llm train" if is_language(run) else "train"
                left_out.append(
                    f"{run} is not finished: surefoot watch {output.typed(run)} shows how far it is, surefoot {train} "
                    f"--resume {output.typed(run)} continues it"
                )
            else:
                found.append(str(run))
    if not found:
        raise CheckpointError(left_out[0] if left_out else "no run folder is given")
    return found, left_out
