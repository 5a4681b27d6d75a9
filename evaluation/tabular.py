"""A table of texts, counts and estimates, as a terminal, Markdown, LaTeX and CSV have it."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.table import Table

from surefoot.core.base.errors import printable

GAP = 2
"""Blanks between columns of a terminal's table."""
BOLD = "Bold: "
"""A note that says what is in bold begins so."""
NARROWEST = 16
"""Letters that the first column has at least, however narrow the terminal."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean and its interval, as a cell shows them."""

    mean: float
    low: float | None = None
    high: float | None = None
    digits: int = 1
    """Behind the point."""
    bold: bool = False
    marks: str = ""
    """Letters that refer to notes below the table."""

    @property
    def has_interval(self) -> bool:
        """Whether there is one: of numbers that are all the same there is none, for its width of 0 says nothing."""
        return (
            self.low is not None
            and self.high is not None
            and not (math.isnan(self.low) or math.isnan(self.high) or self.low == self.high)
        )

    def parts(self) -> tuple[str, str]:
        """Mean, and interval in brackets or nothing."""
        mean = f"{self.mean:.{self.digits}f}"
        if not self.has_interval:
            return mean, ""
        return mean, f"[{self.low:.{self.digits}f}, {self.high:.{self.digits}f}]"

    def __str__(self) -> str:
        mean, interval = self.parts()
        marked = f"{mean} {interval}".strip() + (f" {self.marks}" if self.marks else "")
        return f"*{marked}" if self.bold else marked


Value = str | int | Estimate | None


class Heading(NamedTuple):
    """A column."""

    name: str
    """In CSV and JSON."""
    text: str
    """Elsewhere."""
    right: bool = True
    estimate: bool = False
    """Whether its cells are estimates."""


@dataclasses.dataclass(frozen=True)
class Tabular:
    """A table; cells are in the order of its columns."""

    columns: tuple[Heading, ...]
    rows: tuple[tuple[Value, ...], ...]
    caption: str
    notes: tuple[str, ...] = ()
    """Sentences below it, for who reads it."""
    hints: tuple[str, ...] = ()
    """Sentences for who makes it: comments in LaTeX and Markdown, and nothing in CSV."""
    names: int = 1
    """Leading columns that say what a row is."""


def without_empty_columns(table: Tabular) -> Tabular:
    """The same without columns in which no row says anything."""
    kept = [i for i in range(len(table.columns)) if any(row[i] not in (None, "", "-") for row in table.rows)]
    return dataclasses.replace(
        table,
        columns=tuple(table.columns[i] for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in table.rows),
        names=sum(i < table.names for i in kept),
    )


def _plain(value: Value) -> str:
    if value is None or value == "":
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


# -- text ----------------------------------------------------------------------------------------------------


def to_text(table: Tabular) -> str:
    """Aligned plain text, notes and hints below; an entry in bold has an asterisk."""
    lines = [[column.text for column in table.columns]]
    lines += [[printable(_plain(value)) for value in row] for row in table.rows]
    widths = [max(cell_len(line[i]) for line in lines) for i in range(len(table.columns))]
    return "\n".join([*(_aligned(line, widths, table.columns) for line in lines), *map(printable, reported(table))])


def reported(table: Tabular) -> list[str]:
    """Notes and hints where letters have no weight: what is in bold elsewhere has an asterisk."""
    notes = [f"*: {note.removeprefix(BOLD)}" if note.startswith(BOLD) else note for note in table.notes]
    return [*notes, *(f"note: {hint}" for hint in table.hints)]


def _aligned(line: Sequence[str], widths: Sequence[int], columns: Sequence[Heading]) -> str:
    cells = []
    for text, width, column in zip(line, widths, columns, strict=True):
        space = " " * (width - cell_len(text))
        cells.append(space + text if column.right else text + space)
    return (" " * GAP).join(cells).rstrip()


def to_rich(table: Tabular, width: int) -> list[Table]:
    """Tables for a terminal of `width` columns, as `blocks`."""
    headings = [(column.text, "right" if column.right else "left") for column in table.columns]
    lines = [[printable(_plain(value)) for value in row] for row in table.rows]
    return blocks(headings, lines, [False] * len(lines), width, table.caption, table.names)


def blocks(
    columns: Sequence[tuple[str, str]], lines: Sequence[Sequence[str]], dim: Sequence[bool], width: int,
    title: str | None = None, names: int = 1,
) -> list[Table]:  # fmt: skip
    """Tables for a terminal of `width` columns: one, or several below each other, each with the rows' names.

    No number is ever cut or broken; only the names of the first column are folded, between words.

    Args:
        columns: heading and alignment, left or right, of each.
        lines: a text for each column; at least one column.
        dim: of each line, whether it is of less weight.
        width: of the terminal, in letters.
        title: above the first.
        names: leading columns that stand in every block.
    """
    wide = [
        max(map(cell_len, [*heading_lines(heading), *(line[i] for line in lines)]))
        for i, (heading, _) in enumerate(columns)
    ]
    fixed = sum(wide[i] + GAP for i in range(1, names))  # what else each block begins with
    rest = range(names, len(columns))
    most = max([wide[i] for i in rest], default=0) + GAP + fixed
    first = min(wide[0], max(NARROWEST, width - most, width // 3))
    found: list[list[int]] = [[]]
    used = first + fixed
    for i in rest:
        if used + GAP + wide[i] > width and found[-1]:
            found.append([])
            used = first + fixed
        found[-1].append(i)
        used += GAP + wide[i]
    if len(found) == 1:
        first = min(wide[0], max(first, width - used + first))
    else:
        first = min(first, max(NARROWEST, width // 3))
    return [
        _block(columns, [*range(names), *block], lines, dim, first, title if k == 0 else None)
        for k, block in enumerate(found)
    ]


def _block(
    columns: Sequence[tuple[str, str]], chosen: Sequence[int], lines: Sequence[Sequence[str]], dim: Sequence[bool],
    wide: int, title: str | None,
) -> Table:  # fmt: skip
    table = Table(
        title=title, title_justify="left", header_style="bold", box=None, padding=(0, GAP, 0, 0), pad_edge=False
    )
    for i in chosen:
        text, alignment = columns[i]
        heading = text if i == 0 else "\n".join(heading_lines(text))
        justify: Any = alignment
        table.add_column(heading.replace("[", r"\["), justify=justify, no_wrap=True, vertical="bottom")
    for line, dimmed in zip(lines, dim, strict=True):
        name = line[0] if len(line[0]) <= wide else "\n  ".join(textwrap.wrap(line[0], wide - 2))
        cells = [name, *(line[i] for i in chosen if i > 0)]
        table.add_row(*(text.replace("[", r"\[") for text in cells), style="dim" if dimmed else None)
    return table


def heading_lines(text: str) -> list[str]:
    """A heading in two lines where it names an interval or has several words."""
    words, bracket, bounds = text.partition(" [")
    if bracket:
        return [words, f"[{bounds}"]
    return text.split(" ") if " / " not in text and " " in text else [text]


# -- files ---------------------------------------------------------------------------------------------------


def to_csv(table: Tabular) -> str:
    """Every number in full, an estimate as NAME_mean, NAME_low and NAME_high; empty where there is none."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    names: list[str] = []
    for column in table.columns:
        names += [f"{column.name}_{part}" for part in ("mean", "low", "high")] if column.estimate else [column.name]
    writer.writerow(names)
    for row in table.rows:
        cells: list[Any] = []
        for column, value in zip(table.columns, row, strict=True):
            if not column.estimate:
                cells.append("" if value is None else value)
            elif isinstance(value, Estimate):
                cells += ["" if one is None else repr(one) for one in (value.mean, value.low, value.high)]
            else:
                cells += ["", "", ""]
        writer.writerow(cells)
    return buffer.getvalue()


def to_json(table: Tabular) -> list[dict[str, Any]]:
    """A dictionary a row; an estimate as mean, low, high (None where there is no interval)."""
    return [
        {
            column.name: {"mean": value.mean, "low": value.low, "high": value.high}
            if isinstance(value, Estimate)
            else value
            for column, value in zip(table.columns, row, strict=True)
        }
        for row in table.rows
    ]


def to_markdown(table: Tabular) -> str:
    """A table of GitHub's Markdown, the notes as paragraphs below."""

    def cell(value: Value) -> str:
        if isinstance(value, Estimate):
            mean, interval = value.parts()
            return " ".join([f"**{mean}**" if value.bold else mean, *filter(None, (interval, value.marks))])
        return _markdown(_plain(value))

    lines = [
        "| " + " | ".join(_markdown(column.text) for column in table.columns) + " |",
        "|" + "|".join(" ---: " if column.right else " --- " for column in table.columns) + "|",
        *("| " + " | ".join(map(cell, row)) + " |" for row in table.rows),
    ]
    lines += [f"\n{_markdown(note)}" for note in table.notes]
    lines += [f"\n<!-- {printable(hint).replace('--', '- -')} -->" for hint in table.hints]
    return "\n".join([*lines, ""])


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_`<>~])", r"\\\1", printable(text))


_LATEX: Mapping[str, str] = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "†": r"\dag{}", "‡": r"\ddag{}", "±": r"$\pm$", "×": r"$\times$",
}  # fmt: skip
"""Letter -> what LaTeX prints as it, whatever the encoding of its fonts."""


def latex(text: str) -> str:
    """A text as LaTeX prints it.

    >>> print(latex("td3_bc, 50 % & more"))
    td3\\_bc, 50~\\% \\& more
    """
    return "".join(_LATEX.get(letter, letter) for letter in printable(text)).replace(r" \%", r"~\%")


def to_latex(table: Tabular) -> str:
    r"""A `table` of the package booktabs, with caption, label and the notes below; `\input` it.

    One that is too wide for a column spans the page; one that is too wide for that is made smaller.
    """
    columns = "".join("r" if column.right else "l" for column in table.columns)
    label = re.sub(r"[^a-z0-9]+", "-", table.caption.lower().split(":")[0]).strip("-")
    letters = _letters(table)
    kind = "table" if letters <= COLUMN else "table*"  # which spans both columns of a page
    lines = [
        r"% \usepackage{booktabs, graphicx}" if letters > PAGE else r"% \usepackage{booktabs}",
        *(f"% {printable(hint)}" for hint in table.hints),
        rf"\begin{{{kind}}}[t]",
        r"\centering",
        rf"\caption{{{latex(table.caption)}}}",
        rf"\label{{tab:{label}}}",
        *([r"\resizebox{\textwidth}{!}{%"] if letters > PAGE else []),
        rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
        _latex_row([latex(column.text) for column in table.columns]),
        r"\midrule",
    ]
    for i, row in enumerate(table.rows):
        above = table.rows[i - 1] if i else row
        if table.names > 1 and row[0] != above[0] and len({one[0] for one in table.rows}) < len(table.rows):
            lines.append(r"\addlinespace")
        lines.append(_latex_row([_latex_cell(value) for value in row]))
    lines += [r"\bottomrule", r"\end{tabular}" + ("}" if letters > PAGE else "")]
    if table.notes:
        lines += [r"\par\smallskip", rf"{{\footnotesize {' '.join(map(latex, table.notes))}\par}}"]
    return "\n".join([*lines, rf"\end{{{kind}}}", ""])


COLUMN, PAGE = 44, 96
"""Letters of a row that fit into a column, and into a page of two columns; wider tables are made smaller."""


def _letters(table: Tabular) -> int:
    return sum(
        max(map(len, [column.text, *(_plain(row[i]) for row in table.rows)])) for i, column in enumerate(table.columns)
    )


def _latex_row(cells: Sequence[str]) -> str:
    # behind \\ a bracket or star would be an argument of it
    first = f"{{}}{cells[0]}" if cells[0][:1] in ("[", "*") else cells[0]
    return " & ".join([first, *cells[1:]]) + r" \\"


def _latex_cell(value: Value) -> str:
    if not isinstance(value, Estimate):
        text = _plain(value)
        return "--" if text == "-" else latex(text)
    mean, interval = value.parts()
    shown = rf"$\mathbf{{{mean}}}$" if value.bold else f"${mean}$"
    marks = f"$^{{{latex(value.marks)}}}$" if value.marks else ""
    return f"{shown}{marks} {{\\scriptsize ${interval}$}}" if interval else f"{shown}{marks}"


FORMATS: Mapping[str, Callable[[Tabular], str]] = {
    "text": to_text,
    "csv": to_csv,
    "markdown": to_markdown,
    "latex": to_latex,
}
"""Name of a format -> what writes it."""
ENDINGS: Mapping[str, str] = {".csv": "csv", ".md": "markdown", ".tex": "latex", ".txt": "text"}
"""Ending of a file -> its format."""
