"""The import contract of the rooms, as an import-linter contract type: one line of table per room.

import-linter's own types can't say it: "layers" permits too much, "forbidden" needs every room's list
edited whenever a room is added.
"""

from __future__ import annotations

from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

ROOT = "surefoot"


class RoomContract(Contract):
    """Each room imports, directly, only what its line of `table` names; nothing imports the front door.

    Options: `table`, lines "room: name, name" where a name is a room, or a room's module ("envs.vector");
    `one_module_only`, lines "room -> other": at most one module of `room` imports `other`.
    """

    table = fields.ListField(subfield=fields.StringField())
    one_module_only = fields.ListField(subfield=fields.StringField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Compare every direct import between rooms with the table."""
        table = parse_table(self.table)
        complaints = [*_unlisted(graph, table), *_forbidden(graph, table)]
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


def _modules_of(graph: ImportGraph, room: str) -> list[str]:
    return sorted(module for module in graph.modules if _inside(module, f"{ROOT}.{room}"))


def _where(graph: ImportGraph, importer: str, imported: str) -> str:
    lines = sorted({d["line_number"] for d in graph.get_import_details(importer=importer, imported=imported)})
    return f"{importer} (line {', '.join(map(str, lines))}) imports {imported}"


def _unlisted(graph: ImportGraph, table: dict[str, set[str]]) -> list[str]:
    return [
        f"the table names {room}, but {ROOT}.{room} does not exist" for room in table if not _modules_of(graph, room)
    ]


def _forbidden(graph: ImportGraph, table: dict[str, set[str]]) -> list[str]:
    complaints = []
    for room, allowed in table.items():
        for importer in _modules_of(graph, room):
            for imported in sorted(graph.find_modules_directly_imported_by(importer)):
                if not _inside(imported, ROOT):
                    continue
                if not any(_inside(imported, f"{ROOT}.{name}") for name in {room, *allowed}):
                    what = f"{room} may import {', '.join(sorted(allowed)) or 'no other room'}"
                    complaints.append(f"{_where(graph, importer, imported)}: {what}")
    return complaints


def _spread(graph: ImportGraph, room: str, other: str) -> list[str]:
    importers = [
        module
        for module in _modules_of(graph, room)
        if any(_inside(name, f"{ROOT}.{other}") for name in graph.find_modules_directly_imported_by(module))
    ]
    if len(importers) <= 1:
        return []
    return [f"{room} may import {other} in one module only, but {', '.join(importers)} do"]
