"""Random numbers on a device, by counting: tensors of the device, of which nothing is drawn on the host or copied.

Words are those of Philox4x32-10 (Salmon et al., 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"): the key is the
seed, the counter (number, block, purpose). So they depend on neither the device nor on what was drawn before. Uniform
numbers are words over 2^32, normal ones the inverse of the normal distribution at a word, and a permutation sorts by
words. Whole numbers are equal on all devices, others but for the last bits of a logarithm.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
    """Keys of all rounds, copied to the device once."""
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


class DeviceGenerator:
    """Draws for S seeds at once, tensors (S, ...), by the names that `numpy.random.Generator` has for them.

    A call goes on where the last one stopped, as numpy's do.
    """

    def __init__(self, seeds: Sequence[int], purpose: str, block: int, device: torch.device) -> None:
        """As `core.base.random.generator`, for several seeds and a device."""
        self.device, self.seeds, self.block = device, len(seeds), block
        self.purpose = zlib.crc32(purpose.encode())
        self._keys = keys_of(tuple(seed % 2**64 for seed in seeds), device)
        self._taken = 0
        self._ready: Tensor | None = None

    def words(self, count: int) -> Tensor:
        """(S, count) int64 words in [0, 2^32)."""
        counters = -(-count // 4)
        ready, self._ready = self._ready, None
        if ready is not None and self._taken == 0 and ready.shape[1] == count:
            self._taken = counters
            return ready
        numbers = torch.arange(self._taken, self._taken + counters, device=self.device)
        self._taken += counters
        # python's numbers are arguments of kernels: nothing is copied
        found = philox((numbers, self.block & WORD, self.block >> 32 & WORD, self.purpose), self._keys)
        return torch.stack(torch.broadcast_tensors(*found), -1).flatten(1)[:, :count]

    @classmethod
    def several(
        cls, seeds: Sequence[int], counts: tuple[tuple[str, int], ...], block: int, device: torch.device
    ) -> dict[str, DeviceGenerator]:
        """Generators of several purposes, whose first words are made together, by as many kernels as those of one.

        Args:
            seeds: as of one.
            counts: purpose -> so many of its first words.
            block: as of one.
            device: as of one.
        """
        numbers, purposes = _counters(counts, device)
        keys = keys_of(tuple(seed % 2**64 for seed in seeds), device)
        four = philox((numbers, block & WORD, block >> 32 & WORD, purposes), keys)
        words, found = torch.stack(torch.broadcast_tensors(*four), -1), {}
        parts = words.split([-(-count // 4) for _, count in counts], 1)
        for (purpose, count), part in zip(counts, parts, strict=True):
            found[purpose] = one = cls(seeds, purpose, block, device)
            one._ready = part.flatten(1)[:, :count]
        return found

    def _drawn(self, size: Any, each: int = 1) -> tuple[Tensor, tuple[int, ...]]:
        shape = (size,) if isinstance(size, int) else tuple(size)
        return self.words(each * math.prod(shape)), (self.seeds, *shape)

    def random(self, size: Any, dtype: Any = np.float64) -> Tensor:
        """(S, *size) uniform in [0, 1): multiples of 2^-53, or of 2^-24 in float32."""
        if dtype == np.float32:
            words, shape = self._drawn(size)
            return ((words >> 8).to(torch.float32) * 2.0**-24).view(shape)
        words, shape = self._drawn(size, 2)
        upper, lower = words.view(self.seeds, -1, 2).unbind(-1)
        return (((upper >> 5) * 2**26 + (lower >> 6)).to(torch.float64) * 2.0**-53).view(shape)

    def integers(self, low: int, high: int, size: Any) -> Tensor:
        """(S, *size) int64 in [low, high), at most 2^53 different ones."""
        return low + (self.random(size) * (high - low)).long().clamp(max=high - low - 1)

    def standard_normal(self, size: Any, dtype: Any = np.float32) -> Tensor:
        """(S, *size) float32, of magnitude 6.2 at most."""
        words, shape = self._drawn(size)
        return normal_at(words).view(shape)

    def standard_exponential(self, size: Any, dtype: Any = np.float32) -> Tensor:
        """(S, *size) float32, 22.2 at most."""
        words, shape = self._drawn(size)
        return (-torch.log((words.to(torch.float32) + 0.5) * 2.0**-32)).view(shape)

    def permutation(self, count: int) -> Tensor:
        """(S, count) int64 0 to count - 1 in random order."""
        upper, lower = self.words(2 * count).view(self.seeds, -1, 2).unbind(-1)
        return (((upper >> 1) << 32) | lower).argsort(dim=-1, stable=True)


@functools.lru_cache(maxsize=64)
def _counters(counts: tuple[tuple[str, int], ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """(n,) int64 numbers and purposes of the counters of several purposes, one after another."""
    sizes = [-(-count // 4) for _, count in counts]
    purposes = [zlib.crc32(purpose.encode()) for purpose, _ in counts]
    numbers = torch.cat([torch.arange(size, device=device) for size in sizes])
    words = [torch.full((n,), word, dtype=torch.int64, device=device) for n, word in zip(sizes, purposes, strict=True)]
    return numbers, torch.cat(words)


CENTRAL = ((59.109374720, 159.29113202, 50.434271938, 3.3871327179), (67.187563600, 78.757757664, 17.895169469, 1.0))
NEAR = ((0.17023821103, 1.3067284816, 2.7568153900, 1.4234372777), (0.12021132975, 0.73700164250, 1.0))
FAR = ((0.017337203997, 0.42868294337, 3.0812263860, 6.6579051150), (0.012258202635, 0.24197894225, 1.0))
"""Coefficients of numerator and denominator, the highest power first, from Wichura (1988), Algorithm AS 241 (PPND7)."""


def normal_at(words: Tensor) -> Tensor:
    """Standard normal float32 numbers from words in [0, 2^32), by the inverse of the distribution function.

    The lower 31 bits are a probability p of at most 1/2, the uppermost is the sign: so both tails are as fine.
    Source: Wichura (1988), "Algorithm AS 241: The percentage points of the normal distribution", 1e-7 relative.
    """
    p = ((words & 0x7FFFFFFF).to(torch.float32) + 0.5) * 2.0**-32
    below = p - 0.5
    squared = 0.180625 - below * below
    root = torch.sqrt(-torch.log(p))
    tail = torch.where(root <= 5, _ratio(NEAR, root - 1.6), _ratio(FAR, root - 5))
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
