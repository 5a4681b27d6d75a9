"""Random numbers by counting: those of the headers, and random."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from surefoot import cuda_ext
from surefoot.cuda_ext import twin
from surefoot.cuda_ext.rollout import rollout
from surefoot.envs.systems import system

needs_native = pytest.mark.skipif(cuda_ext.native() is None, reason=cuda_ext.why_not_native())


def mix_of_integers(x: int) -> int:
    """The hash in plain python integers, written from native/random.h's formula."""
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ (x >> 16)


def test_the_hash_on_tensors_is_that_on_integers_and_a_bijection() -> None:
    values = [0, 1, 2, 0xFFFFFFFF, 0x80000000, 123456789]
    assert twin.mix(torch.tensor(values)).tolist() == [mix_of_integers(v) for v in values]
    assert len(torch.unique(twin.mix(torch.arange(100_000)))) == 100_000


def test_a_draw_is_the_documented_function_of_seed_episode_step_and_index() -> None:
    seed, episode, step, stream, index = 77, 5, 12, 3, 2
    key = mix_of_integers((mix_of_integers(seed ^ (stream * 0x9E3779B9 % 2**32)) + episode * 0x85EBCA6B) % 2**32)
    expected = (mix_of_integers((key + (step * 64 + index) * 0x9E3779B9) % 2**32) >> 8) / 2**24
    keys = twin.episode_key(torch.tensor([seed]), torch.tensor([episode]), stream)
    assert float(twin.uniform(keys, step, 3, torch.float64)[0, index]) == expected


@needs_native
def test_native_uniform_draws_are_the_twins_bit_for_bit() -> None:
    s = system("pendulum")
    native = rollout(s, random=True, num_envs=100, horizon=9, max_steps=4, episodes="many", record=("actions",))
    other = rollout(
        s, random=True, num_envs=100, horizon=9, max_steps=4, episodes="many", record=("actions",), backend="twin"
    )
    assert torch.equal(native.records["actions"], other.records["actions"])  # -2 + 4 u is exact enough to compare


def test_normal_draws_have_the_normal_distribution_and_do_not_follow_each_other() -> None:
    seeds = twin.environment_seeds(3, 20_000)
    keys = twin.episode_key(seeds, torch.zeros_like(seeds), twin.PROCESS)
    draws = torch.cat([twin.normal(keys, step, 3, torch.float64) for step in range(2)], 1)
    for column in draws.T:
        assert scipy.stats.kstest(column.numpy(), "norm").pvalue > 1e-3
    correlation = torch.corrcoef(draws.T) - torch.eye(6)
    assert float(correlation.abs().max()) < 0.03  # four standard errors


@pytest.mark.parametrize("pair", [(0, 1), (0, 2), (1, 3)])
def test_pairs_of_draws_fill_the_square_evenly(pair: tuple[int, int]) -> None:
    seeds = twin.environment_seeds(11, 4_000_000)
    draws = twin.uniform(twin.episode_key(seeds, torch.zeros_like(seeds), twin.RESET), 0, 4, torch.float32)
    cells = (draws[:, pair[0]] * 64).long() * 64 + (draws[:, pair[1]] * 64).long()
    assert scipy.stats.chisquare(torch.bincount(cells, minlength=4096).numpy()).pvalue > 1e-4


def test_seeds_of_environments_differ_and_depend_on_all_of_the_base_seed() -> None:
    for base in (0, 1, 2**40, -3):
        assert len(torch.unique(twin.environment_seeds(base, 50_000))) == 50_000
    assert not torch.equal(twin.environment_seeds(0, 5), twin.environment_seeds(2**40, 5))
    assert torch.equal(twin.environment_seeds(7, 5), twin.environment_seeds(7, 9)[:5])
    by_hand = [mix_of_integers((mix_of_integers(7) + environment) % 2**32) for environment in range(5)]
    assert twin.environment_seeds(7, 5).tolist() == by_hand


@needs_native
def test_episodes_and_environments_begin_differently() -> None:
    result = rollout(
        system("pendulum"), random=True, num_envs=64, horizon=6, max_steps=2, episodes="many", record=("observations",)
    )
    first = result.records["observations"][::2, :, 2].flatten()
    assert len(torch.unique(first)) == 3 * 64


def test_a_numpy_number_is_a_base_seed_too() -> None:
    s = system("pendulum")
    one, other = (rollout(s, random=True, num_envs=3, horizon=5, seeds=seed) for seed in (3, np.int64(3)))
    assert torch.equal(one.returns, other.returns)
