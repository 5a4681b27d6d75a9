"""From headers to a cubin: NVRTC compiles one system with one shape of policy, once; the user's cache keeps it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import io
import json
import os
import pathlib
import uuid
import warnings
from typing import Any

NATIVE = pathlib.Path(__file__).parent / "native"
HEADERS = (".h", ".hpp", ".hh")
MAGIC = b"surefoot cubin "
ENTRIES = {"rollout": ("surefoot_rollout", "surefoot_reset"), "plan": ("surefoot_plan",)}
"""What a unit does -> its kernels."""
OPTIONS: dict[str, Any] = {
    "std": "c++17",
    "device_as_default_execution_space": True,  # constexpr functions of system.h
    "prec_div": False,  # 2 units in the last place: division is most of a tanh
    "ftz": True,
}
"""Of NVRTC, in cuda-core's names."""


class GpuError(RuntimeError):
    """A rollout can't run on the GPU; the message says why and what to do."""


class MissingPackageError(GpuError):
    """A package of the extra is not installed."""

    def __init__(self, package: str, extra: str = "cuda13") -> None:
        super().__init__(
            f"rollouts on a GPU need the package {package!r}, which is not installed or not complete: "
            f"pip install 'surefoot[{extra}]'"
        )
        self.package, self.extra = package, extra


class NoDeviceError(GpuError):
    """There is no CUDA device, driver, or CUDA build of torch."""


class CompileError(GpuError):
    """NVRTC refused a header."""


@dataclasses.dataclass(frozen=True)
class Unit:
    """What is compiled together: `rollout.cuh` or `plan.cuh` for one system, with the macros that it reads."""

    system: str
    """Of `systems/<system>.h`."""
    defines: tuple[tuple[str, str], ...]
    folder: pathlib.Path = NATIVE
    """Of the headers."""
    work: str = "rollout"
    """Or "plan": of `ENTRIES`."""

    own: pathlib.Path | None = None
    """The header of a user's system, instead of `systems/<system>.h`."""

    @property
    def header(self) -> str:
        """The system's, as it is included."""
        return f"systems/{self.system}.h" if self.own is None else self.own.name

    @property
    def include_path(self) -> list[str]:
        """Folders of headers."""
        return [str(self.folder), *([] if self.own is None else [str(self.own.parent)])]

    @property
    def source(self) -> str:
        """The text of the translation unit."""
        return f'#include "{self.header}"\n#include "{self.work}.cuh"\n'

    @property
    def name(self) -> str:
        """Of its files."""
        return self.system if self.work == "rollout" else f"{self.system}-{self.work}"

    def key(self, version: str, architecture: str) -> str:
        """sha256 of everything that the cubin depends on."""
        digest = hashlib.sha256()
        paths = [*sorted(self.folder.glob("*.h")), *sorted(self.folder.glob("*.cuh"))]
        if self.own is None:
            paths.append(self.folder / "systems" / f"{self.system}.h")
        else:
            paths += headers_beside(self.own)
        for path in paths:
            text = path.read_bytes()
            digest.update(f"{path.name} {len(text)}\n".encode() + text)
        digest.update(json.dumps([self.source, self.defines, OPTIONS, version, architecture]).encode())
        return digest.hexdigest()


def headers_beside(header: pathlib.Path) -> list[pathlib.Path]:
    """A header and those in its folder, which it may include."""
    return sorted(path for path in header.parent.iterdir() if path.suffix in HEADERS)


def cubin(unit: Unit, architecture: str) -> bytes:
    """The cubin of `unit` for `architecture` (such as "sm_90"), from the cache where it is there and whole.

    Raises:
        MissingPackageError: cuda-core, cuda-bindings or NVRTC is not installed.
        CompileError: NVRTC refused it; its log is kept beside the cache.
    """
    _, _, version = compiler()
    path = cache_folder() / f"{unit.name}-{architecture}-{unit.key(version, architecture)[:32]}.cubin"
    found = _read(path)
    if found is None:
        found, _ = compile_now(unit, architecture, log=path.with_suffix(".log"))
        _write(path, MAGIC + hashlib.sha256(found).hexdigest().encode() + b"\n" + found)
    return found


def compile_now(unit: Unit, architecture: str, log: pathlib.Path | None = None) -> tuple[bytes, str]:
    """The cubin and ptxas's report of registers and spills, compiled without the cache.

    Args:
        unit: what to compile.
        architecture: "sm_90" or the like.
        log: where NVRTC's complaints are kept if it fails.
    """
    program, program_options, version = compiler()
    report = io.StringIO()
    options = program_options(
        name=f"{unit.name}.cu",
        arch=architecture,
        include_path=unit.include_path,
        define_macro=list(unit.defines),
        ptxas_options=["-v"],
        **OPTIONS,
    )
    try:
        code = program(unit.source, "c++", options).compile("cubin", logs=report).code
    except Exception as error:  # cuda-core's own classes, which change from release to release
        text = f"{error}\n{report.getvalue()}\nNVRTC {version}, {architecture}, {unit.defines}\n"
        where = f"; the whole log is {log}" if log is not None and _write(log, text.encode()) else ""
        what = f"the system {unit.system!r} for {architecture}"
        raise CompileError(f"NVRTC {version} can't compile {what}: {_first_complaint(text)}{where}") from error
    return bytes(code), report.getvalue().replace("\x00", "")


def compiler() -> tuple[Any, Any, str]:
    """cuda-core's Program and ProgramOptions, and NVRTC's version.

    Raises:
        MissingPackageError: naming the package and the extra that brings it.
    """
    try:
        core: Any = importlib.import_module("cuda.core")
    except ImportError as error:
        package = "cuda-bindings" if "bindings" in str(error) else "cuda-core"
        raise MissingPackageError(package) from error
    try:
        status, major, minor = importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise MissingPackageError("nvidia-cuda-nvrtc") from error
    if int(status) != 0:
        raise MissingPackageError("nvidia-cuda-nvrtc")
    return core.Program, core.ProgramOptions, f"{major}.{minor}"


def cache_folder() -> pathlib.Path:
    """`cubins` in SUREFOOT_CACHE or ~/.cache/surefoot."""
    root = os.environ.get("SUREFOOT_CACHE") or pathlib.Path.home() / ".cache" / "surefoot"
    return pathlib.Path(root) / "cubins"


def _first_complaint(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "error" in line.lower() and "NVRTC_ERROR" not in line]
    return lines[0] if lines else text.strip().splitlines()[0]


def _read(path: pathlib.Path) -> bytes | None:
    """The cubin in a cache file; None where there is none, or it is not what was written."""
    try:
        head, _, code = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return code if head == MAGIC + hashlib.sha256(code).hexdigest().encode() else None


def _write(path: pathlib.Path, content: bytes) -> bool:
    """Write aside and rename; where that can't be done, a warning says so: it costs a compilation each time."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(content)
        os.replace(aside, path)
    except OSError as error:
        warnings.warn(f"{path} can't be kept ({error.strerror or error}); it is made anew next time", stacklevel=3)
        return False
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
    return True
