"""Normalisers against numpy's statistics of all the data at once."""

from __future__ import annotations

import numpy as np
import torch

from surefoot.core.nn.normalizer import Normalizer, RunningNormalizer


def test_an_unset_normaliser_is_the_identity() -> None:
    values = torch.randn(5, 3)
    assert torch.equal(Normalizer(3)(values), values)


def test_fit_takes_population_statistics_plus_epsilon() -> None:
    values = torch.tensor([[0.0, 10.0], [2.0, 10.0]])
    normalizer = Normalizer(2)
    normalizer.fit(values)
    torch.testing.assert_close(normalizer.mean, torch.tensor([1.0, 10.0]))
    torch.testing.assert_close(normalizer.scale, torch.tensor([1.001, 0.001]))
    torch.testing.assert_close(normalizer.inverse(normalizer(values)), values)


def test_fit_is_exact_for_large_offsets() -> None:
    values = torch.randn(10_000, 1) + 1000
    normalizer = Normalizer(1)
    normalizer.fit(values)
    exact = values.numpy().astype(np.float64)
    np.testing.assert_allclose(normalizer.scale.numpy(), exact.std(0) + 1e-3, rtol=1e-6)


def test_running_statistics_equal_those_of_all_batches_together() -> None:
    batches = [torch.randn(size, 4) * 3 + torch.arange(4) * 100 for size in (1, 7, 0, 400, 2)]
    normalizer = RunningNormalizer(4)
    for batch in batches:
        normalizer.update(batch)
    everything = torch.cat(batches).double().numpy()
    np.testing.assert_allclose(normalizer.mean.numpy(), everything.mean(0), rtol=1e-6)
    np.testing.assert_allclose(normalizer.scale.numpy(), np.sqrt(everything.var(0) + 1e-8), rtol=1e-5)
    assert normalizer.count.item() == 410


def test_running_statistics_do_not_depend_on_how_the_stream_is_cut() -> None:
    values = torch.randn(300, 2)
    one, many = RunningNormalizer(2), RunningNormalizer(2)
    one.update(values)
    for row in values.split(1):
        many.update(row)
    torch.testing.assert_close(one.mean, many.mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(one.scale, many.scale, rtol=1e-6, atol=1e-7)


def test_running_statistics_are_saved_and_continue() -> None:
    first, second = torch.randn(50, 2), torch.randn(30, 2)
    whole, before, after = RunningNormalizer(2), RunningNormalizer(2), RunningNormalizer(2)
    whole.update(first)
    whole.update(second)
    before.update(first)
    after.load_state_dict(before.state_dict())
    after.update(second)
    assert torch.equal(whole.scale, after.scale)
    assert torch.equal(whole.mean, after.mean)
