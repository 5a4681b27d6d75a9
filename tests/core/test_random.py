"""Counter-based streams: a number depends on (seed, purpose, block) and on nothing else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from surefoot.core.base.counter import CounterGenerator
from surefoot.core.base.random import STEPS_PER_BLOCK, Noise, Stream, generator
from surefoot.core.engine.sources import Uniform

NOISES = {"smooth": Noise("normal", 3), "where": Noise("uniform", 1), "mask": Noise("keep", 4, keep=0.75)}


def stream(seeds: list[int], rows: int = 6) -> Stream:
    return Stream(seeds, rows, NOISES, torch.device("cpu"), torch.float32)


def drawn(seeds: list[int], rows: int = 6, population: int = 1000) -> Uniform:
    source = Uniform(lambda indices: {}, population)
    source.bind(seeds, rows, torch.device("cpu"))
    return source


def counter(purpose: str) -> CounterGenerator:
    return CounterGenerator([0], purpose, 0, torch.device("cpu"))


def test_equal_seed_purpose_and_block_give_equal_numbers() -> None:
    first, again = generator(3, "batch", 7), generator(3, "batch", 7)
    np.testing.assert_array_equal(first.random(100), again.random(100))


def test_another_seed_purpose_or_block_gives_unrelated_numbers() -> None:
    keys = [(3, "batch", 7), (4, "batch", 7), (3, "noise", 7), (3, "batch", 8), (2**63 + 1, "batch", 7)]
    drawn = [generator(*key).random(20_000) for key in keys]
    for one, other in itertools.combinations(drawn, 2):
        assert not np.intersect1d(one, other).size
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(20_000)


def test_neighbouring_blocks_do_not_overlap_even_after_many_draws() -> None:
    long = generator(0, "batch", 0).random(100_000)
    assert not np.isin(generator(0, "batch", 1).random(100), long).any()


def test_a_seed_draws_the_same_beside_others_as_alone() -> None:
    seeds = [5, 9, 2]
    for step in (0, 1, STEPS_PER_BLOCK - 1, STEPS_PER_BLOCK, 5 * STEPS_PER_BLOCK + 3):
        indices, own = drawn(seeds).rows(step), drawn([9]).rows(step)
        noise, own_noise = stream(seeds).at(step), stream([9]).at(step)
        assert indices.shape == (3, 6)
        assert torch.equal(indices[1], own[0])
        assert not torch.equal(indices[0], indices[1])
        for name, value in noise.items():
            assert value.shape == (3, 6, NOISES[name].width)
            assert torch.equal(value[1], own_noise[name][0])


def test_steps_can_be_asked_for_in_any_order() -> None:
    forward, jumping = drawn([1]), drawn([1])
    in_order = {step: forward.rows(step).clone() for step in range(2 * STEPS_PER_BLOCK + 2)}
    for step in (2 * STEPS_PER_BLOCK + 1, 0, STEPS_PER_BLOCK, STEPS_PER_BLOCK - 1):
        assert torch.equal(jumping.rows(step), in_order[step])


def test_no_step_repeats_another_across_block_boundaries() -> None:
    source = drawn([1], population=10**9)
    seen = torch.cat([source.rows(step).reshape(1, -1) for step in range(3 * STEPS_PER_BLOCK)])
    assert len(torch.unique(seen, dim=0)) == 3 * STEPS_PER_BLOCK


def test_indices_cover_the_population_evenly() -> None:
    source = drawn([0], rows=64, population=8)
    counts = torch.bincount(torch.cat([source.rows(s).reshape(-1) for s in range(200)]), minlength=8)
    expected = 200 * 64 / 8
    assert counts.sum() == 200 * 64
    assert ((counts - expected).abs() < 5 * expected**0.5).all()


def test_noise_of_each_kind_has_its_moments() -> None:
    normal = Noise("normal", 4).draw(counter("n"), (5000,))
    assert normal.dtype == torch.float32
    assert abs(normal.mean()) < 5 / np.sqrt(20_000)
    assert float(normal.std()) == pytest.approx(1, abs=0.03)
    uniform = Noise("uniform", 4).draw(counter("u"), (5000,))
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert float(uniform.mean()) == pytest.approx(0.5, abs=0.012)


def test_keep_masks_are_zero_or_one_over_the_probability() -> None:
    mask = Noise("keep", 4, keep=0.75).draw(counter("m"), (5000,))
    assert set(mask.unique().tolist()) == {0.0, float(np.float32(1) / np.float32(0.75))}
    assert float(mask.mean()) == pytest.approx(1, abs=0.02)
    assert float((mask > 0).double().mean()) == pytest.approx(0.75, abs=0.016)
