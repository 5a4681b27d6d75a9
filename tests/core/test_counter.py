"""Numbers by counting: Philox's published words, the same of native code, numpy and torch, and their distributions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from surefoot import cuda_ext
from surefoot.core.base import counter, dropout
from surefoot.core.base.counter import CounterGenerator, keys_of, normal_at, philox, words_by_numpy, words_by_torch
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.random import STEPS_PER_BLOCK, Noise, Stream, drawn
from surefoot.core.engine.sources import Uniform

CPU, META = torch.device("cpu"), torch.device("meta")
NATIVE = pytest.mark.skipif(cuda_ext.native() is None, reason=f"no native module: {cuda_ext.why_not_native()}")
LEVELS = ("generic", "v2", "v3", "v4")

# of the seeds 7 and 2^40 + 3
WORDS = [[3481555554, 661796871, 1546179283], [1439200508, 4221243947, 3661596715]]
INTEGERS = [[823595, 611314, 830016], [913557, 504130, 327330]]
ORDERS = [[1, 3, 4, 5, 2, 0], [1, 2, 5, 0, 4, 3]]
UNIFORM = [[0.1629538908070407, 0.22135492603916274], [0.9124238058294528, 0.4091828416889123]]
SINGLE = [[0.16344726085662842, 0.41490012407302856], [0.9345473647117615, 0.8084461688995361]]
NORMAL = [[-1.183770775794983, -0.0011706763179972768], [0.0016484049847349524, 0.5674588680267334]]
EXPONENTIAL = [[1.1194963455200195, 1.1686108112335205], [0.3418298661708832, 1.9549307823181152]]

Words = Callable[[tuple[int, ...], int], list[int]]


def of_torch(words: tuple[int, ...], seed: int) -> list[int]:
    found: list[int] = torch.cat(philox((torch.tensor([words[0]]), *words[1:]), keys_of((seed,), CPU)), 1)[0].tolist()
    return found


def of_numpy(words: tuple[int, ...], seed: int) -> list[int]:
    block = words[1] | words[2] << 32
    found: list[int] = words_by_numpy(np.array([seed], np.uint64), words[0], 1, block, words[3])[0].tolist()
    return found


def of_native(words: tuple[int, ...], seed: int) -> list[int]:
    module: Any = cuda_ext.native()
    seeds, out = np.array([seed], np.uint64), np.zeros(4, np.int64)
    block = words[1] | words[2] << 32
    module.counted(0, seeds.ctypes.data, 1, words[0], block, words[3], 4, out.ctypes.data)
    return out.tolist()


@pytest.mark.parametrize("words_of", [of_torch, of_numpy, pytest.param(of_native, marks=NATIVE)])
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
def test_words_are_philoxs(words: tuple[int, ...], seed: int, expected: tuple[int, ...], words_of: Words) -> None:
    assert tuple(words_of(words, seed)) == expected


def device(seeds: list[int], purpose: str = "noise", block: int = 0) -> CounterGenerator:
    return CounterGenerator(seeds, purpose, block, CPU)


@pytest.fixture(params=["numpy", "torch", *(pytest.param(level, marks=NATIVE) for level in LEVELS)])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Whose numbers `device` draws: numpy's or torch's words, or the native module's at one of its levels."""
    name, module = str(request.param), cuda_ext.native()

    def by_torch(seeds: np.ndarray, first: int, counters: int, block: int, purpose: int) -> np.ndarray:
        numbers = torch.arange(first, first + counters)
        return words_by_torch(tuple(seeds.tolist()), numbers, block, purpose).numpy()

    if name not in LEVELS:
        monkeypatch.setattr(cuda_ext, "native", lambda: None)
        if name == "torch":
            monkeypatch.setattr(counter, "words_by_numpy", by_torch)
        yield name
        return
    assert module is not None
    before = module.level()
    try:
        module.set_level(name)
    except ValueError as error:
        pytest.skip(str(error))
    yield name
    module.set_level(before)


def test_a_seeds_numbers_are_these_for_good(implementation: str) -> None:
    """Change `counter.NAME` with them: a checkpoint continues no other numbers than it began with."""
    source = CounterGenerator([7, 2**40 + 3], "batch", 2**33 + 5, CPU)
    assert source.words(3).tolist() == WORDS
    assert source.integers(-5, 1_000_000, 3).tolist() == INTEGERS
    assert source.permutation(6).tolist() == ORDERS
    np.testing.assert_array_equal(source.random(2).numpy(), np.array(UNIFORM))
    np.testing.assert_array_equal(source.random(2, np.float32).numpy(), np.array(SINGLE, np.float32))
    np.testing.assert_allclose(source.standard_normal(2).numpy(), NORMAL, rtol=1e-6)
    np.testing.assert_allclose(source.standard_exponential(2).numpy(), EXPONENTIAL, rtol=1e-6)
    assert counter.NAME == "philox4x32-10"


def everything(source: CounterGenerator) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What must be equal bit for bit, and what to the last bits; of sizes around those that native code works in."""
    exact, close = {}, {}
    for count in (1, 3, 64, 511, 513, 1500):
        exact[f"words {count}"] = source.words(count)
        exact[f"single {count}"] = source.random((count, 1), np.float32)
        exact[f"double {count}"] = source.random((1, count))
        exact[f"few {count}"] = source.integers(-3, 4, count)
        exact[f"many {count}"] = source.integers(-(2**40), 2**51, (count,))
        exact[f"order {count}"] = source.permutation(count)
        close[f"normal {count}"] = source.standard_normal((count,))
        close[f"exponential {count}"] = source.standard_exponential((count,))
    return exact, close


@pytest.mark.parametrize(
    ("purpose", "block"), [("batch", 0), ("noise", 1), ("batch", 2**32 - 1), ("acting", 2**32), ("é/x", 2**64 - 1)]
)
def test_all_implementations_draw_the_same(implementation: str, purpose: str, block: int) -> None:
    seeds = [0, 1, 2**32 + 7, 2**64 - 1]
    exact, close = everything(device(seeds, purpose, block))
    source = device(seeds, purpose, block)
    source._native = None
    expected, near = everything(source)
    for name, value in exact.items():
        assert value.dtype == expected[name].dtype
        assert torch.equal(value, expected[name]), name
    for name, value in close.items():
        torch.testing.assert_close(value, near[name], rtol=1e-6, atol=3e-7, msg=name)


def test_a_long_permutation_is_that_of_sorted_keys(implementation: str) -> None:
    """So long that some keys have their first 31 bits in common, which native code sorts by alone at first."""
    count = 2**18 if implementation in ("numpy", "torch") else 2**20
    words = device([5]).words(2 * count)[0].view(-1, 2)
    keys = (words[:, 0] >> 1 << 32) + words[:, 1]
    found = device([5]).permutation(count)[0]
    assert count < 2**20 or len(torch.unique(words[:, 0] >> 1)) < count
    assert torch.equal(found, keys.argsort(stable=True))


def test_a_stream_goes_on_in_its_middle(implementation: str) -> None:
    whole = device([3, 4])
    first, rest = whole.words(400), whole.standard_normal(37)
    assert torch.equal(CounterGenerator([3, 4], "noise", 0, CPU, first=60).words(160), first[:, 240:])
    assert torch.equal(CounterGenerator([3, 4], "noise", 0, CPU, first=100).standard_normal(37), rest)


def test_no_numbers_are_drawn_of_none(implementation: str) -> None:
    source = device([3, 4])
    assert source.random((0, 5)).shape == (2, 0, 5)
    assert source.permutation(0).shape == (2, 0)
    assert torch.equal(source.permutation(1), torch.zeros(2, 1, dtype=torch.int64))
    assert torch.equal(source.words(8)[:, 4:], CounterGenerator([3, 4], "noise", 0, CPU, first=2).words(4))


def test_what_a_stream_cannot_draw_is_said() -> None:
    source = device([1])
    with pytest.raises(ConfigError, match=r"from 1 to 2\^53 of them, and \[3, 3\) holds 0"):
        source.integers(3, 3, 5)
    with pytest.raises(ConfigError, match="holds 18014398509481984"):
        source.integers(0, 2**54, 5)
    with pytest.raises(ConfigError, match=r"in float32, not in <class 'numpy.float64'>"):
        source.standard_normal(5, np.float64)
    last = CounterGenerator([1], "noise", 0, CPU, first=2**32 - 2)
    last.words(8)
    with pytest.raises(ConfigError, match="draw from another block"):
        last.words(1)


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


def test_tails_are_as_heavy_as_they_should_be_and_rows_have_nothing_in_common() -> None:
    count = 2**21
    source = device([11])
    normal, exponential = source.standard_normal(count)[0].double(), source.standard_exponential(count)[0].double()
    for numbers, limit, p in (
        (normal, 3.0, math.erfc(3 / math.sqrt(2)) / 2),
        (-normal, 3.0, math.erfc(3 / math.sqrt(2)) / 2),
        (normal.abs(), 4.5, math.erfc(4.5 / math.sqrt(2))),
        (exponential, 9.0, math.exp(-9.0)),
        (-exponential, -0.001, 1 - math.exp(-0.001)),
    ):
        assert int((numbers > limit).sum()) == pytest.approx(count * p, abs=4.5 * math.sqrt(count * p))
    assert float((normal**4).mean()) == pytest.approx(3, abs=4.5 * math.sqrt(96 / count))
    for lag in (1, 2, 3, 4, 512):
        assert abs(float((normal[lag:] * normal[:-lag]).mean())) < 4.5 / math.sqrt(count)
        assert abs(float((normal[lag:].square() * normal[:-lag].square()).mean()) - 1) < 4.5 * math.sqrt(8 / count)


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


def test_every_order_is_as_likely_and_another_block_orders_anew() -> None:
    seeds = 24_000
    orders = device(list(range(seeds))).permutation(4)
    places = {order: k for k, order in enumerate(itertools.permutations(range(4)))}
    counts = np.bincount([places[tuple(order)] for order in orders.tolist()], minlength=24)
    assert ((counts - 1000) ** 2 / 1000).sum() < 49.7  # chi squared of 23, 0.001
    one, other = (device([1], "minibatches", block).permutation(20_000)[0].double() for block in (0, 1))
    assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 5 / math.sqrt(20_000)
    assert int((one == other).sum()) < 8  # of Poisson's distribution with mean 1


@pytest.mark.parametrize("kind", ["normal", "uniform", "keep", "dropped"])
def test_noise_of_every_kind_has_its_shape_and_mean(kind: Any) -> None:
    noise = Noise(kind, 40, keep=0.9)
    found = noise.draw(device([1, 2]), (32, 50))
    assert tuple(found.shape) == (2, 32, 50, noise.numbers)
    assert found.dtype == torch.float32
    if kind == "dropped":
        masks = dropout.masks(found, 40, 0.9)
        assert (masks == 0).double().mean() == pytest.approx(0.1, abs=0.005)
    else:
        assert found.double().mean() == pytest.approx({"normal": 0, "uniform": 0.5, "keep": 1}[kind], abs=0.02)


def test_words_of_several_purposes_are_those_of_each_alone() -> None:
    counts = (("one", 10), ("other", 33), ("last", 4))
    together = CounterGenerator.several([1, 2], counts, 3, CPU)
    for purpose, count in counts:
        alone = device([1, 2], purpose, 3)
        assert torch.equal(together[purpose].words(count), alone.words(count))
        assert torch.equal(together[purpose].words(7), alone.words(7)), "it continues"
    asked_for_less = CounterGenerator.several([1, 2], counts, 3, CPU)["one"]
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")
def test_a_gpu_draws_what_the_same_code_draws_on_a_processor() -> None:
    here, there = device([3, 2**40]), CounterGenerator([3, 2**40], "noise", 0, torch.device("cuda"))
    assert torch.equal(there.words(1001).cpu(), here.words(1001))
    assert torch.equal(there.integers(0, 12_345, (999,)).cpu(), here.integers(0, 12_345, (999,)))
    assert torch.equal(there.permutation(5000).cpu(), here.permutation(5000))
    assert torch.equal(there.random((77,)).cpu(), here.random((77,)))
    torch.testing.assert_close(
        there.standard_normal((100_000,)).cpu(), here.standard_normal((100_000,)), rtol=1e-6, atol=1e-7
    )
