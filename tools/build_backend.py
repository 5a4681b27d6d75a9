"""scikit-build-core's build backend, which brings a C++ compiler along on a machine that has none.

PyPI's `ziglang` is clang with headers and C++ library. It becomes a requirement of the build where no compiler is found
and an index has it. Where it cannot be had the install is pure python, as after any failed build, and a line says why.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from scikit_build_core import build as scikit
from scikit_build_core.build import build_sdist, get_requires_for_build_sdist

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

VERSION = "0.17.1"  # of ziglang; the one that .ci/run builds with
ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "zig"  # a fixed place: CMake's cache names it
GLIBC = "2.28"  # the oldest one that torch's wheels accept
COMPILERS = ("c++", "g++", "clang++", "CC", "icpx", "icx")  # what CMake looks for on Linux
PURE = {"SUREFOOT_PURE_PYTHON": "1"}  # pyproject.toml's override
_NO = {"", "0", "false", "off", "no", "n", "f"}

# zig's default is the processor of this machine, checks of undefined behaviour, and names of its own for -march.
# The first flags are the same in every call, so that zig builds its C++ library once.
_LAUNCHER = """#!/bin/sh
for option do
  shift
  case $option in -march=x86-64-v*) option=-march=x86_64_v${{option#-march=x86-64-v}} ;; esac
  set -- "$@" "$option"
done
exec {zig} {command} {flags} "$@"
"""


def why_not_zig(environ: Mapping[str, str]) -> str | None:
    """None where the build should use zig; otherwise what is missing, empty where it needn't: CMake decides then.

    `SUREFOOT_ZIG=1` asks for zig beside a compiler (a wheel for older systems), `SUREFOOT_ZIG=0` refuses it.
    """
    wish = environ.get("SUREFOOT_ZIG")
    if environ.get("SUREFOOT_PURE_PYTHON", "").lower() not in _NO:
        return ""
    if sys.platform != "linux":
        return ""
    if wish is None or wish.lower() in _NO:
        if environ.get("CXX") or any(shutil.which(name, path=environ.get("PATH")) for name in COMPILERS):
            return ""
        if wish is not None:
            return "there is no C++ compiler, and SUREFOOT_ZIG refuses ziglang"
    if platform.machine() not in {"x86_64", "aarch64"} or platform.libc_ver()[0] != "glibc":
        return "there is no C++ compiler, and ziglang is used with glibc on x86-64 and aarch64 only"
    header = pathlib.Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        return f"there is no C++ compiler, and python's headers are missing too ({header})"
    return None


def can_be_fetched() -> bool:
    """Whether pip finds our version of ziglang with this machine's settings; true where there is no pip to ask."""
    ask = [sys.executable, "-I", "-m", "pip"]  # -I: outside of the isolated environment, which has no pip
    if subprocess.run([*ask, "--version"], capture_output=True, check=False).returncode != 0:
        return True
    ask += ["index", "versions", "ziglang", "--only-binary=:all:", "--retries=1", "--timeout=20"]
    done = subprocess.run(ask, capture_output=True, text=True, check=False)
    return done.returncode == 0 and VERSION in done.stdout.replace(",", " ").split()


@contextlib.contextmanager
def variables(**values: str) -> Iterator[None]:
    """Inside, `os.environ` has these values too."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def requirements(of: Callable[[Any], list[str]], config_settings: Any) -> list[str]:
    """Those of a hook of scikit-build-core's, and ziglang where it is to compile; without cmake where nothing can."""
    reason = why_not_zig(os.environ)
    if reason is None and can_be_fetched():
        return [*of(config_settings), f"ziglang=={VERSION}"]
    with variables(**({} if reason == "" else PURE)):
        return of(config_settings)


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """PEP 517's hook."""
    return requirements(scikit.get_requires_for_build_wheel, config_settings)


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """PEP 660's hook."""
    return requirements(scikit.get_requires_for_build_editable, config_settings)


def write_launchers(zig: pathlib.Path, folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Programs named as CMake expects them, which call zig; by their role."""
    target = f"{platform.machine()}-linux-gnu.{GLIBC}"
    flags = f"-target {target} -O3 -g0 -fno-sanitize=undefined"
    folder.mkdir(parents=True, exist_ok=True)
    headers = multiarch_headers(folder)
    if headers is not None:
        flags += f" -isystem {shlex.quote(str(headers))}"
    programs = {}
    for command in ("c++", "ar", "ranlib"):
        programs[command] = folder / f"zig-{command}"
        text = _LAUNCHER.format(zig=shlex.quote(str(zig)), command=command, flags=flags if command == "c++" else "")
        programs[command].write_text(text, encoding="utf-8")
        programs[command].chmod(0o755)
    return programs


def multiarch_headers(folder: pathlib.Path) -> pathlib.Path | None:
    """A folder from which Debian's pyconfig.h, which is in two parts, is found whole; None where it is in one.

    Its first part, beside Python.h, includes <x86_64-linux-gnu/python3.11/pyconfig.h>. That is below /usr/include,
    where compilers of the system look and zig, which has a C library's headers of its own, does not and must not.
    """
    include = pathlib.Path(sysconfig.get_path("include"))
    second = include.parent / (sysconfig.get_config_var("MULTIARCH") or "") / include.name
    if second == include or not second.is_dir():
        return None
    found = folder / "include"
    link = found / second.parent.name / second.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(second)
    return found


@contextlib.contextmanager
def compiler() -> Iterator[None]:
    """Inside, `os.environ` names zig as the compiler where the build should use it; says so, or why not."""
    reason = why_not_zig(os.environ)
    if reason == "":
        yield
        return
    found = importlib.util.find_spec("ziglang")
    if reason is None and (found is None or found.origin is None):
        reason = f"there is no C++ compiler, and ziglang {VERSION} could not be fetched"
    if reason is not None or found is None or found.origin is None:
        print(f"surefoot: {reason}: installing as pure python, which is slower", file=sys.stderr, flush=True)
        with variables(
            **PURE
        ):  # scikit-build-core stops where there is no cmake: it tries again after CMake's errors only
            yield
        return
    zig = pathlib.Path(found.origin).parent / "zig"
    print(f"surefoot: compiling with {zig}", file=sys.stderr, flush=True)
    programs = write_launchers(zig, FOLDER)
    options = [
        f"-DCMAKE_CXX_COMPILER={programs['c++']}",
        f"-DCMAKE_AR={programs['ar']}",
        f"-DCMAKE_RANLIB={programs['ranlib']}",
        "-DCMAKE_TRY_COMPILE_CONFIGURATION=Release",
        "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY",  # a program would need the C++ library once more
    ]
    cache = str(FOLDER / "cache")
    arguments = f"{os.environ.get('CMAKE_ARGS', '')} {shlex.join(options)}".strip()
    with variables(CMAKE_ARGS=arguments, ZIG_GLOBAL_CACHE_DIR=cache, ZIG_LOCAL_CACHE_DIR=cache):
        yield


def prepare_metadata(build: Callable[..., str], metadata_directory: str, config_settings: Any) -> str:
    """The .dist-info of a pure wheel, which a compiled one has too but for its tag; returns its name.

    scikit-build-core offers no such hook where an override depends on `failed`, and pip then compiles everything twice:
    once to read the metadata, and once to install.
    """
    with tempfile.TemporaryDirectory() as folder:
        with variables(**PURE):
            path = pathlib.Path(folder, build(folder, config_settings))
        with zipfile.ZipFile(path) as wheel:
            members = [name for name in wheel.namelist() if name.partition("/")[0].endswith(".dist-info")]
            wheel.extractall(metadata_directory, [name for name in members if not name.endswith("/RECORD")])
    return members[0].partition("/")[0]


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Any = None) -> str:
    """PEP 517's hook."""
    return prepare_metadata(scikit.build_wheel, metadata_directory, config_settings)


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Any = None) -> str:
    """PEP 660's hook."""
    return prepare_metadata(scikit.build_editable, metadata_directory, config_settings)


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """PEP 517's hook. The metadata are made anew: the prepared ones have a pure wheel's tag."""
    with compiler():
        return scikit.build_wheel(wheel_directory, config_settings)


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """PEP 660's hook: a wheel of the compiled module and of a line that leads to src/, where links lead to the rooms.

    Raises:
        RuntimeError: the checkout is on a file system, or was made by a git, without symbolic links.
    """
    if not (ROOT / "src" / "surefoot" / "core" / "__init__.py").is_file():
        raise RuntimeError(
            f"{ROOT / 'src' / 'surefoot'} has no symbolic links to the rooms, which an editable install needs: check "
            "out anew with `git -c core.symlinks=true clone`, or install a copy with `pip install .`"
        )
    place = ROOT / "build" / "editable" / "surefoot.pth"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"{ROOT / 'src'}\n", encoding="utf-8")
    with compiler(), variables(SUREFOOT_EDITABLE="1"):
        return scikit.build_wheel(wheel_directory, config_settings)
