"""`surefoot reach`, and certify behind a filter."""

from __future__ import annotations

import json
import pathlib
import types
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.cli import main
from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.actors.memory import Memory
from surefoot.core.actors.transformer_actor import DecisionTransformerActor
from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.safe.reachability import compare, pictures
from surefoot.safe.reachability.files import load
from surefoot.safe.reachability.grid import Axis, Grid
from surefoot.safety import reach as reaching
from surefoot.safety.shield import Watch, load_filtered, shield, shielded_episodes

Capture = pytest.CaptureFixture[str]
COARSE = ("native/dubins-obstacles", "--points", "31,31,24", "--tolerance", "1e-4")


@pytest.fixture(scope="module")
def coarse(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("reach") / "safe_set.npz"
    assert main(["reach", *COARSE, "-o", str(path), "--plot", "--quiet"]) == 0
    return path


def test_reach_writes_a_set_and_a_picture(coarse: pathlib.Path, capsys: Capture) -> None:
    assert coarse.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    with np.load(coarse, allow_pickle=False) as arrays:
        assert arrays["value"].shape == (31, 31, 24)
        assert arrays["axis_heading"].shape == (24,)
        assert json.loads(str(arrays["description"]))["about"]["environment"] == "native/dubins-obstacles"
    solution, about = load(coarse)
    assert about["parameters"][0] == 1.0
    assert (solution.values >= solution.h - 1e-12).all()
    assert not (solution.values <= 0).all()
    assert sorted(path.name for path in coarse.parent.iterdir()) == ["safe_set.npz", "safe_set.png"]


def test_reach_says_what_it_found(capsys: Capture) -> None:
    assert main(["reach", "native/pendulum", "--points", "41,41", "--discount", "0.99", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["points"] == 1681
    assert 0 < facts["safe_share"] < facts["kept_now_share"] < 1
    assert main(["reach", "native/pendulum", "--points", "41,41", "--discount", "0.99"]) == 0
    shown = capsys.readouterr()
    assert "% of the box" in shown.out


def test_the_planar_double_integrator_is_compared_with_its_closed_form(capsys: Capture) -> None:
    assert main(["reach", "native/double-integrator", "--points", "13,13,13,13", "--tolerance", "1e-3", "--json"]) == 0
    against = json.loads(capsys.readouterr().out)["against_closed_form"]
    assert against["false_safe"] == 0.0
    assert against["iou"] > 0.5


def test_around_one_disc_the_car_in_the_world_has_the_closed_form_in_its_own_frame() -> None:
    """Three dimensions and a periodic heading against the two-dimensional closed form: two discs moved far away."""
    from surefoot.envs.systems import system
    from surefoot.safe.filters.model import Model
    from surefoot.safe.reachability import closed_forms, solve

    known = system("native/dubins-obstacles")
    parameters = known.default_parameters()
    names = [parameter.name for parameter in known.parameters]
    for name, number in {"x1": 0.0, "y1": 0.0, "radius1": 0.6, "x2": 90.0, "x3": 90.0}.items():
        parameters[names.index(name)] = number
    model = Model(known, parameters)
    solution = solve(model.problem(), model.grid((41, 41, 32)), tolerance=1e-4)
    states = solution.grid.states()
    seen = known.observe(states, parameters.expand(len(states), -1))
    truth = closed_forms.dubins_disc(seen[:, 2], seen[:, 3], 0.6).reshape(solution.grid.shape)
    unsafe, true = solution.values > 0, truth > 0
    assert int((unsafe & true).sum()) / int((unsafe | true).sum()) > 0.93
    near = (states[:, :2].norm(dim=-1) < 2).reshape(truth.shape)
    assert (solution.values - truth).abs()[near].mean() < 0.02


def test_a_learned_value_is_compared_with_the_grid(
    coarse: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """An agent whose value knows one step less, as FISOR's does, is compared on states that keep the constraint now."""
    found = reaching.load_safe_set(coarse)
    truth = found.solution.value

    def feasible_value(observations: torch.Tensor) -> torch.Tensor:
        return truth(found.model.state_of(observations.double())).float() - 0.01

    spec = types.SimpleNamespace(observation_dim=11)
    plan = types.SimpleNamespace(algorithm="fisor", environment="native/dubins-obstacles")
    opened = types.SimpleNamespace(spec=spec, plan=plan)
    monkeypatch.setattr(reaching.Run, "open", lambda path: opened)
    monkeypatch.setattr(reaching, "load_agent", lambda *_: types.SimpleNamespace(feasible_value=feasible_value))
    learned = found.learned(reaching.feasible_agent("native/dubins-obstacles", "RUN"))
    result = compare(learned, found.solution.values)
    assert result.iou > 0.98
    assert result.false_unsafe == 0.0
    assert result.false_safe > 0.0
    monkeypatch.setattr(reaching, "load_agent", lambda *_: object())
    with pytest.raises(ConfigError, match="fisor learns no feasible value"):
        found.learned(reaching.feasible_agent("native/dubins-obstacles", "RUN"))
    spec.observation_dim = 3
    monkeypatch.setattr(reaching, "load_agent", lambda *_: types.SimpleNamespace(feasible_value=feasible_value))
    with pytest.raises(ConfigError, match="observations of width 3"):
        found.learned(reaching.feasible_agent("native/dubins-obstacles", "RUN"))
    plan.environment = "surefoot/CartPoleBalance-v0"
    with pytest.raises(ConfigError, match="trained for surefoot/CartPoleBalance-v0, not for native/dubins-obstacles"):
        found.learned(reaching.feasible_agent("native/dubins-obstacles", "RUN"))


@pytest.mark.parametrize("kind", ["reach", "cbf"])
def test_a_blind_driver_behind_a_filter_hits_nothing(kind: str, coarse: pathlib.Path, capsys: Capture) -> None:
    common = ["certify", "--policy", "blind", "--env", "native/dubins-obstacles", "--episodes", "150", "--json"]
    assert main(common) == 0
    assert json.loads(capsys.readouterr().out)["violations"] > 100
    assert main([*common, "--filter", kind, "--safe-set", str(coarse), "--margin", "0.3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["violations"] == 0
    assert found["filter"]["kind"] == kind
    assert found["filter"]["promised"] == 150
    assert found["filter"]["changed"] > 0


def test_a_promise_that_is_broken_is_told_with_the_state(coarse: pathlib.Path, capsys: Capture) -> None:
    command = ["certify", "--policy", "random", "--env", "native/dubins-obstacles", "--episodes", "150"]
    assert main([*command, "--filter", "reach", "--safe-set", str(coarse), "--margin", "0"]) == 0
    shown = capsys.readouterr()
    assert "*** THE FILTER BROKE ITS PROMISE in" in shown.err
    assert "from state [" in shown.err
    assert "to margin -" in shown.err
    assert "violations there, 0 in the others" in shown.out


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ["reach", "native/quadrotor-2d"],
            "has 6 states (x, vx, z, vz, tilt, tilt_rate), and grids of safe sets and filters",
        ),
        (["reach", "native/linear-quadratic"], "does not say the margin"),
        (["reach", "Hopper-v5"], "not a native system"),
        (["reach", "native/pendulum", "--points", "9,x"], "--points is '9,x'"),
        (["reach", "native/pendulum", "--points", "9"], "1 numbers of points"),
        (["reach", "native/pendulum", "--points", "90000,90000"], "GB may be used"),
        (["reach", "native/pendulum", "--discount", "2"], "discount is 2"),
        (["reach", "native/pendulum", "--dtype", "int8"], "dtype 'int8'"),
        (["reach", "native/pendulum", "--gap", "moon"], "no gap 'moon'"),
        (["reach", "native/pendulum", "--plot"], "--plot without a name"),
        (["reach", "native/pendulum", "--points", "9,9", "--quiet", "--discount", "0.5", "-o", "set.txt"], "ends so"),
        (["certify", "--policy", "random", "--env", "native/quadrotor-2d", "--filter", "reach"], "take at most 4"),
        (["certify", "--policy", "random", "--env", "native/pendulum", "--filter", "fence"], "filter 'fence'"),
        (["certify", "--policy", "random", "--env", "native/pendulum", "--margin", "1"], "are of a filter"),
    ],
)
def test_what_can_not_be_solved_or_filtered_is_refused(
    command: list[str], said: str, capsys: Capture, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("certify --policy random --env native/dubins-obstacles --filter foo", "filter 'foo' is unknown"),
        ("certify --policy random --env native/dubins-obstacles --filter cbf --margin nan", "margin is nan"),
        ("certify --policy random --env native/dubins-obstacles --filter reach --confidence 7", "confidence is 7"),
        ("certify --policy random --env native/dubins-obstacles --filter reach --until 7", "until is 7"),
        ("reach native/pendulum -o s.txt", "s.txt: a safe set is written as .npz"),
        ("reach native/pendulum --plot s.gif", "s.gif: a picture is written as .png"),
        ("reach native/pendulum --compare nowhere", "nowhere: not a run folder"),
        ("reach native/pendulum --policy-seed 3", "--policy-seed is of --compare RUN"),
    ],
)
def test_what_is_wrong_is_told_before_a_system_is_solved(
    command: str, said: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaching, "solve", lambda *_, **__: pytest.fail("it was solved first"))
    assert main(command.split()) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "computing" not in err


def test_slices_through_few_points_lie_inside_the_box(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[slice | int]] = []
    cut = pictures._cut
    monkeypatch.setattr(pictures, "_cut", lambda values, at: asked.append(at) or cut(values, at))
    grid = Grid(tuple(Axis(name, -1.0, 1.0, 5) for name in "xyz"))
    values = torch.linspace(-1, 1, 125, dtype=torch.float64).reshape(5, 5, 5)
    pictures.slices(grid, values, values, "a cube")
    assert {place for at in asked for place in at if isinstance(place, int)} <= {1, 2, 3}


@pytest.mark.parametrize("kind", ["reach", "cbf"])
def test_a_policy_keeps_its_filter_in_files(kind: str, coarse: pathlib.Path, tmp_path: pathlib.Path) -> None:
    actor, normalizer = DeterministicActor(11, 1, (8,)), Normalizer(11)
    policy = Policy.of(actor, normalizer, torch.tensor([-1.0]), torch.tensor([1.0]))
    made = shield(kind, "native/dubins-obstacles", safe_set=coarse, margin=0.3)
    made.save(policy, tmp_path / "driver")
    found = load_filtered(tmp_path / "driver.safetensors")
    assert type(found.safety) is type(made.safety)
    assert found.safety.margin == 0.3
    states = torch.rand(200, 3, dtype=torch.float64) * 4 - 2
    model = made.safe_set.model
    seen = model.system.observe(states, model.parameters_row.expand(200, -1)).float()
    both = made.around(policy)
    assert torch.equal(both.act(seen, {})[0], found.act(seen, {})[0])
    assert 0 < found.changed < 200
    coarse_copy = tmp_path / "plain.filter.npz"
    coarse_copy.write_bytes(coarse.read_bytes())
    policy.save(tmp_path / "plain")
    with pytest.raises(CheckpointError, match="safe set without a filter"):
        load_filtered(tmp_path / "plain")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"discount": 0.5}, "has a discount of 0.5, which makes the set too large"),
        ({"max_sweeps": 1}, "is not converged (stopped after 1 sweeps)"),
        ({"gap": "gravity2"}, "is of the system with gravity2"),
    ],
)
def test_a_safe_set_that_promises_too_much_filters_nothing(
    options: dict[str, Any], said: str, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    reaching.reach("native/pendulum", points=[15, 15], **options).save(tmp_path / "set.npz")
    command = ["certify", "--policy", "random", "--env", "native/pendulum", "--filter", "reach", "--margin", "0.1"]
    assert main([*command, "--safe-set", str(tmp_path / "set.npz")]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "set.npz" in told


def test_a_safe_set_of_another_system_or_a_damaged_one_is_refused(
    coarse: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    command = [
        "certify",
        "--policy",
        "random",
        "--env",
        "native/pendulum",
        "--filter",
        "reach",
        "--safe-set",
        str(coarse),
    ]
    assert main(command) == 2
    assert "is the safe set of native/dubins-obstacles" in capsys.readouterr().err
    broken = tmp_path / "broken.npz"
    broken.write_bytes(coarse.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="is a damaged NPZ file"):
        load(broken)
    with pytest.raises(CheckpointError, match="no such file"):
        load(tmp_path / "none.npz")


def test_a_policy_with_a_memory_is_certified_behind_a_filter_and_remembers_what_was_carried_out(
    coarse: pathlib.Path,
) -> None:
    told: list[torch.Tensor] = []

    class Listening(Policy):
        def executed(self, memory: Memory, actions: torch.Tensor) -> Memory:
            told.append(actions)
            return super().executed(memory, actions)

    torch.manual_seed(0)
    actor = DecisionTransformerActor(11, 1, 3, 8, 1, 2)
    policy = Listening(actor, Normalizer(11), torch.tensor([-1.0]), torch.tensor([1.0])).requires_grad_(False)
    watch, chosen = Watch(), shield("reach", "native/dubins-obstacles", safe_set=coarse, margin=0.3)
    shielded_episodes(policy, chosen, "native/dubins-obstacles", np.arange(30), watch, steps=20)
    assert watch.changed > 0
    proposed, carried_out = torch.stack(told[::2]), torch.stack(told[1::2])
    assert int((proposed != carried_out).any(-1).sum()) == watch.changed
