"""A variant of an algorithm as a file: a subclass with one of its losses copied out to be changed, and its test."""

from __future__ import annotations

import ast
import inspect
import pathlib
import sys
import textwrap
from collections.abc import Iterable
from types import FunctionType
from typing import TYPE_CHECKING

from surefoot.core.base.errors import ConfigError, nearest

if TYPE_CHECKING:
    from surefoot.core.engine.agent import Agent

TEMPLATES = pathlib.Path(__file__).parents[1] / "templates"
SUFFIX = "_loss"
FACTOR = "self.config.loss_scale"
"""What the written file multiplies the loss by, as an example of a change."""
OWN_IMPORTS = (
    "import dataclasses",
    "from typing import ClassVar",
    "from surefoot.core.base.options import option",
)
"""What the written file needs beside its loss."""


def variant(base: str, name: str, cls: str, loss: str | None) -> dict[str, str]:
    """The files of a variant: name -> text.

    Args:
        base: name of an algorithm that learns from data alone.
        name: of the module.
        cls: of the class.
        loss: which of its losses is changed; None: its first one.

    Raises:
        ConfigError: there is no such algorithm or loss, or it needs more than data.
    """
    agent = _algorithm(base)
    method = _method(agent, loss)
    source = textwrap.dedent(inspect.getsource(method))
    words = {
        "name": name,
        "Class": cls,
        "base": base,
        "Base": agent.__name__,
        "Config": agent.Config.__name__,
        "loss": method.__name__,
        "imports": _imports(agent, method, source),
        "method": textwrap.indent(_scaled(source), "    ").rstrip(),
        "module": agent.__module__,
    }
    used = {f"{name}.py": "variant.py.txt", f"test_{name}.py": "variant_test.py.txt"}
    return {file: (TEMPLATES / text).read_text(encoding="utf-8").format(**words) for file, text in used.items()}


def _algorithm(base: str) -> type[Agent]:
    from surefoot.core.engine.needs import DATA
    from surefoot.runs.algorithms import ALGORITHMS

    fitting = [name for name, kind in ALGORITHMS.items() if kind.needs().needed == (DATA,) and kind.requires.continuous]
    if base not in ALGORITHMS:
        raise ConfigError(f"--from {base}: {nearest(base, fitting)}", field="--from", code="choice")
    if base not in fitting:
        raise ConfigError(
            f"--from {base}: it needs more than data ({', '.join(ALGORITHMS[base].needs().needed)}), and the test that "
            f"is written has data alone; take another, such as iql, or begin without --from",
            field="--from",
            code="conflict",
        )
    return ALGORITHMS[base]


def _method(agent: type[Agent], loss: str | None) -> FunctionType:
    """The loss that is changed, of those whose text can be copied: `super()` would mean another class there."""
    found: dict[str, FunctionType] = {}
    for kind in agent.__mro__:
        for name, one in vars(kind).items():
            if name.endswith(SUFFIX) and inspect.isfunction(one) and "super()" not in inspect.getsource(one):
                found.setdefault(name, one)
    if not found or (loss is not None and loss not in found):
        known = nearest(loss or "", list(found))
        raise ConfigError(
            f"--loss {loss}: {agent.name} has no such loss to copy; {known}", field="--loss", code="choice"
        )
    return found[loss or next(iter(found))]


def _scaled(source: str) -> str:
    """The method with `FACTOR` on what it returns first; a longer expression gets a line of its own."""
    tree = ast.parse(source)
    free = all(node.id != "loss" for node in ast.walk(tree) if isinstance(node, ast.Name))
    lines = source.splitlines(keepends=True)
    pairs = [node for node in ast.walk(tree) if _is_pair(node)]
    for node in sorted(pairs, key=lambda node: -node.lineno):  # type: ignore[attr-defined]
        first = node.value.elts[0]  # type: ignore[attr-defined]
        text = ast.get_source_segment(source, first) or ""
        row, start = first.lineno - 1, first.col_offset
        apart = free and first.lineno == first.end_lineno and not isinstance(first, ast.Name)
        given = "loss" if apart else text if isinstance(first, ast.Name | ast.Call) else f"({text})"
        before, rest = lines[:row], "".join(lines[row:])
        indent = " " * node.col_offset  # type: ignore[attr-defined]
        own = [f"{indent}loss = {text}\n"] if apart else []
        changed = f"{rest[:start]}{FACTOR} * {given}{rest[start + len(text) :]}"
        lines = [*before, *own, *changed.splitlines(keepends=True)]
    return "".join(lines)


def _is_pair(node: ast.AST) -> bool:
    return isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2


def _imports(agent: type[Agent], method: FunctionType, source: str) -> str:
    """What the copied method names, and the classes that are derived from, as sorted imports."""
    module = inspect.getmodule(method)
    assert module is not None
    tree = ast.parse(inspect.getsource(module))
    used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    lines = [*OWN_IMPORTS, f"from {agent.__module__} import {agent.__name__}"]
    lines.append(f"from {agent.Config.__module__} import {agent.Config.__name__}")
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            lines += [
                f"from {node.module} import {ast.unparse(one)}"
                for one in node.names
                if (one.asname or one.name) in used
            ]
        elif isinstance(node, ast.Import):
            lines += [f"import {ast.unparse(one)}" for one in node.names if (one.asname or one.name) in used]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in used:
            lines.append(f"from {module.__name__} import {node.name}")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in used:
            lines.append(f"from {module.__name__} import {node.targets[0].id}")
    return _sorted(lines)


def _sorted(lines: Iterable[str]) -> str:
    """Imports as a linter wants them: the standard library, others, ours; one line for each module."""
    plain = sorted({line for line in lines if line.startswith("import ")})
    listed: dict[str, set[str]] = {}
    for line in lines:
        if line.startswith("from "):
            module, _, name = line.removeprefix("from ").partition(" import ")
            listed.setdefault(module, set()).add(name)
    rows = [(module, f"from {module} import {', '.join(sorted(names, key=_case))}") for module, names in listed.items()]
    rows += [(line.removeprefix("import ").split(" ")[0], line) for line in plain]
    groups: list[list[str]] = [[], [], []]
    for module, line in sorted(rows, key=lambda row: (row[1].startswith("from"), row[0])):
        first = module.split(".")[0]
        groups[0 if first in sys.stdlib_module_names else 2 if first == "surefoot" else 1].append(line)
    return "\n\n".join("\n".join(group) for group in groups if group)


def _case(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2, name)
