"""Runs in which several agents act in one environment: training, evaluation by team, export, refusals."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.cli.main import main
from surefoot.core.actors.heads import CategoricalActor
from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.core.base.spec import Team
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.one_agent import of_agent
from surefoot.core.policy.policy import Policy
from surefoot.envs.acting import spec_of
from surefoot.envs.training import make_training
from surefoot.online import DQN, PPO
from surefoot.online.loops.loop import make_loop
from surefoot.play.film import rendered_episodes
from surefoot.runs.run import Run

WALKERS = "pettingzoo:tests.envs.teams_in_parallel"
Capture = pytest.CaptureFixture[str]
SHORT = ["seeds=1", "steps=200", "episodes=2", "evaluate_episodes=2", "envs=3"]
PPO_SHORT = ["algo.horizon=8", "algo.minibatches=2", "algo.epochs=1"]


def train(out: pathlib.Path, *words: str) -> int:
    return main(["train", *SHORT, f"out={out}", *words])


def trained(kind: Any, env_id: str, options: dict[str, Any], steps: int) -> dict[str, torch.Tensor]:
    env = make_training(env_id, 4)
    loop = make_loop([kind(spec_of(env), num_envs=4, **options).fresh(3)], [3], env, planned_steps=steps, batch_size=8)
    loop.run(steps)
    return dict(loop.learner.extract(0).state_dict())


@pytest.mark.parametrize("kind", [PPO, DQN])
def test_a_team_of_one_is_trained_as_its_agent_to_the_bit(kind: Any) -> None:
    options = {"horizon": 16, "minibatches": 4} if kind is PPO else {"initial_steps": 50}
    steps = 256 if kind is PPO else 100
    alone = trained(kind, WALKERS + ":alone", options, steps)
    usual = trained(kind, "CartPole-v1", options, steps)
    assert alone.keys() == usual.keys()
    for name, value in usual.items():
        assert torch.equal(alone[name], value), name


def test_ppo_trains_a_team_whose_agents_share_one_policy(tmp_path: pathlib.Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    assert train(run, "algo=ppo", f"env={WALKERS}", *PPO_SHORT) == 0
    config = json.loads((run / "config.json").read_text())
    assert config["plan"]["config"]["num_envs"] == 3  # environments, whatever their agents
    found = Run.open(run)
    assert found.agent().config.num_envs == 6
    assert found.spec.team == Team(("left", "right"))
    capsys.readouterr()
    assert main(["evaluate", str(run), "--episodes", "4", "--trust", "--json"]) == 0
    (episodes,) = json.loads(capsys.readouterr().out)["episodes"].values()
    each = np.mean([episodes["reward_terms"]["left"], episodes["reward_terms"]["right"]], 0)
    np.testing.assert_allclose(each, episodes["returns"])
    assert main(["evaluate", str(run), "--episodes", "2", "--trust"]) == 0
    assert "its agents' own returns: left " in capsys.readouterr().out
    assert main(["export", str(run), "-o", str(tmp_path / "right.safetensors"), "--agent", "right"]) == 0
    own, shared = Policy.load(tmp_path / "right.safetensors"), found.policy()
    seen = torch.tensor([[1.0, 2.0], [-3.0, 0.5]])
    number = torch.tensor([[0.0, 1.0]] * 2)
    torch.testing.assert_close(
        own.actor.logits(own.normalizer(seen)),  # type: ignore[operator]
        shared.actor.logits(shared.normalizer(torch.cat([seen, number], 1))),  # type: ignore[operator]
    )
    assert main(["export", str(run), "-o", str(tmp_path / "x.onnx"), "--agent", "up"]) == 2
    assert "'up' is no agent of this team" in capsys.readouterr().err


def test_agents_that_leave_train_too(tmp_path: pathlib.Path) -> None:
    for algo, more in (("ppo", PPO_SHORT), ("dqn", ["algo.initial_steps=50"])):
        words = ["env_options.leaves=true", "env_options.may_leave=true", *more]
        assert train(tmp_path / algo, f"algo={algo}", f"env={WALKERS}", *words) == 0
        assert Run.open(tmp_path / algo).complete


def test_algorithms_of_one_agent_are_refused_and_the_sentence_says_which_are_not(
    tmp_path: pathlib.Path, capsys: Capture
) -> None:
    words = ["seeds=1", "steps=200", f"out={tmp_path / 'run'}", "algo=stream_q", f"env={WALKERS}"]
    assert main(["train", *words]) == 2
    message = capsys.readouterr().err
    assert "2 agents act in" in message
    assert "stream_q trains one" in message
    assert "ppo" in message
    assert not (tmp_path / "run").exists()


def test_an_agent_that_is_none_of_the_team_has_no_policy() -> None:
    policy = Policy.of(CategoricalActor(5, 2), Normalizer(5), torch.zeros(2), torch.ones(2))
    team = Team(("a", "b"))
    assert of_agent(policy, team, "b").observation_dim == 3
    with pytest.raises(ConfigError, match="no agent of this team"):
        of_agent(policy, team, "c")


def test_envs_info_says_what_each_agent_observes(capsys: Capture) -> None:
    assert main(["envs", "info", WALKERS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["agents"] == "left, right"
    assert found["each_does"] == "Discrete(3)"
    assert "3 numbers" in found["state"]


def test_episodes_of_teams_are_not_drawn() -> None:
    policy = Policy.of(CategoricalActor(5, 2), Normalizer(5), torch.zeros(2), torch.ones(2))
    with pytest.raises(EnvironmentMismatchError, match="are not drawn"):
        rendered_episodes(policy, "team:two-step", 1)
