"""`surefoot train --help`, made from the registries so that it can't go out of date."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable

from surefoot.cli.support import config
from surefoot.cli.support import presets as domain_presets
from surefoot.cli.support.train_options import OPTIONS
from surefoot.data import CATALOGUE
from surefoot.runs.algorithms import ALGORITHMS
from surefoot.runs.embedded import embedded
from surefoot.runs.plan import SHARED

WIDTH = 110
"""Columns at most; a narrower terminal has fewer."""

USAGE = """\
usage: surefoot train [-m] [--trust] [--quiet] [--json] [name=value ...]
       surefoot train algo=auto dataset=FILE env=none [name=value ...]
       surefoot train --resume RUN [steps=MORE] [--trust]
"""
WHAT = """\
Trains an algorithm on a dataset from several seeds, evaluates it and saves the policies. Without arguments: the main
job, IQL and BC on an embedded dataset. Values follow Hydra's grammar: steps=1000, seeds=[0,5], algo.expectile=0.8."""
MORE = [
    ("surefoot algorithms", "what each algorithm needs and takes; --family safe, --needs data: fewer"),
    ("surefoot algorithms iql", "its options and presets"),
    ("surefoot datasets list", "names after dataset="),
    ("surefoot envs list", "names after env="),
    ("surefoot train --help all", "fields, options of all algorithms, presets and datasets in one text"),
]


def usage() -> str:
    """Usage and options."""
    return f"{USAGE}\n{textwrap.fill(' '.join(WHAT.split()), width() + 2)}\n\n" + "".join(
        f"  {line}\n" for line in columns(_options())
    )


def _options() -> list[tuple[str, str]]:
    """The command's own options, and what each does."""
    return [(", ".join(names) + f" {how.get('metavar', '')}".rstrip(), what) for names, how, what in OPTIONS]


def width() -> int:
    """Columns of a line, less the indent; `WIDTH` where the text goes to no terminal."""
    return min(WIDTH, shutil.get_terminal_size((WIDTH + 2, 24)).columns - 2)


def short_help() -> str:
    """What fits on a screen or two: usage, fields, names of algorithms, and where the rest is."""
    rooms: dict[str, list[str]] = {}
    for name, agent in sorted(ALGORITHMS.items()):
        parts = agent.__module__.split(".")
        rooms.setdefault(parts[1] if len(parts) > 2 else parts[0], []).append(name)
    named = columns([(room.replace("_", " "), ", ".join(names)) for room, names in sorted(rooms.items())])
    parts = [
        usage(),
        section("fields", fields()),
        section("algorithms (algo=NAME)", named),
        section("more", columns(MORE)),
    ]
    return "\n".join(parts).rstrip()


def train_help() -> str:
    """The whole text."""
    parts = [
        usage(),
        section("fields", fields()),
        section("algorithms (algo=NAME; options are algo.NAME=value, see surefoot algorithms NAME)", algorithms()),
        section("presets (preset=NAME: settings of a domain)", presets()),
        section(
            "datasets (dataset=: any path, or one of these, or minari/<id>; see surefoot datasets list)", datasets()
        ),
    ]
    return "\n".join(parts).rstrip()


def section(title: str, lines: Iterable[str]) -> str:
    """A titled block."""
    return f"{title}:\n" + "".join(f"  {line}\n" for line in lines)


def fields() -> list[str]:
    """The fields of `TrainConfig` with their defaults."""
    rows = sorted(config.described(config.TrainConfig), key=lambda row: row["name"] in SHARED)
    return columns([(f"{row['name']}={shown(row['default'])}", row["what"]) for row in rows])


def algorithms() -> list[str]:
    """Name, first line of the paper's sentence, and options."""
    lines, indent = [], max(len(name) for name in ALGORITHMS) + 2
    for name, agent in sorted(ALGORITHMS.items()):
        lines.append(f"{name:<{indent}}{summary(agent)}; presets: {', '.join(sorted(agent.PRESETS)) or 'none'}")
        options = ", ".join(f"{row['name']}={shown(row['default'])}" for row in config.described(agent.Config))
        lines += textwrap.wrap(options, width() - 2, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return lines


def summary(agent: type) -> str:
    """The first sentence of an algorithm's description, without its formula."""
    text = " ".join((agent.__doc__ or "").split("\n\n")[0].split())
    return text.split(":math:")[0].rstrip(" :,").rstrip(".")


def presets() -> list[str]:
    """Domain presets and the algorithms that they are for; those of one family share a line."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, content in domain_presets.presets().items():
        algorithms = ", ".join(sorted(set(content) - {"run"}))
        family, _, rest = name.partition("-")
        found.setdefault((family, algorithms), []).append(rest)
    return columns(
        [
            (family if members == [""] else f"{family}-...", f"{algorithms}" + listed(members))
            for (family, algorithms), members in found.items()
        ]
    )


def listed(members: list[str]) -> str:
    """The ends of names that begin alike."""
    return "" if members == [""] else ": " + " ".join(members)


def datasets() -> list[str]:
    """Embedded datasets, then the catalogue's ids, those of one task in one line."""
    behaviours: dict[str, list[str]] = {}
    for system, behaviour in embedded().values():
        behaviours.setdefault(system.alias, []).append(behaviour)
    rows = [(f"{alias}-...", " ".join(names)) for alias, names in behaviours.items()]
    tasks: dict[str, list[str]] = {}
    for name in CATALOGUE:
        task, _, rest = name.partition("-")
        tasks.setdefault(task, []).append(rest)
    return columns([*rows, *((f"{task}-...", " ".join(ends)) for task, ends in tasks.items())])


def columns(rows: list[tuple[str, str]]) -> list[str]:
    """Two columns, the second folded."""
    indent = max(len(name) for name, _ in rows) + 2
    lines = []
    for name, text in rows:
        folded = textwrap.wrap(text, max(40, width() - indent), break_on_hyphens=False) or [""]
        lines.append(f"{name:<{indent}}{folded[0]}")
        lines += [" " * indent + rest for rest in folded[1:]]
    return lines


def shown(value: object) -> str:
    """A default as one would type it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ",".join(map(str, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)
