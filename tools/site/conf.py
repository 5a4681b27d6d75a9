"""Sphinx's settings of the documentation's site; tools/build_site.py writes the pages and calls Sphinx with this."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

from latex2mathml.converter import convert

import surefoot

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from build_site import escaped

project, author, release = "surefoot", "The surefoot founders", surefoot.__version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb"]
html_theme, html_title = "furo", f"surefoot {release}"
html_copy_source = html_show_sphinx = False
html_static_path: list[str] = []
exclude_patterns = ["_build"]
default_role = "code"  # docstrings write `name` as Markdown does
add_module_names = False
python_use_unqualified_type_names = True
toc_object_entries = False
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_mock_imports = os.environ.get("SUREFOOT_SITE_MOCK", "").split()
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "dollarmath"]
nb_execution_mode = os.environ.get("SUREFOOT_SITE_NOTEBOOKS", "force")
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
suppress_warnings = ["myst.header", "mystnb.unknown_mime_type", "ref.python"]  # a name that several classes have


def mathml(block: bool) -> Any:
    """What writes a formula as MathML, which browsers draw by themselves: no script, no font, no network."""

    def visit(writer: Any, node: Any) -> None:
        from docutils import nodes

        latex = node.astext().strip()
        if block and ("&" in latex or r"\\" in latex):
            latex = rf"\begin{{align*}}{latex}\end{{align*}}"
        formula = convert(latex, display="block" if block else "inline")
        writer.body.append(f'<div class="math">{formula}</div>' if block else formula)
        raise nodes.SkipNode

    return visit


def readable(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Norms and stars of a docstring as they are."""
    lines[:] = escaped(lines)


def setup(app: Any) -> None:
    """Formulas as MathML, and docstrings as they are written."""
    app.connect("autodoc-process-docstring", readable, priority=400)  # before napoleon, whose stars are meant
    app.add_html_math_renderer("mathml", (mathml(False), None), (mathml(True), None))
    app.config.html_math_renderer = "mathml"
