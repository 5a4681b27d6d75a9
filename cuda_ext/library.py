"""A system in a C++ header of the user's as a shared library: compiled by one call, checked when it is used.

The library is a file beside the header. Its name holds two digests, so that nothing stale is ever loaded: of the
headers in that folder, and of surefoot's own sources that it was compiled with.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any

from surefoot import cuda_ext
from surefoot.cuda_ext.cubin import headers_beside

NATIVE = pathlib.Path(__file__).parent / "native"
UNITS = ("levels/rollout.cpp", "levels/plan.cpp", "levels/rows.cpp")
"""Compiled once for each instruction set."""
DOOR = "outside/system_library.cpp"
"""Compiled once."""
COMPILERS = ("c++", "g++", "clang++")
INSTALL = "install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install; "
INSTALL += "anywhere: pip install ziglang), or name it in CXX"


class LibraryError(RuntimeError):
    """A system's library can't be built or used; the message says why and what to do."""


# ---- building ----


def build(header: pathlib.Path) -> tuple[pathlib.Path, bool]:
    """Compile the system in `header`, for every instruction set; CXX and CXXFLAGS are heeded.

    A library that is there and fits is left as it is; those of other versions of the header are removed.

    Returns:
        The library, beside the header, and whether it was made now.

    Raises:
        LibraryError: no header, no compiler, or the compiler's first error, with its file and line.
    """
    header = _existing(header)
    path = _path(header)
    if path.exists():
        return path, False
    if not re.search(rf"\bstruct\s+{header.stem}\b", header.read_text(encoding="utf-8", errors="replace")):
        raise LibraryError(f"{header}: has no struct {header.stem}; the struct and the file have one name")
    compiler, kind = _compiler()
    levels = _levels()
    options = json.loads((NATIVE / "options.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        include = f'#include "{header.name}"\n#define SUREFOOT_SYSTEMS(X) X({header.stem})\n'
        (work / "systems.inc").write_text(include, encoding="utf-8")
        common = [*options["all"], *options[kind], "-std=c++17", "-fPIC", "-DSUREFOOT_OUTSIDE=1"]
        common += shlex.split(os.environ.get("CXXFLAGS", ""))
        common += [f"-I{work}", f"-I{NATIVE}", f"-I{header.parent}"]
        common += [] if levels == ("generic",) else ["-DSUREFOOT_X86=1"]
        parts = {"door.o": [*common, str(NATIVE / DOOR)]}
        for level in levels:
            for unit in UNITS:
                own = [*common, *options[level], f"-DSUREFOOT_LEVEL={level}", str(NATIVE / unit)]
                parts[f"{pathlib.Path(unit).stem}-{level}.o"] = own
        # the first alone: what is wrong with a header is wrong in all of them
        first, *others = parts.items()
        _compile([*compiler, "-c", *first[1], "-o", str(work / first[0])], header)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            done = [
                pool.submit(_compile, [*compiler, "-c", *arguments, "-o", str(work / name)], header)
                for name, arguments in others
            ]
            for one in done:
                one.result()
        made = work / path.name
        # nothing of the C++ library is used, which zig would compile first
        link = ["-shared", "-nostdlib++"] if "ziglang" in compiler else ["-shared"]
        _compile([*compiler, *link, *(str(work / name) for name in parts), "-o", str(made)], header)
        try:
            aside = path.with_name(f".{path.name}.{os.getpid()}")
            shutil.copyfile(made, aside)
            os.replace(aside, path)
        except OSError as error:
            raise LibraryError(f"{path} can't be written ({error.strerror or error})") from error
    for old in _others(header):
        with contextlib.suppress(OSError):
            old.unlink()
    return path, True


def _compiler() -> tuple[list[str], str]:
    """The command of the C++ compiler, and whose options it takes: CXX, a compiler of the system, or ziglang's."""
    named = shlex.split(os.environ.get("CXX", ""))
    if named and shutil.which(named[0]) is None:
        raise LibraryError(f"CXX is {shlex.join(named)}, and there is no such compiler; {INSTALL}")
    usual = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    found = named or ([usual] if usual else [])
    if not found and importlib.util.find_spec("ziglang") is not None:
        target = f"{platform.machine()}-linux-gnu.2.28" if sys.platform == "linux" else "native"
        # its own defaults are checks of undefined behaviour, and names of its own for -march
        return [sys.executable, "-m", "ziglang", "c++", "-target", target, "-g0", "-fno-sanitize=undefined"], "Clang"
    if not found:
        raise LibraryError(f"there is no C++ compiler here: {INSTALL}")
    asked = subprocess.run([*found, "--version"], capture_output=True, text=True, check=False)
    return found, "Clang" if "clang" in asked.stdout.lower() else "GNU"


def _compile(command: list[str], header: pathlib.Path) -> None:
    if "ziglang" in command:
        command = [re.sub(r"^-march=x86-64-(v\d)$", r"-march=x86_64_\1", option) for option in command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    if done.returncode != 0:
        raise LibraryError(f"{header} can't be compiled: {_first_error(done.stderr, done.returncode)}")


def _first_error(text: str, code: int) -> str:
    """Of a compiler's complaints, with file and line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r":\d+(:\d+)?: (fatal )?error: ", line)]
    if not errors:
        return next((line for line in lines if "error" in line.lower()), lines[-1] if lines else f"exit code {code}")
    return errors[0]


def _levels() -> tuple[str, ...]:
    return ("v2", "v3", "v4") if platform.machine().lower() in ("x86_64", "amd64") else ("generic",)


# ---- using ----


@functools.lru_cache(maxsize=64)
def _load(path: str) -> dict[str, Any]:
    module: Any = cuda_ext.native()
    found: dict[str, Any] = module.load_library(path)
    return found


def load(header: pathlib.Path, command: str) -> tuple[str, dict[str, Any]]:
    """The name by which the native module knows the system of `header`, and what its library says of itself.

    That is `name`, `sizes` (states, actions, observations, parameters, uniforms, normals), and whether it has the
    functions `margin` and `state_of`.

    Args:
        header: the user's.
        command: what builds it, for messages.

    Raises:
        LibraryError: it was not built, from other headers, or for another processor; there is no native module.
    """
    header = _existing(header)
    module = cuda_ext.native()
    if module is None:
        raise LibraryError(f"{header.name}: a system in C++ needs the native module: {cuda_ext.why_not_native()}")
    if not hasattr(module, "load_library"):
        raise LibraryError(
            f"{header.name}: surefoot's native module is older than its python files; install surefoot again"
        )
    path = _path(header)
    if not path.exists():
        raise LibraryError(_why_missing(header, command))
    try:
        return str(path), _load(str(path))
    except ValueError as error:
        raise LibraryError(f"{header.name}: {error}; remove {path} and build again: {command}") from error


def _why_missing(header: pathlib.Path, command: str) -> str:
    others = _others(header)
    if not others:
        return f"{header} is not built yet: {command}"
    mine = _digest_of(header)
    if not any(other.name.split("-")[-2] == mine for other in others):
        return f"{header} (or a header beside it) has changed since it was built: {command}"
    return f"{header} was built for another version of surefoot, or for another machine: {command}"


def _existing(header: pathlib.Path) -> pathlib.Path:
    if not header.is_file():
        raise LibraryError(f"{header}: there is no such header")
    if not header.stem.isidentifier():
        raise LibraryError(f"{header}: it must be named after the struct in it, as in my_robot.h")
    return header.resolve()


def _path(header: pathlib.Path) -> pathlib.Path:
    digests = f"{_digest_of(header)}-{_digest_of_sources()}"
    return header.with_name(f"{header.stem}-{sysconfig.get_platform().replace('-', '_')}-{digests}.so")


def _others(header: pathlib.Path) -> list[pathlib.Path]:
    """Libraries of this header that are not of its present text, or for others."""
    return sorted(path for path in header.parent.glob(f"{header.stem}-*-*-*.so") if path != _path(header))


def _digest_of(header: pathlib.Path) -> str:
    """Of the header and those beside it, which it may include."""
    return _digest(headers_beside(header))


@functools.cache
def _digest_of_sources() -> str:
    """Of what every library is compiled with, beside its header."""
    paths = [*sorted(NATIVE.glob("*.h")), NATIVE / "options.json", NATIVE / DOOR, *(NATIVE / unit for unit in UNITS)]
    return _digest(paths)


def _digest(paths: list[pathlib.Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        text = path.read_bytes()
        digest.update(f"{path.name} {len(text)}\n".encode() + text)
    return digest.hexdigest()[:12]
