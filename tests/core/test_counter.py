"""Numbers drawn on a device: Philox's published words, distributions, and no copy from the host."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from surefoot.core.base import counter, dropout
from surefoot.core.base.counter import DeviceGenerator, keys_of, normal_at, philox
from surefoot.core.base.random import STEPS_PER_BLOCK, Noise, Stream, drawn, generator
from surefoot.core.engine.sources import Uniform

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.mark.parametrize(
    ("words", "seed", "expected"),
    [  # of Random123's known answers, philox 4x32, 10 rounds
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_words_are_philoxs(words: tuple[int, ...], seed: int, expected: tuple[int, ...]) -> None:
    found = philox((torch.tensor([words[0]]), *words[1:]), keys_of((seed,), CPU))
    assert tuple(int(word) for word in found) == expected


def device(seeds: list[int], purpose: str = "noise", block: int = 0) -> DeviceGenerator:
    return DeviceGenerator(seeds, purpose, block, CPU)


def test_a_seed_draws_the_same_beside_others_as_alone_and_calls_go_on() -> None:
    together, alone = device([5, 2**63 + 1, 2]), device([2**63 + 1])
    for size in ((3, 5), (7,)):
        assert torch.equal(together.random(size)[1], alone.random(size)[0])
        assert torch.equal(together.standard_normal(size)[1], alone.standard_normal(size)[0])
    again = device([5])
    first, second = again.random(8), again.random(8)
    assert not torch.equal(first, second)


def test_another_seed_purpose_or_block_gives_unrelated_words() -> None:
    keys = [([3], "batch", 7), ([4], "batch", 7), ([3], "noise", 7), ([3], "batch", 8), ([3 + 2**32], "batch", 7)]
    found = [device(*key).words(20_000)[0].double() for key in keys]
    for k, one in enumerate(found):
        for other in found[:k]:
            assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 5 / math.sqrt(20_000)


def test_normal_numbers_are_the_inverse_distribution_to_float32() -> None:
    words = torch.cat([torch.arange(0, 2**32, 65_537), torch.tensor([0, 1, 5, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1])])
    p = ((words & 0x7FFFFFFF).double() + 0.5) * 2.0**-32
    expected = torch.where(words > 0x7FFFFFFF, -1.0, 1.0) * torch.special.ndtri(p)
    torch.testing.assert_close(normal_at(words).double(), expected, rtol=2e-6, atol=2e-7)
    assert float(normal_at(torch.tensor([0]))) == pytest.approx(-6.338, abs=0.01)  # the inverse at 2^-33


def test_numbers_have_their_distributions() -> None:
    source, count = device([0, 1]), 200_000
    normal, uniform = source.standard_normal((count,)), source.random((count,))
    wide = source.random((count,), np.float32)
    exponential = source.standard_exponential((count,))
    assert normal.mean(1).abs().max() < 4 / math.sqrt(count)
    assert (normal.var(1) - 1).abs().max() < 5 * math.sqrt(2 / count)
    for values in (uniform, wide.double(), 1 - torch.exp(-exponential.double()), torch.special.ndtr(normal.double())):
        steps = (torch.arange(count) + 0.5) / count
        distance = (values.sort(1).values - steps).abs().max()  # Kolmogorov's
        assert distance < 1.95 / math.sqrt(count)
    assert uniform.dtype == torch.float64
    assert float(wide.min()) >= 0
    assert float(wide.max()) < 1


def test_whole_numbers_are_even_and_a_permutation_has_each_place_once() -> None:
    source = device([3, 4])
    rows = source.integers(0, 7, (70_000,))
    counts = torch.stack([one.bincount(minlength=7) for one in rows]).double()
    assert (((counts - 10_000) ** 2 / 10_000).sum(1) < 22.5).all()  # chi squared of 6, 0.001
    assert rows.max() == 6
    order = source.permutation(1000)
    assert torch.equal(order.sort(1).values, torch.arange(1000).expand(2, -1))
    assert not torch.equal(order[0], order[1])
    assert (order[:, :500] < 500).double().mean() == pytest.approx(0.5, abs=0.07)


@pytest.mark.parametrize("kind", ["normal", "uniform", "keep", "dropped"])
def test_noise_of_every_kind_has_the_shape_that_the_host_draws(kind: Any) -> None:
    noise = Noise(kind, 40, keep=0.9)
    here = noise.draw(generator(1, "noise"), (32, 50))
    there = noise.draw(device([1, 2]), (32, 50))
    assert tuple(there.shape) == (2, *here.shape)
    assert there.dtype == torch.float32
    assert there.double().mean() == pytest.approx(here.astype(np.float64).mean(), rel=0.03, abs=0.02)
    if kind == "dropped":
        masks = dropout.masks(there, 40, 0.9)
        assert (masks == 0).double().mean() == pytest.approx(0.1, abs=0.005)


def test_words_of_several_purposes_are_those_of_each_alone() -> None:
    counts = (("one", 10), ("other", 33), ("last", 4))
    together = DeviceGenerator.several([1, 2], counts, 3, CPU)
    for purpose, count in counts:
        alone = device([1, 2], purpose, 3)
        assert torch.equal(together[purpose].words(count), alone.words(count))
        assert torch.equal(together[purpose].words(7), alone.words(7)), "it goes on"
    asked_for_less = DeviceGenerator.several([1, 2], counts, 3, CPU)["one"]
    assert torch.equal(asked_for_less.words(6), device([1, 2], "one", 3).words(6))


class Copies(TorchDispatchMode):
    """Counts copies between processor and device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.operations = 0

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        devices = {value.device.type for value in tree_leaves((args, kwargs, found)) if isinstance(value, Tensor)}
        self.count += devices == {"cpu", "meta"}
        self.operations += 1
        return found


def test_streams_of_a_device_copy_nothing_after_their_first_block() -> None:
    noises = {"smooth": Noise("normal", 3), "mask": Noise("keep", 4, keep=0.75), "drop": Noise("dropped", 8, keep=0.9)}
    stream = Stream([1, 2], 6, noises, META, torch.float32)
    rows = Uniform(lambda indices: {}, 1000)
    rows.bind([1, 2], 6, META)
    stream.at(0), rows.rows(0)
    with Copies() as copies:
        found, chosen = stream.at(STEPS_PER_BLOCK), rows.rows(STEPS_PER_BLOCK)
        once = stream.once(3, 5, {"one": Noise("normal", 2)}, "rule")
        order = drawn([1, 2], "minibatches", 4, META, lambda source: source.permutation(64))
    assert copies.operations > 100
    assert copies.count == 0
    shapes = {name: tuple(value.shape) for name, value in found.items()}
    assert shapes == {"smooth": (2, 6, 3), "mask": (2, 6, 4), "drop": (2, 6, dropout.most_dropped(8, 0.9))}
    assert (chosen.shape, once["one"].shape, order.shape) == ((2, 6), (2, 5, 2), (2, 64))


def test_a_processors_streams_are_numpys() -> None:
    found = drawn([3, 4], "batch", 7, CPU, lambda source: source.random((5,)))
    for seed, own in zip((3, 4), found, strict=True):
        np.testing.assert_array_equal(own.numpy(), generator(seed, "batch", 7).random((5,)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")
def test_a_gpu_draws_what_the_same_code_draws_on_a_processor() -> None:
    here, there = device([3, 2**40]), DeviceGenerator([3, 2**40], "noise", 0, torch.device("cuda"))
    assert torch.equal(there.words(1001).cpu(), here.words(1001))
    assert torch.equal(there.integers(0, 12_345, (999,)).cpu(), here.integers(0, 12_345, (999,)))
    assert torch.equal(there.permutation(5000).cpu(), here.permutation(5000))
    assert torch.equal(there.random((77,)).cpu(), here.random((77,)))
    torch.testing.assert_close(
        there.standard_normal((100_000,)).cpu(), here.standard_normal((100_000,)), rtol=1e-6, atol=1e-7
    )
    assert counter.ROUNDS == 10
