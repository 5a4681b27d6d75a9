"""Writes the tables of options in docs/algorithms.md and docs/hybrid.md: python tools/option_tables.py [--check]."""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from surefoot.cli.support import config, help_text
from surefoot.offline.cql import CQL, CQLConfig
from surefoot.offline.evaluation.fitted_q import FittedQ
from surefoot.runs.algorithms import ALGORITHMS

DOCS = pathlib.Path(__file__).parent.parent / "docs"
TABLE = re.compile(r"(?<=^\| option \| default \| \|\n)(\|[-|]+\|\n)((?:\|.*\|\n?)*)", re.M)
Row = Mapping[str, Any]


def of_data() -> Iterable[list[Row]]:
    """Of each table of docs/algorithms.md; of what is made of CQL, what CQL does not have."""
    names = ("bc", "iql", "bisim_iql", "riql", "td3bc", "cql", "calql", "famo2o", "famo2o_cql")
    for agent in (*(ALGORITHMS[name] for name in names), FittedQ):
        listed = config.described(agent.Config)
        if agent is not CQL and issubclass(agent, CQL):
            inherited = config.described(CQLConfig)
            listed = [row for row in listed if row not in inherited]
        yield listed


def of_hybrids() -> Iterable[list[Row]]:
    """Of each table of docs/hybrid.md: what comes on top of SAC or TRPO, or has another default."""
    for name, below in {"h2o": "sac", "darc": "sac", "moorl": "sac", "hnpg": "trpo"}.items():
        base = {row["name"]: row["default"] for row in config.described(ALGORITHMS[below].Config)}
        listed = config.described(ALGORITHMS[name].Config)
        yield [row for row in listed if row["name"] not in base or row["default"] != base[row["name"]]]


PAGES = {"algorithms.md": of_data, "hybrid.md": of_hybrids}


def page(name: str, text: str) -> str:
    """A page with its tables written anew."""
    tables = iter(PAGES[name]())

    def written(found: re.Match[str]) -> str:
        lines = (f"| `{row['name']}` | `{help_text.shown(row['default'])}` | {row['what']} |\n" for row in next(tables))
        return found[1] + "".join(lines)

    return TABLE.sub(written, text)


if __name__ == "__main__":
    for name in PAGES:
        path = DOCS / name
        before = path.read_text(encoding="utf-8")
        after = page(name, before)
        if "--check" in sys.argv and before != after:
            raise SystemExit(f"{path} is not what the declarations say: run python tools/option_tables.py")
        path.write_text(after, encoding="utf-8")
