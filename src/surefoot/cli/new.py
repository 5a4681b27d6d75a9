"""`surefoot new algorithm | system | study NAME`: working files and their test, to change into one's own."""

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
CPP = {
    "pyproject.toml": "pyproject.toml.txt",
    "my_robot/__init__.py": "__init__.py.txt",
    "my_robot/my_robot.h": "my_robot.h",
    "test_my_robot.py": "test_my_robot.py.txt",
}
"""File of a project -> its template in `templates/cpp`; both have the names my_robot and MyRobot in them."""


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("new", help="a working file of your own, with its test: algorithm, system or study")
    parser.add_argument("kind", metavar="KIND", help="; ".join(f"{kind}: {what}" for kind, what in KINDS.items()))
    parser.add_argument("name", metavar="NAME", help="of the module: NAME.py and test_NAME.py are written")
    parser.add_argument("--folder", default=".", help="where (default: here)")
    parser.add_argument(
        "--cpp",
        action="store_true",
        help="a system in C++: the folder NAME with a header, a module, a test; `surefoot build NAME` compiles it",
    )
    parser.add_argument(
        "--from",
        dest="base",
        metavar="ALGORITHM",
        help="an algorithm that is a variant of another, such as iql: one of its losses is copied out, to be changed",
    )
    parser.add_argument("--loss", metavar="NAME", help="of --from: the loss that is copied out (default: its first)")
    parser.set_defaults(run=new)


def new(arguments: argparse.Namespace) -> int:
    """Write all files, or none."""
    from surefoot.core.base.errors import nearest

    kind, name = arguments.kind, arguments.name
    if kind not in KINDS:
        raise ConfigError(f"{kind!r} is nothing that can be started: {nearest(kind, list(KINDS))}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(f"{name!r} can't be a module's name; give small letters, digits and _, as in my_algorithm")
    if arguments.cpp and kind != "system":
        raise ConfigError(f"--cpp is of a system; `surefoot new {kind} {name}` writes python")
    for option in ("base", "loss"):
        if getattr(arguments, option) is not None and (kind != "algorithm" or arguments.base is None):
            given = "--from is of an algorithm" if option == "base" else "--loss is of an algorithm with --from"
            raise ConfigError(f"{given}: `surefoot new algorithm {name} --from iql`")
    folder = pathlib.Path(arguments.folder).expanduser()
    words = {"name": name, "Class": "".join(part.capitalize() for part in name.split("_"))}
    if arguments.base is not None:
        from surefoot.cli.support.variant import variant

        texts = {
            folder / file: text for file, text in variant(arguments.base, name, words["Class"], arguments.loss).items()
        }
    else:
        texts = _cpp_project(folder / name, words) if arguments.cpp else _python_files(folder, kind, words)
    for path in [folder / name] if arguments.cpp else texts:
        if path.exists():
            raise ConfigError(f"{path} exists already; choose another name, or --folder")
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        raise ConfigError(f"{name!r} is the name of a module that there is, and would be taken for it; choose another")
    if not folder.is_dir():
        raise ConfigError(f"--folder {folder}: is no folder; make it first")
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_aside(path) as aside:
            aside.write_text(text, encoding="utf-8")
    listed = " and ".join([", ".join(map(output.short, [*texts][:-1])), output.short([*texts][-1])])
    needed = {"pytest": "pytest"} if arguments.cpp else NEEDS[kind]
    lacking = [package for module, package in needed.items() if importlib.util.find_spec(module) is None]
    install = f"  python -m pip install {' '.join(map(output.typed, lacking))}\n" if lacking else ""
    if arguments.cpp:
        output.say(
            f"{listed}\n\nnext:\n{install}  cd {output.typed(folder / name)}\n  surefoot build\n  python -m pytest\n"
            f"  surefoot train algo=ppo env={name}:{name}-v0 envs=64 steps=200000 seeds=1\n"
            f"  pip install -e .    # for use from any folder"
        )
        return 0
    inside = "" if folder.resolve() == pathlib.Path.cwd() else f"cd {output.typed(folder)}; "
    test = f"  {inside}python -m pytest test_{name}.py\n"
    output.say(f"{listed}\n\nnext:\n{install}{test}  {inside}{NEXT[kind].format(**words)}")
    return 0


def _python_files(folder: pathlib.Path, kind: str, words: dict[str, str]) -> dict[pathlib.Path, str]:
    """A module and its test: path -> text."""
    name = words["name"]
    paths = {folder / f"{name}.py": f"{kind}.py.txt", folder / f"test_{name}.py": f"{kind}_test.py.txt"}
    return {path: (TEMPLATES / used).read_text(encoding="utf-8").format(**words) for path, used in paths.items()}


def _cpp_project(folder: pathlib.Path, words: dict[str, str]) -> dict[pathlib.Path, str]:
    """The files of a system in C++: path -> text."""

    def named(text: str) -> str:
        return text.replace("my_robot", words["name"]).replace("MyRobot", words["Class"])

    texts = {path: (TEMPLATES / "cpp" / used).read_text(encoding="utf-8") for path, used in CPP.items()}
    return {folder / named(path): named(text) for path, text in texts.items()}
