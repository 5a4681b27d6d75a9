"""One gather gives back exactly the rows that were packed, aligned and in the declared layout."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

from surefoot.core.base.errors import DataError, DeviceError
from surefoot.data import store as store_module
from surefoot.data.dataset import Dataset
from surefoot.data.store import PACKED, Store, segment_ids, store_from_dataset


def columns(rows: int = 37, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "rewards": rng.standard_normal(rows).astype(np.float32),
        "actions": rng.standard_normal((rows, 3)).astype(np.float32),
        "terminations": rng.random(rows) < 0.3,
        "next_observations": rng.standard_normal((rows, 11)).astype(np.float32),
        "observations": rng.standard_normal((rows, 11)).astype(np.float32),
        "plans": rng.standard_normal((rows, 2, 4)),
        "images": rng.integers(0, 256, (rows, 3, 5, 5), dtype=np.uint8),
        "goal_ids": rng.integers(0, 2**40, rows),
    }


def small_dataset() -> Dataset:
    rng = np.random.default_rng(1)
    return Dataset(
        observations=rng.standard_normal((6, 2)).astype(np.float32),
        actions=rng.standard_normal((6, 1)).astype(np.float32),
        rewards=np.arange(6, dtype=np.float32),
        next_observations=rng.standard_normal((6, 2)).astype(np.float32),
        terminations=np.array([0, 0, 0, 0, 0, 1], bool),
        truncations=np.array([0, 0, 1, 0, 0, 0], bool),
        episode_ids=np.array([0, 0, 0, 1, 1, 1]),
        valid=np.array([1, 1, 0, 1, 1, 1], bool),
        name="small",
        extras={"returns_to_go": np.arange(6, dtype=np.float32) * 10},
    )


def test_a_gather_gives_back_the_packed_values_of_every_dtype() -> None:
    data = columns()
    batch = Store.pack(data).gather(torch.tensor([5, 0, 36, 5]))
    rows = [5, 0, 36, 5]
    for key in ("rewards", "actions", "observations", "next_observations", "images", "goal_ids"):
        np.testing.assert_array_equal(batch[key].numpy(), data[key][rows])
        assert batch[key].numpy().dtype == data[key].dtype
    np.testing.assert_array_equal(batch["terminations"].numpy(), data["terminations"][rows].astype(np.float32))
    np.testing.assert_array_equal(batch["plans"].numpy(), data["plans"][rows].astype(np.float32))
    assert batch["rewards"].shape == (4,)
    assert batch["plans"].shape == (4, 2, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_aligned_to_cache_lines(dtype: torch.dtype) -> None:
    rows = Store.pack(columns(), dtype=dtype).groups[PACKED]
    assert rows.dtype == dtype
    assert rows.data_ptr() % 64 == 0
    assert rows.stride(0) * rows.element_size() % 64 == 0
    assert rows.stride(0) >= 11 + 3 + 11 + 1 + 1 + 8


def test_observation_and_action_are_one_contiguous_slice_without_a_copy() -> None:
    data = columns()
    batch = Store.pack(data).gather(torch.arange(7))
    both = batch["observation_actions"]
    np.testing.assert_array_equal(both.numpy(), np.concatenate([data["observations"], data["actions"]], 1)[:7])
    assert both.stride(1) == 1
    assert both.data_ptr() == batch["observations"].data_ptr()
    assert batch["actions"].data_ptr() == both.data_ptr() + 11 * 4
    without_actions = Store.pack({"observations": data["observations"]})
    assert "observation_actions" not in without_actions.keys


def test_leading_dimensions_of_the_indices_are_kept() -> None:
    data = columns()
    indices = torch.randint(37, (4, 9), generator=torch.Generator().manual_seed(0))
    batch = Store.pack(data).gather(indices)
    assert batch["rewards"].shape == (4, 9)
    np.testing.assert_array_equal(batch["observations"].numpy(), data["observations"][indices.numpy()])
    np.testing.assert_array_equal(batch["images"].numpy(), data["images"][indices.numpy()])
    np.testing.assert_array_equal(batch["plans"].numpy(), data["plans"][indices.numpy()].astype(np.float32))


@pytest.mark.parametrize("shape", [(8,), (3, 5)])
def test_a_workspace_is_filled_in_place_with_the_same_batch(shape: tuple[int, ...]) -> None:
    store = Store.pack(columns())
    workspace = store.workspace(shape)
    pointer = workspace.batch["observations"].data_ptr()
    for seed in range(2):
        indices = torch.randint(37, shape, generator=torch.Generator().manual_seed(seed))
        batch, expected = store.gather(indices, out=workspace), store.gather(indices)
        assert batch.keys() == expected.keys()
        for key, value in expected.items():
            assert torch.equal(batch[key], value), key
        assert batch["observations"].data_ptr() == pointer
    with pytest.raises(DataError, match="make another"):
        store.gather(torch.zeros(2, dtype=torch.int64), out=workspace)


def test_float64_rows_hold_float64_values_exactly() -> None:
    data = {"rewards": np.array([0.1, 1 / 3])}
    assert Store.pack(data, dtype=torch.float64).gather(torch.tensor([1]))["rewards"].item() == 1 / 3
    assert Store.pack(data).gather(torch.tensor([1]))["rewards"].item() == float(np.float32(1 / 3))


def test_torch_columns_and_read_only_or_big_endian_arrays_are_packed() -> None:
    frozen = np.arange(4.0).astype(">f4")
    frozen.setflags(write=False)
    store = Store.pack({"a": frozen, "b": torch.arange(8.0).reshape(4, 2).T.reshape(4, 2)})
    assert store["a"].tolist() == [0, 1, 2, 3]
    assert store["b"].tolist() == [[0, 2], [4, 6], [1, 3], [5, 7]]


def test_length_keys_bytes_and_device_are_told() -> None:
    store = Store.pack({"observations": np.zeros((10, 3), np.float32), "ids": np.zeros(10, np.int64)})
    assert len(store) == 10
    assert store.keys == ("observations", "ids")
    assert store.nbytes == 10 * 64 + 10 * 8
    assert store.device == torch.device("cpu")


def test_a_dataset_gives_its_declared_keys_on_its_valid_rows() -> None:
    dataset = small_dataset()
    keys = ["observations", "actions", "rewards", "terminations", "next_observations", "returns_to_go"]
    store = store_from_dataset(dataset, keys)
    assert len(store) == 5
    assert store["rewards"].tolist() == [0, 1, 3, 4, 5]
    assert store["returns_to_go"].tolist() == [0, 10, 30, 40, 50]
    assert store["terminations"].tolist() == [0, 0, 0, 0, 1]
    np.testing.assert_array_equal(store["observations"].numpy(), dataset.observations[dataset.valid])
    assert set(store.keys) == {*keys, "observation_actions"}


def test_a_left_out_row_ends_a_segment() -> None:
    dataset = small_dataset()
    assert segment_ids(dataset).tolist() == [0, 0, 1, 1, 1]
    holed = dataset.replace(valid=np.array([1, 0, 1, 1, 1, 0], bool))
    assert segment_ids(holed).tolist() == [0, 1, 2, 2]


def test_a_missing_key_names_key_dataset_and_what_is_there() -> None:
    with pytest.raises(DataError, match=r"small: has no 'costs'.*observations.*returns_to_go"):
        store_from_dataset(small_dataset(), ["observations", "costs"])
    with pytest.raises(DataError, match="did you mean 'rewards'"):
        store_from_dataset(small_dataset(), ["reward"])
    with pytest.raises(DataError, match="no row is valid"):
        store_from_dataset(small_dataset().replace(valid=np.zeros(6, bool)), ["rewards"])
    with pytest.raises(DataError, match="no column 'cost'"):
        Store.pack({"costs": np.zeros(2)})["cost"]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({}, "at least one column"),
        ({"a": np.zeros(0)}, "no rows"),
        ({"a": np.zeros(3), "b": np.zeros(4)}, "same number of rows.*'b': 4"),
        ({"a": np.array(["x"])}, "'a' has dtype"),
        ({"a": np.zeros(2, complex)}, "'a' has dtype"),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, "'a' has dtype"),
        ({"a": np.float32(1.0).reshape(())}, "single number"),
        ({"a": np.array([[0.0, 1.0], [1.0, 1e300]])}, "'a', row 1.*too large"),
        ({"observation_actions": np.zeros(2)}, "rename"),
        ({"rows": np.zeros(2, np.int64)}, "rename"),
    ],
)
def test_columns_that_cannot_be_packed_are_refused(bad: dict[str, np.ndarray], said: str) -> None:
    with pytest.raises(DataError, match=said):
        Store.pack(bad)


def test_a_store_larger_than_the_device_says_how_large(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = types.SimpleNamespace(available=2**20)
    monkeypatch.setattr(store_module.psutil, "virtual_memory", lambda: memory)
    with pytest.raises(DataError, match=r"32,768 rows takes 0\.002 GiB, and .cpu. has 0\.001 GiB free"):
        Store.pack({"observations": np.zeros((32768, 3), np.float32)})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_an_absent_gpu_is_a_device_error() -> None:
    with pytest.raises(DeviceError, match="'cuda' was asked for"):
        Store.pack({"a": np.zeros(3)}, device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_store_equals_the_cpu_store() -> None:
    indices = torch.randint(37, (4, 9), generator=torch.Generator().manual_seed(0))
    here, there = Store.pack(columns()), Store.pack(columns(), device="cuda")
    assert there.groups[PACKED].data_ptr() % 64 == 0
    batch = there.gather(indices.cuda(), out=there.workspace((4, 9)))
    for key, value in here.gather(indices).items():
        assert torch.equal(batch[key].cpu(), value), key
