"""Discrete actions from data: `bc` classifies them, `dqn` reads them beside its own steps, others refuse them."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch

import surefoot
from surefoot.cli import main
from surefoot.core.base.errors import ConfigError
from surefoot.data import Dataset, from_arrays, save
from surefoot.offline import BC, IQL
from surefoot.online import DQN
from surefoot.runs.run import Run

TINY: dict[str, Any] = {"seeds": 1, "batch_size": 32, "progress": False}


def cartpole(rows: int = 400) -> Dataset:
    """Observations as of the cart and pole, pushed to the side that the pole leans to."""
    observations = np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)
    pushes = (observations[:, 2] > 0).astype(np.int64)
    return from_arrays(observations, pushes, np.ones(rows), timeouts=np.arange(rows) % 20 == 19, env_id="CartPole-v1")


def test_a_clone_of_choices_takes_the_recorded_ones(tmp_path: pathlib.Path, in_process: None) -> None:
    data = cartpole()
    run = surefoot.fit(
        BC(data, hidden=(32,), learning_rate=1e-2), data, env=None, steps=200, out=tmp_path / "r", **TINY
    )
    policy = run.policy()
    chosen = np.array([policy.select_action(row) for row in data.observations])
    assert (chosen == data.actions.argmax(1)).mean() > 0.95
    assert run.spec.discrete


def test_the_loss_is_the_cross_entropy_in_nats() -> None:
    agent = BC(cartpole(), hidden=(8,))
    for parameter in agent.actor.parameters():
        torch.nn.init.zeros_(parameter)
    batch = {"observations": torch.zeros(3, 4), "actions": torch.eye(2)[[0, 1, 1]]}
    assert float(agent.actor_loss(batch, {})[0]) == pytest.approx(np.log(2))


def test_dqn_learns_from_rows_of_data_beside_its_own(tmp_path: pathlib.Path, in_process: None) -> None:
    data = cartpole()
    agent = DQN(data, offline_fraction=0.5, initial_steps=20, hidden=(8,))
    run = surefoot.fit(agent, data, steps=60, episodes=2, evaluate_episodes=1, out=tmp_path / "r", **TINY)
    assert run.complete
    with pytest.raises(ConfigError, match="keeps no offline data"):
        surefoot.fit(DQN(data, initial_steps=20, hidden=(8,)), data, steps=60, out=tmp_path / "n", **TINY)


def test_what_learns_continuous_actions_refuses_them_and_names_who_does_not() -> None:
    with pytest.raises(ConfigError, match=r"2 discrete ones; train it with bc \(from data\)"):
        IQL(cartpole())
    with pytest.raises(ConfigError, match="are discrete, without a range"):
        surefoot.fit(BC(cartpole()), cartpole(), env=None, action_low=0, action_high=1)


def test_dqn_without_an_environment_names_its_kin_that_learns_from_data_alone(
    tmp_path: pathlib.Path, in_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "carts.npz"
    save(cartpole(), path)
    command = ["train", "-q", f"dataset={path}", "env=none", f"out={tmp_path / 'run'}"]
    assert main([*command, "algo=dqn"]) == 2
    assert "or learn from the data alone with algo=discrete_cql" in capsys.readouterr().err
    tiny = ["steps=20", "seeds=1", "batch_size=32", "algo.hidden=[8]", "algo.preset=dqn"]
    assert main([*command, "algo=discrete_cql", *tiny]) == 0
    assert Run.open(tmp_path / "run").policy().discrete
