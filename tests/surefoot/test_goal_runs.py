"""Runs whose policies are given a goal: what is refused before they begin, and evaluation by goals."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from surefoot.cli.main import main
from surefoot.core.base.spec import Spec
from surefoot.core.policy.policy import Policy
from surefoot.runs.plan import agent_class


def test_an_environment_without_goals_is_refused_before_the_run_begins(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before there is a folder, not at the first evaluation."""
    out = tmp_path / "run"
    words = f"train algo=gcbc dataset=native/pendulum-mixed env=native/pendulum steps=10 seeds=1 out={out}"
    assert main(words.split()) != 0
    assert "the policy is asked for a goal, and native/pendulum gives none" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "words"), [("bc", "was trained without goals"), ("gcbc", "native/pendulum has no tasks of its own")]
)
def test_goals_are_of_ogbench_and_of_policies_that_have_them(
    name: str, words: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent: Any = agent_class(name)(Spec(3, 1, -2 * np.ones(1), 2 * np.ones(1)), hidden=(8,)).fresh(0)
    Policy.of(agent.actor, agent.normalizer, agent.action_low, agent.action_high).save(tmp_path / "policy")
    file = tmp_path / "policy.safetensors"
    assert main(["evaluate", str(file), "--env", "native/pendulum", "--goals", "task"]) != 0
    assert words in capsys.readouterr().err
