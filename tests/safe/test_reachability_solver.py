"""The grid solver: types, devices, threads, memory, progress, and what it refuses."""

import dataclasses
import math

import pytest
import torch
from reach_problems import braking_truth

from surefoot.core.base.errors import ConfigError, DeviceError
from surefoot.safe.reachability import (
    Axis,
    Grid,
    Problem,
    compare,
    problems,
    reverse_expectile,
    solve,
)
from surefoot.safe.reachability.solver import memory_needed


@pytest.mark.parametrize("discount", [0.95, 0.99])
def test_a_discounted_set_is_too_large(discount):
    grid = problems.double_integrator_grid(161)
    found = compare(solve(problems.double_integrator(), grid, discount=discount).values, braking_truth(grid))
    iou, false_safe = {0.95: (0.721, 0.387), 0.99: (0.957, 0.045)}[discount]
    assert found.iou == pytest.approx(iou, abs=0.002)
    assert found.false_safe == pytest.approx(false_safe, abs=0.002)


def test_float32_gives_the_same_set():
    grid = problems.double_integrator_grid(61)
    whole, half = (solve(problems.double_integrator(), grid, dtype=dtype) for dtype in (torch.float64, torch.float32))
    assert half.values.dtype == torch.float32
    assert (whole.values - half.values).abs().max() < 1e-4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("what", ["avoid", "disturbed", "reach_avoid_with_ends"])
def test_a_gpu_solves_a_grid_as_the_cpu_does(what):
    problem, grid = problems.double_integrator(), problems.double_integrator_grid(61)
    if what == "disturbed":
        problem, grid = problems.air3d(), problems.air3d_grid((15, 11, 10))
    elif what == "reach_avoid_with_ends":
        problem = dataclasses.replace(
            problem,
            target=lambda states: (states[:, 0] - 0.5).abs() - 0.1,
            ends=lambda states, actions: states[:, 0] > 0.83,
        )
    here, there = (solve(problem, grid, max_sweeps=60, device=device) for device in ("cpu", "cuda"))
    assert there.values.is_cuda
    assert there.sweeps == here.sweeps
    assert (there.values.cpu() - here.values).abs().max() < 1e-9
    assert torch.allclose(there.h.cpu(), here.h, atol=1e-12)


def test_threads_change_nothing(monkeypatch):
    grid = problems.double_integrator_grid(161)
    alone = solve(problems.double_integrator(), grid, max_sweeps=5).values
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert torch.equal(alone, solve(problems.double_integrator(), grid, max_sweeps=5).values)


def test_a_grid_too_large_for_the_memory_is_refused_with_its_size_and_one_that_fits():
    grid = problems.air3d_grid((400, 400, 400))
    with pytest.raises(
        ConfigError, match=r"400 x 400 x 400 = 64,000,000 points with 9 actions takes [\d.,]+ GB"
    ) as said:
        solve(problems.air3d(), grid, memory=1e9)
    suggested = [int(count) for count in str(said.value).split("; ")[1].split(" points")[0].split(" x ")]
    fitting = grid.with_points(suggested)
    assert 0.7e9 < memory_needed(fitting, 9, torch.float64) <= 1e9
    assert memory_needed(fitting.with_points([round(1.1 * count) for count in suggested]), 9, torch.float64) > 1e9


def test_progress_is_told_after_each_sweep():
    told = []
    solution = solve(problems.pure_integrator(), Grid((Axis("x", -1, 1, 5),)), progress=lambda *now: told.append(now))
    assert [sweep for sweep, _ in told] == list(range(1, solution.sweeps + 1))
    assert told[-1][1] == solution.change


@pytest.mark.parametrize(
    ("problem", "options", "said"),
    [
        (problems.pure_integrator(), {"discount": 1.5}, "discount is 1.5"),
        (problems.pure_integrator(), {"max_sweeps": 0}, "max_sweeps"),
        (Problem(lambda s, a: s / 0, lambda s: s[:, 0], torch.zeros(1, 1)), {}, "dynamics give"),
        (Problem(lambda s, a: s[:, :0], lambda s: s[:, 0], torch.zeros(1, 1)), {}, "turn states"),
        (Problem(lambda s, a: s, lambda s: s, torch.zeros(1, 1)), {}, "one number each"),
        (Problem(lambda s, a: s, lambda s: s[:, 0] / 0, torch.zeros(1, 1)), {}, "must be finite"),
    ],
)
def test_problems_that_can_not_be_are_refused(problem, options, said):
    with pytest.raises(ConfigError, match=said):
        solve(problem, Grid((Axis("x", -1.0, 1.0, 4),)), **options)


@pytest.mark.parametrize("name", ["gpu", "mps"])
def test_a_device_of_another_name_is_refused_with_those_there_are(name):
    with pytest.raises(DeviceError, match=rf"device '{name}' is unknown.*cpu.*cuda"):
        solve(problems.pure_integrator(), Grid((Axis("x", -1.0, 1.0, 4),)), device=name)


def test_axes_that_can_not_be_are_refused():
    for given in ((1.0, 1.0, 5), (0.0, math.inf, 5), (0.0, 1.0, 1)):
        with pytest.raises(ConfigError, match="axis 'x'"):
            Axis("x", *given)
    with pytest.raises(ConfigError, match="5 dimensions"):
        Grid((Axis("x", 0.0, 1.0, 3),) * 5)
    with pytest.raises(ConfigError, match="2 numbers of points"):
        Grid((Axis("x", 0.0, 1.0, 3),)).with_points([3, 4])
    with pytest.raises(ConfigError, match=r"expectile is 0\.3"):
        reverse_expectile(torch.zeros(3), 0.3)
