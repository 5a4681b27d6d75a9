"""`surefoot build`: compile systems of the user's own, written in C++."""

from __future__ import annotations

import argparse
import pathlib
import time
import tomllib
from typing import Any

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError, printable

PROJECT = "pyproject.toml"
ASKED = 'a table [tool.surefoot] with systems = ["my_robot/my_robot.h"], or name a header'


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("build", help="compile a system of your own in C++ (surefoot new system NAME --cpp)")
    parser.add_argument(
        "where", metavar="WHERE", nargs="?", default=".", help=f"a header, or a folder with {PROJECT} (default: here)"
    )
    parser.set_defaults(run=build)


def build(arguments: argparse.Namespace) -> int:
    """Compile each header that is asked for, and load what was made."""
    from surefoot.cuda_ext.library import LibraryError, load
    from surefoot.cuda_ext.library import build as compiled

    for header in headers_of(pathlib.Path(arguments.where).expanduser()):
        began = time.perf_counter()
        try:
            path, made = compiled(header)
            _, found = load(header, f"surefoot build {output.typed(header)}")
        except LibraryError as error:
            raise ConfigError(printable(str(error))) from error
        took = f"built in {time.perf_counter() - began:.0f} s" if made else "is there already, and fits"
        states, actions, observations, *_ = found["sizes"]
        output.say(
            f"{output.short(path)}: {found['name']}, {states} states, {actions} actions, {observations} observations; "
            f"{took}"
        )
    return 0


def headers_of(where: pathlib.Path) -> list[pathlib.Path]:
    """The headers that a path names: itself, or those that a folder's pyproject.toml lists.

    Raises:
        ConfigError: no such file, none listed, or a list that can't be read.
    """
    if not where.exists():
        raise ConfigError(f"{where}: there is no such header or folder")
    if where.is_file() and where.name != PROJECT:
        return [where]
    project = where if where.is_file() else where / PROJECT
    if not project.is_file():
        raise ConfigError(f"{where}: has no {PROJECT}: give it {ASKED}")
    try:
        found = tomllib.loads(project.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{project}: is no TOML ({error})") from error
    listed = found.get("tool", {}).get("surefoot", {}).get("systems")
    if not isinstance(listed, list) or not listed or not all(isinstance(one, str) for one in listed):
        raise ConfigError(f"{project}: lists no systems: give it {ASKED}")
    return [project.parent / one for one in listed]
