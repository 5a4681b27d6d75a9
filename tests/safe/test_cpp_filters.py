"""Policies behind a filter as C++ headers: the actions of `FilteredPolicy`, compiled by this machine's compiler."""

import ctypes
import itertools
import pathlib
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.base.errors import ExportError
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.cpp_equations import cpp_function
from surefoot.core.policy.policy import Policy
from surefoot.cuda_ext.system import Step
from surefoot.envs.systems import SYSTEMS
from surefoot.safe.filters import cpp
from surefoot.safe.filters.filtered import FilteredPolicy
from surefoot.safe.filters.model import Model
from surefoot.safe.filters.safety_filter import BarrierQP, LeastRestrictive
from surefoot.safe.reachability.grid import GridValue

BOXED = [name for name, known in SYSTEMS.items() if known.reach_box]
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler (c++, g++, clang++)")
CALLS = """\
static p_@::FilteredPolicy the_@;
extern "C" int @_act(const float* o, float* a, int* stated) {
  const bool good = the_@.act(o, a);
  stated[0] = the_@.changed; stated[1] = the_@.kept; stated[2] = p_@::FilteredPolicy::promises(o);
  return good;
}
extern "C" void @_reset() { the_@.reset(); }
"""


def filtered(name, points=7, margin=0.05):
    """A policy that does as it likes, behind a filter that takes half of a coarse grid for safe."""
    torch.manual_seed(1)
    kind = SYSTEMS[name]()
    model = Model(kind)
    grid = model.grid([points] * len(kind.states))
    h = model.h(grid.states())
    value = GridValue(grid, (h - h.median()).reshape(grid.shape))
    width, actions = len(kind.observations), len(kind.actions)
    bounds = [torch.tensor(bound, dtype=torch.float32) for bound in (kind.action_low, kind.action_high)]
    policy = Policy.of(DeterministicActor(width, actions, (16,)), Normalizer(width), *bounds)
    for parameter in policy.actor.parameters():
        parameter.data.mul_(3)
    return FilteredPolicy(policy, LeastRestrictive(model, value, margin), model)


def observations(both, count=60):
    """Of states inside and outside of the grid's box."""
    system, axes = both.model.system, both.safety.value.grid.axes
    low, high = (torch.tensor([getattr(axis, end) for axis in axes]).double() for end in ("low", "high"))
    drawn = torch.rand(count, len(axes), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    states = low + (1.2 * drawn - 0.1) * (high - low)
    return system.observe(states, both.model.parameters_row.expand(count, -1)).float()


@needs_compiler
def test_headers_with_a_filter_act_as_filtered_policies_do(tmp_path: pathlib.Path) -> None:
    made = {name: filtered(name) for name in BOXED}
    source = []
    for name, both in made.items():
        (tmp_path / f"{name}.hpp").write_text(cpp.header(both.policy, both.safety, both.model, f"p_{name}"))
        source += [f'#include "{name}.hpp"', CALLS.replace("@", name)]
    (tmp_path / "all.cpp").write_text("\n".join(source))
    options = ["-std=c++11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([str(COMPILER), *options, "-o", tmp_path / "all.so", tmp_path / "all.cpp"], check=True)
    library = ctypes.CDLL(str(tmp_path / "all.so"))
    for name, both in made.items():
        act, said = getattr(library, f"{name}_act"), np.zeros(3, np.int32)
        for row in observations(both).numpy():
            both.clear()
            getattr(library, f"{name}_reset")()
            expected, _ = both.act(torch.from_numpy(row)[None], both.begin(1))
            given = np.full(both.action_dim, 77, np.float32)
            bad = row.copy()
            bad[0] = np.nan
            pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (bad, row, given, said)]
            assert not act(pointers[0], *pointers[2:])
            assert (given == 77).all()
            assert act(*pointers[1:])
            np.testing.assert_allclose(given, expected[0].numpy(), rtol=0, atol=1e-5, err_msg=name)
            promised = both.safety.promises(both.states(torch.from_numpy(row)[None]))
            assert said.tolist() == [both.changed, 1 - both.short, int(promised)], name


@pytest.mark.parametrize("name", BOXED)
def test_some_actions_of_that_comparison_pass_and_some_are_replaced(name: str) -> None:
    both = filtered(name)
    seen = observations(both)
    both.act(seen, both.begin(len(seen)))
    assert 5 <= both.changed <= len(seen) - 5


def test_filters_that_a_header_can_not_hold_are_refused_with_what_can() -> None:
    both = filtered("double_integrator")
    barrier = BarrierQP(both.model, both.safety.value, 0.05)
    with pytest.raises(ExportError, match=r"least-restrictive filter .* this one is BarrierQP; export it to .onnx"):
        cpp.header(both.policy, barrier, both.model)
    both = filtered("pendulum", 1100)
    with pytest.raises(ExportError, match=r"1100 x 1100 points, and a C\+\+ header holds 1,000,000: .* --points"):
        cpp.header(both.policy, both.safety, both.model)


def test_equations_with_an_operator_that_is_not_known_are_refused() -> None:
    with pytest.raises(ExportError, match=r"the equations of step use torch's erfinv, .*; export to .onnx$"):
        cpp_function("step", torch.erfinv, [2])
    with pytest.raises(ExportError, match="the equations of step can't be written in C"):
        cpp_function("step", lambda x: x if x[0, 0] > 0 else -x, [2])


def compiled(folder, step, width, outputs):
    """The function that `cpp_function` writes, on one row of numpy."""
    text = '#include <cmath>\nextern "C" {\n' + cpp_function("written", step, [width]) + "\n"
    text += "void call(const double* x, double* out) { written(x, out); }\n}\n"
    (folder / "s.cpp").write_text(text)
    library = folder / "s.so"
    subprocess.run([COMPILER, "-std=c++11", "-O2", "-shared", "-fPIC", "-o", library, folder / "s.cpp"], check=True)
    call = ctypes.CDLL(str(library)).call

    def on_row(row):
        given, out = np.array(row, np.float64), np.empty(outputs)
        call(*(array.ctypes.data_as(ctypes.POINTER(ctypes.c_double)) for array in (given, out)))
        return out

    return on_row


@needs_compiler
def test_what_is_not_a_number_is_none_in_the_equations_either(tmp_path) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        a, b = x[:, :1], x[:, 1:]
        pairs = [torch.maximum(a, b), torch.minimum(a, b), torch.maximum(b, a), torch.minimum(b, a)]
        return torch.cat([*pairs, a.relu(), a.clamp(-1, 1), x.amax(-1, keepdim=True), x.amin(-1, keepdim=True)], 1)

    call = compiled(tmp_path, step, 2, 8)
    for row in itertools.product((float("nan"), 0.0, -2.0, 3.0, float("inf")), repeat=2):
        expected = step(torch.tensor([row], dtype=torch.float64))[0].numpy()
        np.testing.assert_array_equal(call(row), expected, err_msg=str(row))


@needs_compiler
def test_settings_of_operators_and_casts_are_in_the_equations(tmp_path) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        a, b = x[:, :1], x[:, 1:]
        parts = [a // b, a // 0.1, a % b, a % 0.1, torch.div(a, b, rounding_mode="trunc")]
        parts += [torch.div(a, b, rounding_mode="floor"), torch.rsub(a, b, alpha=2), torch.add(a, b, alpha=-3)]
        parts += [(a / 0.1).long() * 0.1, (a / 0.1).int() / 2, a.bool().double() + 1, x[:, :1].squeeze(-1)[:, None]]
        parts += [((a > 0) + (b > 0)).double(), (a > 0) * 2.0 + (b > 0), x.sum(-1, keepdim=True, dtype=torch.int64) / 2]
        return torch.cat([*parts, x.squeeze(-1), torch.full_like(a.long(), 2.5) * b, a.round()], 1)

    rows = [(x, y) for x in (1.0, -1.0, 0.35, -2.7, 0.0, 2.5, -6.0) for y in (0.1, -0.1, 2.0, -0.7)]
    call = compiled(tmp_path, step, 2, 19)
    for row in rows:
        tensor = torch.tensor([row], dtype=torch.float64)
        expected = step(tensor)[0].numpy()  # what torch makes of whole numbers and a python number is of float32
        np.testing.assert_allclose(call(row), expected, rtol=1e-6, atol=1e-15, err_msg=str(row))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda x: torch.round(x, decimals=1), "use torch's round with decimals"),
        (lambda x: x.to(torch.uint8).double(), "use torch's cast to torch.uint8"),
        (lambda x: (x.long() & 1).double(), "use torch's bitwise_and of whole numbers"),
        (lambda x: x.view(torch.int64).double(), "can't be written in C"),
    ],
)
def test_settings_that_are_not_known_are_refused(step, said) -> None:
    with pytest.raises(ExportError, match=f"^the equations of step {said}.*; export to .onnx$"):
        cpp_function("step", step, [2])


def test_equations_that_leave_torch_are_refused_and_not_written_as_constants(tmp_path) -> None:
    pytest.importorskip("numba")
    from surefoot.envs.python_system import PythonSystem

    class Braked(PythonSystem):
        reach_box = ((-2.0, 2.0, 5), (-2.0, 2.0, 5))

        def margin(self, state: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
            return 1 - state[:, 1].abs()

        def step(self, state: torch.Tensor, action: torch.Tensor, parameters: torch.Tensor, normals: Any) -> Step:
            (position, velocity), force = state.detach().numpy().T, action.detach().numpy()[:, 0]
            moved = np.stack((position + 0.1 * velocity, velocity + 0.1 * (force - velocity)), -1)
            none = torch.zeros(len(state))
            return Step(torch.from_numpy(moved), none, none, none > 0)

    system = Braked(
        "braked",
        states=("position", "velocity"),
        actions={"force": (-1.0, 1.0)},
        derivative=lambda velocity, force: (velocity, force - velocity),
        reward=lambda position: -position,
        margin=lambda velocity: 1 - abs(velocity),
        reset=lambda uniforms: (uniforms[0], uniforms[1]),
        time_step=0.1,
        max_steps=10,
    )
    model = Model(system)
    grid = model.grid()
    value = GridValue(grid, model.h(grid.states()).reshape(grid.shape))
    policy = Policy.of(DeterministicActor(2, 1, (4,)), Normalizer(2), -torch.ones(1), torch.ones(1))
    both = FilteredPolicy(policy, LeastRestrictive(model, value, 0.05), model)
    with pytest.raises(ExportError, match=r"equations of next_state leave torch: .* Write that part in torch's"):
        both.export(tmp_path / "braked.hpp")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ExportError, match="could not export this policy"):  # torch itself refuses numpy there
        both.export(tmp_path / "braked.pt2")


def test_equations_are_written_once_and_constants_are_computed() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        unused = x.exp()
        length = torch.tensor([2.0], dtype=torch.float64).sqrt() ** 2 + unused.new_zeros(1)
        return torch.stack((x[:, 0].sin() * length, x[:, 0].sin() + x[:, 1]), -1)

    text = cpp_function("step", step, [2])
    assert text.count("std::sin(a0[0])") == 1
    powers = cpp_function("step", lambda x: torch.cat([2.0**x, x.abs() ** x, x**2], 1), [2])
    for expression in ("std::pow(2.0, a0[1])", "std::fabs(a0[0])", "a0[1] * a0[1]"):
        assert powers.count(expression) == 1
    assert powers.count("std::pow") == 4
    assert "exp" not in text
    assert "sqrt" not in text
