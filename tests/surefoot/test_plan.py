"""`surefoot plan`: what it prints, and what it says of what can't be."""

from __future__ import annotations

import json
import pathlib

import pytest

from surefoot.cli import output
from surefoot.cli.main import main
from surefoot.experiment.run import Run
from surefoot.tools.plan import world_for
from surefoot.world_models.terminations import never


def test_an_exact_world_is_planned_in_and_the_numbers_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan native/pendulum --planner icem --samples 32 --iterations 2 --horizon 15 --envs 3 --json"
    assert main(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["episodes"] == 3
    assert found["plans"] == 3 * found["length_mean"]
    assert found["returns"]["mean"] > -400  # random actions: about -1,200
    assert found["planner"].startswith("ICEM: horizon 15, samples 32, iterations 2")
    assert found["plans_per_second"] > 0


def test_a_cost_limit_keeps_the_cart_on_its_track(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan native/cartpole-swingup --planner mppi --samples 128 --horizon 40 --envs 2 --cost-limit 0 -q"
    assert main(words.split()) == 0
    text = capsys.readouterr().out
    assert "within a cost of 0" in text
    assert "500.0 steps on average" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("native/cartpole-swinup", "there is no system"),
        ("Ant-v5", "Ant-v5 is no exact world: its rewards"),
        ("CartPole-v1", "neither a run folder nor an exact world"),
        ("native/pendulum --planner mpi", "did you mean 'mppi'"),
        ("native/pendulum --risk cvar:2", "share of CVaR is 2.0"),
        ("native/pendulum --risk median", "no risk measure 'median'"),
        ("native/pendulum --planner ilqr --samples 5", "ilqr has no setting 'samples'"),
        ("native/pendulum --planner ilqr --futures 5", "ilqr plans with the mean outcome"),
        ("native/pendulum --futures 0", "futures is 0"),
        ("native/pendulum --cost-limit -1", "cost_limit is -1.0"),
        ("native/pendulum --horizon 0", "horizon is 0"),
        ("native/pendulum --envs 0", "--envs is 0"),
        ("native/pendulum --env native/bicycle", "leave --env out"),
        ("native/pendulum --policy-seed 3", "an exact world has none"),
        ("native/pendulum --spread all", "spread is 'all'"),
    ],
)
def test_what_cant_be_is_one_sentence(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words.split(), "-q"]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert not captured.out


def test_a_folder_that_is_no_run_is_named(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err


def learned(folder: pathlib.Path, algo: str, env: str = "none", more: str = "") -> pathlib.Path:
    """A short run on data of a pendulum."""
    data = folder / "data.npz"
    words = f"datasets generate native/pendulum --transitions 400 -o {data} --json"
    assert main(words.split()) == 0
    small = {
        "dynamics": "algo.model_hidden=[16,16] algo.model_decays=[] algo.model_members=3 algo.model_elites=2",
        "bc": "algo.hidden=[8,8]",
    }
    words = f"train algo={algo} dataset={data} env={env} steps=30 seeds=1 {small[algo]} {more} out={folder / 'run'}"
    assert main(words.split()) == 0
    return folder / "run"


SHORT = "--planner cem --samples 10 --iterations 1 --horizon 2 --futures 6 --envs 1"


def test_a_learned_model_is_planned_in_with_futures_and_risk(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = learned(tmp_path, "dynamics", more="algo.model_costs=true")
    capsys.readouterr()
    words = f"plan {run} --env native/pendulum {SHORT}"
    assert main([*words.split(), "--risk", "cvar:0.5", "--cost-limit", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["objective"] == "CVaR(beta=0.5) of 6 futures (both spread, tsinf) within a cost of 0"
    assert found["episodes"] == 1
    assert world_for(str(run), None).env_id == "surefoot/Pendulum-v0"  # as the data say
    config = json.loads((run / "config.json").read_text())
    del config["spec"]["environment"]
    (run / "config.json").write_text(json.dumps(config))
    assert main(["plan", str(run)]) == 2
    assert "name it with --env" in capsys.readouterr().err
    assert main(["plan", str(run), "--env", "native/quadrotor-2d"]) == 2
    assert "has 1 actions, and native/quadrotor-2d 2" in capsys.readouterr().err


def test_a_model_learns_with_an_environment_and_plans_tell_how_far_they_are(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = learned(tmp_path, "dynamics", env="native/pendulum")
    summary = json.loads((run / "summary.json").read_text())
    assert summary["environment"] == "native/pendulum"
    assert summary["returns"] is None
    assert 0 <= summary["models"][0]["mixture"]["coverage_50"] <= 1
    assert Run.open(run).agent().model.terminates is never
    capsys.readouterr()
    monkeypatch.setattr(output, "PLAN_SECONDS", 0.0)
    assert main(["plan", str(run), *SHORT.split()]) == 0
    captured = capsys.readouterr()
    assert "200 plans, " in captured.err
    assert "of 1 episodes finished" in captured.err
    assert "native/pendulum" in captured.out


def test_a_limit_in_a_model_without_costs_is_refused(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = learned(tmp_path, "dynamics")
    assert "leaves the data's costs out" in capsys.readouterr().out
    assert main(["plan", str(run), *SHORT.split(), "--cost-limit", "0"]) == 2
    assert "cost_limit is 0, and GaussianEnsemble knows no costs" in capsys.readouterr().err
    model = Run.open(run).agent().model
    assert not model.knows_costs
    model.costs_of = lambda following: following[..., 0]  # where the constraint is known
    assert model.knows_costs


def test_a_run_without_a_model_is_named(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = learned(tmp_path, "bc")
    capsys.readouterr()
    assert main(["plan", str(run), "--env", "native/pendulum"]) == 2
    assert "bc, learns no model of the world; train one with algo=dynamics" in capsys.readouterr().err
