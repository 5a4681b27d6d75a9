"""Python systems have safe sets, filters and exports from the command line, as native ones have."""

from __future__ import annotations

import math
import pathlib
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from surefoot.cli.main import main
from surefoot.core.actors.heads import GaussianActor
from surefoot.core.base.errors import ConfigError, ExportError
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.envs.python_system import PythonSystem
from surefoot.evaluation.rollout import evaluate
from surefoot.runs import trust
from surefoot.safe.filters.model import Model
from surefoot.safety.reach import load_safe_set
from surefoot.safety.shield import load_filtered

pytest.importorskip("numba")
PUSHED = "pushed_mass:python/pushed_mass-v0"


def swing(angle: float, velocity: float, torque: float, gravity: float) -> tuple[float, float]:
    return velocity, clipped(gravity * math.sin(angle) + torque)


def clipped(rate: float) -> float:
    return max(-30.0, min(rate, 30.0))


def pendulum(name: str, **changes: Any) -> PythonSystem:
    given: dict[str, Any] = {
        "states": ("angle", "velocity"),
        "actions": {"torque": (-2, 2)},
        "observations": ("cos", "sin", "velocity"),
        "parameters": {"gravity": 10.0},
        "derivative": swing,
        "reward": lambda angle: -(angle**2),
        "margin": lambda velocity: 7 - abs(velocity),
        "reset": lambda uniforms: (0.5 * uniforms[0], 0.1),
        "observe": lambda angle, velocity: (math.cos(angle), math.sin(angle), velocity),
        "state_of": lambda cos, sin, velocity: (math.atan2(sin, cos), velocity),
        "reach_box": {"angle": (-math.pi, math.pi, 21, True), "velocity": (-8, 8, 21)},
    }
    return PythonSystem(name, **{**given, **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Where `surefoot new system pushed_mass` was written, its policy and its safe set."""
    folder = tmp_path_factory.mktemp("pushed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        patch.setattr(trust, "_allowed", set())
        assert main(["new", "system", "pushed_mass"]) == 0
        assert main(["reach", PUSHED, "-o", "safe.npz", "--plot", "-q"]) == 0
        torch.manual_seed(0)
        head = GaussianActor(2, 1, (8,))
        Policy.of(head, Normalizer(2), torch.tensor([-1.0]), torch.tensor([1.0])).save(folder / "policy.safetensors")
        yield folder
    sys.modules.pop("pushed_mass", None)


def test_the_set_of_a_pushed_mass_has_its_closed_forms_area(folder: pathlib.Path) -> None:
    found = load_safe_set(folder / "safe.npz").facts
    area = 16 * math.sqrt(2) * 2 / 3 * 1.0  # of -2 <= x and x + v^2 / 2 <= 2, mirrored: integral of 4 - v^2 / 2
    assert area == pytest.approx(15.085, abs=1e-3)
    assert found["safe_volume"] == pytest.approx(area, rel=0.02)
    assert found["converged"]
    assert (folder / "safe.png").stat().st_size > 0


@pytest.mark.slow
def test_a_filter_keeps_the_promises_of_the_set(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["certify", "policy.safetensors", "--env", PUSHED, "--filter", "reach", "--safe-set", "safe.npz"]
    assert main([*command, "--margin", "0.02", "--episodes", "2", "--steps", "20", "-q"]) == 0
    said = capsys.readouterr().out
    assert "2 of 2 episodes began where it promises safety: 0 violations there" in said


@pytest.mark.parametrize("kind", [".hpp", ".safetensors"])
def test_the_policy_is_exported_with_its_filter(folder: pathlib.Path, kind: str) -> None:
    command = ["export", "policy.safetensors", "--env", PUSHED, "--filter", "reach", "--safe-set", "safe.npz"]
    assert main([*command, "--margin", "0.02", "-o", f"filtered{kind}"]) == 0
    if kind == ".hpp":
        assert "FilteredPolicy" in (folder / "filtered.hpp").read_text()
        return
    filtered = load_filtered(folder / "filtered.safetensors")
    rushing = torch.tensor([[1.9, 1.0]])  # which passes the wall whatever is done: the safest action brakes
    assert filtered(rushing).item() == -1.0


def test_a_file_that_names_a_module_asks_for_trust(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "_allowed", set())
    with pytest.raises(ConfigError, match=r"safe.npz names 'pushed_mass:python/pushed_mass-v0'.*--trust"):
        load_safe_set(folder / "safe.npz")
    assert load_safe_set(folder / "safe.npz", trust=True).environment == PUSHED


def test_what_torch_records_is_what_numba_computes() -> None:
    system = pendulum("recorded_pendulum", integrator="rk4", substeps=2, limits={"velocity": (-8, 8)})
    model = Model(system)
    generator = torch.Generator().manual_seed(0)
    states = 6 * torch.rand(40, 2, generator=generator, dtype=torch.float64) - 3
    actions = 4 * torch.rand(40, 1, generator=generator, dtype=torch.float64) - 2
    recorded = make_fx(lambda s, a: model(s, a))(states, actions)
    torch.testing.assert_close(recorded(states, actions), model(states, actions), rtol=0, atol=1e-9)
    torch.testing.assert_close(make_fx(lambda s: model.h(s))(states)(states), model.h(states))
    torch.testing.assert_close(model.h(states), states[:, 1].abs() - 7)
    seen = system.observe(states, model.parameters_row.expand(40, -1))
    torch.testing.assert_close(model.state_of(seen), states)
    torch.testing.assert_close(make_fx(lambda o: model.state_of(o))(seen)(seen), states)


def test_a_branch_can_not_be_recorded_and_the_function_is_named() -> None:
    def branching(angle: float, velocity: float, torque: float) -> tuple[float, float]:
        return velocity, torque if angle > 0 else -torque

    system = pendulum("branching_pendulum", derivative=branching)
    states, actions = torch.tensor([[0.5, 0.0], [-0.5, 0.0]]).double(), torch.ones(2, 1).double()
    assert Model(system)(states, actions)[:, 1].tolist() == pytest.approx([0.02, -0.02])
    with pytest.raises(ExportError, match=r"branching_pendulum: derivative\(\) can't be written into a file"):
        make_fx(lambda s, a: Model(system)(s, a))(states, actions)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reach_box": {"angle": (-1, 1, 5)}}, "give a range for each of angle, velocity"),
        ({"reach_box": {"angle": (-1, 1), "velocity": (-1, 1, 5)}}, r"give \(low, high, points\)"),
        ({"reach_box": {"angle": (1, -1, 5), "velocity": (-1, 1, 5)}}, "give low < high"),
        ({"state_of": lambda cos, sin, velocity: (cos, velocity)}, r"state_of\(\) gives angle = "),
        ({"state_of": lambda cos, sin: (cos,)}, r"state_of\(\) returns 1 value; it must return 2 states"),
        ({"state_of": lambda angle: (angle, 0.0)}, r"state_of\(\) asks for 'angle'"),
    ],
)
def test_what_does_not_fit_is_refused_where_the_system_is_made(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pendulum("odd_pendulum", **changes)


def test_a_system_without_what_a_filter_needs_says_what_to_give() -> None:
    steps = pendulum("margin_of_steps", margin=lambda velocity, torque: 7 - abs(velocity) - abs(torque))
    with pytest.raises(ConfigError, match=r"margin\(\) asks for torque, so that it is one of steps"):
        Model(steps)
    with pytest.raises(ConfigError, match="give margin= or cost="):
        Model(pendulum("without_margin", margin=None))
    with pytest.raises(ConfigError, match="has no grid for reachability: it has no `reach_box`"):
        Model(pendulum("without_box", reach_box=None)).grid()
    with pytest.raises(ConfigError, match=r"give state_of=, a function of those"):
        Model(pendulum("hidden", state_of=None)).state_of(torch.zeros(1, 3))
    by_cost = Model(pendulum("by_cost", margin=None, cost=lambda velocity: velocity > 7))
    assert by_cost.h(torch.tensor([[0.0, 6.0], [0.0, 8.0]])).tolist() == [-1.0, 1.0]
    assert np.isfinite(by_cost.grid().size)


def test_evaluation_runs_the_policy_inside_the_compiled_loop_with_the_episodes_of_single_steps(
    folder: pathlib.Path,
) -> None:
    policy = Policy.load(folder / "policy.safetensors")
    (inside,) = evaluate([policy], PUSHED, episodes=13, num_envs=5)
    (stepped,) = evaluate([policy], f"{PUSHED}?max_episode_steps=100", episodes=13, num_envs=5)
    assert (inside.loop, stepped.loop) == ("native", "steps")
    np.testing.assert_allclose(inside.returns, stepped.returns, rtol=1e-4)
    np.testing.assert_array_equal(inside.lengths, stepped.lengths)
    assert inside.costs is not None
    assert stepped.costs is not None
    np.testing.assert_array_equal(inside.costs, stepped.costs)
    assert len(set(inside.returns.tolist())) == 13
