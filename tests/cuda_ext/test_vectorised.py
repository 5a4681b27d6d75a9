"""The loops over lanes vectorise, and products stay in registers: a careless line or option undoes it without a word.

Twenty times the speed of rollouts hangs on the one, twice that of training on the other.
"""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess

import pytest

NATIVE = pathlib.Path(__file__).resolve().parents[2] / "cuda_ext" / "native"  # a wheel holds the headers only
OPTIONS = [  # those of options.json
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp-simd",
    "-fno-thread-jumps",
    "-fschedule-insns",
]
FLAGS = ["-std=c++17", *OPTIONS, "-march=x86-64-v3", "-DSUREFOOT_X86=1", "-DSUREFOOT_LEVEL=v3"]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


def compiled(native: pathlib.Path, folder: pathlib.Path) -> tuple[str, str]:
    """(assembly, which loops the compiler left alone and why) of levels/rollout.cpp with the `native` systems."""
    names = sorted(header.stem for header in (native / "systems").glob("*.h"))
    includes = "".join(f'#include "systems/{name}.h"\n' for name in names)
    (folder / "systems.inc").write_text(includes + "#define SUREFOOT_SYSTEMS(X)" + "".join(f" X({n})" for n in names))
    assembly, report = folder / "rollout.s", folder / "loops.txt"
    source = native / "levels" / "rollout.cpp"
    command = ["g++", *FLAGS, f"-I{native}", f"-I{folder}", "-S", str(source), "-o", str(assembly)]
    done = subprocess.run([*command, f"-fopt-info-vec-missed={report}"], capture_output=True, text=True, check=False)
    if "unrecognized" in done.stderr or "bad value" in done.stderr:
        pytest.skip(f"this g++ does not know x86-64-v3: {done.stderr[:200]}")
    assert done.returncode == 0, done.stderr
    return assembly.read_text(), report.read_text()


def scalar_functions(assembly: str) -> list[str]:
    """observe, step and reset of the systems in which fewer than half of the float operations are on whole vectors."""
    found = []
    for name, body in re.findall(
        r"^(_ZN\S*(?:LaneOperations|Strides)\S*):\n(.*?)^\s*\.size\s+\1", assembly, re.M | re.S
    ):
        vector = len(re.findall(r"\tv(?:add|sub|mul|fn?m(?:add|sub)\d+|div)ps\t[^\n]*%ymm", body))
        scalar = len(re.findall(r"\tv(?:add|sub|mul|fn?m(?:add|sub)\d+|div)ss\t", body))
        if scalar > vector:
            found.append(name)
    return found


def scalar_loops(native: pathlib.Path, report: str) -> list[str]:
    """The marked loops of mlp.h and levels/rollout.cpp in which the compiler says that it failed."""
    pattern = r"^(\S+?):(\d+):\d+: missed: couldn't vectorize loop\n(?!.*outer-loop already vectorized)"
    failed = {(pathlib.Path(file).name, int(line)) for file, line in re.findall(pattern, report, re.M)}
    found = []
    for name in ("mlp.h", "levels/rollout.cpp"):
        lines = (native / name).read_text().splitlines()
        for start, line in enumerate(lines, 1):
            if "// vectorised" not in line:
                continue
            indent = len(line) - len(line.lstrip())
            end = start
            while line.partition("//")[0].rstrip().endswith("{") and lines[end - 1] != " " * indent + "}":
                end += 1
            if any(file == pathlib.Path(name).name and start <= at <= end for file, at in failed):
                found.append(f"{name}:{start}: {line.strip()}")
    return found


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return compiled(NATIVE, tmp_path_factory.mktemp("vectorised"))


def test_the_options_are_those_of_the_build() -> None:
    options = json.loads((NATIVE / "options.json").read_text())
    assert set(OPTIONS) <= {*options["all"], *options["GNU"]}


def test_every_system_steps_observes_and_resets_in_vectors(build: tuple[str, str]) -> None:
    assembly, _ = build
    assert "LaneOperations" in assembly
    assert scalar_functions(assembly) == []


def test_every_marked_loop_is_vectorised(build: tuple[str, str]) -> None:
    assert "missed" in build[1]
    assert scalar_loops(NATIVE, build[1]) == []


def copy_of_sources(folder: pathlib.Path, file: str, old: str, new: str) -> pathlib.Path:
    """The native sources with one system and `old` replaced by `new` in `file`."""
    changed = folder / "native"
    (changed / "systems").mkdir(parents=True)
    for header in NATIVE.glob("*.h"):
        shutil.copy(header, changed)
    shutil.copytree(NATIVE / "levels", changed / "levels")
    shutil.copy(NATIVE / "systems" / "pendulum.h", changed / "systems")
    text = (changed / file).read_text()
    assert old in text
    (changed / file).write_text(text.replace(old, new))
    return changed


def test_a_call_of_the_c_library_in_a_system_is_noticed(tmp_path: pathlib.Path) -> None:
    slow = "angle = wrap(s[0]); sine = __builtin_sinf(s[0]); cosine = 0;"
    native = copy_of_sources(tmp_path, "systems/pendulum.h", "wrapped_sine_cosine(s[0], angle, sine, cosine);", slow)
    found = scalar_functions(compiled(native, tmp_path)[0])
    assert len(found) == 3, found
    assert all(any(name in one for one in found) for name in ("4step", "long_stride_ofILb0", "long_stride_ofILb1"))


def test_a_branch_in_a_dense_layer_is_noticed(tmp_path: pathlib.Path) -> None:
    native = copy_of_sources(tmp_path, "mlp.h", "limited(x, 8.5f)", "clip(x, -8.5f, 8.5f)")
    found = scalar_loops(native, compiled(native, tmp_path)[1])
    assert any("l < h" in loop for loop in found), found


def spilled_products(*changes: str) -> tuple[int, int]:
    """How many inner loops of levels/dense.cpp are register tiles', and how many of them keep vectors on the stack."""
    options = [*FLAGS, "-fno-schedule-insns", *changes]  # as CMakeLists.txt has it for this file
    command = ["g++", *options, f"-I{NATIVE}", "-S", str(NATIVE / "levels" / "dense.cpp"), "-o", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized" in done.stderr or "bad value" in done.stderr:
        pytest.skip(f"this g++ does not know x86-64-v3: {done.stderr[:200]}")
    assert done.returncode == 0, done.stderr
    loops = [
        body
        for _, body in re.findall(r"^(\.L\d+):\n((?:(?!^\.L\d+:).*\n)*?)\tj\w+\t\1$", done.stdout, re.M)
        if len(re.findall(r"\tvfmadd\d+ps\t[^\n]*%ymm", body)) >= 8 and body.count("\tvbroadcastss\t") >= 4
    ]
    return len(loops), sum(bool(re.search(r"\tv\S+\t[^\n]*\(%r[sb]p\)", body)) for body in loops)


def test_the_products_of_dense_layers_keep_their_sums_in_registers() -> None:
    build = NATIVE.parents[1] / "CMakeLists.txt"
    if not build.exists():
        pytest.skip("surefoot was installed without its sources")
    assert re.search(r'levels/dense\.cpp" [^\n]*PROPERTIES COMPILE_OPTIONS -fno-schedule-insns', build.read_text())
    found, spilled = spilled_products()
    assert found >= 20
    assert spilled == 0
    assert spilled_products("-fschedule-insns")[1] > 10  # else it is not this test that tells
