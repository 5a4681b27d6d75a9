"""The packaging keeps its promises: mapped rooms, a clean wheel, tested versions, one import name."""

from __future__ import annotations

import ast
import email
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import types
import zipfile
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import surefoot
from surefoot.cuda_ext.library import DOOR, UNITS

ROOT = pathlib.Path(__file__).resolve().parents[1]


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES: dict[str, str] = PROJECT["tool"]["scikit-build"]["wheel"]["packages"]
ROOMS = {folder for folder in PACKAGES.values() if "/" not in folder}
CODE_FOLDERS = [*sorted(PACKAGES.values()), "tests", "benchmarks", "examples"]
CUDA_BUILD = ("nvidia", "triton", "cuda")  # what torch's CUDA build brings; its versions follow from torch's
NOT_PINNED = {  # extras without a tested version, since they bring a platform of their own
    "mlflow",
    "ray",
    "hydra-submitit-launcher",
    "submitit",
    "pynput",
    "jaxmarl",
    "mpe2",
    "pygame-ce",
}


def bare_imports(source: str) -> list[str]:
    """Names of rooms that `source` imports without `surefoot.` in front."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        else:
            continue
        found += [name for name in names if name.split(".")[0] in ROOMS]
    return found


def source_files() -> Iterator[pathlib.Path]:
    for folder in CODE_FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import data", ["data"]),
        ("import core.errors as e", ["core.errors"]),
        ("from core import errors", ["core"]),
        ("def f():\n    from offline.iql import IQL", ["offline.iql"]),
        ("import surefoot.data\nfrom surefoot import core\nfrom . import envs\nimport dataclasses", []),
    ],
)
def test_a_bare_import_of_a_room_is_recognised(source: str, found: list[str]) -> None:
    assert bare_imports(source) == found


def test_no_file_imports_a_room_by_its_bare_name() -> None:
    files = {path: path.read_text(encoding="utf-8") for path in source_files()}
    assert ROOT / "core" / "base" / "errors.py" in files
    suspect = re.compile(rf"^\s*(?:import|from)\b.*(?<![.\w])(?:{'|'.join(ROOMS)})\b", re.MULTILINE)
    offenders = {
        str(path.relative_to(ROOT)): names
        for path, text in files.items()
        if suspect.search(text) and (names := bare_imports(text))  # parsing all files takes seconds
    }
    assert not offenders, f"import these as surefoot.<room>: {offenders}"


def test_rooms_are_the_same_in_every_list_of_pyproject() -> None:
    not_rooms = {"tests", "benchmarks", "examples", "docs", "build"}
    on_disk = {path.parent.name for path in ROOT.glob("*/__init__.py")} - not_rooms
    banned = set(PROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"])
    contract = PROJECT["tool"]["importlinter"]["contracts"][0]
    assert on_disk == ROOMS
    assert banned == ROOMS
    assert {line.split(":")[0] for line in contract["table"]} == ROOMS
    assert {name: folder for name, folder in PACKAGES.items() if folder in ROOMS} == {
        f"surefoot/{room}": room for room in ROOMS
    }


def test_the_version_is_one_fact() -> None:
    assert PROJECT["project"]["version"] == surefoot.__version__ == importlib.metadata.version("surefoot")


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Paths inside a wheel that is built, without a compiler, from this checkout."""
    pytest.importorskip("scikit_build_core", reason="comes with the dev extra")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [*build, "-w", str(folder), str(ROOT)],
        check=True,
        env={**os.environ, "SUREFOOT_PURE_PYTHON": "1"},
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    (wheel,) = folder.glob("surefoot-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_holds_every_module_and_data_file_under_surefoot(wheel_files: list[str]) -> None:
    expected = {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
        for package, folder in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".json", ".yaml", ".typed", ".html"}
    }
    assert "surefoot/core/base/errors.py" in expected
    assert expected <= set(wheel_files)


def test_the_wheel_holds_nothing_but_surefoot(wheel_files: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_files}
    assert tops == {"surefoot", f"surefoot-{surefoot.__version__}.dist-info"}  # this one is without the native module
    strays = [name for name in wheel_files if re.search(r"test|benchmarks/|\.cpp$|\.cu$|__pycache__", name)]
    strays = [name for name in strays if not name.startswith("surefoot/cli/templates/")]  # of `surefoot new`
    compiled = {f"surefoot/cuda_ext/native/{name}" for name in (*UNITS, DOOR)}  # by `surefoot build`
    assert set(strays) == compiled


def test_the_wheel_is_typed_and_carries_the_licence(wheel_files: list[str]) -> None:
    assert "surefoot/py.typed" in wheel_files
    assert f"surefoot-{surefoot.__version__}.dist-info/licenses/LICENSE" in wheel_files
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def pinned_versions() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version.split(" ;")[0] for name, version in pins.items()}


def declared_requirements() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    texts = [*PROJECT["project"]["dependencies"], *(text for extra in extras for text in extra)]
    requirements = [Requirement(text) for text in texts]
    return [r for r in requirements if not r.name.startswith(("surefoot", *NOT_PINNED, *CUDA_BUILD))]


def test_every_declared_dependency_has_a_tested_version_that_it_accepts() -> None:
    pins = pinned_versions()
    for requirement in declared_requirements():
        version = pins.get(canonicalize_name(requirement.name))
        assert version is not None, f"constraints.txt does not pin {requirement.name}"
        assert requirement.specifier.contains(version), f"{requirement} does not accept {version}"


@pytest.mark.parametrize(
    ("shown", "extra"),
    [
        ("env=HalfCheetah-v5", "mujoco"),
        ("-o policy.onnx", "onnx"),
        ("as a page or a video", "video"),
        ("surefoot new system", "numba"),
        ("dataset=d4rl/", "minari"),
    ],
)
def test_the_extra_all_holds_what_the_readmes_commands_need(shown: str, extra: str) -> None:
    assert shown in (ROOT / "README.md").read_text(encoding="utf-8")
    (everything,) = PROJECT["project"]["optional-dependencies"]["all"]
    assert extra in Requirement(everything).extras


@pytest.mark.skipif(sys.platform != "linux", reason="constraints.txt lists what Linux needs")
def test_constraints_reach_through_to_dependencies_of_dependencies() -> None:
    pins = pinned_versions()
    waiting = [canonicalize_name(requirement.name) for requirement in declared_requirements()]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name.startswith(CUDA_BUILD):
            continue
        seen.add(name)
        assert name in pins or name == "setuptools", f"constraints.txt does not pin {name}"
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        needed = [Requirement(text) for text in requires]
        waiting += [canonicalize_name(r.name) for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]
    assert {"torch", "sympy", "numpy"} <= seen


def test_constraints_fit_any_build_of_torch() -> None:
    pins = pinned_versions()
    assert "+" not in "".join(pins.values()), "a local version such as 2.13.0+cpu exists on one index only"
    assert not [name for name in pins if name.startswith(CUDA_BUILD)]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("target", ["demo", "test"])
def test_make_without_a_python_says_what_to_install(target: str, tmp_path: pathlib.Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "CMakeLists.txt"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run(
        ["make", target, "PYTHON="], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "surefoot needs python 3.11 or newer" in done.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.fixture(scope="module")
def backend() -> types.ModuleType:
    """tools/build_backend.py, imported as pip does."""
    pytest.importorskip("scikit_build_core", reason="comes with the dev extra")
    spec = importlib.util.spec_from_file_location("build_backend", ROOT / "tools" / "build_backend.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def bare(backend: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> dict[str, str]:
    """Environment variables of a Linux machine with python's headers and nothing on PATH."""
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "Python.h").touch()
    monkeypatch.setattr(backend.sys, "platform", "linux")
    monkeypatch.setattr(backend.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(backend.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(backend.sysconfig, "get_path", lambda name: str(tmp_path / name))
    (tmp_path / "bin").mkdir()
    for name in ("CXX", "SUREFOOT_PURE_PYTHON", "SUREFOOT_ZIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return {"PATH": str(tmp_path / "bin")}


def executable(path: pathlib.Path, text: str = "#!/bin/sh\n") -> pathlib.Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_zig_compiles_where_there_is_no_compiler(backend: types.ModuleType, bare: dict[str, str]) -> None:
    assert backend.why_not_zig(bare) is None


@pytest.mark.parametrize("name", ["c++", "g++", "clang++"])
def test_a_compiler_on_the_path_is_preferred_to_zig(backend: types.ModuleType, bare: dict[str, str], name: str) -> None:
    executable(pathlib.Path(bare["PATH"]) / name)
    assert backend.why_not_zig(bare) == ""
    assert backend.why_not_zig({**bare, "SUREFOOT_ZIG": "1"}) is None


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"CXX": "/opt/bin/c++"}, ""),
        ({"SUREFOOT_PURE_PYTHON": "1"}, ""),
        ({"SUREFOOT_PURE_PYTHON": "1", "SUREFOOT_ZIG": "1"}, ""),
        ({"SUREFOOT_ZIG": "0"}, "SUREFOOT_ZIG refuses"),
    ],
)
def test_a_switch_that_refuses_zig_is_respected(
    backend: types.ModuleType, bare: dict[str, str], environ: dict[str, str], words: str
) -> None:
    reason = backend.why_not_zig({**bare, **environ})
    assert words in reason
    assert bool(words) == bool(reason)


def test_without_python_headers_there_is_nothing_to_compile(
    backend: types.ModuleType, bare: dict[str, str], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "include" / "Python.h").unlink()
    assert f"headers are missing too ({tmp_path / 'include' / 'Python.h'})" in backend.why_not_zig(bare)


def test_zig_is_for_linux_with_glibc(
    backend: types.ModuleType, bare: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend.platform, "libc_ver", lambda: ("", ""))
    assert "with glibc on x86-64" in backend.why_not_zig(bare)


def test_off_linux_cmake_finds_the_compiler_as_ever(
    backend: types.ModuleType, bare: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend.sys, "platform", "darwin")
    assert backend.why_not_zig(bare) == ""


@pytest.mark.usefixtures("bare")
def test_ziglang_is_a_requirement_only_where_it_can_be_fetched(
    backend: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hook in (backend.get_requires_for_build_wheel, backend.get_requires_for_build_editable):
        monkeypatch.setattr(backend, "can_be_fetched", lambda: True)
        assert f"ziglang=={backend.VERSION}" in hook()
        monkeypatch.setattr(backend, "can_be_fetched", lambda: False)
        assert not [name for name in hook() if re.match("ziglang|cmake|ninja", name)]


def test_links_lead_from_the_package_to_every_room() -> None:
    links = {path.name: os.readlink(path) for path in (ROOT / "src" / "surefoot").iterdir() if path.is_symlink()}
    assert links == {room: f"../../{room}" for room in ROOMS}


def test_an_editable_install_is_a_line_that_leads_to_the_sources_and_runs_nothing(
    backend: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SUREFOOT_PURE_PYTHON", "1")
    with zipfile.ZipFile(tmp_path / backend.build_editable(str(tmp_path))) as wheel:
        names = [name for name in wheel.namelist() if ".dist-info/" not in name]
        assert names == ["surefoot.pth"]
        assert wheel.read("surefoot.pth").decode() == f"{ROOT / 'src'}\n"


def test_without_links_an_editable_install_says_so_and_a_wheel_is_whole(
    backend: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    checkout = tmp_path / "checkout"
    tracked = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        if name.split("/")[0] in {*ROOMS, "src", "tools", "cuda_ext"} or "/" not in name:
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_symlink():  # as git writes it where there are no links
                (checkout / name).write_text(os.readlink(ROOT / name))
            elif (ROOT / name).is_file():
                shutil.copy(ROOT / name, checkout / name)
    monkeypatch.chdir(checkout)
    monkeypatch.setattr(backend, "ROOT", checkout)
    monkeypatch.setenv("SUREFOOT_PURE_PYTHON", "1")
    with pytest.raises(RuntimeError, match=r"has no symbolic links.*core\.symlinks"):
        backend.build_editable(str(tmp_path))
    with zipfile.ZipFile(tmp_path / backend.build_wheel(str(tmp_path))) as wheel:
        assert {f"surefoot/{room}/__init__.py" for room in ROOMS} <= set(wheel.namelist())


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_metadata_are_told_without_compiling_anything(
    backend: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, kind: str
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(backend, "compiler", lambda: pytest.fail("the module was compiled"))
    name = getattr(backend, f"prepare_metadata_for_build_{kind}")(str(tmp_path))
    found = email.message_from_string((tmp_path / name / "METADATA").read_text(encoding="utf-8"))
    project = PROJECT["project"]
    assert (found["Name"], found["Version"]) == (project["name"], project["version"])
    asked = [line.partition(";")[0] for line in found.get_all("Requires-Dist") if "extra ==" not in line]
    assert sorted(asked) == sorted(project["dependencies"])
    assert "surefoot = surefoot.cli:main" in (tmp_path / name / "entry_points.txt").read_text(encoding="utf-8")
    assert not (tmp_path / name / "RECORD").exists()


def test_pip_is_asked_whether_ziglang_can_be_fetched(
    backend: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert not backend.can_be_fetched()
    (tmp_path / f"ziglang-{backend.VERSION}9-py3-none-any.whl").touch()
    assert not backend.can_be_fetched()
    (tmp_path / f"ziglang-{backend.VERSION}-py3-none-any.whl").touch()
    assert backend.can_be_fetched()


def test_the_launcher_gives_zig_its_own_names_and_keeps_every_argument(
    backend: types.ModuleType, tmp_path: pathlib.Path
) -> None:
    zig = executable(tmp_path / "zi g", '#!/bin/sh\nfor a do echo "$a"; done\n')
    programs = backend.write_launchers(zig, tmp_path / "launchers")
    options = ["-march=x86-64-v4", "-O3", "a b.cpp", '-DX="y z"', "-march=armv8-a"]
    said = subprocess.run([programs["c++"], *options], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0] == "c++"
    assert said[-5:] == ["-march=x86_64_v4", *options[1:]]
    assert {"-fno-sanitize=undefined", "-O3"} < set(said[1:-5])
    assert said[said.index("-target") + 1].endswith("-linux-gnu.2.28")
    said = subprocess.run([programs["ar"], "qc", "a.a"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == ["ar", "qc", "a.a"]


def test_zig_finds_both_parts_of_debians_pyconfig(
    backend: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    first, second = (tmp_path / "usr" / part / "python3.11" for part in ("include", "include/x86_64-linux-gnu"))
    monkeypatch.setattr(backend.sysconfig, "get_path", lambda name: str(first))
    monkeypatch.setattr(backend.sysconfig, "get_config_var", lambda name: "x86_64-linux-gnu")
    first.mkdir(parents=True)
    assert backend.multiarch_headers(tmp_path / "a") is None
    second.mkdir(parents=True)
    (second / "pyconfig.h").write_text("#define FOUND", encoding="utf-8")
    for _ in range(2):  # a second build finds what the first one left
        found = backend.multiarch_headers(tmp_path / "a b")
        assert (found / "x86_64-linux-gnu" / "python3.11" / "pyconfig.h").read_text(encoding="utf-8") == "#define FOUND"
    zig = executable(tmp_path / "zig", '#!/bin/sh\nfor a do echo "$a"; done\n')
    program = backend.write_launchers(zig, tmp_path / "a b")["c++"]
    said = subprocess.run([program, "x.cpp"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[said.index("-isystem") + 1] == str(found)
    monkeypatch.setattr(backend.sysconfig, "get_config_var", lambda name: None)  # a python of no distribution
    assert backend.multiarch_headers(tmp_path / "c") is None


@pytest.mark.usefixtures("bare")
def test_without_ziglang_one_line_says_why_the_install_is_pure_python(
    backend: types.ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: None)
    before = dict(os.environ)
    with backend.compiler():
        assert dict(os.environ) == {**before, "SUREFOOT_PURE_PYTHON": "1"}  # cmake may be missing too
    assert dict(os.environ) == before
    (line,) = capfd.readouterr().err.splitlines()
    assert line == (
        f"surefoot: there is no C++ compiler, and ziglang {backend.VERSION} could not be fetched: "
        "installing as pure python, which is slower"
    )


@pytest.mark.usefixtures("bare")
def test_a_build_with_zig_names_it_to_cmake_and_leaves_the_environment_as_it_was(
    backend: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    found = types.SimpleNamespace(origin=str(tmp_path / "ziglang" / "__init__.py"))
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(backend, "FOLDER", tmp_path / "a b")
    monkeypatch.setenv("CMAKE_ARGS", "-DOWN=1")
    before = dict(os.environ)
    with backend.compiler():
        first, second, *_ = shlex.split(os.environ["CMAKE_ARGS"])
        assert (first, second) == ("-DOWN=1", f"-DCMAKE_CXX_COMPILER={tmp_path / 'a b' / 'zig-c++'}")
        assert str(tmp_path / "ziglang" / "zig") in (tmp_path / "a b" / "zig-c++").read_text()
    assert dict(os.environ) == before
