"""`objective=`, `labels=` and `shaping=`: trained, evaluated, resumed, and what they are refused for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

import surefoot
from surefoot.cli.main import main
from surefoot.core.base.errors import ConfigError
from surefoot.envs.objectives import ObjectiveEnv
from surefoot.runs.inputs import inputs_of, training_environment
from surefoot.runs.plan import Plan, agent_class
from surefoot.runs.run import Run

TINY = ["episodes=2", "evaluate_every=60", "evaluate_episodes=1", "batch_size=8", "algo.hidden=[8,8]", "seeds=1"]
OBJECTIVE = ["objective=F(far & F home) & G !left", "labels=walks:labels"]
NAME = "objective:walks:Walk?formula=F(far %26 F home) %26 G !left&labels=walks:labels"


def plan(**changes: object) -> Plan:
    config = {**vars(agent_class("sac").configure()), "num_envs": 1}
    fields = {"algorithm": "sac", "config": config, "environment": "walks:Walk", "objective": "F far"}
    return Plan(**{**fields, "labels": "walks:labels", **changes})  # type: ignore[arg-type]


def test_a_run_from_training_to_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    given = [*OBJECTIVE, "shaping=value", "algo.counterfactual=true", "algo.initial_steps=20", "steps=60", *TINY]
    assert main(["train", "algo=sac", "env=walks:Walk", *given, f"out={folder}"]) == 0
    assert "walks:Walk, objective F(far & F home) & G !left" in capsys.readouterr().out
    run = Run.open(folder)
    assert (run.plan.environment, run.plan.objective, run.plan.shaping) == (NAME, None, "value")
    assert run.spec.observations["observations"].shape == (3,)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line["values"] for line in lines if line["kind"] == "eval"]
    assert {"reward/progress", "success_mean", "cost_mean"} <= set(evaluated[-1])
    assert evaluated[-1]["return_mean"] in (0, 1)  # without shaping
    assert main(["evaluate", str(folder), "--episodes", "2", "--trust"]) == 0
    policy = surefoot.load_policy(folder / "policy" / "seed0.safetensors")
    assert len(policy.select_action(np.array([0.5, 1, 0], np.float32))) == 1
    assert main(["train", "--resume", str(folder), "steps=80", "--trust"]) == 0


def test_a_received_run_has_its_labels_called_only_where_it_is_trusted(tmp_path: Path) -> None:
    name = NAME.replace("walks:labels", "no_such_module:labels")
    with pytest.raises(ConfigError, match=r"names 'no_such_module:labels', which would be called.*--trust"):
        surefoot.runs.trust.require_trust(name, tmp_path / "config.json")


def test_constrained_algorithms_take_a_formula_at_once(tmp_path: Path) -> None:
    given = ["steps=60", "algo.horizon=30", "algo.num_envs=2", "algo.cost_limit=0.5", "algo.minibatches=4"]
    arguments = ["train", "algo=ppo_lag", "env=walks:Walk", *OBJECTIVE, *TINY, *given, f"out={tmp_path / 'run'}"]
    assert main(arguments) == 0


def test_a_machines_file_is_in_the_runs_name_with_all_that_it_says(tmp_path: Path) -> None:
    machine = {"start": "u", "accepting": ["v"], "transitions": [{"from": "u", "when": "far", "to": "v", "reward": 2}]}
    path = tmp_path / "far.json"
    path.write_text(json.dumps(machine))
    made = plan(objective=str(path))
    path.unlink()  # the run needs it no more
    again = Plan.from_json(json.loads(json.dumps(made.to_json())))
    assert again.environment == made.environment
    spec = inputs_of(made, None, lambda event: None).spec
    env = training_environment(made, made.agent(spec))
    assert isinstance(env, ObjectiveEnv)
    assert (env.machine.live, env.machine.rewards.max(), env.potentials) == (1, 2, None)


def test_training_is_shaped_by_the_algorithms_discount_and_evaluation_is_not() -> None:
    made = plan(shaping="negative_value", config=plan().config | {"discount": 0.5})
    spec = inputs_of(made, None, lambda event: None).spec
    env = training_environment(made, made.agent(spec))
    assert isinstance(env, ObjectiveEnv)
    assert (env.potentials is not None and env.potentials.tolist(), env.discount) == ([-1, 0], 0.5)


def test_what_does_not_go_together_is_refused() -> None:
    with refused("labels", "missing"):
        plan(labels=None)
    with refused("objective", "missing"):
        plan(environment=None)
    with refused("labels", "conflict"):
        plan(objective=None)
    with refused("shaping", "conflict"):
        plan(objective=None, labels=None, shaping="value")
    with refused("shaping", "choice"):
        plan(shaping="both")
    made = plan(shaping="value", config=plan().config | {"discount": 1.0})
    with refused("shaping", "conflict"):
        training_environment(made, made.agent(inputs_of(made, None, lambda event: None).spec))
