"""Random numbers by counting, the same on every device: whatever is drawn in training is drawn here.

Words are those of Philox4x32-10 (Salmon et al., 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"): the key is the
seed, the counter (number, block, purpose). So they depend on neither the device nor on what was drawn before. Uniform
numbers are words over 2^32, normal ones the inverse of the normal distribution at a word, and a permutation sorts by
words. Words, uniform and whole numbers and permutations are equal on all devices, normal and exponential numbers but
for the last bits of a logarithm.

On a processor the native module draws (`cuda_ext/native/levels/counter.cpp`), several times faster than numpy's
generators. Where it was not built, numpy makes the words and torch what becomes of them: the same numbers, 8 to 25
times slower. Elsewhere all is operations of torch on the device: nothing is drawn on the host or copied.
benchmarks/random_numbers.py measures them.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.compiled import library
from surefoot.core.base.errors import ConfigError

NAME = "philox4x32-10"
"""What checkpoints call these numbers: a seed's training continues with those that it began with, or not at all."""
WORD = 0xFFFFFFFF
FACTORS = (0xD2511F53, 0xCD9E8D57)
"""Philox's multipliers of words 0 and 2."""
STEPS = (0x9E3779B9, 0xBB67AE85)
"""What its keys grow by in every round."""
ROUNDS = 10

Keys = tuple[tuple[Tensor, Tensor], ...]
"""Of each round, two (S, 1) words."""


@functools.lru_cache(maxsize=64)
def keys_of(seeds: tuple[int, ...], device: torch.device) -> Keys:
    """Keys of all rounds for seeds in [0, 2^64), copied to the device once."""
    rounds = []
    for turn in range(ROUNDS):
        words = [[((seed >> (32 * half)) + turn * STEPS[half]) & WORD for seed in seeds] for half in (0, 1)]
        rounds.append(tuple(torch.tensor(half, dtype=torch.int64).to(device).unsqueeze(1) for half in words))
    return tuple(rounds)  # type: ignore[arg-type]


def philox(counter: tuple[Tensor | int, ...], keys: Keys) -> tuple[Tensor, ...]:
    """Four words for each counter of four words, as int64 tensors of numbers in [0, 2^32) that broadcast."""
    c0, c1, c2, c3 = counter
    for k0, k1 in keys:
        # of the product's 64 bits, which int64 holds whatever its sign, the upper and the lower half
        first, second = c0 * FACTORS[0], c2 * FACTORS[1]
        c0 = ((second >> 32) & WORD) ^ c1 ^ k0
        c2 = ((first >> 32) & WORD) ^ c3 ^ k1
        c1, c3 = second & WORD, first & WORD
    return c0, c1, c2, c3  # type: ignore[return-value]


def words_by_torch(seeds: tuple[int, ...], numbers: Tensor, block: int, purpose: Tensor | int) -> Tensor:
    """(S, 4 * C) int64 words in [0, 2^32) of C counters, on their device: nothing is copied but keys, once.

    Args:
        seeds: S, in [0, 2^64).
        numbers: (C,) int64, of the counters.
        block: in [0, 2^64).
        purpose: a word, or (C,) int64 words.
    """
    # python's numbers are arguments of kernels
    found = philox((numbers, block & WORD, block >> 32, purpose), keys_of(seeds, numbers.device))
    return torch.stack(torch.broadcast_tensors(*found), -1).flatten(1)


@functools.lru_cache(maxsize=64)
def _seeds(seeds: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """(S,) uint64 keys in memory and where they lie, for native code and numpy."""
    array = np.array([seed % 2**64 for seed in seeds], np.uint64)
    return array, array.ctypes.data


def words_by_numpy(seeds: np.ndarray, first: int, counters: int, block: int, purpose: int) -> np.ndarray:
    """(S, 4 * counters) int64 words in [0, 2^32): as `words_by_torch`, two to four times faster on a processor.

    Args:
        seeds: (S,) uint64.
        first: number of the first counter.
        counters: how many.
        block: in [0, 2^64).
        purpose: a word.
    """
    shape = (len(seeds), counters)
    c0 = np.broadcast_to(np.arange(first, first + counters, dtype=np.uint64), shape).copy()
    c1, c2, c3 = (np.full(shape, word, np.uint64) for word in (block & WORD, block >> 32, purpose))
    first_product, second_product = np.empty_like(c0), np.empty_like(c0)
    k0, k1 = (seeds & WORD)[:, None], (seeds >> 32)[:, None]
    for _ in range(ROUNDS):
        np.multiply(c0, FACTORS[0], out=first_product)
        np.multiply(c2, FACTORS[1], out=second_product)
        for word, product, other, key in ((c0, second_product, c1, k0), (c2, first_product, c3, k1)):
            np.right_shift(product, 32, out=word)
            np.bitwise_xor(word, other, out=word)
            np.bitwise_xor(word, key, out=word)
        np.bitwise_and(second_product, WORD, out=c1)
        np.bitwise_and(first_product, WORD, out=c3)
        k0, k1 = (k0 + STEPS[0]) & WORD, (k1 + STEPS[1]) & WORD
    return np.stack([c0, c1, c2, c3], -1).reshape(len(seeds), -1).view(np.int64)


def purpose_word(purpose: str) -> int:
    """The word that stands for a purpose in counters."""
    return zlib.crc32(purpose.encode())


class CounterGenerator:
    """Draws for S seeds at once, tensors (S, ...) on a device, by the names that `numpy.random.Generator` has for them.

    A call continues where the last one stopped, as numpy's do, at the next counter of four words.
    """

    def __init__(self, seeds: Sequence[int], purpose: str, block: int, device: torch.device, first: int = 0) -> None:
        """The stream of each seed, from its beginning or a later place.

        Args:
            seeds: S of them, in [0, 2**64).
            purpose: any text, e.g. "batch" or "target_noise".
            block: in [0, 2**64), e.g. a number of steps.
            device: where numbers are drawn.
            first: counter to begin at: each is four words.
        """
        self.device, self.seeds, self.block = device, len(seeds), block % 2**64
        self.purpose = purpose_word(purpose)
        self._own = tuple(seeds)
        self._taken = first
        self._ready: Tensor | None = None
        self._native: ModuleType | None = library() if device.type == "cpu" else None

    def _take(self, words: int) -> int:
        """The counter that so many words begin at; the next call's lie behind them."""
        first = self._taken
        self._taken += -(-words // 4)
        if self._taken > 2**32:
            raise ConfigError("a stream has 2^34 words for each seed, purpose and block: draw from another block")
        return first

    def _drawn(self, kind: int, size: Any, dtype: torch.dtype, each: int = 1, low: int = 0, span: int = 1) -> Tensor:
        """(S, *size) numbers of `each` words by native code, of a kind that native/counter.h lists."""
        shape = (self.seeds, size) if isinstance(size, int) else (self.seeds, *size)
        found = torch.empty(shape, dtype=dtype)
        count = math.prod(shape[1:])
        _, seeds = _seeds(self._own)
        first = self._take(each * count)
        assert self._native is not None
        self._native.counted(
            kind, seeds, self.seeds, first, self.block, self.purpose, count, found.data_ptr(), low, span
        )
        return found

    def words(self, size: Any) -> Tensor:
        """(S, *size) int64 words in [0, 2^32)."""
        if self._native is not None:
            return self._drawn(0, size, torch.int64)
        shape = (size,) if isinstance(size, int) else tuple(size)
        return self._words(math.prod(shape)).view(self.seeds, *shape)

    def _words(self, count: int) -> Tensor:
        """(S, count) words, without native code."""
        counters = -(-count // 4)
        ready, self._ready = self._ready, None
        if ready is not None and self._taken == 0 and ready.shape[1] == count:
            self._taken = counters
            return ready
        first = self._take(count)
        if self.device.type == "cpu":
            seeds, _ = _seeds(self._own)
            found = torch.from_numpy(words_by_numpy(seeds, first, counters, self.block, self.purpose))
        else:
            numbers = torch.arange(first, first + counters, device=self.device)
            found = words_by_torch(self._own, numbers, self.block, self.purpose)
        return found[:, :count]

    @classmethod
    def several(
        cls, seeds: Sequence[int], counts: tuple[tuple[str, int], ...], block: int, device: torch.device
    ) -> dict[str, CounterGenerator]:
        """Generators of several purposes; on a GPU with their first words made together, by as few kernels as of one.

        Args:
            seeds: as of one.
            counts: purpose -> so many of its first words.
            block: as of one.
            device: as of one.
        """
        found = {purpose: cls(seeds, purpose, block, device) for purpose, _ in counts}
        if device.type == "cpu" or not counts:
            return found
        numbers, purposes = _counters(counts, device)
        words = words_by_torch(tuple(seeds), numbers, block % 2**64, purposes)
        parts = words.split([-(-count // 4) * 4 for _, count in counts], 1)
        for (purpose, count), part in zip(counts, parts, strict=True):
            found[purpose]._ready = part[:, :count]
        return found

    def random(self, size: Any, dtype: Any = np.float64) -> Tensor:
        """(S, *size) uniform in [0, 1): multiples of 2^-53, or of 2^-24 in float32."""
        single = dtype == np.float32
        if self._native is not None:
            return self._drawn(1, size, torch.float32) if single else self._drawn(2, size, torch.float64, 2)
        if single:
            return (self.words(size) >> 8).to(torch.float32) * 2.0**-24
        upper, lower = self._pairs(size)
        return ((upper >> 5) * 2**26 + (lower >> 6)).to(torch.float64) * 2.0**-53

    def _pairs(self, size: Any) -> tuple[Tensor, ...]:
        """Two (S, *size) words, which follow each other."""
        shape = (size,) if isinstance(size, int) else tuple(size)
        return self.words((*shape, 2)).unbind(-1)

    def integers(self, low: int, high: int, size: Any) -> Tensor:
        """(S, *size) int64 in [low, high), at most 2^53 different ones.

        Raises:
            ConfigError: there is none, or more.
        """
        span = high - low
        if not 1 <= span <= 2**53:
            raise ConfigError(f"whole numbers are drawn from 1 to 2^53 of them, and [{low}, {high}) holds {span}")
        if self._native is not None:
            return self._drawn(3, size, torch.int64, 2, low, span)
        return low + (self.random(size) * span).long().clamp(max=span - 1)

    def standard_normal(self, size: Any, dtype: Any = np.float32) -> Tensor:
        """(S, *size) float32, of magnitude 6.4 at most."""
        _single(dtype)
        return self._drawn(4, size, torch.float32) if self._native is not None else normal_at(self.words(size))

    def standard_exponential(self, size: Any, dtype: Any = np.float32) -> Tensor:
        """(S, *size) float32, 22.9 at most."""
        _single(dtype)
        if self._native is not None:
            return self._drawn(5, size, torch.float32)
        return 0.0 - torch.log((self.words(size).to(torch.float32) + 0.5) * 2.0**-32)

    def permutation(self, count: int) -> Tensor:
        """(S, count) int64 0 to count - 1 in random order: that of keys of 63 bits, equal ones by their place."""
        if self._native is not None:
            found = torch.empty((self.seeds, count), dtype=torch.int64)
            _, seeds = _seeds(self._own)
            first = self._take(2 * count)
            self._native.counted_permutations(
                seeds, self.seeds, first, self.block, self.purpose, count, found.data_ptr()
            )
            return found
        upper, lower = self._pairs(count)
        return (((upper >> 1) << 32) | lower).argsort(dim=-1, stable=True)


def _single(dtype: Any) -> None:
    if dtype != np.float32:
        raise ConfigError(f"normal and exponential numbers are drawn in float32, not in {dtype}: convert them")


@functools.lru_cache(maxsize=64)
def _counters(counts: tuple[tuple[str, int], ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """(n,) int64 numbers and purposes of the counters of several purposes, one after another."""
    sizes = [-(-count // 4) for _, count in counts]
    purposes = [purpose_word(purpose) for purpose, _ in counts]
    numbers = torch.cat([torch.arange(size, device=device) for size in sizes])
    words = [torch.full((n,), word, dtype=torch.int64, device=device) for n, word in zip(sizes, purposes, strict=True)]
    return numbers, torch.cat(words)


CENTRAL = ((59.109374720, 159.29113202, 50.434271938, 3.3871327179), (67.187563600, 78.757757664, 17.895169469, 1.0))
TAIL = ((0.17023821103, 1.3067284816, 2.7568153900, 1.4234372777), (0.12021132975, 0.73700164250, 1.0))
"""Coefficients of numerator and denominator, the highest power first, from Wichura (1988), Algorithm AS 241 (PPND7): of
the middle and of the tails, down to 1.4e-11, which a word's 31 bits don't go below. native/levels/counter.cpp has them
too."""


def normal_at(words: Tensor) -> Tensor:
    """Standard normal float32 numbers from words in [0, 2^32), by the inverse of the distribution function.

    The lower 31 bits are a probability p of at most 1/2, the uppermost is the sign: so both tails are as fine.
    Source: Wichura (1988), "Algorithm AS 241: The percentage points of the normal distribution", 1e-7 relative.
    """
    p = ((words & 0x7FFFFFFF).to(torch.float32) + 0.5) * 2.0**-32
    below = p - 0.5
    squared = 0.180625 - below * below
    tail = _ratio(TAIL, torch.sqrt(-torch.log(p)) - 1.6)
    size = torch.where(squared >= 0, -below * _ratio(CENTRAL, squared), tail)
    return torch.where(words > 0x7FFFFFFF, size, -size)


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Tensor) -> Tensor:
    """A quotient of two polynomials, by Horner's scheme."""
    above, below = (_polynomial(one, x) for one in coefficients)
    return above / below


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    found = coefficients[0] * x + coefficients[1]
    for coefficient in coefficients[2:]:
        found = found * x + coefficient
    return found
