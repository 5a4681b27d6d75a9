"""Images and several named arrays in datasets: files, checks, stores, normalising, and agents that learn from them."""

from __future__ import annotations

import pathlib
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.spec import Array
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.data import load, save
from surefoot.data.checks import validate
from surefoot.data.dataset import Dataset
from surefoot.data.report import info, verify
from surefoot.data.ring import RingBuffer
from surefoot.data.store import store_from_dataset
from surefoot.offline.bc import BC
from surefoot.offline.iql import IQL

ROWS = 30


def dataset(**changes: Any) -> Dataset:
    source = np.random.default_rng(0)
    ends = np.arange(1, ROWS + 1) % 10 == 0
    extras = {}
    for name in ("observations", "next_observations"):
        extras[f"{name}/camera"] = source.integers(0, 256, (ROWS, 24, 24, 3), dtype=np.uint8)
        extras[f"{name}/state"] = source.normal(2.0, 3.0, (ROWS, 2)).astype(np.float32)
    columns: dict[str, Any] = {
        "observations": np.zeros((ROWS, 0), np.float32),
        "actions": source.uniform(-1, 1, (ROWS, 1)).astype(np.float32),
        "rewards": source.normal(size=ROWS).astype(np.float32),
        "next_observations": np.zeros((ROWS, 0), np.float32),
        "terminations": np.zeros(ROWS, bool),
        "truncations": ends,
        "episode_ids": np.arange(ROWS) // 10,
        "valid": np.ones(ROWS, bool),
        "extras": extras,
        "name": "seen",
    }
    return Dataset(**{**columns, **changes})


@pytest.mark.parametrize("ending", [".hdf5", ".npz"])
def test_a_file_keeps_every_array_with_its_dtype(ending: str, tmp_path: pathlib.Path) -> None:
    given, path = dataset(), tmp_path / f"seen{ending}"
    save(given, path)
    found = load(path)
    assert set(found.extras) == set(given.extras)
    for key, value in given.extras.items():
        assert found.extras[key].dtype == value.dtype
        np.testing.assert_array_equal(found.extras[key], value)
    assert found.arrays == {"camera": Array((24, 24, 3), "uint8"), "state": Array((2,))}
    assert info(found)["observations"] == "camera (24, 24, 3) and state (2,)"
    assert verify(path).ok


def test_a_lone_image_of_another_program_is_read_under_the_key_image(tmp_path: pathlib.Path) -> None:
    given, path = dataset(), tmp_path / "foreign.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"] = given.extras["observations/camera"]
        file["next_observations"] = given.extras["next_observations/camera"]
        file["actions"], file["rewards"] = given.actions, given.rewards
        file["terminals"], file["timeouts"] = given.terminations, given.truncations
    assert load(path).arrays == {"image": Array((24, 24, 3), "uint8")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("next_observations/state"), "'next_observations/state' is missing"),
        (lambda a: a.update({"next_observations/camera": np.zeros((ROWS, 8, 8, 3), np.uint8)}), "they must agree"),
        (lambda a: a.update({"observations/state": np.full((ROWS, 2), np.nan, np.float32)}), "nan in row 0"),
        (lambda a: a.update({f"{n}/state": np.zeros((ROWS, 2, 2), np.float32) for n in NAMES}), "one size"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change: Any, message: str) -> None:
    extras = dict(dataset().extras)
    change(extras)
    with pytest.raises(DataError, match=message):
        validate(dataset(extras=extras))


NAMES = ("observations", "next_observations")


def test_an_observation_beside_named_arrays_is_refused() -> None:
    both = {name: np.zeros((ROWS, 1), np.float32) for name in NAMES}
    with pytest.raises(DataError, match="holds 'observations' beside"):
        validate(dataset(**both))


def test_formats_and_views_of_one_vector_refuse_images(tmp_path: pathlib.Path) -> None:
    with pytest.raises(DataError, match="a CSV file takes one observation vector, and this has camera, state"):
        save(dataset(), tmp_path / "seen.csv")
    save(dataset(), tmp_path / "seen.npz")
    with pytest.raises(ConfigError, match="use view='corrected' for images"):
        load(tmp_path / "seen.npz", view="d4rl")


def test_a_store_keeps_images_as_bytes_beside_the_rows() -> None:
    store = store_from_dataset(dataset(), ("observations", "actions", "next_observations"))
    assert store["observations/camera"].dtype == torch.uint8
    assert set(store.groups) == {"rows"}
    assert set(store.frames) == {"observations/camera", "next_observations/camera"}
    space = store.workspace(4)
    batch = store.gather(torch.tensor([3, 1, 1, 29]), space)
    assert torch.equal(batch["observations/camera"], store["observations/camera"][[3, 1, 1, 29]])
    assert batch["observations/camera"].shape == (4, 24, 24, 3)


def test_a_ring_buffer_keeps_images_as_bytes() -> None:
    ring = RingBuffer(4, {"observations/camera": (8, 8), "actions": (1,)}, dtypes={"observations/camera": torch.uint8})
    images = torch.randint(0, 256, (1, 8, 8), dtype=torch.uint8)
    ends = {"terminations": torch.zeros(1), "truncations": torch.zeros(1)}
    ring.add({"observations/camera": images, "actions": torch.zeros(1, 1), **ends})
    assert torch.equal(ring.gather(torch.tensor([0]))["observations/camera"], images)
    assert ring["observations/camera"].dtype == torch.uint8


def test_vectors_are_normalised_key_by_key_and_images_are_not() -> None:
    given = dataset()
    agent = BC(Spec.of(given), encoder="small")
    found = agent.prepare(given)
    state = found.extras["observations/state"]
    np.testing.assert_allclose(state.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(state.std(0), 1, atol=2e-3)
    np.testing.assert_array_equal(found.extras["observations/camera"], given.extras["observations/camera"])
    expected = given.extras["observations/state"].mean(0)
    np.testing.assert_allclose(agent.normalizer.mean.numpy(), expected, rtol=1e-5)


def test_the_order_of_a_datasets_arrays_does_not_matter_to_what_an_agent_learns() -> None:
    goals = np.linspace(100.0, 200.0, ROWS, dtype=np.float32)[:, None]
    given = dataset()
    extras = {**given.extras, "observations/goal": goals, "next_observations/goal": goals}
    turned = {key: extras[key] for key in reversed(extras)}  # as a file gives them that sorts names
    agent = BC(Spec.of(given.replace(extras=extras)), encoder="small")
    assert agent.spec.vector_keys == ("state", "goal")
    found = agent.prepare(given.replace(extras=turned))
    for key in agent.spec.vector_keys:
        np.testing.assert_allclose(found.extras[f"observations/{key}"].mean(0), 0, atol=1e-5)
    expected = [*extras["observations/state"].mean(0), 150.0]
    np.testing.assert_allclose(agent.normalizer.mean.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("kind", [BC, IQL])
def test_agents_learn_from_a_dataset_of_an_image_and_a_vector(kind: Any) -> None:
    given = dataset()
    agent = kind(Spec.of(given), encoder="small", hidden=(8,)).fresh(0)
    store = store_from_dataset(agent.prepare(given), agent.required_columns)
    before = agent.encoder.linear.weight.detach().clone()
    Learner([agent], [0], Uniform(store), batch_size=8, planned_steps=10).run(2)
    assert not torch.equal(agent.encoder.linear.weight, before)


def test_a_dataset_of_other_arrays_is_refused() -> None:
    agent = BC(Spec({"camera": Array((24, 24, 3), "uint8")}, 1, (-1.0,), (1.0,)), encoder="small")
    with pytest.raises(DataError, match=r"observations are camera \(24, 24, 3\) and state \(2,\) .* built for camera"):
        agent.prepare(dataset())


@pytest.mark.parametrize("suffix", [".hdf5", ".npz"])
def test_a_named_array_that_is_a_single_number_is_refused(tmp_path: pathlib.Path, suffix: str) -> None:
    arrays: dict[str, Any] = {"actions": np.zeros((3, 1)), "rewards": np.zeros(3), "terminals": np.zeros(3, bool)}
    arrays |= {"timeouts": np.zeros(3, bool), "observations/x": np.uint8(3), "next_observations/x": np.uint8(3)}
    path = tmp_path / f"a{suffix}"
    if suffix == ".npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for key, value in arrays.items():
                file[key] = value
    with pytest.raises(DataError, match=r"observations/x' is a single number; it must have a row for each step"):
        load(path)
