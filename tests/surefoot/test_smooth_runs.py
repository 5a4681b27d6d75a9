"""`jacobian_penalty=` from the command line and python, and the smoothness that runs report."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from small_runs import TINY, small_dataset

from surefoot.api.fit import fit
from surefoot.cli import main
from surefoot.cli.support.config import compose
from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.smoothness import check_penalty
from surefoot.offline import BC
from surefoot.online import PPO
from surefoot.runs.plan import Plan, agent_class
from surefoot.runs.run import Run
from surefoot.runs.start import train

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, dataset_path: pathlib.Path) -> Run:
    folder = tmp_path_factory.mktemp("smooth") / "td3bc"
    arguments = ["algo=td3bc", f"dataset={dataset_path}", "jacobian_penalty=0.05", "seeds=2", f"out={folder}"]
    assert main(["train", "--quiet", *arguments, *TINY]) == 0
    return Run.open(folder)


def test_the_command_line_trains_with_the_penalty_and_reports_smoothness(run: Run, capsys: Capture) -> None:
    assert run.plan.jacobian_penalty == 0.05
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert all(line["values"]["jacobian"] > 0 for line in lines if line["kind"] == "train")
    measured = run.summary["smoothness"]
    assert measured["action_change"]["low"] <= measured["action_change"]["mean"]
    assert measured["jacobian"]["mean"] > 0
    assert main(["report", str(run.folder), "-o", str(run.folder / "page.html"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[-1]["smoothness"] == measured
    assert main(["report", str(run.folder), "-o", str(run.folder / "page.html")]) == 0
    assert "action change [95 %]" in capsys.readouterr().out


def test_evaluate_shows_both_measures(run: Run, capsys: Capture) -> None:
    assert main(["evaluate", str(run.folder), "--episodes", "2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    changes = [sum(shown["episodes"][seed]["action_changes"]) / 2 for seed in ("0", "1")]
    assert shown["rows"][0]["smoothness"]["action_change"]["mean"] == pytest.approx(sum(changes) / 2)
    assert shown["rows"][0]["smoothness"]["jacobian"]["mean"] > 0
    assert main(["evaluate", str(run.folder), "--episodes", "2"]) == 0
    text = capsys.readouterr().out
    assert "action change [95 %]" in text
    assert "squared norm of the policy's Jacobian: " in text


def test_a_plan_of_before_the_penalty_has_none_and_no_weight_is_below_zero() -> None:
    old = {key: value for key, value in Plan("bc", {}).to_json().items() if key != "jacobian_penalty"}
    assert Plan.from_json(old).jacobian_penalty == 0
    with pytest.raises(ConfigError, match="jacobian_penalty is -1, must be >= 0"):
        Plan("bc", {}, jacobian_penalty=-1)
    with pytest.raises(ConfigError, match=r"jacobian_penalty is -0\.1, must be >= 0"):
        compose(["algo=bc", "jacobian_penalty=-0.1"])


def test_help_lists_the_option(capsys: Capture) -> None:
    assert main(["train", "--help"]) == 0
    assert "jacobian_penalty=0 " in capsys.readouterr().out


@pytest.mark.usefixtures("in_process")
def test_without_a_simulator_the_jacobian_is_that_over_the_data(tmp_path: pathlib.Path) -> None:
    data = small_dataset()
    options: dict[str, Any] = {"env": None, "steps": 20, "seeds": 1, "batch_size": 8, "progress": False}
    made = fit(BC(data, hidden=(8, 8)), data, out=tmp_path / "run", jacobian_penalty=0.1, **options)
    measured = made.summary["smoothness"]
    assert measured["action_change"] is None
    assert measured["jacobian"]["mean"] > 0


@pytest.mark.usefixtures("in_process")
def test_an_agent_that_acts_is_trained_with_the_penalty(tmp_path: pathlib.Path) -> None:
    agent = PPO(Spec(3, 1, (-2.0,), (2.0,)), num_envs=2, horizon=32, minibatches=2, epochs=2, hidden=(8, 8))
    made = fit(
        agent, env="native/pendulum", steps=128, seeds=1, episodes=2, evaluate_episodes=1, out=tmp_path / "run",
        progress=False, jacobian_penalty=0.1,
    )  # fmt: skip
    lines = [json.loads(line) for line in (made.folder / "metrics.jsonl").read_text().splitlines()]
    assert all(line["values"]["jacobian"] > 0 for line in lines if line["kind"] == "train")
    assert made.summary["smoothness"]["action_change"]["mean"] > 0


REFUSED = {
    "trpo": "natural gradient",
    "stream_ac": "one sample at a time",
}


@pytest.mark.parametrize("name", REFUSED)
def test_acting_algorithms_that_it_can_not_reach_refuse_it_before_anything_is_written(
    tmp_path: pathlib.Path, name: str
) -> None:
    config = agent_class(name).configure()
    plan = Plan(name, vars(config), environment="native/pendulum", steps=10, jacobian_penalty=0.1)
    with pytest.raises(ConfigError, match=f"jacobian_penalty: {name} can't have one, .*{REFUSED[name]}"):
        train(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_numbered_choices_are_refused_before_anything_is_written(tmp_path: pathlib.Path) -> None:
    plan = Plan("ppo", vars(agent_class("ppo").configure()), environment="CartPole-v1", jacobian_penalty=0.1)
    with pytest.raises(ConfigError, match="discrete actions"):
        train(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "why"), [("fisor", "always drawn"), ("cdt", "steps before"), ("bcq_lag", "no loss")])
def test_safe_policies_that_it_can_not_reach_are_refused(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} can't have one, .*{why}"):
        check_penalty(agent_class(name)(Spec(3, 1, (-1.0,), (1.0,))))
