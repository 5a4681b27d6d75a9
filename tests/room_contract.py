"""The import contracts, as import-linter contract types: a table of who may import whom, and no circles.

import-linter's own types can't say it: "layers" permits too much, "forbidden" needs every room's list
edited whenever a room is added, and "acyclic siblings" speaks of packages, not of modules.
"""

from __future__ import annotations

from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

ROOT = "surefoot"


class RoomContract(Contract):
    """Each room imports, directly, only what its line of `table` names; nothing imports the entry point.

    Options: `table`, lines "room: name, name" where a name is a room, or a room's module ("envs.vector"); `within`, a
    room whose packages the table is of instead: every module lies in one of them, and imports of other rooms are not
    this table's; `one_module_only`, lines "room -> other": at most one module of `room` imports `other`.
    """

    table = fields.ListField(subfield=fields.StringField())
    within = fields.StringField(required=False)
    one_module_only = fields.ListField(subfield=fields.StringField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Compare every direct import between rooms with the table."""
        table = parse_table(self.table)
        root = f"{ROOT}.{self.within}" if self.within else ROOT
        complaints = [*_unlisted(graph, table, root), *_forbidden(graph, table, root)]
        if self.within:
            complaints += _unplaced(graph, table, root)
        for line in self.one_module_only or []:
            room, other = (part.strip() for part in line.split("->"))
            complaints += _spread(graph, room, other)
        return ContractCheck(kept=not complaints, metadata={"complaints": complaints})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one line per import that the table does not allow."""
        metadata: dict[str, Any] = check.metadata
        for complaint in metadata["complaints"]:
            output.print_error(f"- {complaint}", bold=False)
        output.new_line()


class CircleContract(Contract):
    """No two modules import each other, directly or through others, imports for types alone included."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Name every strongly connected component of more than one module, and the imports that make it one."""
        complaints = [
            f"{len(modules)} modules import each other: "
            + "; ".join(_where(graph, importer, imported) for importer, imported in imports)
            for modules, imports in circles(graph)
        ]
        return ContractCheck(kept=not complaints, metadata={"complaints": complaints})

    render_broken_contract = RoomContract.render_broken_contract


def circles(graph: ImportGraph) -> list[tuple[set[str], list[tuple[str, str]]]]:
    """Strongly connected components of more than one module: their modules, and (importer, imported) inside."""
    found: list[tuple[set[str], list[tuple[str, str]]]] = []
    for importer in sorted(graph.modules):
        for imported in sorted(graph.find_modules_directly_imported_by(importer)):
            back = graph.find_shortest_chain(importer=imported, imported=importer)
            if back is None:
                continue
            touched = [one for one in found if one[0] & set(back)]
            found = [one for one in found if one not in touched]
            modules = set(back).union(*(one[0] for one in touched))
            found.append((modules, [*(pair for one in touched for pair in one[1]), (importer, imported)]))
    return sorted(found, key=lambda one: one[1])


def parse_table(lines: list[str]) -> dict[str, set[str]]:
    """Turn "room: a, b" lines into {room: {a, b}}."""
    table: dict[str, set[str]] = {}
    for line in lines:
        room, colon, names = line.partition(":")
        if not colon:
            raise ValueError(f"table line {line!r} must read 'room: name, name'")
        table[room.strip()] = {name.strip() for name in names.split(",") if name.strip()}
    return table


def _inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _modules_of(graph: ImportGraph, package: str) -> list[str]:
    return sorted(module for module in graph.modules if _inside(module, package))


def _where(graph: ImportGraph, importer: str, imported: str) -> str:
    lines = sorted({d["line_number"] for d in graph.get_import_details(importer=importer, imported=imported)})
    return f"{importer} (line {', '.join(map(str, lines))}) imports {imported}"


def _unlisted(graph: ImportGraph, table: dict[str, set[str]], root: str) -> list[str]:
    missing = [room for room in table if not _modules_of(graph, f"{root}.{room}")]
    return [f"the table names {room}, but {root}.{room} does not exist" for room in missing]


def _unplaced(graph: ImportGraph, table: dict[str, set[str]], root: str) -> list[str]:
    homes = [f"{root}.{room}" for room in table]
    return [
        f"{module} lies in none of the packages {', '.join(table)}"
        for module in _modules_of(graph, root)
        if module != root and not any(_inside(module, home) for home in homes)
    ]


def _forbidden(graph: ImportGraph, table: dict[str, set[str]], root: str) -> list[str]:
    complaints = []
    for room, allowed in table.items():
        for importer in _modules_of(graph, f"{root}.{room}"):
            for imported in sorted(graph.find_modules_directly_imported_by(importer)):
                if not _inside(imported, root):
                    continue
                if not any(_inside(imported, f"{root}.{name}") for name in {room, *allowed}):
                    what = f"{room} may import {', '.join(sorted(allowed)) or 'no other room'}"
                    complaints.append(f"{_where(graph, importer, imported)}: {what}")
    return complaints


def _spread(graph: ImportGraph, room: str, other: str) -> list[str]:
    importers = [
        module
        for module in _modules_of(graph, f"{ROOT}.{room}")
        if any(_inside(name, f"{ROOT}.{other}") for name in graph.find_modules_directly_imported_by(module))
    ]
    if len(importers) <= 1:
        return []
    return [f"{room} may import {other} in one module only, but {', '.join(importers)} do"]
