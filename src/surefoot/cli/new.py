"""`surefoot new algorithm | system | study NAME`: a working file and its test, to change into one's own."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import pathlib
import re
import sys
from typing import Any

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.files import written_aside

TEMPLATES = pathlib.Path(__file__).parent / "templates"
KINDS = {
    "algorithm": "an agent with its loss: the smallest one that trains, evaluates and exports",
    "system": "a simulated system in plain python functions, compiled by numba",
    "study": "a grid of cells over seeds whose results are kept line by line, and their table",
}
NEXT = {
    "algorithm": "surefoot train algo={name}:{Class} dataset=native/pendulum-mixed steps=2000 seeds=1",
    "system": "surefoot envs check {name}:python/{name}-v0",
    "study": "python {name}.py --quick",
}
NEEDS = {
    "algorithm": {"pytest": "pytest"},
    "system": {"pytest": "pytest", "numba": "surefoot[numba]"},
    "study": {"pytest": "pytest"},
}
"""What the next commands import that an installation may lack -> what pip calls it."""


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("new", help="a working file of your own, with its test: algorithm, system or study")
    parser.add_argument("kind", metavar="KIND", help="; ".join(f"{kind}: {what}" for kind, what in KINDS.items()))
    parser.add_argument("name", metavar="NAME", help="of the module: NAME.py and test_NAME.py are written")
    parser.add_argument("--folder", default=".", help="where (default: here)")
    parser.set_defaults(run=new)


def new(arguments: argparse.Namespace) -> int:
    """Write both files, or neither."""
    from surefoot.core.base.errors import nearest

    kind, name = arguments.kind, arguments.name
    if kind not in KINDS:
        raise ConfigError(f"{kind!r} is nothing that can be begun: {nearest(kind, list(KINDS))}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(f"{name!r} can't be a module's name; give small letters, digits and _, as in my_algorithm")
    folder = pathlib.Path(arguments.folder).expanduser()
    paths = {folder / f"{name}.py": f"{kind}.py.txt", folder / f"test_{name}.py": f"{kind}_test.py.txt"}
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} exists already; choose another name, or --folder")
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        raise ConfigError(f"{name!r} is the name of a module that there is, and would be taken for it; choose another")
    if not folder.is_dir():
        raise ConfigError(f"--folder {folder}: is no folder; make it first")
    words = {"name": name, "Class": "".join(part.capitalize() for part in name.split("_"))}
    for path, template in paths.items():
        text = (TEMPLATES / template).read_text(encoding="utf-8").format(**words)
        with written_aside(path) as aside:
            aside.write_text(text, encoding="utf-8")
    listed = " and ".join(output.short(path) for path in paths)
    inside = "" if folder.resolve() == pathlib.Path.cwd() else f"cd {output.typed(folder)}; "
    lacking = [package for module, package in NEEDS[kind].items() if importlib.util.find_spec(module) is None]
    install = f"  python -m pip install {' '.join(map(output.typed, lacking))}\n" if lacking else ""
    test = f"  {inside}python -m pytest test_{name}.py\n"
    output.say(f"{listed}\n\nnext:\n{install}{test}  {inside}{NEXT[kind].format(**words)}")
    return 0
