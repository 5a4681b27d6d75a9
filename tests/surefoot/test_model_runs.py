"""Runs that learn a model of the world alone: their report, and what starts from them."""

from __future__ import annotations

import json
import pathlib
import re

import gymnasium
import numpy as np
import pytest
import torch
from small_runs import small_dataset

from surefoot.api.fit import fit
from surefoot.cli import main
from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.envs import make_vec
from surefoot.envs.acting import spec_of
from surefoot.model_based import Dreamer, LearnedDynamics
from surefoot.offline import BC
from surefoot.runs.run import Run, load_agent
from surefoot.runs.warm_start import initialise_from

SMALL = {"model_members": 2, "model_elites": 1, "model_hidden": (8,), "model_decays": (), "model_rows": 16}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Twelve steps of a small model."""
    data = small_dataset()
    agent = LearnedDynamics(data, **SMALL)
    return fit(agent, data, env=None, steps=12, seeds=1, out=tmp_path_factory.mktemp("model") / "run", progress=False)


def test_a_model_alone_ends_with_its_calibration(run: Run, tmp_path: pathlib.Path) -> None:
    written = json.loads((run.folder / "model.json").read_text())
    assert len(written["models"]) == 1
    assert written["models"][0]["open_loop"]["constant"][0] > 0
    assert (run.folder / "model.png").stat().st_size > 1_000
    assert main(["report", str(run.folder), "-o", str(tmp_path / "report.html")]) == 0
    assert "nats a dimension" in (tmp_path / "report.html").read_text()
    model = load_agent(run).model_best
    assert bool(model.stopped)


def test_there_is_no_policy_and_nothing_to_evaluate_also_where_an_environment_is_named(
    run: Run, tmp_path: pathlib.Path
) -> None:
    assert not (run.folder / "policy").exists()
    with pytest.raises(CheckpointError, match="learns no policy"):
        run.policy()
    data, out = small_dataset(), tmp_path / "named"
    named = fit(LearnedDynamics(data, **SMALL), data, env="Pendulum-v1", steps=2, out=out, progress=False)
    assert (named.plan.environment, (out / "policy").exists()) == ("Pendulum-v1", False)
    assert (named.summary["returns"], named.summary["episodes"]) == (None, 0)


def test_what_has_a_model_starts_from_it_and_what_has_none_is_refused(run: Run) -> None:
    data = small_dataset()
    assert (run.spec.action_low, run.spec.environment) == ((-2.0,), data.env_id)  # the environment's bounds
    agent = LearnedDynamics(run.spec, **SMALL).fresh(5)
    assert initialise_from(agent, run, 0) == ["model", "model_best"]
    source = load_agent(run)
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in agent.state_dict().items())
    before = agent.model.input_mean.clone()
    agent.prepare(data.select_episodes(np.array([0])))
    assert torch.equal(agent.model.input_mean, before)  # statistics are the trained model's
    with pytest.raises(ConfigError, match="has no model"):
        initialise_from(BC(run.spec), run, 0)
    with pytest.raises(ConfigError, match="does not fit"):
        initialise_from(LearnedDynamics(run.spec, **{**SMALL, "model_hidden": (9,)}), run, 0)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("length", "said"), [(9, True), (4, False)])
def test_windows_that_no_episode_fills_are_noted_once(length: int, said: bool, tmp_path: pathlib.Path) -> None:
    env_id = f"ShortPendulum{length}-v0"
    gymnasium.register(env_id, lambda **_: gymnasium.make("Pendulum-v1", max_episode_steps=6))
    sizes = {"deterministic": 4, "blocks": 2, "recurrent_hidden": 4, "units": 4, "count": 1, "groups": 2, "classes": 2}
    agent = Dreamer(
        spec_of(make_vec(env_id, 1)), **sizes, length=length, windows=2, imagined=2, initial_steps=20,
        updates_per_step=0.02,
    )  # fmt: skip
    notes: list[str] = []
    fit(
        agent, None, env=env_id, steps=110, seeds=1, episodes=1, evaluate_episodes=1, out=tmp_path / "run",
        listener=lambda event: notes.append(str(event.get("text", ""))),
    )  # fmt: skip
    found = [text for text in notes if "longest episode" in text]
    assert len(found) == int(said), notes
    if said:
        assert re.search(r"^windows have 9 steps and the longest episode so far 6: .* set algo\.length to", found[0])
