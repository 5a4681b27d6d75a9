"""`surefoot doctor`: what is installed here, what is missing, and the command that fixes it."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import re
import shutil
from typing import Any

from surefoot import cuda_ext
from surefoot.cli.support import output

CORE = ("surefoot", "torch", "numpy", "scipy", "gymnasium", "h5py", "safetensors", "hydra-core", "matplotlib", "rich")
CONSTRAINTS = " -c constraints.txt"
COMPILERS = ("c++", "g++", "clang++")
LEAST_DISK = 2 * 2**30
"""Free bytes below which run folders may not fit."""


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("doctor", help="versions, GPU, compiler, extras, and how to fix what is missing")
    parser.add_argument(
        "--other",
        metavar="PYTHON[:MODULE]",
        help="examine another python instead, whose environments train as env=other:PYTHON:MODULE:ID",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=doctor)


def doctor(arguments: argparse.Namespace) -> int:
    """Print what was found; exit code 2 where something that surefoot can't do without is missing."""
    if arguments.other is not None:
        return _other(arguments.other, arguments.json)
    found = examine()
    if arguments.json:
        output.print_json(found)
    else:
        output.print_facts({**found["system"], **{f"{name}": version for name, version in found["versions"].items()}})
        output.say()
        for name, extra in found["extras"].items():
            missing = ", ".join(extra["missing"])
            given = "installed" if not missing else f"missing {missing}: {extra['mend']}"
            output.say(f"{f'extra {name}':<20}{given}")
        output.say()
        for problem in found["problems"]:
            output.say(f"{problem['level']}: {problem['what']}; {problem['mend']}")
        if not found["problems"]:
            output.say("nothing is wrong")
    return 2 if any(problem["level"] == "error" for problem in found["problems"]) else 0


def _other(named: str, as_json: bool) -> int:
    """Print what another python has, and what it lacks."""
    from surefoot.envs.other.examine import examine as examine_other

    python, _, module = named.partition(":")
    found = examine_other(python, os.getcwd(), module or None)
    if as_json:
        output.print_json(found)
    else:
        known = {name: version or "missing" for name, version in found["versions"].items()}
        output.print_facts({"python": found["python"], **known})
        output.say()
        for problem in found["problems"]:
            output.say(f"{problem['level']}: {problem['what']}; {problem['mend']}")
        if not found["problems"]:
            output.say(f"nothing is missing: env=other:{python}:{module or 'MODULE'}:ID")
    return 2 if any(problem["level"] == "error" for problem in found["problems"]) else 0


def examine() -> dict[str, Any]:
    """What is here, as JSON values: system, versions, extras and problems, each of these with what fixes it."""
    problems: list[dict[str, str]] = []

    def problem(level: str, what: str, fix: str) -> None:
        problems.append({"level": level, "what": what, "mend": fix})

    versions = {name: _version(name) for name in CORE}
    for name, version in versions.items():
        if version is None:
            problem("error", f"{name} is not installed", f"pip install {name}{CONSTRAINTS}")
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    native, stale = importlib.util.find_spec("_surefoot_native") is not None, False
    try:
        cuda_ext.native()
    except cuda_ext.StaleModuleError:
        stale = True
        problem("error", "the native module was built from other sources than these, and is refused",
                "make .venv/.dev or pip install -e . in the checkout; SUREFOOT_NATIVE=0 goes without it")  # fmt: skip
    if not native:
        advice = "pip install --force-reinstall --no-deps -e . in the checkout"
        where = "" if compiler or _version("ziglang") else " (install a C++ compiler first, or let pip fetch ziglang)"
        problem("warning", "the native module is not built: training and simulation are several times slower",
                f"{advice}{where}")  # fmt: skip
    free = shutil.disk_usage(pathlib.Path.cwd()).free
    if free < LEAST_DISK:
        problem("warning", f"only {free / 2**30:.1f} GiB are free here", "run folders are written below out=")
    gpu = _gpu(problem)
    system = {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {_cores()} cores, {_memory()}",
        "native module": "out of date" if stale else "built" if native else "not built",
        "C++ compiler": compiler or "none",
        "GPU": gpu,
        "free disk here": f"{free / 2**30:.0f} GiB",
    }
    return {"system": system, "versions": versions, "extras": _extras(), "problems": problems}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _extras() -> dict[str, Any]:
    """Extra -> its packages that are missing, and the command that installs them."""
    needed: dict[str, list[str]] = {}
    for text in importlib.metadata.requires("surefoot") or ():
        requirement, _, marker = text.partition(";")
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
        name = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
        if extra and name and name[0] != "surefoot" and _applies(marker):
            needed.setdefault(extra[1], []).append(name[0])
    found = {}
    for extra_name, packages in sorted(needed.items()):
        if extra_name == "dev":
            continue
        missing = sorted({package for package in packages if _version(package) is None})
        found[extra_name] = {"missing": missing, "mend": f"pip install 'surefoot[{extra_name}]'{CONSTRAINTS}"}
    return found


def _applies(marker: str) -> bool:
    """Whether the rest of a requirement's marker holds here."""
    rest = re.sub(r"(and\s+)?\(?extra\s*==\s*['\"][^'\"]+['\"]\)?(\s+and)?", "", marker).strip()
    if not rest:
        return True
    try:
        from packaging.markers import Marker
    except ImportError:
        return True
    return Marker(rest).evaluate()


def _gpu(problem: Any) -> str:
    """The GPU that torch sees, or why it sees none."""
    try:
        import torch
    except Exception as error:
        problem(
            "error", f"torch can't be imported ({type(error).__name__}: {error})", "pip install --force-reinstall torch"
        )
        return "unknown"
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}"
    if shutil.which("nvidia-smi") or pathlib.Path("/proc/driver/nvidia").exists():
        if torch.version.cuda is None:
            problem("warning", "there is an NVIDIA GPU, and this torch is built without CUDA",
                    "install a CUDA build of torch: https://pytorch.org/get-started/locally")  # fmt: skip
        else:
            problem("warning", f"there is an NVIDIA GPU, and torch with CUDA {torch.version.cuda} does not see it",
                    "check nvidia-smi; its driver must be of that CUDA or newer")  # fmt: skip
    return "none that torch sees" if torch.version.cuda else "none (torch is a CPU build)"


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _memory() -> str:
    try:
        import psutil
    except ImportError:
        return "memory unknown"
    return f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
