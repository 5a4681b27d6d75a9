"""The documentation's site: its pages, their links, and what docstrings become. `make site` builds it."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import sys
from types import ModuleType

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "tools" / "build_site.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["build_site"] = loaded
    spec.loader.exec_module(loaded)
    return loaded


build_site = module()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("site") / "pages"
    build_site.write_pages(folder)
    return pathlib.Path(folder)


def test_every_link_of_a_page_leads_to_a_page(pages: pathlib.Path) -> None:
    missing = [
        f"{page.relative_to(pages)}: {link}"
        for page in pages.rglob("*.md")
        if "files" not in page.relative_to(pages).parts  # these show code
        for link, _ in build_site.LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    ]
    assert missing == []


def test_each_algorithm_has_a_page_with_its_options_tests_and_command(pages: pathlib.Path) -> None:
    from surefoot.runs.algorithms import ALGORITHMS

    for name in ALGORITHMS:
        text = (pages / "algorithms" / f"{name}.md").read_text(encoding="utf-8")
        assert f"surefoot train algo={name}" in text
        assert "## Options" in text
        assert "## What it was checked against" in text
    iql = (pages / "algorithms" / "iql.md").read_text(encoding="utf-8")
    assert r"L_V &= E\, L_2^\tau" in iql
    assert "| `algo.expectile` | `0.7` | tau of the value loss" in iql


def test_contents_name_every_page_once(pages: pathlib.Path) -> None:
    index = (pages / "index.md").read_text(encoding="utf-8")
    listed = [line for block in re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL) for line in block.split()]
    listed = [line for line in listed if (pages / f"{line}.md").exists() or (pages / f"{line}.ipynb").exists()]
    written = {
        path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for path in (ROOT / "docs").rglob("*")
        if path.suffix in {".md", ".ipynb"}
    }
    assert len(listed) == len(set(listed))
    assert written - {"index"} == set(listed) - {"algorithms/index", "api/index"}


def test_norms_and_stars_of_a_docstring_are_escaped_outside_of_names_and_formulas() -> None:
    lines = ["|x| <= 1 and (..., *S), not `a * b`.", "", ".. math:: |x|", "    * y", "", "|z|"]
    assert build_site.escaped(lines) == [
        r"\|x\| <= 1 and (..., \*S), not `a * b`.",
        "",
        ".. math:: |x|",
        "    * y",
        "",
        r"\|z\|",
    ]
    assert build_site.escaped(["* **Bold.** One", "  of |x|"]) == ["* **Bold.** One", r"  of \|x\|"]


def test_a_link_to_nothing_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("[x](../gone.py)", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"gone\.py, which is not there"):
        build_site.Pages(tmp_path / "pages", tmp_path).add("docs/a.md")


def test_a_picture_lies_beside_its_page_and_code_becomes_a_page(tmp_path: pathlib.Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "benchmarks" / "t.md").write_text("![p](t.svg) and [code](run.py#L3)", encoding="utf-8")
    (tmp_path / "benchmarks" / "t.svg").write_text("<svg/>", encoding="utf-8")
    (tmp_path / "benchmarks" / "run.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "docs" / "a.md").write_text("[t](../benchmarks/t.md)", encoding="utf-8")
    folder = tmp_path / "pages"
    assert build_site.Pages(folder, tmp_path).add("docs/a.md") == "a.md"
    assert (folder / "a.md").read_text(encoding="utf-8") == "[t](benchmarks/t.md)"
    table = (folder / "benchmarks" / "t.md").read_text(encoding="utf-8")
    assert "![p](t.svg) and [code](../files/benchmarks/run.py.md#L3)" in table
    assert (folder / "benchmarks" / "t.svg").exists()
    assert "```{code-block} python\nx = 1" in (folder / "files" / "benchmarks" / "run.py.md").read_text(
        encoding="utf-8"
    )


def test_notebooks_are_committed_without_outputs() -> None:
    for path in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert all(not cell.get("outputs") for cell in cells), path.name


def test_warnings_of_pages_end_the_build_and_those_of_docstrings_do_not() -> None:
    page = "build/site/pages/data.md:3: WARNING: 'myst' cross-reference target not found: 'nowhere' [myst.xref_missing]"
    docstring = "core/a.py:docstring of surefoot.core.a:5: ERROR: Unexpected indentation. [docutils]"
    assert build_site.of_pages(f"{page}\n{docstring}\n") == [page]
    assert build_site.of_pages(docstring) == []
