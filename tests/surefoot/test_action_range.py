"""The range of actions without a simulator: who states it, and what is taken where no one does."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import small_dataset

import surefoot
from surefoot.cli import main
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.spec import Spec
from surefoot.data import Dataset, from_arrays, load, save
from surefoot.offline import BC
from surefoot.runs.inputs import inputs_of, resolve_bounds
from surefoot.runs.plan import Plan
from surefoot.runs.run import Run
from surefoot.runs.start import _range_note

TINY: dict[str, Any] = {"steps": 2, "seeds": 1, "batch_size": 8, "progress": False}


def log(actions: np.ndarray, **stated: Any) -> Dataset:
    """Ten episodes of 20 steps with these (200, A) actions, of no known environment."""
    draws = np.random.default_rng(0)
    ends = np.arange(200) % 20 == 19
    return from_arrays(draws.normal(size=(200, 2)), actions, np.ones(200), timeouts=ends, **stated)


def bounds(dataset: Dataset, **options: Any) -> tuple[list[float], list[float], list[str]]:
    """What a run without a simulator takes, and what it says."""
    told: list[str] = []
    plan = Plan(algorithm="bc", config={}, dataset="log", **options)
    low, high = resolve_bounds(plan, dataset, lambda event: told.append(event["text"]))
    return low.tolist(), high.tolist(), told


@pytest.mark.parametrize(("low", "high"), [(0.0, 100.0), (-0.4, 0.4), (0.0, 1.0)])
def test_where_nothing_states_the_range_it_is_the_data_s_and_a_note_says_so(low: float, high: float) -> None:
    actions = np.random.default_rng(1).uniform(low, high, (200, 1)).astype(np.float32)
    found = bounds(log(actions))
    assert found[:2] == ([float(actions.min())], [float(actions.max())])
    assert "nothing states the range of actions" in found[2][0]
    assert "action_low=" in found[2][0]


def test_an_action_that_never_changes_gets_a_range_around_its_value_and_is_told_of() -> None:
    low, high, told = bounds(log(np.stack([np.full(200, 4.0), np.linspace(-1, 1, 200)], 1)))
    assert low == pytest.approx([4.0 - 0.004, -1.0])
    assert high == pytest.approx([4.0 + 0.004, 1.0])
    assert "constant" in told[0]


def test_options_come_before_what_the_data_state_and_that_before_what_they_hold() -> None:
    actions = np.random.default_rng(1).uniform(-0.3, 0.3, (200, 2))
    stated = log(actions, action_low=-0.4, action_high=[0.4, 0.5])
    assert bounds(stated)[:2] == ([-0.4, -0.4], [0.4, 0.5])
    assert bounds(stated)[2] == []
    assert bounds(stated, action_low=-1, action_high=[1.0, 2.0])[:2] == ([-1.0, -1.0], [1.0, 2.0])


def test_recorded_actions_outside_a_stated_range_are_counted() -> None:
    actions = np.linspace(-1, 1, 200)[:, None]
    told = bounds(log(actions, action_low=-0.5, action_high=0.5))[2]
    assert "100 rows with actions outside [-0.5] to [0.5]" in told[-1]


def test_data_of_a_known_environment_have_its_range() -> None:
    found = bounds(log(np.random.default_rng(1).uniform(-0.4, 0.4, (200, 1)), env_id="Hopper-v5"))
    assert found == ([-1.0], [1.0], [])


def test_the_range_of_a_spec_is_that_of_the_trained_policy(tmp_path: pathlib.Path, in_process: None) -> None:
    data = log(np.random.default_rng(1).uniform(-0.3, 0.3, (200, 1)))
    agent = BC(Spec.of(data, -0.4, 0.4), hidden=(8, 8))
    run = surefoot.fit(agent, data, env=None, out=tmp_path / "run", **TINY)
    policy = run.policy()
    assert (policy.action_low.tolist(), policy.action_high.tolist()) == (
        torch.tensor([-0.4]).tolist(),
        torch.tensor([0.4]).tolist(),
    )
    assert Run.open(tmp_path / "run").plan.action_low == (-0.4,)
    # what starts from that run means the same by its actions
    again = surefoot.fit(BC(data, hidden=(8, 8)), data, env=None, out=tmp_path / "more", init=str(run.folder), **TINY)
    assert again.spec.action_high == run.spec.action_high


def test_the_command_line_states_a_range(tmp_path: pathlib.Path, monkeypatch: Any, in_process: None) -> None:
    monkeypatch.chdir(tmp_path)
    save(log(np.random.default_rng(1).uniform(-0.3, 0.3, (200, 2))), tmp_path / "log.hdf5")
    said = ["train", "algo=bc", "dataset=log.hdf5", "env=none", "out=run", "steps=2", "seeds=1", "algo.hidden=[8,8]"]
    assert main([*said, "action_low=-0.4", "action_high=[0.4,0.5]"]) == 0
    spec = json.loads(pathlib.Path("run/config.json").read_text())["spec"]
    assert (spec["action_low"], spec["action_high"]) == ([-0.4, -0.4], [0.4, 0.5])


def test_a_stated_range_is_kept_by_files(tmp_path: pathlib.Path) -> None:
    data = log(np.zeros((200, 2)), action_low=-0.4, action_high=[0.4, 0.5])
    for name in ("log.hdf5", "log.npz"):
        save(data, tmp_path / name)
        low, high = load(tmp_path / name).action_range or ((), ())
        assert (list(low), list(high)) == ([-0.4, -0.4], [0.4, 0.5])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"action_low": 0.0}, "without action_high="),
        ({"action_low": "x", "action_high": 1.0}, "must be a finite number"),
        ({"action_low": float("nan"), "action_high": 1.0}, "must be a finite number"),
        ({"action_low": 1.0, "action_high": 1.0}, "must be below"),
        ({"action_low": [0.0, 0.0], "action_high": 1.0}, "has 2 numbers"),
    ],
)
def test_a_range_that_is_none_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        bounds(log(np.zeros((200, 1))), **options)


@pytest.mark.parametrize(("low", "high"), [(0.0, None), (1, 0), ("[1", 2), ([0, 0], 1), (float("nan"), 1)])
def test_data_that_state_half_a_range_or_none_are_refused(low: Any, high: Any) -> None:
    with pytest.raises(DataError, match=r"action_low|action_high"):
        log(np.zeros((200, 1)), action_low=low, action_high=high)


def test_a_range_beside_a_simulator_is_refused_and_a_spec_s_other_one_told_of() -> None:
    data = small_dataset()
    found = Spec.of(data, -2, 2)
    plain = Plan(algorithm="bc", config={}, dataset="x", environment="Pendulum-v1")
    (told,) = _range_note(Spec.of(data, -1, 1), found, plain)
    assert "states actions from [-1.0] to [1.0], and Pendulum-v1 takes [-2.0] to [2.0]" in told
    assert _range_note(Spec.of(data), found, plain) == _range_note(found, found, plain) == []
    with pytest.raises(ConfigError, match=r"low has shape \(2,\); actions have 1 numbers"):
        Spec.of(data, [-1, -1], 1)
    plan = Plan(algorithm="bc", config={}, dataset="x", environment="Pendulum-v1", action_low=-1, action_high=1)
    with pytest.raises(ConfigError, match="leave them out"):
        inputs_of(plan, data, lambda event: None)


def test_an_agent_made_from_data_has_the_range_that_they_state() -> None:
    stated = log(np.zeros((200, 1)), action_low=0, action_high=100)
    assert (BC(stated).spec.action_low, BC(stated).spec.action_high) == ((0.0,), (100.0,))
    assert not BC(stated).environment_spec.range_assumed
    assert BC(log(np.zeros((200, 1)))).environment_spec.range_assumed
