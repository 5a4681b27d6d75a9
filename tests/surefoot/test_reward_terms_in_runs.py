"""Rewards by term in a run's metrics and loggers, of training episodes and of evaluations."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from reward_walk import Walk

import surefoot
from surefoot.evaluation.runs import RunData
from surefoot.runs.trackers.numbers import numbers


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("algorithm", ["sac", "a2c", "stream_ac"])
def test_a_run_has_the_terms_in_its_metrics_and_loggers(algorithm: str, tmp_path: pathlib.Path) -> None:
    """Terms are given for training episodes and for evaluations, under `reward/TERM`, and add up to the return."""
    options: dict[str, Any] = {"sac": {"initial_steps": 20}, "a2c": {"num_envs": 2, "horizon": 20}}.get(algorithm, {})
    events: list[dict[str, Any]] = []
    model = getattr(surefoot, {"sac": "SAC", "a2c": "A2C", "stream_ac": "StreamAC"}[algorithm])
    model(Walk, **options).learn(
        80, seeds=1, evaluate_every=40, evaluate_episodes=2, episodes=2, out=tmp_path / "run", listener=events.append
    )
    data = RunData.load(tmp_path / "run")
    for kind, mean in (("train", "episode_return"), ("eval", "return_mean")):
        lines = [line["values"] for line in data.metrics if line["kind"] == kind and "reward/near" in line["values"]]
        assert lines, kind
        for values in lines:
            assert values["reward/near"] + values["reward/bonus"] == pytest.approx(values[mean], rel=1e-5)
            assert values["reward/bonus"] == 1.5
    told = {name for event in events for name, _ in numbers(event)}
    assert {"train/reward/near", "eval/reward/near"} <= told
