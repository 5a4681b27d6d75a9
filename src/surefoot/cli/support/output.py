"""What all commands print alike: tables for people, JSON for programs, paths as short as they can be."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from surefoot.core.base.errors import ConfigError, printable

if TYPE_CHECKING:
    from surefoot.evaluation.tables import Row
    from surefoot.evaluation.tabular import Tabular

WIDE = 400
"""Columns of a table that goes to a pipe or file: nothing is folded there."""


class PlainConsole(Console):
    """A console that shows what a terminal would obey in a text as its escape: names in files can hold any."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, as Console does."""
        super().print(*(printable(one) if isinstance(one, str) else one for one in objects), **options)

    def on_broken_pipe(self) -> None:
        """Leave the error, which is being handled, to the command; rich would end the process."""
        raise


def say(text: object = "", stderr: bool = False) -> None:
    """A line for people, without what a terminal would obey."""
    print(printable(str(text)), file=sys.stderr if stderr else sys.stdout)


def console(stderr: bool = False) -> Console:
    """A console for people; plain and wide where it is no terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return PlainConsole(file=stream, width=None if stream.isatty() else WIDE, highlight=False, soft_wrap=False)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """The option by which modules that a file names may be imported."""
    parser.add_argument(
        "--trust", action="store_true", help="execute modules outside of surefoot and gymnasium that a file names"
    )


class _Renamed(argparse.Action):
    """An option under its old name, which is refused with the new one."""

    def __call__(self, parser: argparse.ArgumentParser, *unused: Any) -> None:
        """Refuse it."""
        from surefoot.core.base.errors import ConfigError

        raise ConfigError(f"{self.option_strings[0]} is called {self.const} here; write {self.const} K")


def add_renamed(parser: argparse.ArgumentParser, old: str, new: str) -> None:
    """Refuse an option's old name; the sentence has the new one."""
    parser.add_argument(old, action=_Renamed, const=new, dest=f"old_{old.strip('-')}", nargs=1, help=argparse.SUPPRESS)


def print_json(value: Any) -> None:
    """One JSON value on standard output."""
    print(json.dumps(value, indent=2, allow_nan=False).replace("\x7f", "\\u007f"))  # the one that it does not escape


def print_rows(rows: Sequence[dict[str, Any]], columns: Sequence[str], title: str | None = None) -> None:
    """A table of dictionaries; where it would break a word or number, a paragraph a row.

    The first column is what a row is called.
    """
    shown = console()
    heads = [column.replace("_", " ") for column in columns]
    cells = [[printable(cell(row.get(column))) for column in columns] for row in rows]
    widths = [_narrowest(column) for column in zip(heads, *cells, strict=True)]
    if sum(widths) + 3 * len(widths) + 1 > shown.width:
        _print_paragraphs(shown, heads, cells, title)
        return
    table = Table(title=title, title_justify="left", header_style="bold")
    for head, width in zip(heads, widths, strict=True):
        table.add_column(head, overflow="fold", min_width=width)
    for row_cells in cells:
        table.add_row(*map(escape, row_cells))
    shown.print(table)


SENTENCE = 20
"""Columns that a text of several words has at least."""


def _narrowest(texts: Sequence[str]) -> int:
    """The columns in which no word of a column is broken and sentences remain readable."""
    words = max(max(map(len, text.split()), default=0) for text in texts)
    return max(words, min(SENTENCE, max(map(len, texts))))


def _print_paragraphs(shown: Console, heads: Sequence[str], cells: Sequence[Sequence[str]], title: str | None) -> None:
    """Names, each with what is known of it in indented lines below; what is not known is left out."""
    if title:
        say(title)
    for name, *rest in cells:
        say(name)
        reported = "; ".join(
            f"{head}: {text}" for head, text in zip(heads[1:], rest, strict=True) if text not in ("-", "")
        )
        for line in textwrap.wrap(
            reported, max(40, shown.width), initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
        ):
            say(line)


def print_facts(facts: dict[str, Any]) -> None:
    """Names and values, one a line; what does not apply is left out."""
    shown = {key.replace("_", " "): value for key, value in facts.items() if value not in (None, {}, [])}
    width = max(map(len, shown), default=0)
    for key, value in shown.items():
        if isinstance(value, dict):
            value = ", ".join(f"{what}: {cell(count)}" for what, count in value.items())
        say(f"{key.ljust(width)}  {cell(value)}")


def cell(value: Any) -> str:
    """One value as a person reads it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)


def check_page(path: str | os.PathLike[str]) -> None:
    """Raise ConfigError for a page's name that says it is something else, such as a picture."""
    if pathlib.Path(path).suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{path}: a page is HTML; give a name that ends in .html")


def print_runs(folders: Sequence[str | os.PathLike[str]]) -> None:
    """The comparison table of run folders."""
    from surefoot.evaluation import load_runs, tables

    print_table(tables.rows(load_runs(folders)))


def print_table(rows: Sequence[Row], details: bool = False) -> None:
    """Rows of results; where all are of one dataset and environment, these go above the table, which gets narrow.

    Args:
        rows: of results.
        details: with the columns of evaluations and reports.
    """
    from surefoot.envs.names import in_words
    from surefoot.evaluation import tables

    rows = [dataclasses.replace(row, dataset=short_dataset(row.dataset)) for row in rows]
    tasks = {(row.dataset, row.environment) for row in rows}
    if len(tasks) == 1:
        dataset, environment = tasks.pop()
        place = in_words(environment) if environment else "without a simulator"
        say(f"{place if dataset is None else f'{dataset}, {place}'}:")
        rows = [dataclasses.replace(row, dataset=None, environment=None) for row in rows]
    if sys.stdout.isatty():
        shown = console()
        for i, table in enumerate(tables.to_rich(rows, details=details, width=shown.width)):
            if i:
                shown.print()
            shown.print(table)
    else:
        say(tables.to_text(rows, details))
    if tables.alone(rows):
        say(tables.ONE_SEED)


def print_tabular(table: Tabular) -> None:
    """A table of pooled runs, and its notes; an entry in bold has an asterisk."""
    from surefoot.evaluation import tabular

    if sys.stdout.isatty():
        shown = console()
        for i, block in enumerate(tabular.to_rich(table, shown.width)):
            if i:
                shown.print()
            shown.print(block)
        for note in tabular.reported(table):
            say(note)
    else:
        say(f"{table.caption}\n{tabular.to_text(table)}")


def counted(count: int, what: str) -> str:
    """A number and what is counted, in the singular where it is one.

    >>> counted(1, "seed"), counted(2_000, "episode")
    ('1 seed', '2,000 episodes')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def rows_json(folders: Sequence[str | os.PathLike[str]]) -> list[dict[str, Any]]:
    """The same table as JSON values."""
    from surefoot.evaluation import load_runs, tables

    return [row.to_json() for row in tables.rows(load_runs(folders))]


def short_dataset(name: str | None) -> str | None:
    """A file's name for a path, an id as it is."""
    if name is None:
        return None
    return pathlib.Path(name).name if pathlib.Path(name).is_absolute() else name


def short(path: str | os.PathLike[str]) -> str:
    """A path as one would type it here: relative where it lies below, with the home folder as given."""
    path = pathlib.Path(path)
    with contextlib.suppress(ValueError, OSError):
        return str(path.resolve().relative_to(pathlib.Path.cwd()))
    return str(path)


def typed(path: str | os.PathLike[str]) -> str:
    """A path as it can be pasted into a shell."""
    return shlex.quote(short(path))


@contextlib.contextmanager
def download_bar(quiet: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar on standard error for `data.load`, shown from the first byte on."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = ("downloading", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console(stderr=True), disable=quiet or not sys.stderr.isatty())
    tasks: list[Any] = []

    def show(done: int, total: int | None) -> None:
        if not tasks:
            bar.start()
            tasks.append(bar.add_task("", total=total))
        bar.update(tasks[0], completed=done, total=total)

    try:
        yield show
    finally:
        if tasks:
            bar.stop()


LINE_SECONDS = 30.0
"""Between lines about episodes where no bar can be shown."""


@contextlib.contextmanager
def episodes_bar(
    quiet: bool = False, lines: bool = True, what: str = "episodes"
) -> Iterator[Callable[[int, int], None]]:
    """A bar of finished episodes on standard error; gives the function to call with (finished, all).

    Where that is no terminal, a line now and then, unless `lines` is false.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    terminal = sys.stderr.isatty()
    columns = (what, BarColumn(), MofNCompleteColumn(), "ETA", TimeRemainingColumn())
    reported = time.monotonic()
    with Progress(*columns, console=console(stderr=True), disable=quiet or not terminal) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, total: int) -> None:
            nonlocal reported
            bar.update(task, completed=done, total=total)
            if lines and not quiet and not terminal and time.monotonic() - reported > LINE_SECONDS:
                reported = time.monotonic()
                say(f"{done:,} of {total:,} {what}", stderr=True)

        yield show


@contextlib.contextmanager
def plans_line(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """How far planning is, as one line on standard error that is written over; gives the function to call with it.

    Where that is no terminal, a line of its own every `PLAN_SECONDS`, the first after as long.
    """
    from rich.status import Status

    terminal = sys.stderr.isatty()
    reported = time.monotonic()
    with contextlib.ExitStack() as stack:
        status = (
            stack.enter_context(Status("planning", console=console(stderr=True))) if terminal and not quiet else None
        )

        def show(text: str) -> None:
            nonlocal reported
            if status is not None:
                status.update(text)
            elif not quiet and time.monotonic() - reported > PLAN_SECONDS:
                reported = time.monotonic()
                say(text, stderr=True)

        yield show


PLAN_SECONDS = 10.0
