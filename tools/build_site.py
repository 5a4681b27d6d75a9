"""Builds the documentation's site: docs/, a page for each algorithm, the API, and the files that pages link to.

    python tools/build_site.py                       # build/site/html/index.html, which needs no network to be read
    python tools/build_site.py --no-notebooks        # without executing the notebooks, for a quick look
    python tools/build_site.py --pages-only          # only the pages that Sphinx would read, in build/site/pages

Pages of docs/ link to files of the repository. In the site, such a file is a page too: a table of results with its
pictures, or a source file.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import os
import pathlib
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?(?=\))")
LANGUAGES = {".py": "python", ".md": "markdown", ".toml": "toml", ".yaml": "yaml", ".h": "cpp", ".hpp": "cpp"}
LANGUAGES |= {".cuh": "cuda", ".cpp": "cpp", ".json": "json", ".txt": "text", ".sh": "bash"}
PICTURES = {".svg", ".png", ".gif"}
ROOMS = (
    "core",
    "data",
    "envs",
    "offline",
    "online",
    "safe",
    "streaming",
    "world_models",
    "model_based",
    "llm",
    "evaluation",
    "cuda_ext",
    "api",
    "runs",
    "studies",
    "safety",
    "interop",
    "language",
    "play",
)


class Pages:
    """Writes pages into a folder, and those that they link to."""

    def __init__(self, folder: pathlib.Path, root: pathlib.Path = ROOT) -> None:
        self.folder, self.root = folder, root
        self.written: dict[str, str] = {}  # file of the repository -> its page

    def write(self, page: str, text: str) -> None:
        """One page, a path that ends in .md."""
        path = self.folder / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def add(self, file: str) -> str:
        """The page of a file or folder of the repository, written unless it is there.

        Raises:
            SystemExit: there is no such file.
        """
        if file in self.written:
            return self.written[file]
        path = self.root / file
        if not path.exists():
            raise SystemExit(f"a page links to {file}, which is not there")
        page = self.written[file] = self.page_of(path, file)
        if path.suffix in PICTURES:
            target = self.folder / page
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        elif path.is_dir():
            files = sorted(entry.name for entry in path.iterdir() if entry.is_file() and entry.suffix in LANGUAGES)
            lines = "\n".join(f"- [{name}]({self.link(page, f'{file}/{name}')})" for name in files)
            self.write(page, f"---\norphan: true\n---\n# {file}\n\n{lines}\n")
        elif path.suffix == ".ipynb":
            (self.folder / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, self.folder / page)
        elif path.suffix == ".md":
            text = path.read_text(encoding="utf-8")
            orphan = "" if file.startswith("docs/") else "---\norphan: true\n---\n"
            self.write(page, orphan + self.relinked(text, file, page))
        else:
            language = LANGUAGES.get(path.suffix, "text")
            code = path.read_text(encoding="utf-8")
            self.write(page, f"---\norphan: true\n---\n# {file}\n\n``````{{code-block}} {language}\n{code}\n``````\n")
        return page

    def page_of(self, path: pathlib.Path, file: str) -> str:
        """Where the page of a file lies, relative to the site."""
        if path.is_dir():
            return f"files/{file}/index.md".replace("//", "/")
        if path.suffix in PICTURES or path.suffix == ".ipynb":
            return file.removeprefix("docs/")
        if path.suffix == ".md":
            return file.removeprefix("docs/")
        return f"files/{file}.md"

    def link(self, page: str, file: str) -> str:
        """From a page to the page of a file of the repository."""
        return os.path.relpath(self.add(file), pathlib.PurePosixPath(page).parent)

    def relinked(self, text: str, file: str, page: str) -> str:
        """A Markdown file's text, with its links to files of the repository leading to pages."""

        def page_instead(found: re.Match[str]) -> str:
            target = (self.root / file).parent / found[1]
            relative = os.path.relpath(target, self.root)
            return self.link(page, pathlib.PurePath(relative).as_posix()) + (found[2] or "")

        return LINK.sub(page_instead, text)


def algorithm_page(name: str, agent: type, row: dict[str, Any], link: Callable[[str], str]) -> str:
    """Markdown: what its docstring says, options, presets, what it was checked against, and its losses.

    Args:
        name: on the command line.
        agent: the algorithm's class.
        row: of docs/status.toml.
        link: from a file of the repository to a link from this page.
    """
    from surefoot.cli.support.config import described
    from surefoot.cli.support.help_text import shown

    file = os.path.relpath(inspect.getsourcefile(agent) or "", ROOT)
    command = f"surefoot train algo={name}"
    if agent.requires.data == "required" or not agent.requires.online:  # type: ignore[attr-defined]
        command += " dataset=FILE"
    if agent.requires.policy:  # type: ignore[attr-defined]
        command += " env=ENVIRONMENT"
    rows = [
        f"| `algo.{option['name']}` | `{shown(option['default'])}` | {cell(option['what'])} |"
        for option in described(agent.Config)  # type: ignore[attr-defined]
    ]
    lines = [
        f"# {row['title']}",
        "",
        f"`{command}`, [{file}]({link(file)})",
        "",
        *docstring(agent),
        "## Options",
        "",
        "| option | default | |",
        "|---|---|---|",
        *rows,
        "",
        "## Presets",
        "",
    ]
    presets = agent.PRESETS  # type: ignore[attr-defined]
    for preset, changes in sorted(presets.items()):
        listed = ", ".join(f"`{key}={shown(value)}`" for key, value in changes.items())
        lines.append(f"- `algo.preset={preset}`: {listed or 'the defaults'}")
    if not presets:
        lines.append("None.")
    compared = LINK.sub(lambda found: link(f"docs/{found[1]}") + (found[2] or ""), row["compared"])  # relative to docs
    lines += ["", "## What it was checked against", "", f"Compared with: {compared}.", ""]
    for key, title in (("golden", "Losses and updates"), ("known", "Known answers")):
        lines += [f"{title}:", "", *(f"- {test(entry, link)}" for entry in row[key]), ""]
    if row["learning"]:
        tables = (f"[{study.replace('_', ' ')}]({link(f'benchmarks/results/{study}.md')})" for study in row["learning"])
        lines += ["Results: " + ", ".join(tables) + ".", ""]
    lines += ["## In python", "", "```{eval-rst}", f".. autoclass:: {agent.__module__}.{agent.__qualname__}"]
    lines += ["   :no-index:", "   :class-doc-from: init", "```", ""]
    return "\n".join(lines)


def docstring(kind: type) -> list[str]:
    """As lines of a page."""
    return ["```{eval-rst}", *escaped((inspect.getdoc(kind) or "").splitlines()), "```", ""]


def escaped(lines: Iterable[str]) -> list[str]:
    """A docstring's lines with norms |x| and stars written for reStructuredText, which has other uses for them.

    Names in backticks, bold words, items of lists, formulas and blocks after a line that ends in :: stay as they are.
    """
    found, block = [], -1  # indentation of the line that began a block
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent <= block:
            block = -1
        if block < 0 and (line.lstrip().startswith(".. ") or line.endswith("::")):
            block = indent
        if block < 0:
            parts = re.split(r"(^\s*\* |`[^`]*`|\*\*[^*]+\*\*)", line)
            parts[::2] = [re.sub(r"(?<!\\)([|*])", r"\\\1", part) for part in parts[::2]]
            line = "".join(parts)
        found.append(line)
    return found


def cell(text: str) -> str:
    """For a table of Markdown."""
    return text.replace("|", r"\|")


def test(entry: str, link: Callable[[str], str]) -> str:
    """A test as docs/status.toml names it, with a link to its file."""
    if entry.startswith("as "):
        return f"as [{entry[3:]}]({entry[3:]}.md)"
    file, _, name = entry.partition("::")
    return f"[{name.removeprefix('test_').replace('_', ' ') or file}]({link(file)})"


@dataclasses.dataclass(frozen=True)
class Module:
    """One that the API's pages show."""

    name: str
    summary: str
    package: bool


def modules() -> dict[str, list[Module]]:
    """Room -> its modules that say something to users: those with a docstring and a public name."""
    import importlib

    found: dict[str, list[Module]] = {}
    for room in ROOMS:
        package = importlib.import_module(f"surefoot.{room}")
        names = [package.__name__]
        names += [entry.name for entry in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
        for name in sorted(names):
            if any(part.startswith("_") for part in name.split(".")[1:]):
                continue
            try:
                module = importlib.import_module(name)
            except ImportError:
                continue  # it needs a package that is not installed here
            text = (inspect.getdoc(module) or "").partition("\n\n")[0].replace("\n", " ")
            found.setdefault(room, []).append(Module(name, text, hasattr(module, "__path__")))
    return found


def write_api(pages: Pages) -> None:
    """A page for each module, one for each room, and their index.

    Modules are in their room's table and not in the tree beside every page: drawing a tree of hundreds of entries
    hundreds of times took most of the build.
    """
    rooms = modules()
    for room, found in rooms.items():
        rows = [f"| [{module.name}]({module.name}.md) | {cell(module.summary)} |" for module in found]
        table = "\n".join(["| module | |", "|---|---|", *rows])
        pages.write(f"api/{room}.md", f"# surefoot.{room}\n\n{table}\n")
        for module in found:
            index = "   :no-index:\n" if module.package else ""  # its names have an entry where they are defined
            text = f"# {module.name}\n\n```{{eval-rst}}\n.. automodule:: {module.name}\n{index}```\n"
            back = f"[All modules of surefoot.{room}]({room}.md)"
            pages.write(f"api/{module.name}.md", f"---\norphan: true\n---\n{text}\n{back}\n")
    listed = "\n".join(rooms)
    text = "# API\n\nThe rooms, each installed as `surefoot.ROOM`, and their modules."
    pages.write("api/index.md", f"{text}\n\n```{{toctree}}\n:maxdepth: 1\n{listed}\n```\n")


def write_algorithms(pages: Pages) -> None:
    """A page for each algorithm, and their index by room."""
    from surefoot import model_based, offline, online, safe, streaming
    from surefoot.cli.support.help_text import summary

    status = tomllib.loads((ROOT / "docs" / "status.toml").read_text(encoding="utf-8"))["algorithm"]
    lines = ["# Algorithms by name", ""]
    for room in (offline, online, safe, streaming, model_based):
        lines += [f"## {room.__name__.partition('.')[2]}", "", "| `algo=` | |", "|---|---|"]
        lines += [f"| [{name}]({name}.md) | {cell(summary(agent))} |" for name, agent in room.ALGORITHMS.items()]
        lines += ["", "```{toctree}", ":hidden:", *room.ALGORITHMS, "```", ""]
        for name, agent in room.ALGORITHMS.items():
            page = f"algorithms/{name}.md"
            pages.write(page, algorithm_page(name, agent, status[name], functools.partial(pages.link, page)))
    pages.write("algorithms/index.md", "\n".join(lines))


def toctrees(sections: Iterable[tuple[str, list[str]]]) -> str:
    """The site's contents, hidden on the page itself."""
    blocks = ("\n".join(["```{toctree}", ":hidden:", f":caption: {title}", *names, "```"]) for title, names in sections)
    return "\n\n".join(blocks)


def contents(index: str) -> list[tuple[str, list[str]]]:
    """Title and pages of each section of docs/index.md, in its order."""
    found: list[tuple[str, list[str]]] = []
    for line in index.splitlines():
        if line.startswith("## "):
            found.append((line[3:], []))
        for name in re.findall(r"^\| \[[^]]*\]\(([\w/]+)\.(?:md|ipynb)\)", line):
            if found and not any(name in names for _, names in found):
                found[-1][1].append(name)
    return found


def write_pages(folder: pathlib.Path) -> None:
    """All that Sphinx reads, in a folder of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = Pages(folder)
    for path in sorted((ROOT / "docs").glob("**/*")):
        if path.suffix in {".md", ".ipynb"}:
            pages.add(path.relative_to(ROOT).as_posix())
    write_algorithms(pages)
    write_api(pages)
    index = folder / "index.md"
    text = index.read_text(encoding="utf-8")
    sections = contents((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    sections.append(("Reference", ["algorithms/index", "api/index"]))
    index.write_text(text + "\n" + toctrees(sections) + "\n", encoding="utf-8")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=ROOT / "build" / "site", help="folder")
    parser.add_argument("--no-notebooks", action="store_true", help="do not execute notebooks")
    parser.add_argument("--pages-only", action="store_true", help="write the pages, and call nothing")
    arguments = parser.parse_args()
    write_pages(arguments.output / "pages")
    if arguments.pages_only:
        return 0
    environment = {**os.environ, **({"SUREFOOT_SITE_NOTEBOOKS": "off"} if arguments.no_notebooks else {})}
    reported = arguments.output / "warnings.txt"
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-w", str(reported)]
    command += ["-c", str(ROOT / "tools" / "site"), "-d", str(arguments.output / "doctrees")]
    command += [str(arguments.output / "pages"), str(arguments.output / "html")]
    ended = subprocess.call(command, env=environment)
    return ended or int(bool(of_pages(reported.read_text(encoding="utf-8"))))


def of_pages(warnings: str) -> list[str]:
    """Of Sphinx's warnings those of pages, such as links that lead nowhere. A docstring's layout is only given."""
    reported = [line for line in warnings.splitlines() if "WARNING:" in line or "ERROR:" in line or "CRITICAL:" in line]
    return [line for line in reported if "docstring of" not in line]


if __name__ == "__main__":
    sys.exit(main())
