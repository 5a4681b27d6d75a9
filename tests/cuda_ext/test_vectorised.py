"""The loops over lanes vectorise: 20 times the speed hangs on it, and a careless line undoes it without a word."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import pytest

import surefoot.cuda_ext

NATIVE = pathlib.Path(surefoot.cuda_ext.__file__).parent / "native"
OPTIONS = [  # those of CMakeLists.txt
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp-simd",
    "-fno-thread-jumps",
]
FLAGS = ["-std=c++17", *OPTIONS, "-march=x86-64-v3", "-DSUREFOOT_X86=1", "-DSUREFOOT_LEVEL=v3"]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


def compiled(native: pathlib.Path, folder: pathlib.Path) -> tuple[str, str]:
    """(assembly, the compiler's list of vectorised loops) of levels/rollout.cpp for the systems in `native`."""
    names = sorted(header.stem for header in (native / "systems").glob("*.h"))
    includes = "".join(f'#include "systems/{name}.h"\n' for name in names)
    (folder / "systems.inc").write_text(includes + "#define SUREFOOT_SYSTEMS(X)" + "".join(f" X({n})" for n in names))
    assembly, report = folder / "rollout.s", folder / "loops.txt"
    source = native / "levels" / "rollout.cpp"
    command = ["g++", *FLAGS, f"-I{native}", f"-I{folder}", "-S", str(source), "-o", str(assembly)]
    done = subprocess.run([*command, f"-fopt-info-vec-optimized={report}"], capture_output=True, text=True, check=False)
    if "unrecognized" in done.stderr or "bad value" in done.stderr:
        pytest.skip(f"this g++ does not know x86-64-v3: {done.stderr[:200]}")
    assert done.returncode == 0, done.stderr
    return assembly.read_text(), report.read_text()


def scalar_functions(assembly: str) -> list[str]:
    """observe, step and reset of the systems in which fewer than half of the float operations are on whole vectors."""
    found = []
    for name, body in re.findall(r"^(_ZN\S*LaneOperations\S*):\n(.*?)^\s*\.size\s+\1", assembly, re.M | re.S):
        vector = len(re.findall(r"\tv(?:add|sub|mul|fn?m(?:add|sub)\d+|div)ps\t[^\n]*%ymm", body))
        scalar = len(re.findall(r"\tv(?:add|sub|mul|fn?m(?:add|sub)\d+|div)ss\t", body))
        if scalar > vector:
            found.append(name)
    return found


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return compiled(NATIVE, tmp_path_factory.mktemp("vectorised"))


def test_the_options_are_those_of_the_build() -> None:
    build = NATIVE.parents[1] / "CMakeLists.txt"
    if not build.exists():
        pytest.skip("surefoot was installed without its sources")
    assert all(option in build.read_text() for option in OPTIONS)


def test_every_system_steps_observes_and_resets_in_vectors(build: tuple[str, str]) -> None:
    assembly, _ = build
    assert "LaneOperations" in assembly
    assert scalar_functions(assembly) == []


def test_every_marked_loop_is_vectorised(build: tuple[str, str]) -> None:
    reported = {
        (pathlib.Path(file).name, int(line)) for file, line in re.findall(r"^(\S+?):(\d+):\d+:", build[1], re.M)
    }
    for name in ("mlp.h", "levels/rollout.cpp"):
        lines = (NATIVE / name).read_text().splitlines()
        starts = [k for k, line in enumerate(lines, 1) if line and not line[0].isspace() and line.endswith("{")]
        for start, end in zip(starts, [*starts[1:], len(lines) + 1]):
            marked = sum("// vectorised" in line for line in lines[start - 1 : end - 1])
            # the compiler names a loop by a statement in it, or by the function's first line
            seen = {line for file, line in reported if file == pathlib.Path(name).name and start - 1 <= line < end}
            assert len(seen) >= marked, f"{name}: {lines[start - 1]} vectorises {len(seen)} of {marked} marked loops"


def test_a_call_of_the_c_library_in_a_system_is_noticed(tmp_path: pathlib.Path) -> None:
    changed = tmp_path / "native"
    (changed / "systems").mkdir(parents=True)
    for header in NATIVE.glob("*.h"):
        shutil.copy(header, changed)
    shutil.copytree(NATIVE / "levels", changed / "levels")
    text = (NATIVE / "systems" / "pendulum.h").read_text()
    slow = text.replace("sine_cosine(s[0], sine, cosine);", "sine = __builtin_sinf(s[0]); cosine = 0;")
    assert slow != text
    (changed / "systems" / "pendulum.h").write_text(slow)
    assembly, _ = compiled(changed, tmp_path)
    found = scalar_functions(assembly)
    assert len(found) == 1
    assert "4step" in found[0]
