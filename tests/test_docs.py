"""The index lists every page, and the rooms may import the same everywhere that it is written."""

from __future__ import annotations

import pathlib
import re
import runpy
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")


def test_the_index_lists_every_page() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} - {"index.md"}
    assert pages - set(LINK.findall(text)) == set()


def contract() -> dict[str, str]:
    """Room, or package of a room -> what it may import, as in pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = {}
    for table in settings["tool"]["importlinter"]["contracts"]:
        above = f"{table['within']}/" if "within" in table else ""
        lines = [line.partition(":") for line in table.get("table", ())]
        found |= {above + room.strip(): names.strip() for room, _, names in lines}
    return found


def test_contributing_has_the_import_contract_of_pyproject() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+)/` \| .+ \| (.+) \|$", text, re.MULTILINE)
    told = {room: re.sub("nothing of (ours|core)", "", names).replace("`", "") for room, names in rows}
    assert told.pop("src/surefoot") == "everything"
    assert told == contract()


def test_the_table_of_moved_modules_is_what_the_script_writes() -> None:
    written = runpy.run_path(str(ROOT / "tools" / "moved_table.py"))["written"]
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert written(text) == text
