"""plan.cuh, compiled by g++ and run thread by thread, plans what the native module plans; NVRTC compiles it."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import shutil
from typing import Any

import pytest
import torch
from emulation import Emulation
from torch import Tensor

from surefoot import cuda_ext
from surefoot.cuda_ext import cubin, gpu_plan
from surefoot.cuda_ext.gpu_plan import plan_on_gpu
from surefoot.cuda_ext.plan import PlanSettings, plan_rows, plans_natively
from surefoot.cuda_ext.system import System
from surefoot.envs.systems import SYSTEMS, system
from surefoot.world_models.draws import colouring

needs_both = [
    pytest.mark.skipif(cuda_ext.native() is None or not plans_natively(), reason="the native module is not built"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
]
HORIZON = 7
MPPI = PlanSettings((70, 60), 0.4, temperature=0.3, discount=0.97)
CEM = PlanSettings((50, 50, 50), 0.5, elites=6, momentum=0.1)
ICEM = PlanSettings((40, 32, 25), 0.5, elites=5, kept=2, momentum=0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("emulation")


def problem(s: System, rows: int, kept: int = 0) -> dict[str, Any]:
    """States that episodes begin in, and plans and elites in the middle of one."""
    generator = torch.Generator().manual_seed(4)
    uniforms = torch.rand(rows, s.uniforms, generator=generator)
    width = len(s.actions)
    return {
        "draws": torch.tensor([[11 + row, 5] for row in range(rows)]),
        "states": s.reset(uniforms, s.default_parameters().float().expand(rows, -1)),
        "plan": 0.3 * torch.randn(rows, HORIZON, width, generator=generator),
        "keep": 0.3 * torch.randn(rows, kept, HORIZON, width, generator=generator),
    }


def both(
    driver: Emulation,
    s: System,
    settings: PlanSettings,
    given: dict[str, Any],
    parameters: Tensor | None = None,
    color: float = 0.0,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Means, best candidates and elites: by the native module, and by the emulated kernel."""
    table = s.default_parameters()[None] if parameters is None else parameters
    triangle = colouring(HORIZON, color)
    expected = plan_rows(s, table, settings, **given, colouring=triangle)
    mean, best, keep = given["plan"].clone(), torch.empty_like(given["plan"]), given["keep"].clone()
    plan_on_gpu(s, table, settings, given["draws"], given["states"], mean, best, keep, triangle, driver)
    if settings.temperature is not None:
        best = expected[1]  # MPPI has none
    return expected, (mean, best, keep)


def assert_near(expected: tuple[Tensor, ...], found: tuple[Tensor, ...], tolerance: float = 3e-4) -> None:
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=tolerance)


class TestEmulated:
    """Against the native module."""

    pytestmark = needs_both

    @pytest.mark.parametrize("name", SYSTEMS)
    def test_plans_of_every_system_are_the_processors(self, name: str, folder: pathlib.Path) -> None:
        s, driver = system(name), Emulation(folder)
        given = problem(s, 2)
        expected, found = both(driver, s, MPPI, given, color=1.5)
        assert_near(expected, found)
        assert (found[0] - given["plan"]).abs().max() > 0.01
        assert driver.launches == [("plan", 2, 512)]

    @pytest.mark.parametrize("settings", [CEM, ICEM], ids=["cem", "icem"])
    @pytest.mark.parametrize("name", ["pendulum", "quadrotor_2d", "linear_quadratic"])
    def test_elites_are_chosen_and_fitted_to_alike(
        self, name: str, settings: PlanSettings, folder: pathlib.Path
    ) -> None:
        s = system(name)
        given = problem(s, 3, settings.kept)
        assert_near(*both(Emulation(folder), s, settings, given, color=2.0 if settings.kept else 0.0))

    @pytest.mark.parametrize(
        "settings",
        [
            PlanSettings((300,), 0.4, temperature=0.3, cost_limit=1.0, noisy=True, tail=2),
            PlanSettings((50, 50), 0.5, elites=6, cost_limit=0.0, truncated=True, noisy=True, tail=1),
        ],
        ids=["mppi", "truncated"],
    )
    def test_futures_noise_limits_and_truncated_normals_are_the_processors(
        self, settings: PlanSettings, folder: pathlib.Path
    ) -> None:
        s, driver = system("cartpole_swingup"), Emulation(folder)
        table = s.default_parameters().float().repeat(4, 1)
        names = [parameter.name for parameter in s.parameters]
        table[:, names.index("action_noise")] = torch.tensor([1.0, 2.0, 4.0, 6.0])
        given = problem(s, 3)
        given["states"][0] = torch.tensor([1.9, 1.5, 3.0, 0.0])  # at the end of its track
        expected, found = both(driver, s, settings, given, table)
        assert_near(expected, found)
        assert driver.launches[0][2] == 4 * (512 if settings.temperature else 128)

    @pytest.mark.parametrize("settings", [MPPI, ICEM], ids=["mppi", "icem"])
    def test_limits_that_all_candidates_break_are_the_processors(
        self, settings: PlanSettings, folder: pathlib.Path
    ) -> None:
        s = system("double_integrator")
        given = problem(s, 3, settings.kept)
        given["states"] = torch.tensor([[1.5, 0.0, 0.0, 0.0], [1.2, 0.1, 1.0, 0.0], [0.0, -1.02, 0.0, 0.1]])
        limited = dataclasses.replace(settings, cost_limit=0.0)
        assert_near(*both(Emulation(folder), s, limited, given))

    def test_states_that_are_no_numbers_keep_their_plan(self, folder: pathlib.Path) -> None:
        s = system("pendulum")
        for settings in (MPPI, ICEM):
            given = problem(s, 2, settings.kept)
            given["states"][1] = torch.nan
            expected, found = both(Emulation(folder), s, settings, given)
            assert_near(expected, found)
            assert torch.equal(found[0][1], given["plan"][1])

    def test_neither_the_order_of_threads_nor_the_launches_make_a_difference(
        self, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        s = system("cartpole_swingup")
        for settings in (MPPI, ICEM):
            given = problem(s, 3, settings.kept)
            usual = both(Emulation(folder), s, settings, given)[1]
            backwards = both(Emulation(folder, backwards=True), s, settings, given)[1]
            monkeypatch.setattr(gpu_plan, "LARGEST_SCRATCH", 1)
            driver = Emulation(folder)
            apart = both(driver, s, settings, given)[1]
            monkeypatch.undo()
            assert [blocks for _, blocks, _ in driver.launches] == [1, 1, 1]
            for one, other, third in zip(usual, backwards, apart, strict=True):
                assert torch.equal(one, other)
                assert torch.equal(one, third)

    def test_settings_that_do_not_fit_are_refused(self, folder: pathlib.Path) -> None:
        s = system("pendulum")
        with pytest.raises(ValueError, match="do not fit each other"):
            both(Emulation(folder), s, PlanSettings((4,), 0.5, elites=3, kept=4), problem(s, 1, 4))
        with pytest.raises(ValueError, match="do not fit each other"):
            plan_on_gpu(s, s.default_parameters()[None], PlanSettings((4,), 0.5, elites=9), *[torch.zeros(1, 2)] * 2,
                        *[torch.zeros(1, 2, 1)] * 2, torch.zeros(1, 0, 2, 1), driver=Emulation(folder))  # fmt: skip


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize(
    ("name", "threads", "architecture"),
    [  # each pair of two of the three
        ("pendulum", 128, "sm_80"),
        ("pendulum", 512, "sm_90"),
        ("pendulum", 128, "sm_120"),
        ("cartpole_swingup", 512, "sm_80"),
        ("cartpole_swingup", 128, "sm_90"),
        ("cartpole_swingup", 512, "sm_120"),
        ("quadrotor_3d", 128, "sm_80"),
        ("quadrotor_3d", 512, "sm_90"),
        ("quadrotor_3d", 512, "sm_120"),
        ("linear_quadratic", 512, "sm_80"),
        ("linear_quadratic", 128, "sm_90"),
        ("linear_quadratic", 128, "sm_120"),
    ],
)
def test_nvrtc_compiles_plans(name: str, threads: int, architecture: str) -> None:
    code, report = cubin.compile_now(gpu_plan.unit_of(system(name), threads), architecture)
    assert code[:4] == b"\x7fELF"
    assert b"surefoot_plan" in code
    assert max(int(count) for count in re.findall(r"Used (\d+) registers", report)) <= 65_536 // threads


def test_arguments_are_listed_in_the_order_and_types_of_the_kernel() -> None:
    text = (cubin.NATIVE / "plan.cuh").read_text()
    signature = re.search(r"surefoot_plan\((.*?)\) \{", text, re.S)
    assert signature is not None
    pairs = [argument.strip().rsplit(" ", 1) for argument in signature[1].split(",")]
    kinds = {torch.float32: "float*", torch.int32: "int*", torch.int64: "long long*"}
    expected = dict.fromkeys(gpu_plan.INTEGERS, "int") | dict.fromkeys(gpu_plan.NUMBERS, "float")
    expected |= {name: kinds[dtype] for name, dtype in gpu_plan.ARRAYS.items()}
    assert [(name, kind.removeprefix("const ")) for kind, name in pairs] == list(expected.items())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")
@pytest.mark.parametrize("settings", [MPPI, CEM, ICEM], ids=["mppi", "cem", "icem"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_gpu_plans_what_the_processor_plans(name: str, settings: PlanSettings) -> None:
    s = system(name)
    given = problem(s, 50, settings.kept)
    table = s.default_parameters()[None]
    expected = plan_rows(s, table, settings, **given)
    found = plan_rows(s, table, settings, **{key: value.cuda() for key, value in given.items()})
    wrong = (found[0].cpu() - expected[0]).abs().amax((1, 2)) > 1e-3  # an elite may change places by rounding
    assert float(wrong.float().mean()) < 0.05


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")
def test_planners_on_a_gpu_plan_in_one_kernel_what_they_plan_step_by_step() -> None:
    from surefoot.world_models.known.exact import NativeDynamics
    from surefoot.world_models.planners import MPPI as Planner

    world, slow = (NativeDynamics("native/cartpole-swingup", backend=backend) for backend in ("native", "twin"))
    planner = Planner(samples=1024, horizon=50)
    memory = {key: value.cuda() for key, value in planner.begin(64, 1).items()}
    states = 0.1 * torch.randn(64, 4, device="cuda")
    fast, after = planner.plan(world, states, memory)
    expected, _ = planner.plan(slow, states, memory)
    assert fast.is_cuda
    assert after["plan"].is_cuda
    torch.testing.assert_close(fast, expected, rtol=0, atol=1e-3)
