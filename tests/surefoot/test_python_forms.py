"""What python is given: data are checked before anything is written, `env=` means one thing, habits are answered."""

from __future__ import annotations

import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest
from small_runs import small_dataset

import surefoot
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data import from_arrays
from surefoot.offline import BC
from surefoot.online import SAC
from surefoot.runs.run import IN_MEMORY
from surefoot.streaming import StreamTD

FAST: dict[str, Any] = {"steps": 2, "seeds": 1, "batch_size": 8, "progress": False}
NO_DATASET = "is no dataset: surefoot.data.load reads one from a path, surefoot.data.from_arrays makes one of arrays"


def arrays() -> dict[str, Any]:
    data = small_dataset()
    columns = {key: getattr(data, key) for key in ("observations", "actions", "rewards", "terminations", "truncations")}
    return columns | {"next_observations": data.next_observations}


@pytest.mark.usefixtures("in_process")
def test_bad_arrays_are_named_before_anything_is_written(tmp_path: pathlib.Path) -> None:
    data = small_dataset().replace(name="unnamed")
    observations = data.observations.copy()
    observations[3, 0] = np.nan
    odd = data.replace(observations=observations)
    for begin in (
        lambda: surefoot.fit(BC(odd), odd, env=None, out=tmp_path / "run", **FAST),
        lambda: surefoot.BC(odd, env="none"),
    ):
        with pytest.raises(DataError, match=r"^unnamed: 'observations' holds nan in row 3 and 1 values"):
            begin()
    for key, said in (
        ("rewards", "'rewards' is float64.*from_arrays converts"),
        ("actions", r"'actions' has shape \("),
    ):
        made = (
            data.replace(rewards=data.rewards.astype(float)) if key == "rewards" else data.replace(actions=data.rewards)
        )
        with pytest.raises(DataError, match=said):
            surefoot.fit(BC(made), made, env=None, out=tmp_path / "run", **FAST)
    assert not (tmp_path / "run").exists()
    surefoot.fit(BC(data, hidden=(8,)), data, env=None, out=tmp_path / "run", **FAST)


@pytest.mark.usefixtures("in_process")
def test_no_simulator_is_asked_for_in_words_and_never_silent(tmp_path: pathlib.Path) -> None:
    data = from_arrays(**arrays())
    with pytest.raises(ConfigError, match=r'arrays: does not say which environment.*env=ID.*env="none".*env=None'):
        surefoot.fit(BC(data), data, out=tmp_path / "run", **FAST)
    assert not (tmp_path / "run").exists()
    named = data.replace(env_id="native/pendulum")
    run = surefoot.fit(BC(named, hidden=(8,)), named, env="none", out=tmp_path / "run", **FAST)
    assert run.plan.environment is None
    assert run.plan.dataset == IN_MEMORY
    assert run.summary["returns"] is None


def test_habits_of_stable_baselines_are_answered_by_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"PPO\('Pendulum-v1'\).*hidden=\(64, 64\)"):
        surefoot.PPO("MlpPolicy", "Pendulum-v1")
    with pytest.raises(ConfigError, match=r"IQL\('data.hdf5'\)"):
        surefoot.IQL("MlpPolicy", "Pendulum-v1")
    env: Any = gymnasium.make("Pendulum-v1")
    assert surefoot.PPO(env).env == surefoot.PPO(env=env).env == "Pendulum-v1"
    assert surefoot.PPO(gymnasium.make("Pendulum-v1", g=3.0)).env == "here:PendulumEnv"
    with pytest.raises(ConfigError, match=r"an environment is an id, a class, .* not of type int"):
        surefoot.fit(SAC(surefoot.core.engine.agent.Spec(3, 1, (-2.0,), (2.0,))), env=3, **FAST)
    with pytest.raises(ConfigError, match="learns from nothing"):
        surefoot.PPO(env="none")


def test_what_is_no_dataset_is_refused_with_what_makes_one(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **arrays())
    held: Any = arrays()
    with np.load(path) as archive:
        for given in (held, archive):
            for begin in (surefoot.BC, BC, lambda given: surefoot.fit(BC(small_dataset()), given, **FAST)):
                with pytest.raises(ConfigError, match=NO_DATASET):
                    begin(given)
        assert len(from_arrays(**archive)) == 400
    text: Any = str(path)
    with pytest.raises(ConfigError, match=f"a.npz' {NO_DATASET}.*surefoot.IQL, take paths"):
        BC(text)
    with pytest.raises(ConfigError, match=f"a.npz' {NO_DATASET}"):
        surefoot.fit(BC(small_dataset()), text, **FAST)
    with pytest.raises(ConfigError, match="'Pendulum-v1' is no dataset"):
        StreamTD("Pendulum-v1")  # type: ignore[arg-type]
    assert len(surefoot.BC(path, env="none").dataset) == 400


def test_a_model_is_not_trained_by_fit() -> None:
    data = small_dataset()
    with pytest.raises(ConfigError, match=r"such as surefoot.offline.IQL\(dataset\), and not of type BC; .*learn\(\)"):
        surefoot.fit(surefoot.BC(data), data, **FAST)
