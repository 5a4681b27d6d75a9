"""Runs whose first episodes start from snapshots: of a file, of a run, of data; resumed, refused."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused

from surefoot.cli.main import main
from surefoot.core.base.errors import CheckpointError, EnvironmentMismatchError, SurefootError
from surefoot.data import save
from surefoot.envs.acting import Acting
from surefoot.envs.snapshots import Snapshots, SnapshotStarts
from surefoot.envs.training import make_training
from surefoot.runs import starts
from surefoot.runs.embedded import generate
from surefoot.runs.extend import extend
from surefoot.runs.plan import Plan
from surefoot.runs.run import Run
from surefoot.runs.start import train

pytestmark = pytest.mark.usefixtures("in_process")

ACTING: dict[str, dict[str, Any]] = {
    "sac": {"initial_steps": 20, "num_envs": 2, "hidden": [8, 8]},
    "ppo": {"num_envs": 2, "horizon": 10, "minibatches": 2, "epochs": 1, "schedule": "constant", "hidden": [8, 8]},
    "stream_ac": {"hidden": [8, 8]},
}


def plan(steps: int, algorithm: str = "sac", **changes: Any) -> Plan:
    given: dict[str, Any] = {
        "seeds": (3,),
        "batch_size": 8,
        "episodes": 2,
        "evaluate_every": 20,
        "evaluate_episodes": 1,
    }
    given |= {"config": ACTING[algorithm], "environment": "native/pendulum", **changes}
    return Plan(algorithm=algorithm, steps=steps, **given)


def bits(run: Run) -> dict[str, Any]:
    return {name: value.tolist() for name, value in run.policy().state_dict().items()}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("snapshots") / "s.npz"
    angles = np.linspace(-1, 1, 12)
    Snapshots({"state": np.stack([angles, np.zeros(12)], 1)}, angles, "native/pendulum").save(path)
    return path


@pytest.mark.parametrize("algorithm", ACTING)
def test_an_interrupted_phase_goes_on_to_the_same_numbers(
    algorithm: str, file: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    given: dict[str, Any] = {"algorithm": algorithm, "starts": str(file), "starts_until": 60, "starts_truncate": 7}
    whole = train(plan(80, **given), tmp_path / "whole")
    begun = train(plan(40, **given), tmp_path / "begun")
    longer = extend(begun.folder, 80)
    assert bits(longer) == bits(whole)
    assert longer.summary["returns"] == whole.summary["returns"]
    plain = train(plan(80, algorithm), tmp_path / "plain")
    assert bits(plain) != bits(whole)
    notes = json.loads((whole.folder / "config.json").read_text())["notes"]
    assert any("episodes of the first 60 steps start from 12 snapshots in 6 clusters" in note for note in notes)


CURRICULA: dict[str, dict[str, Any]] = {
    "sac": {"vary": "mass=0.5:2,gravity=5:12", "curriculum": "progress", "vary_cells": 2},
    "ppo": {"vary": "mass=0.5:2", "curriculum": "improvement"},
}


@pytest.mark.parametrize("algorithm", CURRICULA)
def test_a_curriculum_goes_on_to_the_same_numbers(algorithm: str, tmp_path: pathlib.Path) -> None:
    given: dict[str, Any] = {"algorithm": algorithm, **CURRICULA[algorithm]}
    given["environment"] = "native/pendulum?max_episode_steps=9"
    whole = train(plan(80, **given), tmp_path / "whole")
    longer = extend(train(plan(40, **given), tmp_path / "begun").folder, 80)
    assert bits(longer) == bits(whole)
    results = [json.loads((run.folder / "seeds" / "3" / "result.json").read_text())["tasks"] for run in (whole, longer)]
    assert results[0] == results[1]
    assert results[0]["curriculum"] == CURRICULA[algorithm]["curriculum"]
    assert len(results[0]["shares"]) == 4
    assert sum(results[0]["episodes"]) == 8  # of 9 steps, in two environments of 40


def test_the_file_may_be_gone_when_a_run_goes_on(file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    own = tmp_path / "own.npz"
    own.write_bytes(file.read_bytes())
    begun = train(plan(40, starts=str(own)), tmp_path / "run")
    own.unlink()
    assert extend(begun.folder, 60).summary["steps"] == 60
    (begun.folder / starts.FILE).unlink()
    with pytest.raises(CheckpointError, match="there is no such file"):
        extend(begun.folder, 80)


def test_a_state_that_is_not_saved_keeps_the_place_in_the_phase(file: pathlib.Path) -> None:
    def made() -> Acting:
        env = make_training("Pendulum-v1", 1)  # gymnasium's own class, of which nothing can be saved
        starting = SnapshotStarts(env, Snapshots.load(file), until=50, truncate=10)
        acting = Acting(starting, [0], (torch.tensor([-2.0]), torch.tensor([2.0])), torch.device("cpu"))
        acting.begin(0)
        return acting

    first, second = made(), made()
    for _ in range(30):
        first.env.step(np.zeros((1, 1)))
    lost = second.restore_environment([first.environment_state(0, 1)])
    assert lost is not None
    assert "the state of GymnasiumVectorEnv can't be restored" in lost
    assert second.env.taken.tolist() == [30]


def test_a_run_and_its_data_are_starts_too(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    teacher = train(plan(40), tmp_path / "teacher")
    assert main(["snapshots", str(teacher.folder), "-o", str(tmp_path / "s.npz"), "--episodes", "2", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["snapshots"], facts["value"]) == (40, "critic")
    found = Snapshots.load(tmp_path / "s.npz")
    run, agent = Run.open(teacher.folder), starts.load_agent(Run.open(teacher.folder))
    seen = torch.from_numpy(np.stack([np.cos(found.states["state"][:, 0]), np.sin(found.states["state"][:, 0]),
                                      found.states["state"][:, 1]], 1)).float()  # fmt: skip
    actions = run.policy()(seen) / agent.action_high
    wanted = agent.critic(torch.cat([agent.normalizer(seen), actions], -1)).amin(0)
    assert np.allclose(found.values, wanted.detach().numpy(), atol=1e-3)
    assert train(plan(40, starts=str(teacher.folder)), tmp_path / "student").complete
    recorded = generate("native/pendulum-mixed", 0, 400)
    save(recorded, tmp_path / "log.hdf5")
    assert train(plan(40, starts=str(tmp_path / "log.hdf5")), tmp_path / "of-data").complete
    held = Snapshots.load(tmp_path / "of-data" / starts.FILE)
    assert np.allclose(np.cos(held.states["state"][:, 0]), recorded.observations[::10, 0], atol=1e-5)


def test_states_of_a_recording_are_its_columns() -> None:
    recorded = generate("native/pendulum-mixed", 0, 400)
    extras = {"qpos": np.arange(800.0).reshape(400, 2), "qvel": np.zeros((400, 2))}
    found = starts.of_dataset(recorded.replace(extras=extras), "AnyOther-v0", every=50)
    assert found.states["qpos"][:, 0].tolist() == [100.0 * k for k in range(8)]
    ahead = recorded.rewards[:200].astype(np.float64) * 0.99 ** np.arange(200)
    assert found.values[0] == pytest.approx(ahead.sum(), rel=1e-9)
    with pytest.raises(EnvironmentMismatchError, match="holds no simulator states"):
        starts.of_dataset(recorded, "AnyOther-v0")


def test_what_does_not_go_together_is_refused_before_a_folder_is_made(
    file: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with refused("starts_until", "conflict"):
        plan(40, starts_until=50)
    with refused("curriculum", "conflict"):
        plan(40, curriculum="progress")
    with refused("curriculum", "conflict"):
        plan(40, curriculum="progress", starts="s.npz", vary="mass=0.5:2")
    with refused("vary_cells", "conflict"):
        plan(40, vary_cells=2)
    with refused("vary", "conflict"):
        train(plan(40, vary="mass=0.5:2", environment="Pendulum-v1"), tmp_path / "run")
    with pytest.raises(SurefootError, match="did you mean 'mass'"):
        train(plan(40, vary="mas=0.5:2"), tmp_path / "run")
    with refused("collectors", "conflict"):
        train(plan(40, starts=str(file), collectors="processes", workers=2), tmp_path / "run")
    with pytest.raises(SurefootError, match="PendulumPixels-v0: its simulator's state can't be set"):
        train(plan(40, starts=str(file), environment="native/pendulum-pixels"), tmp_path / "run")
    with pytest.raises(EnvironmentMismatchError, match="needs 'state' of 4"):
        train(plan(40, starts=str(file), environment="native/cartpole-swingup"), tmp_path / "run")
    with pytest.raises(SurefootError, match="no such file; `surefoot snapshots` makes some"):
        train(plan(40, starts=str(tmp_path / "none.npz")), tmp_path / "run")
    offline = Plan(algorithm="bc", config={}, dataset="native/pendulum-mixed", environment="native/pendulum",
                   starts=str(file), steps=10)  # fmt: skip
    with refused("starts", "conflict"):
        train(offline, tmp_path / "run", dataset=generate("native/pendulum-mixed", 0, 400))
    assert not (tmp_path / "run").exists()
