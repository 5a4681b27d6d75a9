"""Writes where modules of surefoot 0.2 have gone into docs/architecture.md, from src/surefoot/moved.py.

python tools/moved_table.py            # write the table between its markers
python tools/moved_table.py --check    # exit code 1 where it is not up to date
"""

from __future__ import annotations

import argparse
import pathlib
import runpy
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE, MODULE = ROOT / "docs" / "architecture.md", ROOT / "src" / "surefoot" / "moved.py"
BEGIN, END = "<!-- moved: begin -->\n", "<!-- moved: end -->\n"
"""Lines between which the table stands."""


def table() -> str:
    """The table's lines, old paths in their order."""
    moved = runpy.run_path(str(MODULE))
    rows = [(old, "", new, *moved["PARTS"].get(old, ())) for old, new in moved["MOVED"].items()]
    rows += [(old, " (not by the old path any more)", new) for old, new in moved["REFUSED"].items()]
    rows += [(old, " (another module has that path now)", new) for old, new in moved["REUSED"].items()]
    lines = ["| `surefoot.` | is now `surefoot.` |", "|---|---|"]
    for old, how, *new in sorted(rows):
        lines.append(f"| `{old}` | {', '.join(f'`{one}`' for one in new)}{how} |")
    return "\n".join(lines) + "\n"


def written(text: str) -> str:
    """The page's text with the table as it has to be.

    Raises:
        ValueError: a marker is missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: has no lines {BEGIN.strip()} and {END.strip()}")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> int:
    """Write or check; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    new = written(text)
    if check:
        return int(new != text)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
