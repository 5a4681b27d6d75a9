"""Links between pages lead somewhere, and the rooms are described where they are defined."""

from __future__ import annotations

import pathlib
import re
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/**/*.md")])
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: pathlib.Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_index_lists_every_page() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages - set(LINK.findall(text)) == set()


def contract() -> dict[str, str]:
    """Room -> what it may import, as in pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (rooms,) = settings["tool"]["importlinter"]["contracts"]
    lines = [line.partition(":") for line in rooms["table"]]
    return {room.strip(): names.strip() for room, _, names in lines}


def test_contributing_has_the_import_contract_of_pyproject() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+)/` \| .+ \| (.+) \|$", text, re.MULTILINE)
    told = {room: names.replace("nothing of ours", "").replace("`", "") for room, names in rows}
    assert told.pop("src/surefoot") == "everything"
    assert told == contract()
