"""The example of docs/add_a_system.md works as the page says: its two blocks are the two files of a new system."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest
import torch

from surefoot import cuda_ext
from surefoot.cuda_ext.system import System

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "add_a_system.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (code,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(code)


def mass_spring() -> System:
    module = types.ModuleType("mass_spring")
    exec(compile(block("python"), "mass_spring.py", "exec"), vars(module))
    made: System = module.MassSpring()
    return made


def test_the_twin_of_the_page_gives_the_numbers_worked_out_by_hand() -> None:
    system = mass_spring()
    p = system.default_parameters()[None]
    state = torch.tensor([[1.0, 0.5]], dtype=torch.float64)
    step = system.step(state, torch.tensor([[0.8]], dtype=torch.float64), p, torch.zeros(1, 1))
    # force 0.8 - 4 - 0.05 = -3.25; v = 0.5 - 0.1625 = 0.3375; x = 1 + 0.016875
    np.testing.assert_allclose(step.state, [[1.016875, 0.3375]], rtol=1e-14)
    assert step.reward.item() == pytest.approx(-(1.016875**2 + 0.1 * 0.3375**2 + 0.0064))
    assert step.margin.item() == pytest.approx(0.483125)
    assert not step.terminated.item()


def test_the_behaviours_of_the_page_come_in_the_order_that_it_asks_for() -> None:
    system = mass_spring()
    p = system.default_parameters().expand(200, -1)
    totals = {}
    for name in ("random", "medium", "expert"):
        generator = np.random.default_rng(0)
        state, total = system.reset(torch.tensor(generator.random((200, 2))), p), torch.zeros(200).double()
        for _ in range(system.max_steps):
            action = system.behaviours[name](system.observe(state, p).numpy(), generator)
            step = system.step(state, torch.tensor(action), p, torch.zeros(1, 1))
            state, total = step.state, total + step.reward
        totals[name] = total.mean().item()
    assert totals["expert"] > totals["medium"] + 10 > totals["random"] + 20


CHECK = """
import sys
sys.path.insert(0, {tests!r})
import torch
from agreement import compare
from surefoot import cuda_ext
from surefoot.envs import systems
assert cuda_ext.native() is not None, cuda_ext.why_not_native()
assert cuda_ext.__file__.startswith({target!r}), cuda_ext.__file__
assert "mass_spring" in cuda_ext.native().systems(), cuda_ext.native().systems()
found = systems.system("native/mass-spring")
assert found is not None and type(found) is type(systems.system("surefoot/MassSpring-v0"))
compare(found, torch.float64)
compare(found, torch.float32)
print("agree")
"""


@pytest.mark.slow
def test_the_two_blocks_put_into_their_folders_build_into_a_system_that_agrees_with_its_twin(
    tmp_path: pathlib.Path,
) -> None:
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None or cuda_ext.native() is None:
        pytest.skip(f"no compiler to build the header with: {cuda_ext.why_not_native() or 'neither g++ nor clang++'}")
    checkout, target = tmp_path / "checkout", tmp_path / "installed"
    checkout.mkdir()
    for folder in ("core", "cuda_ext", "data", "envs", "evaluation", "offline", "online", "src", "tools"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, checkout / file)
    options = checkout / "cuda_ext" / "native" / "options.json"
    assert "-O3" in options.read_text()
    options.write_text(options.read_text().replace("-O3", "-O0"))  # builds in a third of the time, and is as right
    headers = checkout / "cuda_ext" / "native" / "systems"
    for header in headers.glob("*.h"):
        header.unlink()  # one system builds faster than thirteen
    (headers / "mass_spring.h").write_text(block("cpp"), encoding="utf-8")
    (checkout / "envs" / "systems" / "mass_spring.py").write_text(block("python"), encoding="utf-8")

    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--config-settings=cmake.define.SUREFOOT_GENERIC=ON",  # one instruction set builds faster than three
        "--target",
        str(target),
    ]
    built = subprocess.run([*install, str(checkout)], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    code = CHECK.format(tests=str(ROOT / "tests" / "cuda_ext"), target=str(target))
    # -S keeps the checkout's own sources out; the packages that surefoot needs come after the new build
    paths = [str(target), *(path for path in sys.path if path.endswith("site-packages"))]
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {paths!r}\n{code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "agree" in done.stdout
