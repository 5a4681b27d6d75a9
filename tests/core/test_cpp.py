"""Policies as C++ headers: the same actions as ours, compiled by this machine's compiler."""

from __future__ import annotations

import ctypes
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import torch
from policies import observations, policy

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.goal_actor import GoalActor, UnitGaussianActor
from surefoot.core.actors.heads import CategoricalActor, DeterministicActor, TanhGaussianActor
from surefoot.core.actors.memory_actors import ChunkActor, GRUActor, HistoryActor
from surefoot.core.actors.value_heads import QuantileHead, ValueHead
from surefoot.core.base.errors import ExportError
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.cpp import header
from surefoot.core.policy.policy import Policy

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler (c++, g++, clang++)")


def made(actor: Actor, limit: float = float("inf"), actions: int = 2) -> Policy:
    """A policy of 3 observations far from standard, with bounds of its own."""
    normalizer = Normalizer(3, limit)
    normalizer.mean.copy_(torch.tensor([1.0, -20.0, 300.0]))
    normalizer.scale.copy_(torch.tensor([0.5, 3.0, 100.0]))
    return Policy.of(actor, normalizer, torch.linspace(-2, 0, actions), torch.linspace(2, 10, actions))


def policies() -> dict[str, Policy]:
    """One of each thing that a header holds."""
    torch.manual_seed(0)
    found = {
        kind: policy(kind, (33, 8)) for kind in ("deterministic", "gaussian", "tanh_gaussian", "softplus_gaussian")
    }
    found |= {kind: policy(kind, (16, 40)) for kind in ("unbounded_gaussian", "state_dependent")}
    for activation in ("tanh", "silu", "gelu", "gelu_tanh", "leaky_relu", "mish"):
        found[activation] = made(DeterministicActor(3, 2, (16, 8), activation=activation))
    found["before"] = made(TanhGaussianActor(3, 2, (16, 8), layer_norm=True, norm_epsilon=1e-4))
    found["after"] = made(TanhGaussianActor(3, 2, (16, 8), layer_norm="after"))  # type: ignore[arg-type]
    for name in ("before", "after"):
        for parameter in (*found[name].actor.mlp.scales, *found[name].actor.mlp.shifts):  # type: ignore[union-attr]
            parameter.data.uniform_(0.5, 1.5)
    found["unit"] = made(TanhGaussianActor(3, 2, (16, 8), unit_features=True))
    found["limited"] = made(DeterministicActor(3, 2, (16,)), limit=0.5)
    found["history"] = made(HistoryActor(DeterministicActor(9, 2, (16,)), 3, 3))
    found["chunk"] = made(ChunkActor(DeterministicActor(3, 10, (16,)), 5, 2, execute=3))
    found["both"] = made(ChunkActor(HistoryActor(DeterministicActor(6, 6, (16,)), 3, 2), 3, 2))
    found["choice"] = made(CategoricalActor(3, 5, (16,)), actions=5)
    found["dueling"] = made(ValueHead(3, 5, (16,), dueling=True, noisy=0.5), actions=5)
    found["quantiles"] = made(QuantileHead(3, 5, (16, 8), dueling=True, quantiles=7), actions=5)
    return found


def compiled(folder: pathlib.Path, named: dict[str, Policy]) -> ctypes.CDLL:
    """A library with the functions `NAME_reset`, and `NAME_act` or `NAME_choose`."""
    source = []
    for name, one in named.items():
        (folder / f"{name}.hpp").write_text(header(one, f"p_{name}"))
        source.append(f'#include "{name}.hpp"\nstatic p_{name}::Policy the_{name};')
        source.append(f'extern "C" void {name}_reset() {{ the_{name}.reset(); }}')
        call = f"int {name}_choose(const float* o) {{ return the_{name}.choose(o); }}"
        if not one.discrete:
            call = f"int {name}_act(const float* o, float* a) {{ return the_{name}.act(o, a); }}"
        source.append(f'extern "C" {call}')
    (folder / "all.cpp").write_text("\n".join(source))
    options = ["-std=c++11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([str(COMPILER), *options, "-o", folder / "all.so", folder / "all.cpp"], check=True)
    return ctypes.CDLL(str(folder / "all.so"))


@needs_compiler
def test_every_kind_acts_as_the_policy_does_and_stops_where_it_does(tmp_path: pathlib.Path) -> None:
    named = policies()
    library = compiled(tmp_path, named)
    rows = observations(30).numpy()
    pointer = ctypes.POINTER(ctypes.c_float)

    def c(array: np.ndarray) -> object:
        return array.ctypes.data_as(pointer)

    for name, one in named.items():
        for _ in range(2):  # the second episode begins as the first did
            memory = one.begin(1)
            getattr(library, f"{name}_reset")()
            for step, row in enumerate(rows):
                expected, memory = one.act(torch.from_numpy(row)[None], memory)
                if one.discrete:
                    assert getattr(library, f"{name}_choose")(c(row)) == int(expected[0])
                    continue
                given = np.full(2, 77, np.float32)
                bad = row.copy()
                bad[step % 3] = (np.nan, np.inf, -np.inf)[step % 3]
                act = getattr(library, f"{name}_act")
                assert not act(c(bad), c(given))
                assert (given == 77).all()
                assert act(c(row), c(given))
                np.testing.assert_allclose(given, expected[0].numpy(), rtol=0, atol=1e-5, err_msg=name)


@needs_compiler
@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "tanh", "silu"])
def test_a_network_that_overflows_gives_no_action(activation: str, tmp_path: pathlib.Path) -> None:
    actor = DeterministicActor(1, 1, (2, 2, 2), activation=activation)
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.fill_(10.0)
        actor.mlp.weights[1][:, 1] = -10.0  # infinity less infinity
    one = Policy.of(actor, Normalizer(1), torch.tensor([-1.0]), torch.tensor([1.0]))
    library = compiled(tmp_path, {"one": one})
    for value in (3e38, 1.0):
        seen, given = np.full(1, value, np.float32), np.full(1, 77, np.float32)
        pointers = [array.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) for array in (seen, given)]
        expected = actor.mlp(torch.from_numpy(seen)[None]).detach()
        assert library.one_act(*pointers) == bool(expected.isfinite())
        assert (given[0] == 77) == (not expected.isfinite())
    if activation in ("relu", "leaky_relu"):
        assert not actor.mlp(torch.tensor([[3e38]])).isfinite()


def test_a_header_says_what_each_number_is_and_no_name_is_code() -> None:
    plain = header(made(DeterministicActor(3, 2, (8,))))
    odd = "@NAME@\n#error */ ??/\\"
    named = header(made(DeterministicActor(3, 2, (8,))).named(["q", "dq [°/s]", odd], ["left", "right"]))
    added = [line for line in named.splitlines() if line not in plain.splitlines()]
    assert [line for line in added if line.startswith("//   ")][:2] == [
        '//   observation[0]: "q"',
        r'//   observation[1]: "dq [\u00b0/s]"',
    ]
    assert '//   action[1]: "right"' in added
    assert all(line.startswith("//") for line in named.split("#ifndef")[0].splitlines())
    assert r"\u0040NAME\u0040\n#error" in named
    assert "observation[0]:" not in plain


def test_headers_whose_names_differ_in_case_do_not_hide_each_other() -> None:
    guards = {header(policy("deterministic"), name).partition("#ifndef ")[2].split()[0] for name in ("arm", "Arm")}
    assert len(guards) == 2


def test_what_a_header_can_not_hold_is_refused_with_the_file_that_can() -> None:
    with pytest.raises(ExportError, match=r"this policy's head is 'gru'; export it to .onnx"):
        header(made(GRUActor(DeterministicActor(8, 2, (16,)), 3, 8)))
    with pytest.raises(ExportError, match=r"has 4,\d+,\d+ weights, and a C\+\+ header holds 4,000,000"):
        header(made(DeterministicActor(3, 2, (2000, 2000))))
    for name in ("2 b", "new", "b\u00fc"):
        with pytest.raises(ExportError, match=rf"'{name}' is no name of a C\+\+ namespace"):
            header(made(DeterministicActor(3, 2, (8,))), name)


@needs_compiler
def test_a_goal_is_an_input(tmp_path: pathlib.Path) -> None:
    """Without one nothing is done; each reset forgets it, but for one that was fixed."""
    torch.manual_seed(0)
    asked = made(GoalActor(UnitGaussianActor(5, 2, (16, 8), "gelu_tanh"), 2))
    asked.actor.normalizer.mean.copy_(torch.tensor([1.0, -20.0]))  # type: ignore[union-attr]
    asked.actor.normalizer.scale.copy_(torch.tensor([0.5, 3.0]))  # type: ignore[union-attr]
    own = made(GoalActor(UnitGaussianActor(5, 2, (16, 8)), 2))
    own.actor.fix(torch.tensor([3.0, -4.0]))  # type: ignore[operator]
    source = []
    for name, one in (("asked", asked), ("own", own)):
        (tmp_path / f"{name}.hpp").write_text(header(one, f"p_{name}"))
        source += [
            f'#include "{name}.hpp"',
            f"static p_{name}::Policy the_{name};",
            f'extern "C" void {name}_reset() {{ the_{name}.reset(); }}',
            f'extern "C" int {name}_aim(const float* g) {{ return the_{name}.set_goal(g); }}',
            f'extern "C" int {name}_act(const float* o, float* a) {{ return the_{name}.act(o, a); }}',
        ]
    (tmp_path / "goals.cpp").write_text("\n".join(source))
    options = ["-std=c++11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([str(COMPILER), *options, "-o", tmp_path / "goals.so", tmp_path / "goals.cpp"], check=True)
    library, action = ctypes.CDLL(str(tmp_path / "goals.so")), np.zeros(2, np.float32)

    def c(values: np.ndarray) -> object:
        return values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))

    state, bad = observations(1).numpy()[0], np.array([np.nan, 0], np.float32)
    assert not library.asked_act(c(state), c(action))
    for goal in (np.array([2.0, -19.0], np.float32), np.array([-7.0, 30.0], np.float32)):
        asked.reset(goal=goal)
        assert library.asked_aim(c(goal))
        assert not library.asked_aim(c(bad))
        assert library.asked_act(c(state), c(action))
        np.testing.assert_allclose(action, asked.select_action(state), rtol=1e-5, atol=1e-5)
    library.asked_reset()
    assert not library.asked_act(c(state), c(action))
    own.reset()
    assert library.own_act(c(state), c(action))
    np.testing.assert_allclose(action, own.select_action(state), rtol=1e-5, atol=1e-5)


def test_a_filtered_header_takes_no_goal() -> None:
    with pytest.raises(ExportError, match="with a filter takes no goal"):
        header(made(GoalActor(UnitGaussianActor(5, 2, (8,)), 2)), more="class Filter {};")
