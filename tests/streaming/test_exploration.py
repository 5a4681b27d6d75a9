"""Exploration noise: what a seed means, and that no step draws much of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from surefoot.core.base.counter import CounterGenerator
from surefoot.streaming import exploration
from surefoot.streaming.exploration import BLOCK, CPU, ExplorationNoise


@pytest.mark.parametrize("uniform", [False, True])
def test_numbers_are_those_of_one_generator_for_each_seed_and_block(uniform: bool) -> None:
    seeds, draws, width, blocks = (3, 8, 20), 2, 5, 3
    size = (BLOCK, draws, width)
    expected = np.stack(
        [
            np.concatenate(
                [
                    (source.random(size, np.float32) if uniform else source.standard_normal(size))[0].numpy()
                    for source in (CounterGenerator([seed], "exploration", block, CPU) for block in range(blocks))
                ]
            )
            for seed in seeds
        ],
        2,
    )
    in_order = ExplorationNoise(seeds, draws, width, uniform)
    for step in range(blocks * BLOCK):
        for draw in range(draws):
            np.testing.assert_array_equal(in_order.at(step, draw), expected[step, draw])
    jumping = ExplorationNoise(seeds, draws, width, uniform)
    for step in (5, 2 * BLOCK + 7, 2 * BLOCK + 120, 30, BLOCK, BLOCK - 1, 2 * BLOCK):
        np.testing.assert_array_equal(jumping.at(step), expected[step, 0])


@pytest.mark.parametrize(("streams", "most"), [(1, 1), (3, 1), (64, 4)])
def test_no_step_draws_more_than_its_share(streams: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    numbers = ExplorationNoise._numbers
    source = ExplorationNoise(range(streams), 1, 6, False)
    monkeypatch.setattr(
        ExplorationNoise, "_numbers", lambda self, *arguments: drawn.append(0) or numbers(self, *arguments)
    )
    for step in range(3 * BLOCK):
        before = len(drawn)
        source.at(step)
        assert len(drawn) - before <= most  # pieces of 16 steps of one stream
    assert len(drawn) >= 3 * streams * (BLOCK // exploration.PIECE) - most
