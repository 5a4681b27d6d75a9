"""Random numbers of plans, by counting: a function of a row's seed, of how many plans it made, and of what for.

They are those of `cuda_ext.twin` (and native/random.h), so that a plan in native code draws the same ones, and a batch
of rows draws what each would draw alone.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from surefoot.cuda_ext.twin import episode_key, mix, normal, uniform

CANDIDATES, FUTURES, MEMBERS = 5, 6, 7  # streams, after those of native/random.h
_STRIDE = 0x85EBCA6B
_32 = 0xFFFFFFFF


def row_keys(draws: Tensor, stream: int) -> Tensor:
    """(B,) int64 keys of (B, 2) seeds in [0, 2^32) and counts of plans."""
    return episode_key(draws[:, 0], draws[:, 1], stream)


def numbered(keys: Tensor, first: int, count: int) -> Tensor:
    """(B, count) keys of things number `first` on, such as candidates, of rows with (B,) keys."""
    index = torch.arange(first, first + count, device=keys.device)
    return mix((keys[:, None] + index * _STRIDE) & _32)


def candidate_normals(draws: Tensor, first: int, count: int, horizon: int, width: int, dtype: torch.dtype) -> Tensor:
    """(B, count, H, A) standard normal numbers of candidates number `first` on of a plan."""
    keys = numbered(row_keys(draws, CANDIDATES), first, count)
    flat = normal(keys.reshape(-1), 0, horizon * width, dtype)
    return flat.view(len(draws), count, horizon, width)


def future_normals(draws: Tensor, futures: int, t: int, width: int, dtype: torch.dtype) -> Tensor:
    """(F, B, D) standard normal numbers of step t of each future: all candidates of a plan share them."""
    return future_normals_of(draws, futures, range(t, t + 1), width, dtype)[0]


def future_normals_of(draws: Tensor, futures: int, steps: range, width: int, dtype: torch.dtype) -> Tensor:
    """(H, F, B, D) `future_normals` of many steps."""
    keys = numbered(row_keys(draws, FUTURES), 0, futures).T
    counts = torch.arange(steps.start, steps.stop, device=keys.device)[:, None] * 0x9E3779B9
    flat = normal(mix((keys.reshape(-1) + counts) & _32).reshape(-1), 0, width, dtype)
    return flat.view(len(steps), futures, len(draws), width)


def future_shares(draws: Tensor, futures: int, t: int) -> Tensor:
    """(F, B) float64 uniform numbers in [0, 1) of step t of each future, to choose members by."""
    keys = numbered(row_keys(draws, MEMBERS), 0, futures).T
    return uniform(mix((keys.reshape(-1) + t * 0x9E3779B9) & _32), 0, 1, torch.float64).view(futures, len(draws))


@functools.lru_cache(maxsize=64)
def colouring(horizon: int, exponent: float) -> Tensor | None:
    """(H, H) float64 lower-triangular C: C z has unit variance and a spectrum of 1 / f^exponent. None: white noise.

    The covariance is that of a stationary process whose spectrum is that of 2 H steps, the share of its mean (f = 0) as
    that of the lowest frequency, as iCEM has it (Pinneri et al., 2020); so the noise does not come round.
    """
    if exponent == 0:
        return None
    frequencies = torch.fft.rfftfreq(2 * horizon, dtype=torch.float64)
    frequencies[0] = frequencies[1]
    covariance = torch.fft.irfft(frequencies**-exponent, n=2 * horizon)[:horizon]
    covariance = covariance / covariance[0]
    lag = (torch.arange(horizon)[:, None] - torch.arange(horizon)[None]).abs()
    return torch.linalg.cholesky(covariance[lag] + 1e-9 * torch.eye(horizon, dtype=torch.float64))


def coloured(noise: Tensor, exponent: float) -> Tensor:
    """(..., H, A) white noise with the given colour over H."""
    matrix = colouring(noise.shape[-2], exponent)
    return noise if matrix is None else torch.einsum("ts,...sa->...ta", matrix.to(noise), noise)
