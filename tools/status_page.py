"""Writes docs/status.md, the table of what each algorithm was checked against, from docs/status.toml.

python tools/status_page.py            # write the page
python tools/status_page.py --check    # exit code 1 where it is not up to date
"""

from __future__ import annotations

import argparse
import ast
import functools
import pathlib
import sys
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE, DATA = ROOT / "docs" / "status.md", ROOT / "docs" / "status.toml"
KEYS = {"title", "golden", "known", "learning", "compared"}

BEFORE = """# Status

What each algorithm was checked against. `python tools/status_page.py` writes this page from [status.toml](status.toml),
which names every test; a number behind a link counts the tests there. What has not been shown is on a page of its own,
[limitations](limitations.md).

- **Golden**: losses against numbers worked out by hand, and full updates in float64 against a second implementation in
  plain torch.
- **Known answer**: a problem whose solution is known.
- **Learning**: a study with intervals ([benchmarks](benchmarks.md)); the link leads to its table.
"""


def page(data: dict[str, Any]) -> str:
    """The page's text."""
    lines = [BEFORE, "| algorithm | golden | known answer | learning | compared with |", "|---|---|---|---|---|"]
    for name, row in data["algorithm"].items():
        cells = [_tests(row["golden"], data), _tests(row["known"], data), _studies(row["learning"]), row["compared"]]
        lines.append(f"| {row['title']} (`{name}`) | " + " | ".join(cells) + " |")
    for group in dict.fromkeys(part["group"] for part in data["part"]):
        parts = [part for part in data["part"] if part["group"] == group]
        compared = any("compared" in part for part in parts)
        lines += [
            "",
            f"## {group}",
            "| part | tests |" + " compared with |" * compared,
            "|---|---|" + "---|" * compared,
        ]
        for part in parts:
            cells = [part["title"], _tests(part["tests"], data)] + [part.get("compared", "")] * compared
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def problems(data: dict[str, Any], algorithms: Iterable[str], root: pathlib.Path = ROOT) -> list[str]:
    """What is wrong with the data, a sentence each: rows, tests and results that are missing.

    Args:
        data: content of status.toml.
        algorithms: the names that `surefoot algorithms` lists.
        root: of the repository.
    """
    rows, names = data["algorithm"], set(algorithms)
    found = [f"{name}: has no row in docs/status.toml" for name in sorted(names - set(rows))]
    found += [f"{name}: no algorithm has this name" for name in sorted(set(rows) - names)]
    for name, row in rows.items():
        if set(row) != KEYS:
            found.append(f"{name}: has {sorted(row)} instead of {sorted(KEYS)}")
            continue
        for entry in row["golden"] + row["known"]:
            found += [f"{name}: {why}" for why in _missing(entry, rows, root)]
        for study in row["learning"]:
            if not (root / "benchmarks" / "results" / f"{study}.md").is_file():
                found.append(f"{name}: benchmarks/results/{study}.md is not there")
    for part in data["part"]:
        for entry in part["tests"]:
            found += [f"{part['title']}: {why}" for why in _missing(entry, rows, root)]
    return found


def _missing(entry: str, rows: dict[str, Any], root: pathlib.Path) -> list[str]:
    """Why an entry ("file", "file::test" or "as NAME") leads nowhere; empty where it leads somewhere."""
    if entry.startswith("as "):
        return [] if entry[3:] in rows else [f"there is no row {entry[3:]!r}"]
    file, _, test = entry.partition("::")
    if not (root / file).is_file():
        return [f"{file} is not there"]
    if not test:
        return []
    return [] if test in _functions(root / file) else [f"{file} has no test {test}"]


@functools.cache
def _functions(file: pathlib.Path) -> frozenset[str]:
    """Names of all functions in a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _tests(entries: Sequence[str], data: dict[str, Any]) -> str:
    """Links to the files, each once, with the number of tests named there."""
    others = [f"as {data['algorithm'][entry[3:]]['title']}" for entry in entries if entry.startswith("as ")]
    files = [entry.partition("::")[0] for entry in entries if not entry.startswith("as ")]
    links = []
    for file in dict.fromkeys(files):
        label = pathlib.Path(file).stem.removeprefix("test_").replace("_", " ")
        count = files.count(file)
        links.append(f"[{label}](../{file})" + (f" {count}" if count > 1 else ""))
    return ", ".join([*others, *links])


def _studies(names: Sequence[str]) -> str:
    return ", ".join(f"[{name.replace('_', ' ')}](../benchmarks/results/{name}.md)" for name in names)


def main() -> None:
    """The command line."""
    from surefoot.runs.algorithms import ALGORITHMS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where the page is out of date")
    arguments = parser.parse_args()
    data = tomllib.loads(DATA.read_text(encoding="utf-8"))
    if wrong := problems(data, ALGORITHMS):
        sys.exit("\n".join(wrong))
    text = page(data)
    if not arguments.check:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        sys.exit("docs/status.md is not up to date: run python tools/status_page.py")


if __name__ == "__main__":
    main()
