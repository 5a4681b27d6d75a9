"""A driver without a GPU: g++ compiles the kernels, and arguments go as cuLaunchKernel takes them."""

from __future__ import annotations

import ctypes
import hashlib
import pathlib
import subprocess
from collections.abc import Sequence
from typing import Any

from surefoot.cuda_ext.cubin import ENTRIES, Unit
from surefoot.cuda_ext.launch import THREADS, Limits

HERE = pathlib.Path(__file__).parent
H200 = Limits("sm_90", 227 * 1024, 228 * 1024, multiprocessors=132)
SMALL = Limits("sm_90", 227 * 1024, 228 * 1024, multiprocessors=1)


class Emulation:
    """Runs kernels on the processor; `launches` holds (kernel, blocks, shared bytes) of each."""

    device_type = "cpu"

    def __init__(
        self, folder: pathlib.Path, limits: Limits = H200, backwards: bool = False, counts_banks: bool = False
    ) -> None:
        self.folder, self._limits, self._backwards, self._counts_banks = folder, limits, backwards, counts_banks
        self.launches: list[tuple[str, int, int]] = []
        self.units: list[Unit] = []
        self.library: Any = None
        """That was loaded last, for `ways`, `bank_ways` and `bank_accesses` of emulate.cpp."""

    def limits(self) -> Limits:
        return self._limits

    def load(self, unit: Unit, limits: Limits, shared_bytes: int) -> tuple[Any, ...]:
        self.units.append(unit)
        library = self.library = ctypes.CDLL(str(self._compiled(unit)))
        library.count_banks(int(self._counts_banks))
        names = [entry.removeprefix("surefoot_") for entry in ENTRIES[unit.work]]
        return tuple((name, getattr(library, f"emulate_{name}")) for name in names)

    def launch(
        self, kernel: Any, blocks: int, shared_bytes: int, arguments: Sequence[Any], threads: int = THREADS
    ) -> None:
        name, function = kernel
        self.launches.append((name, blocks, shared_bytes))
        values = [ctypes.c_void_p(value) if isinstance(value, int) else value for value in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        status = function(blocks, threads, pointers, int(self._backwards))
        assert status == 0, "threads of a warp came to different barriers"

    def _compiled(self, unit: Unit) -> pathlib.Path:
        name = hashlib.sha256(repr((unit.work, unit.system, unit.own, unit.defines)).encode()).hexdigest()[:16]
        path = self.folder / f"{name}.so"
        if not path.exists():
            defines = [f"-D{key}={value}" for key, value in unit.defines]
            options = "-O1 -std=c++17 -shared -fPIC -fno-strict-aliasing -Wall -Wextra -Werror"
            options += " -Wno-unknown-pragmas -Wno-dangling-pointer -Wno-unused-parameter"
            files = [
                *(f"-I{folder}" for folder in unit.include_path),
                f'-DSF_HEADER="{unit.header}"',
                f"-DSF_{unit.work.upper()}",
                str(HERE / "emulate.cpp"),
            ]
            command = ["g++", *options.split(), *defines, *files, "-o", str(path)]
            subprocess.run(command, check=True, timeout=120)
        return path
