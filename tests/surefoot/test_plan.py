"""`surefoot plan`: what it prints, and what it says of what can't be."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.cli import certify
from surefoot.cli.main import main
from surefoot.cli.support import output
from surefoot.evaluation import certificate
from surefoot.play.plan import planning_policy, world_for
from surefoot.runs.run import Run, load_agent
from surefoot.world_models.futures import Objective
from surefoot.world_models.known.terminations import never
from surefoot.world_models.planners import make_planner


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
        ("native/pendulum --planner ilqr --cost-limit 5", "ilqr plans with the mean outcome"),
        ("native/pendulum --futures 0", "futures is 0"),
        ("native/pendulum --cost-limit -1", "cost_limit is -1.0"),
        ("native/pendulum --horizon 0", "horizon is 0"),
        ("native/pendulum --envs 0", "--envs is 0"),
        ("native/pendulum --env native/bicycle", "leave --env out"),
        ("native/pendulum --policy-seed 3", "an exact world has none"),
        ("native/pendulum --futures 2 --spread all", "spread is 'all'"),
        ("native/pendulum --spread epistemic", "--spread is of several futures: add --futures"),
        ("native/pendulum --risk cvar:0.1", "the risk is CVaR(beta=0.1) of 1 future"),
        ("native/pendulum --futures 9 --risk cvar:0.1", "9 futures of NativeDynamics with spread 'both' are all the"),
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
    small["mopo"] = f"{small['dynamics']} algo.model_updates=20 algo.rollouts=20 {small['bc']}"
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
    assert "of 3 numbers and 1 actions, and native/quadrotor-2d 6 numbers and 2: name the" in capsys.readouterr().err
    for command in ("plan", "certify"):
        assert main([command, str(run), *SHORT.split(), "--env", "native/acrobot"]) == 2
        assert "of 3 numbers and 1 actions, and native/acrobot 6 numbers and 1: name the" in capsys.readouterr().err


def test_a_model_of_normalised_observations_is_planned_in_from_normalised_ones(tmp_path: pathlib.Path) -> None:
    run = learned(tmp_path, "mopo", more="algo.normalization=observations")
    world = world_for(str(run), "native/pendulum")
    normalizer = load_agent(Run.open(run)).normalizer
    planner, seen = make_planner("cem", samples=10, iterations=1, horizon=2), torch.tensor([[1.0, 0.0, 4.0]])
    policy = planning_policy(world, planner, Objective())
    first = policy.act(seen, policy.begin(1))[0] / policy.high
    assert float((normalizer(seen) - seen).abs().max()) > 1
    wanted = planner.plan(world.dynamics, normalizer(seen), planner.begin(1, 1))[0][:, 0]
    torch.testing.assert_close(first, wanted)


def test_plans_are_carried_out_in_the_units_that_the_model_was_learned_in(tmp_path: pathlib.Path) -> None:
    rows, random = 200, np.random.default_rng(0)
    columns = {name: random.normal(size=(rows, 3)).astype(np.float32) for name in ("observations", "next_observations")}
    columns |= {"actions": random.uniform(-1, 1, (rows, 1)).astype(np.float32), "rewards": np.zeros(rows, np.float32)}
    ends = {"terminals": np.zeros(rows, bool), "timeouts": np.arange(rows) % 50 == 49}
    np.savez(tmp_path / "data.npz", **columns, **ends)
    small = "algo.model_hidden=[8] algo.model_decays=[] algo.model_members=2 algo.model_elites=2"
    words = f"train algo=dynamics dataset={tmp_path / 'data.npz'} steps=2 seeds=1 {small} out={tmp_path / 'run'}"
    words += " action_low=-1 action_high=1"
    assert main(words.split()) == 0
    world = world_for(str(tmp_path / "run"), "native/pendulum")  # whose own bounds are -2 and 2 N m
    policy = planning_policy(world, make_planner("cem", samples=4, iterations=1, horizon=1), Objective())
    assert (policy.low.tolist(), policy.high.tolist()) == ([-1.0], [1.0])


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


CERTIFY = "certify native/pendulum --planner mppi --samples 16 --horizon 8 --steps 30 --seed 3 --json"


def certified(capsys: pytest.CaptureFixture[str], words: str) -> dict[str, Any]:
    """What `surefoot certify` prints."""
    assert main(words.split()) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_certify_judges_a_planner_in_the_exact_world_however_many_plans_are_made_side_by_side(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, three = (certified(capsys, f"{CERTIFY} --episodes 7 --envs {envs}") for envs in (1, 3))
    assert (one["episodes"], one["planner"], one["stored"]) == (7, "mppi", None)
    assert one["policy"].startswith("MPPI: horizon 8, samples 16")
    assert one["policy"].endswith("for mean of 1 futures, in native/pendulum itself")
    assert one["returns"] == pytest.approx(three["returns"])
    assert one["violations"] == three["violations"]
    assert one["upper"] == certificate(one["violations"], 7).upper
    other = certified(capsys, f"{CERTIFY.replace('--seed 3', '--seed 4')} --episodes 7")
    assert other["returns"] != one["returns"]


def test_certifying_a_planner_stops_once_it_is_known_and_tells_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certify, "EVERY", 0.0)
    words = "certify native/cartpole-swingup --planner mppi --samples 64 --horizon 40 --temperature 0.1 --colour 0"
    assert main([*words.split(), "--episodes", "60", "--envs", "6", "--until", "0.2"]) == 0
    captured = capsys.readouterr()  # a short-sighted plan drives the cart off its track
    assert "violations are more frequent than 0.2, after 6 of 60 episodes" in captured.out
    assert "whenever one stops" in captured.out
    assert "plans, " in captured.err
    assert "6 episodes measured: the other 54 will take about" in captured.err


def test_each_episode_draws_its_own_constants_and_the_planner_has_worlds_of_the_same_ranges(
    capsys: pytest.CaptureFixture[str],
) -> None:
    worlds = "--worlds 3 --futures 3 --spread epistemic --risk worst"
    words = f"{CERTIFY} --episodes 6 --vary mass=0.5:2,length=0.5:1.5 {worlds}"
    one, five = (certified(capsys, f"{words} --envs {envs}") for envs in (1, 5))
    assert one["varied"] == {"mass": [0.5, 2.0], "length": [0.5, 1.5]}
    assert "in 3 worlds of native/pendulum" in one["policy"]
    assert one["returns"] == pytest.approx(five["returns"])
    assert "of 3 futures (epistemic spread, tsinf), in" in one["policy"]
    uneven = certified(capsys, f"{words.replace('--futures 3', '--futures 5')} --envs 5")
    assert "of 5 futures (epistemic spread, tsinf; 2 of 3 members have 2, the others 1), in" in uneven["policy"]
    narrow = certified(capsys, f"{words.replace('0.5:2,', '0.99:1.01,')} --envs 5")
    assert narrow["returns"] != one["returns"]


def test_a_planner_may_know_the_noise_that_it_acts_under(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"{CERTIFY} --episodes 4 --envs 4 --gap noise1 --futures 5 --risk worst"
    known = certified(capsys, f"{words} --planner-gap noise1")
    assert "in native/pendulum itself with noise1" in known["policy"]
    assert main([*words.split(), "-q"]) == 2
    said = capsys.readouterr().err
    assert "nothing in it is random" in said
    assert "--planner-gap" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("native/pendulum --samples 5", "--samples is of plans: add --planner"),
        ("native/pendulum --cost-limit 0", "--cost-limit is of plans: add --planner"),
        ("native/pendulum --worlds 5", "--worlds are those that a planner plans in"),
        ("native/pendulum --planner-gap noise1", "--planner-gap is of the world that is planned in"),
        ("native/pendulum --planner mppi --planner-gap nois", "has no gap 'nois'"),
        ("Hopper-v5 --planner mppi --planner-gap noise1", "has no constants"),
        ("native/pendulum --planner mppi --worlds 5", "--vary gives the ranges"),
        ("native/pendulum --planner mppi --vary mass=1:2 --worlds 5", "add --futures 5 or a multiple of it"),
        (
            "native/pendulum --planner mppi --vary mass=1:2 --worlds 5 --futures 3",
            "would ask the first 3 alone: give 5",
        ),
        ("--planner mppi --policy expert --env native/pendulum", "say where --planner plans"),
        ("native/pendulum --planner mppi --envs 0", "--envs is 0"),
        ("native/pendulum --planner mpi", "did you mean 'mppi'"),
        ("native/pendulum --planner mppi --vary mas=1:2", "no constant 'mas'"),
        ("Hopper-v5 --planner mppi --vary mass=1:2", "changes the constants of native systems"),
        ("native/pendulum --planner mppi --device cuda", "use device cpu or auto"),
    ],
)
def test_what_cant_be_certified_is_one_sentence(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", *words.split(), "-q"]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_plans_in_a_learned_model_are_certified_and_kept_beside_the_run(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = learned(tmp_path, "dynamics", more="algo.model_costs=true")
    capsys.readouterr()
    found = certified(capsys, f"certify {run} {SHORT} --env native/pendulum --steps 5 --episodes 3 --json")
    assert found["environment"] == "native/pendulum"
    assert "model of dynamics, seed 0 of" in found["policy"]
    kept = json.loads((run / "certificate-cem-5steps.json").read_text())
    assert (kept["episodes"], kept["planner"], kept["steps"], kept["policy_seed"]) == (3, "cem", 5, 0)
    limited = certified(capsys, f"certify {run} {SHORT} --steps 5 --episodes 2 --cost-limit 0 --json")
    assert limited["stored"] == str(run / "certificate-cem-5steps-2.json")  # another question
    again = certified(capsys, f"certify {run} {SHORT} --steps 5 --episodes 4 --json")
    assert (again["stored"], again["episodes"]) == (str(run / "certificate-cem-5steps.json"), 4)


def test_a_run_without_a_model_is_named(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = learned(tmp_path, "bc")
    capsys.readouterr()
    assert main(["plan", str(run), "--env", "native/pendulum"]) == 2
    assert "bc, learns no model of the world; train one with algo=dynamics" in capsys.readouterr().err
