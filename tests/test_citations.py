"""Comments and docs cite papers and pages that every reader has."""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
KINDS = {".py", ".md", ".toml", ".h", ".cuh", ".cpp", ".txt"}
SKIPPED = {"build", "dist", "tests/test_citations.py"}
UNAVAILABLE = re.compile(
    r"\bsheets?\b|the_sheets?_|\bDESIGN\.md|\bSTYLE\.md|\bspecs/|\bissue #?\d|\bcontract \d|\b\w+\.md,? \d",
    re.IGNORECASE,
)


def citations(text: str) -> list[str]:
    return [match.group() for match in UNAVAILABLE.finditer(text)]


@pytest.mark.parametrize(
    "text",
    [
        "Section 1.5 of the sheet.",
        "test_it_is_the_sheets_",
        "(DESIGN.md, contract 5)",
        "see issue 12",
        "a fix of Issue #3",
        "five times faster (simulators.md, 6)",
        "the loop of offline.md 5.2",
    ],
)
def test_a_citation_of_what_a_reader_does_not_have_is_found(text: str) -> None:
    assert citations(text)


def test_a_spreadsheet_is_no_sheet_and_an_issue_without_a_number_no_citation() -> None:
    assert not citations("data that come from a spreadsheet; open an issue; 8,000 issue slots")


def test_nothing_in_the_repository_cites_what_a_reader_does_not_have() -> None:
    found = []
    for top in sorted(ROOT.iterdir()):
        if top.name.startswith(".") or top.name in SKIPPED:
            continue
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            place = str(path.relative_to(ROOT))
            if path.suffix in KINDS and place not in SKIPPED and path.is_file():
                found += [f"{place}: {one}" for one in citations(path.read_text(encoding="utf-8", errors="replace"))]
    assert not found
