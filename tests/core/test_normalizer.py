"""Normalisers against numpy's statistics of all the data at once."""

from __future__ import annotations

import numpy as np
import torch

from surefoot.core.nn.normalizer import Normalizer, RunningMoments


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


def test_running_moments_equal_those_of_all_batches_together() -> None:
    batches = [torch.randn(1, size, 4) * 3 + torch.arange(4) * 100 for size in (1, 7, 0, 400, 2)]
    moments = RunningMoments(1, 4)
    for batch in batches:
        moments.update(batch)
    everything = torch.cat(batches, 1)[0].double().numpy()
    np.testing.assert_allclose(moments.mean[0].numpy(), everything.mean(0), rtol=1e-6)
    np.testing.assert_allclose(moments.scale()[0].numpy(), np.sqrt(everything.var(0) + 1e-8), rtol=1e-5)
    assert moments.count.item() == 410


def test_running_moments_do_not_depend_on_how_the_stream_is_cut() -> None:
    values = torch.randn(1, 300, 2)
    one, many = RunningMoments(1, 2), RunningMoments(1, 2)
    one.update(values)
    for row in values.split(1, 1):
        many.update(row)
    torch.testing.assert_close(one.mean, many.mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(one.scale(), many.scale(), rtol=1e-6, atol=1e-7)


def test_running_moments_are_saved_and_continue() -> None:
    first, second = torch.randn(1, 50, 2), torch.randn(1, 30, 2)
    whole, before, after = RunningMoments(1, 2), RunningMoments(1, 2), RunningMoments(1, 2)
    whole.update(first)
    whole.update(second)
    before.update(first)
    after.restore(0, before.state(0))
    after.update(second)
    assert torch.equal(whole.scale(), after.scale())
    assert torch.equal(whole.mean, after.mean)
