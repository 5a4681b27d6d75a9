"""A system of a user's own in C++: written, built outside of the checkout, trained; refused where it does not fit."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import shutil
import sys
from typing import Any

import numpy as np
import pytest
import torch
from emulation import Emulation
from test_gpu_emulated import assert_equal

from surefoot import cuda_ext
from surefoot.cli.main import main
from surefoot.cli.new import TEMPLATES
from surefoot.core.actors.heads import GaussianActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.cuda_ext import cubin, gpu, library
from surefoot.cuda_ext.gpu import KEPT
from surefoot.cuda_ext.launch import Limits, plan, unit_of
from surefoot.cuda_ext.operation import sizes_of
from surefoot.cuda_ext.rollout import rollout
from surefoot.cuda_ext.rollout_arrays import RANDOM, SUMS
from surefoot.cuda_ext.system import System
from surefoot.envs.cpp_system import CppSystem
from surefoot.envs.known_systems import system_of
from surefoot.evaluation.rollout import evaluate
from surefoot.runs import trust
from surefoot.runs.run import Run
from surefoot.safety.reach import reach
from surefoot.world_models.dynamics import StepNoise
from surefoot.world_models.known.exact import NativeDynamics

NAME = "slider:slider-v0"
pytestmark = [
    pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler"),
    pytest.mark.skipif(cuda_ext.native() is None, reason=cuda_ext.why_not_native()),
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder that `surefoot new system slider --cpp` wrote, built."""
    folder = tmp_path_factory.mktemp("cpp") / "slider"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        assert main(["new", "system", "slider", "--cpp"]) == 0
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        patch.setattr(trust, "_allowed", set())
        patch.setenv("CXXFLAGS", "-O0")  # built in a third of the time, and as right
        assert main(["build"]) == 0
        yield folder
    sys.modules.pop("slider", None)


@pytest.fixture
def slider(project: pathlib.Path) -> System:
    found = system_of(NAME)
    assert isinstance(found, CppSystem)
    return found


def loaded(path: pathlib.Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small_policy() -> Policy:
    torch.manual_seed(0)
    return Policy.of(GaussianActor(2, 1, (8,)), Normalizer(2), torch.tensor([-1.0]), torch.tensor([1.0]))


def test_the_tests_that_come_with_it_pass(project: pathlib.Path) -> None:
    written = loaded(project / "test_slider.py")
    written.test_a_step_in_cpp_is_that_in_torch(torch.float64, 1e-12)
    written.test_a_step_in_cpp_is_that_in_torch(torch.float32, 2e-5)
    written.test_the_margin_is_0_at_the_walls()
    written.test_a_step_moves_as_a_constant_force_does()
    written.test_the_environment_keeps_its_promises()


def test_a_second_build_finds_what_is_there(project: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "slider/slider.h"]) == 0
    assert "is there already" in capsys.readouterr().out
    assert len(list((project / "slider").glob("*.so"))) == 1


def test_rollouts_in_the_native_loop_are_those_of_the_torch_form(slider: System) -> None:
    shared: dict[str, Any] = {"random": True, "num_envs": 37, "episodes": "many", "horizon": 130, "seeds": 3}
    native, twin = (rollout(slider, backend=backend, **shared) for backend in ("native", "twin"))
    torch.testing.assert_close(native.returns, twin.returns, rtol=1e-4, atol=1e-3)
    assert torch.equal(native.lengths, twin.lengths)
    assert torch.equal(native.finished, twin.finished)
    assert int(native.finished.sum()) >= 37
    assert torch.equal(native.returns, rollout(slider, threads=2, **shared).returns)


def test_training_and_evaluation_have_the_native_loop(
    project: pathlib.Path, tmp_path: pathlib.Path, in_process: None
) -> None:
    small = ["steps=512", "envs=8", "algo.horizon=32", "algo.hidden=[8]", "seeds=1", "episodes=4"]
    assert main(["train", "-q", "algo=ppo", f"env={NAME}", *small, f"out={tmp_path}/run"]) == 0
    run = Run.open(tmp_path / "run")
    assert run.plan.environment == NAME
    policy = run.policy(0)
    (found,) = evaluate([policy], NAME, episodes=12, num_envs=4)
    assert found.loop == "native"
    assert found.costs is not None
    (stepped,) = evaluate([policy], f"{NAME}?max_episode_steps=100", episodes=12, num_envs=4)
    assert stepped.loop == "steps"
    np.testing.assert_allclose(found.returns, stepped.returns, rtol=1e-3)
    assert main(["evaluate", f"{tmp_path}/run", "--episodes", "4", "--trust"]) == 0


def test_its_safe_set_has_the_closed_forms_area() -> None:
    found = reach(NAME)
    # |x| <= 2 and the way to rest under full force, v^2 / 2 without friction, ends before the wall: friction adds to it
    assert found.facts["converged"]
    assert 15.085 < found.facts["safe_volume"] < 1.1 * 15.085


def test_an_exact_world_steps_in_cpp_and_its_derivatives_are_torchs(slider: System) -> None:
    states, actions = torch.tensor([[0.5, -1.0], [2.4, 3.0]]).double(), torch.tensor([[1.0], [-0.5]]).double()
    world = NativeDynamics(slider)
    assert world.backend == "native"
    found, twin = (one.step(states, actions, StepNoise()) for one in (world, world.differentiable()))
    torch.testing.assert_close(found.states, twin.states, rtol=1e-12, atol=1e-12)
    assert found.ended.tolist() == [False, True]
    with pytest.raises(ConfigError, match=r"slider: C\+\+ can't be recorded or derived by torch: override step\(\)"):
        CppSystem.step(slider, states.requires_grad_(), actions, slider.default_parameters().expand(2, -1), actions)


def test_the_kernel_of_a_gpu_does_what_the_processor_does(slider: System, tmp_path: pathlib.Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("kernels are emulated with g++")
    module, results = cuda_ext.native(), []
    assert module is not None
    for emulated in (False, True):
        envs, arrays = 5, {"low": torch.tensor([-1.0]), "high": torch.tensor([1.0])}
        arrays |= {"seeds": torch.arange(envs), "parameters": slider.default_parameters(torch.float32)}
        arrays |= {name: torch.zeros(envs, dtype=kind) for name, kind in {**SUMS, **KEPT}.items()}
        arrays |= {"states": torch.zeros(envs, 2), "last_observations": torch.zeros(envs, 2)}
        shared = (sizes_of(slider), envs, 120, 50, True, False, RANDOM, [], arrays)
        header = slider.own_header()
        assert header is not None
        if emulated:
            batch: Any = gpu.Batch(header, *shared, driver=Emulation(tmp_path))
        else:
            batch = module.Batch(slider.native_name(), *shared)
        batch.reset(None, 1)
        batch.run(1)
        results.append(arrays)
    assert_equal(*results)
    assert int(results[0]["finished"].sum()) >= 10


def test_nvrtc_compiles_the_header_from_where_it_lies_and_knows_when_it_changes(
    slider: System, project: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    limits = Limits("sm_90", 227 * 1024, 228 * 1024, 132)
    header = slider.own_header()
    assert header is not None
    unit = unit_of(header, sizes_of(slider), RANDOM, [], plan(limits, 100, None), None)
    copy = tmp_path / header.name
    copy.write_text(header.read_text() + "// another")
    other = unit_of(copy, sizes_of(slider), RANDOM, [], plan(limits, 100, None), None)
    assert unit.key("13.0", "sm_90") != other.key("13.0", "sm_90")
    try:
        cubin.compiler()
    except cubin.MissingPackageError as error:
        pytest.skip(str(error))
    code, _ = cubin.compile_now(unit, "sm_90")
    assert b"surefoot_rollout" in code


def test_the_page_shows_the_header_that_is_written() -> None:
    page = pathlib.Path(__file__).resolve().parents[2] / "docs" / "cpp_systems.md"
    if not page.exists():
        pytest.skip("surefoot was installed without its pages")
    (block,) = re.findall(r"^```cpp\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert block in (TEMPLATES / "cpp" / "my_robot.h").read_text(encoding="utf-8")


# ---- what is refused ----


@pytest.fixture
def copied(project: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """The header and its library somewhere else; to be changed."""
    for path in (project / "slider").glob("slider*"):
        shutil.copy(path, tmp_path)
    return tmp_path / "slider.h"


def described(header: pathlib.Path, **changes: Any) -> CppSystem:
    given: dict[str, Any] = {"states": ("x", "v"), "actions": {"u": (-1, 1)}, "parameters": {"mass": 1, "friction": 0}}
    return CppSystem(header, **{**given, "uniforms": 1, **changes})


def test_a_library_is_refused_that_is_not_of_this_header_or_of_these_headers_of_ours(copied: pathlib.Path) -> None:
    assert described(copied).native_name().startswith(str(copied.with_suffix("")))
    text = copied.read_text()
    copied.write_text(text + "// another\n")
    with pytest.raises(ConfigError, match=r"slider\.h \(or a header beside it\) has changed since.*surefoot build"):
        described(copied).native_name()
    copied.write_text(text)
    (copied.parent / "included.h").write_text("// new\n")
    with pytest.raises(ConfigError, match="a header beside it"):
        described(copied).native_name()
    (copied.parent / "included.h").unlink()
    (found,) = copied.parent.glob("*.so")
    found.rename(found.with_name(found.name.rpartition("-")[0] + "-0123456789ab.so"))
    with pytest.raises(
        ConfigError, match=r"was built for another version of surefoot, or for another machine: surefoot"
    ):
        described(copied).native_name()
    for one in copied.parent.glob("*.so"):
        one.unlink()
    with pytest.raises(ConfigError, match=r"slider\.h is not built yet: surefoot build "):
        described(copied).native_name()
    moved = copied.rename(copied.with_name("mover.h"))
    library._path(moved).write_bytes(b"no library")
    with pytest.raises(ConfigError, match=r"mover\.h: .*remove .*\.so and build again"):
        described(moved).native_name()


def test_a_description_that_does_not_fit_the_header_is_named(copied: pathlib.Path) -> None:
    for changes, said in (
        ({"observations": ("x", "v", "w")}, "has observations = 2, and the description in python 3"),
        ({"parameters": {"mass": 1}}, "has parameters = 2, and the description in python 1"),
        ({"normals": 2}, "has normals = 0, and the description in python 2"),
    ):
        with pytest.raises(ConfigError, match=said):
            described(copied, **changes).native_name()
    with pytest.raises(ConfigError, match="1 or more parameters and uniforms"):
        described(copied, parameters={})
    with pytest.raises(ConfigError, match=r"other\.h: there is no such header"):
        described(copied.with_name("other.h"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("mass = p[0]", "masss = p[0]", r"slider\.h:36:\d+: error: 'mass' was not declared"),
        ("struct slider {", "struct other {", "has no struct slider"),
    ],
)
def test_the_compilers_first_error_is_shown_with_its_line(
    copied: pathlib.Path, old: str, new: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    copied.write_text(copied.read_text().replace(old, new))
    assert main(["build", str(copied)]) == 2
    assert re.search(said, capsys.readouterr().err.replace("\u2018", "'").replace("\u2019", "'"))


def test_without_a_compiler_a_sentence_says_what_to_install(
    copied: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copied.write_text(copied.read_text() + "// another\n")
    monkeypatch.setenv("PATH", str(copied.parent))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: None)
    assert main(["build", str(copied)]) == 2
    assert "there is no C++ compiler here: install one (Debian, Ubuntu: apt install g++" in capsys.readouterr().err
    monkeypatch.setenv("CXX", "nowhere++ -m64")
    assert main(["build", str(copied)]) == 2
    assert "CXX is nowhere++ -m64, and there is no such compiler" in capsys.readouterr().err


def test_what_can_not_be_built_is_named(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, said in (
        (None, "has no pyproject.toml"),
        ("[tool", "is no TOML"),
        ("[tool.surefoot]\nsystems = []", "lists no systems"),
        ('[tool.surefoot]\nsystems = ["my/lost.h"]', "lost.h: there is no such header"),
    ):
        if text is not None:
            (tmp_path / "pyproject.toml").write_text(text)
        assert main(["build", str(tmp_path)]) == 2
        assert said in capsys.readouterr().err
    assert main(["build", str(tmp_path / "nowhere")]) == 2


def test_new_writes_no_project_over_another(
    project: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.parent)
    assert main(["new", "system", "slider", "--cpp"]) == 2
    assert "slider exists already" in capsys.readouterr().err
    assert main(["new", "study", "sliders", "--cpp"]) == 2
    assert "--cpp is of a system" in capsys.readouterr().err
