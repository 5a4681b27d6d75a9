from __future__ import annotations

import csv
import io
import pathlib
import shutil
import subprocess

import pytest
from rich.console import Console

from surefoot.evaluation import tabular
from surefoot.evaluation.tabular import Estimate, Heading, Tabular

TABULAR = Tabular(
    (Heading("task", "task", right=False), Heading("n", "seeds"), Heading("r", "td3_bc", estimate=True)),
    (
        ("a_b & 50 %", 3, Estimate(-12.345678901234567, -20.0, 1 / 3, bold=True, marks="†")),
        ("[256, 256]", None, Estimate(1.0)),
        ("x|y", 12000, None),
    ),
    "Return by task: mean and 95 % interval",
    ("Bold: the best.", "† One seed."),
    ("add a_b -- to it",),
)


def test_text_has_a_star_for_bold_and_a_dash_for_nothing() -> None:
    assert tabular.to_text(TABULAR).splitlines() == [
        "task         seeds                 td3_bc",
        "a_b & 50 %       3  *-12.3 [-20.0, 0.3] †",
        "[256, 256]       -                    1.0",
        "x|y         12,000                      -",
        "*: the best.",
        "† One seed.",
        "note: add a_b -- to it",
    ]


def test_csv_holds_every_number_in_full() -> None:
    rows = list(csv.DictReader(io.StringIO(tabular.to_csv(TABULAR))))
    assert list(rows[0]) == ["task", "n", "r_mean", "r_low", "r_high"]
    assert float(rows[0]["r_mean"]) == -12.345678901234567
    assert float(rows[0]["r_high"]) == 1 / 3
    assert (rows[1]["r_low"], rows[1]["n"], rows[2]["r_mean"]) == ("", "", "")
    assert [row["task"] for row in rows] == ["a_b & 50 %", "[256, 256]", "x|y"]


def test_markdown_escapes_what_would_end_a_cell() -> None:
    lines = tabular.to_markdown(TABULAR).splitlines()
    assert lines[0] == r"| task | seeds | td3\_bc |"
    assert lines[1] == "| --- | ---: | ---: |"
    assert lines[2] == r"| a\_b & 50 % | 3 | **-12.3** [-20.0, 0.3] † |"
    assert lines[4] == r"| x\|y | 12,000 | - |"
    assert "Bold: the best." in lines
    assert lines[-1] == "<!-- add a_b - - to it -->"


def test_latex_escapes_its_special_letters() -> None:
    text = tabular.to_latex(TABULAR)
    assert r"a\_b \& 50~\% & 3 & $\mathbf{-12.3}$$^{\dag{}}$ {\scriptsize $[-20.0, 0.3]$} \\" in text
    assert r"{}[256, 256] & -- & $1.0$ \\" in text  # behind \\ a bracket would be its argument
    assert r"\begin{tabular}{@{}lrr@{}}" in text
    assert "% add a_b -- to it" in text.splitlines()
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert text.count(rule) == 1
    assert tabular.latex('#$^{}~\\<>|"') == (
        r"\#\$\textasciicircum{}\{\}\textasciitilde{}\textbackslash{}\textless{}\textgreater{}\textbar{}''"
    )


def test_a_wide_table_spans_the_page_and_a_wider_one_is_made_smaller() -> None:
    def written(columns: int) -> str:
        heads = tuple(Heading(f"c{i}", f"c{i}", estimate=True) for i in range(columns))
        return tabular.to_latex(Tabular(heads, ((Estimate(1.0, 0.5, 1.5),) * columns,), "x"))

    assert r"\begin{table}" in written(2)
    assert r"\begin{table*}" in written(5)
    assert r"\resizebox" not in written(5)
    assert r"\resizebox{\textwidth}{!}{%" in written(9)
    assert "graphicx" in written(9)


@pytest.mark.parametrize("columns", [2, 9])
def test_latex_compiles(columns: int, tmp_path: pathlib.Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed")
    if subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True).returncode:
        pytest.skip("LaTeX's booktabs is not installed")
    text = tabular.to_latex(TABULAR)
    if columns > 3:
        wide = tuple(Heading(f"c{i}", f"c_{i}", estimate=True) for i in range(columns))
        text = tabular.to_latex(Tabular(wide, ((Estimate(1.0, 0.5, 1.5),) * columns,), "50 % # _ & ^ wide", names=1))
    (tmp_path / "table.tex").write_text(text, encoding="utf-8")
    page = (
        r"\documentclass[twocolumn]{article}\usepackage{booktabs,graphicx}\begin{document}\input{table}x\end{document}"
    )
    (tmp_path / "page.tex").write_text(page, encoding="utf-8")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"], cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stdout[-1500:]


def test_columns_in_which_no_row_says_anything_are_left_out() -> None:
    empty = Tabular((*TABULAR.columns, Heading("z", "z")), tuple((*row, None) for row in TABULAR.rows), "x", names=1)
    assert tabular.without_empty_columns(empty).columns == TABULAR.columns


def test_names_stand_in_every_block_of_a_narrow_terminal() -> None:
    heads = (Heading("a", "algorithm", right=False), Heading("t", "task", right=False))
    heads += tuple(Heading(f"m{i}", f"metric{i}", estimate=True) for i in range(4))
    table = Tabular(heads, (("iql", "maze", *(Estimate(100.0 + i, 0.0, 200.0) for i in range(4))),), "x", names=2)
    console = Console(width=60, file=io.StringIO(), record=True)
    tables = tabular.to_rich(table, 60)
    for table in tables:
        console.print(table)
    text = console.export_text()
    assert len(tables) > 1
    assert text.count("maze") == text.count("iql") == len(tables)
    for i in range(4):
        assert f"10{i}.0 [0.0, 200.0]" in text
