"""Samplers are pure, never cross an episode, and give the proportions that they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data.samplers import Chain, Mixture, Uniform, Weighted, Windows, uniform_rows
from surefoot.data.store import Store

episode_lengths = st.lists(st.integers(1, 7), min_size=1, max_size=8)


def draws(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def ids_of(lengths: list[int]) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def test_uniform_rows_are_floor_of_u_times_n_and_stay_in_range() -> None:
    largest = math.nextafter(1.0, 0.0)
    uniform = torch.tensor([0.0, 0.19999, 0.2, 0.999, largest], dtype=torch.float64)
    assert Uniform(5)(uniform).tolist() == [0, 0, 1, 4, 4]
    assert uniform_rows(uniform, torch.tensor(3))[-1] == 2
    for length in (3, 2**20, 2**31 + 1, 10**9 + 7):
        assert uniform_rows(torch.tensor(largest, dtype=torch.float64), length) == length - 1


def test_uniform_rows_are_equally_likely() -> None:
    counts = torch.bincount(Uniform(20)(draws(200, 100)).reshape(-1), minlength=20).numpy()
    assert scipy.stats.chisquare(counts).pvalue > 0.01


def test_coarse_numbers_and_empty_stores_are_refused() -> None:
    with pytest.raises(DataError, match="float64"):
        uniform_rows(torch.rand(3), 10)
    with pytest.raises(DataError, match="no rows"):
        uniform_rows(draws(3), 0)


def test_weighted_frequencies_follow_the_weights_and_zero_weights_are_never_drawn() -> None:
    weights = torch.tensor([0.0, 3.0, 1.0, 0.0, 4.0, 0.0])
    counts = torch.bincount(Weighted(weights)(draws(50_000)), minlength=6).numpy()
    assert counts[[0, 3, 5]].tolist() == [0, 0, 0]
    expected = 50_000 * np.array([3, 1, 4]) / 8
    assert scipy.stats.chisquare(counts[[1, 2, 4]], expected).pvalue > 0.01


def test_weighted_rows_at_the_borders_of_the_cumulative_sum() -> None:
    sampler = Weighted(torch.tensor([0.0, 1.0, 1.0, 0.0]))
    uniform = torch.tensor([0.0, 0.4999, 0.5, math.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert sampler(uniform).tolist() == [1, 1, 2, 2]
    assert sampler(uniform.reshape(2, 2)).shape == (2, 2)
    assert sampler.probabilities.tolist() == [0, 0.5, 0.5, 0]


@pytest.mark.parametrize("weights", [[1.0, -1.0], [1.0, float("nan")], [0.0, 0.0], [[1.0]]])
def test_weights_that_are_no_probabilities_are_refused(weights: list[float]) -> None:
    with pytest.raises(DataError, match="weight"):
        Weighted(torch.tensor(weights))


@settings(max_examples=25, deadline=None)
@given(lengths=episode_lengths, window=st.integers(1, 9), padding=st.sampled_from(["left", "right"]))
def test_windows_never_cross_an_episode_and_masks_sum_to_lengths(lengths: list[int], window: int, padding: str) -> None:
    ids = ids_of(lengths)
    rows = torch.arange(len(ids))
    taken = Windows(window, padding)(rows, Chain.from_segments(ids))  # type: ignore[arg-type]
    assert torch.equal(ids[taken.rows], ids.unsqueeze(1).expand(-1, window))
    assert torch.equal(taken.mask.sum(1), taken.lengths)
    for row in rows.tolist():  # the definition, written out
        if padding == "right":
            real = [r for r in range(row, row + window) if r < len(ids) and ids[r] == ids[row]]
        else:
            real = [r for r in range(row - window + 1, row + 1) if r >= 0 and ids[r] == ids[row]]
        assert taken.rows[row][taken.mask[row]].tolist() == real
        assert taken.mask[row].tolist() == sorted(taken.mask[row].tolist(), reverse=padding == "right")


def test_windows_keep_leading_dimensions_and_pad_with_the_nearest_row() -> None:
    chain = Chain.from_segments(ids_of([3, 2]))
    right = Windows(4)(torch.tensor([[1], [4]]), chain)
    assert right.rows.tolist() == [[[1, 2, 2, 2]], [[4, 4, 4, 4]]]
    assert right.mask.tolist() == [[[True, True, False, False]], [[True, False, False, False]]]
    left = Windows(3, "left")(torch.tensor([1, 3]), chain)
    assert left.rows.tolist() == [[0, 0, 1], [3, 3, 3]]
    assert left.mask.tolist() == [[False, True, True], [False, False, True]]


def source(rows: int, number: int) -> Store:
    return Store.pack(
        {
            "observations": np.arange(rows)[:, None] + np.zeros((1, 2)),
            "actions": np.full((rows, 1), float(number)),
            "images": np.full((rows, 2), number, np.uint8),
        }
    )


@pytest.mark.parametrize(("fractions", "counts"), [([0.5, 0.5], [5, 5]), ([3, 1], [8, 2]), ([1, 2], [3, 7])])
def test_mixture_fractions_are_exact_in_every_batch(fractions: list[float], counts: list[int]) -> None:
    mixture = Mixture([source(4, 7), source(100, 9)], fractions)
    assert mixture.counts(10) == counts
    batch = mixture(draws(3, 10))
    for key, shape in {"observations": (3, 10, 2), "actions": (3, 10, 1), "images": (3, 10, 2)}.items():
        assert batch[key].shape == shape
    for seed in range(3):
        assert (batch["actions"][seed, :, 0] == 7).sum() == counts[0]
        assert (batch["images"][seed, :, 1] == 9).sum() == counts[1]
    assert batch["observations"][:, : counts[0]].max() <= 3
    assert batch["observations"].unique().numel() > 5


@given(shares=st.lists(st.floats(0.01, 100), min_size=1, max_size=5), size=st.integers(0, 300))
@settings(max_examples=25, deadline=None)
def test_mixture_counts_sum_to_the_batch_and_stay_within_one_of_the_share(shares: list[float], size: int) -> None:
    counts = Mixture([source(1, 1)] * len(shares), shares).counts(size)
    assert sum(counts) == size
    for count, share in zip(counts, shares):
        assert abs(count - size * share / sum(shares)) < 1 + 1e-6


def test_a_mixture_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 fractions for 2 stores"):
        Mixture([source(2, 1), source(2, 2)], [1.0])
    with pytest.raises(ConfigError, match="positive"):
        Mixture([source(2, 1), source(2, 2)], [1.0, 0.0])
    with pytest.raises(DataError, match=r"store 1 of the mixture.*observations"):
        Mixture([source(2, 1), Store.pack({"observations": np.zeros((2, 2))})], [1.0, 1.0])


def test_bad_lengths_and_paddings_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        Windows(0)
    with pytest.raises(ConfigError, match="'left' or 'right'"):
        Windows(3, "middle")  # type: ignore[arg-type]
