"""The import contract of pyproject.toml is the table of CONTRIBUTING.md."""

from __future__ import annotations

import pathlib
import runpy

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


def contract_complaints(table: list[str], imports: list[tuple[str, str]]) -> list[str]:
    """What the rooms contract says of a graph with these direct imports, written without "surefoot."."""
    grimp = pytest.importorskip("grimp", reason="comes with the dev extra")
    room_contract = runpy.run_path(str(ROOT / "tests" / "room_contract.py"))["RoomContract"]

    graph = grimp.ImportGraph()
    for room in table:
        graph.add_module("surefoot." + room.split(":")[0])
    line = {"line_number": 7, "line_contents": "import"}
    for importer, imported in imports:
        graph.add_import(importer=f"surefoot.{importer}", imported=f"surefoot.{imported}", **line)
    options = {"table": table, "one_module_only": ["core -> cuda_ext"]}
    contract = room_contract(name="rooms", session_options={}, contract_options=options)
    return contract.check(graph, verbose=False).metadata["complaints"]


TABLE = ["cuda_ext:", "core: cuda_ext", "envs: core", "evaluation: core, envs.vector"]


@pytest.mark.parametrize(
    "imports",
    [
        [("core.mlp", "cuda_ext.kernels"), ("core.mlp", "core.errors")],
        [("evaluation.rollout", "envs.vector"), ("envs.vector", "core.errors")],
        [("cli", "evaluation.rollout"), ("cli", "envs.native")],
    ],
)
def test_the_contract_keeps_quiet_about_what_the_table_allows(imports: list[tuple[str, str]]) -> None:
    assert contract_complaints(TABLE, imports) == []


@pytest.mark.parametrize(
    ("imports", "words"),
    [
        ([("core.mlp", "envs.vector")], "surefoot.core.mlp (line 7) imports surefoot.envs.vector"),
        ([("evaluation.rollout", "envs.native")], "evaluation may import core, envs.vector"),
        ([("envs.vector", "cli")], "surefoot.envs.vector (line 7) imports surefoot.cli"),
        ([("cuda_ext.a", "core.errors")], "cuda_ext may import no other room"),
        ([("core.a", "cuda_ext"), ("core.b", "cuda_ext.x")], "in one module only"),
    ],
)
def test_the_contract_names_an_import_against_the_table(imports: list[tuple[str, str]], words: str) -> None:
    (complaint,) = contract_complaints(TABLE, imports)
    assert words in complaint
