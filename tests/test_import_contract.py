"""What the import contracts of pyproject.toml say of small graphs."""

from __future__ import annotations

import pathlib
import runpy
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


def complaints(kind: str, modules: list[str], imports: list[tuple[str, str]], options: dict[str, Any]) -> list[str]:
    """What a contract says of a graph of these modules and direct imports, written without "surefoot."."""
    grimp = pytest.importorskip("grimp", reason="comes with the dev extra")
    contract_type = runpy.run_path(str(ROOT / "tests" / "room_contract.py"))[kind]

    graph = grimp.ImportGraph()
    for module in modules:
        graph.add_module(f"surefoot.{module}")
    line = {"line_number": 7, "line_contents": "import"}
    for importer, imported in imports:
        graph.add_import(importer=f"surefoot.{importer}", imported=f"surefoot.{imported}", **line)
    contract = contract_type(name="a contract", session_options={}, contract_options=options)
    return contract.check(graph, verbose=False).metadata["complaints"]


def contract_complaints(table: list[str], imports: list[tuple[str, str]]) -> list[str]:
    """What the rooms contract says of a graph with these direct imports."""
    options = {"table": table, "one_module_only": ["core -> cuda_ext"]}
    return complaints("RoomContract", [room.split(":")[0] for room in table], imports, options)


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


CORE = {"within": "core", "table": ["base:", "nn: base", "losses: base, nn"]}


def core_complaints(imports: list[tuple[str, str]]) -> list[str]:
    """What the contract of core's packages says of a graph with these direct imports."""
    return complaints("RoomContract", ["core", "core.base", "core.nn", "core.losses", "cuda_ext"], imports, CORE)


def test_packages_of_core_import_those_before_them_and_what_core_may_import() -> None:
    assert (
        core_complaints([("core.losses.flow", "core.nn.mlp"), ("core.nn.native", "cuda_ext"), ("data", "core.nn")])
        == []
    )


@pytest.mark.parametrize(
    ("imports", "words"),
    [
        ([("core.nn.mlp", "core.losses.flow")], "surefoot.core.nn.mlp (line 7) imports surefoot.core.losses.flow"),
        ([("core.base.files", "core.nn.mlp")], "base may import no other room"),
        ([("core.flow", "core.nn.mlp")], "surefoot.core.flow lies in none of the packages base, nn, losses"),
    ],
)
def test_the_contract_of_core_names_what_is_against_the_order_or_in_no_package(
    imports: list[tuple[str, str]], words: str
) -> None:
    (complaint,) = core_complaints(imports)
    assert words in complaint


def test_modules_that_import_in_one_direction_are_no_circle() -> None:
    imports = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]
    assert complaints("CircleContract", [], imports, {}) == []


def test_a_circle_is_named_with_the_imports_that_close_it_and_without_what_leads_into_it() -> None:
    imports = [("a", "b"), ("b", "c"), ("c", "a"), ("above", "a"), ("c", "below")]
    (complaint,) = complaints("CircleContract", [], imports, {})
    assert complaint == (
        "3 modules import each other: surefoot.a (line 7) imports surefoot.b; surefoot.b (line 7) imports surefoot.c; "
        "surefoot.c (line 7) imports surefoot.a"
    )


def test_circles_that_share_a_module_are_one_and_others_stand_alone() -> None:
    imports = [("a", "b"), ("b", "a"), ("c", "b"), ("b", "c"), ("x", "y"), ("y", "x"), ("c", "x")]
    found = complaints("CircleContract", [], imports, {})
    assert [(one.split(":")[0], one.count(") imports ")) for one in found] == [
        ("3 modules import each other", 4),
        ("2 modules import each other", 2),
    ]
