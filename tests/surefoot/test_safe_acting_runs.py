"""Runs of constrained agents from the entry point: costs in scores and metrics, and a killed run continues."""

from __future__ import annotations

import pathlib
import signal
from typing import Any

import forking
import pytest
import torch
from test_acting_runs import metrics
from test_training import _checkpoints, _wait_for, _workers_of

from surefoot.api.fit import fit
from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.envs import make_vec
from surefoot.envs.acting import check_costs
from surefoot.envs.training import make_training
from surefoot.online import spec_of
from surefoot.runs.run import Run, load_agent
from surefoot.runs.start import resume
from surefoot.safe import PPOLag

DUBINS = "native/dubins-obstacles"
WALKER: dict[str, Any] = {"hidden": (8, 8), "num_envs": 2, "horizon": 128, "minibatches": 2, "epochs": 2}


def agent(env: str) -> PPOLag:
    return PPOLag(spec_of(make_vec(env, 1)), **WALKER, cost_limit=0.0)


def train(folder: pathlib.Path, env: str = DUBINS) -> Run:
    return fit(agent(env), env=env, steps=1536, seeds=1, out=folder, episodes=2, evaluate_episodes=1,
               evaluate_every=512)  # fmt: skip


def test_costs_and_the_multiplier_are_told_and_a_killed_run_goes_on_bit_for_bit(tmp_path: pathlib.Path) -> None:
    whole = train(tmp_path / "whole")
    assert whole.summary["cost"]["mean"] >= 0
    told = [line["values"] for line in metrics(whole) if "multiplier" in line["values"]]
    assert told[-1]["multiplier"] > 0
    assert any(values.get("episode_cost", 0) > 0 for values in told)
    folder = tmp_path / "killed"
    script = (
        f"import pathlib, sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\n"
        f"from test_safe_acting_runs import train; train(pathlib.Path({str(folder)!r}))"
    )
    process = forking.Popen(["-c", script])
    _wait_for(lambda: _checkpoints(folder) >= 1, 180)
    process.send_signal(signal.SIGKILL)
    process.wait()
    _wait_for(lambda: not _workers_of(folder))
    again = resume(folder)
    mine, other = load_agent(again).state_dict(), load_agent(whole).state_dict()
    assert "multiplier.value" in other
    assert all(torch.equal(mine[name], other[name]) for name in other)
    assert metrics(again) == metrics(whole)


def test_an_environment_without_costs_is_refused_before_the_run_begins(tmp_path: pathlib.Path) -> None:
    with pytest.raises(EnvironmentMismatchError, match="ppo_lag keeps a limit on costs, and Pendulum-v1 gives none"):
        train(tmp_path / "run", "Pendulum-v1")
    assert not (tmp_path / "run").exists()  # no worker was started


def test_the_wrapper_of_the_page_gives_costs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = pathlib.Path(__file__).parents[2] / "docs" / "safe_online.md"
    code = page.read_text(encoding="utf-8").split("```python")[1].split("```")[0]
    (tmp_path / "speed_limit.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    env = make_training("speed_limit:SpeedLimit-v0", 2)
    check_costs(env, "ppo_lag", "SpeedLimit-v0")
    env.close()
