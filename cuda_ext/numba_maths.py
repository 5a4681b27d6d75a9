"""What numba compiles for every system: counted random numbers and the policy, as native/random.h and native/mlp.h."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

RESET, PROCESS, POLICY, ACTION = 1, 2, 3, 4  # streams, as in native/random.h
NO_NOISE, AFTER_SQUASH, BEFORE_SQUASH = range(3)  # as in policy.py
RELU, TANH = 1, 2  # as in native/mlp.h; the third is silu
HEADER = 5  # numbers before the widths in `NativePolicy.header`
_32 = 0xFFFFFFFF

_ZERO, _HALF, _ONE, _TINY, _LIMIT = map(np.float32, (0.0, 0.5, 1.0, 1e-5, 8.5))
# coefficients of native/maths.h's tanh: numerator 1, q, ..., then denominator
_N0, _N1, _N2, _N3, _N4 = map(np.float32, (0.999998450, 0.126540750, 2.63874838e-3, 6.75165847e-6, -5.45105738e-9))
_D1, _D2, _D3 = map(np.float32, (0.459868729, 0.0226005372, 1.89512502e-4))

Array = Any
"""Arrays, numbers and functions inside compiled code have numba's types, not python's."""

jit = numba.njit(nogil=True, error_model="numpy", fastmath={"contract"})
"""A division by zero gives infinity, which ends the episode, instead of an exception."""
inlined = numba.njit(nogil=True, error_model="numpy", fastmath={"contract"}, inline="always")
"""For functions whose callers know some of the arguments: the compiler sees them as constants."""


@jit
def mix(x: int) -> int:
    """The hash of native/random.h, on a whole number in [0, 2^32)."""
    x ^= x >> 16
    x = (x * 0x7FEB352D) & _32
    x ^= x >> 15
    x = (x * 0x846CA68B) & _32
    return x ^ (x >> 16)


@jit
def episode_key(seed: int, episode: int, stream: int) -> int:
    """The part of a draw that an episode keeps."""
    return mix((mix(seed ^ ((stream * 0x9E3779B9) & _32)) + episode * 0x85EBCA6B) & _32)


@jit
def uniform(key: int, step: int, index: int) -> float:
    """[0, 1) in steps of 2^-24."""
    return (mix((key + step * 64 + index) & _32) >> 8) * 2.0**-24


@jit
def normal(key: int, step: int, index: int) -> float:
    """Standard normal number `index` of a step, by Box and Muller's transform of a pair of uniform ones."""
    pair = index - index % 2
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform(key, step, pair)))
    turn = 2.0 * math.pi * uniform(key, step, pair + 1)
    return radius * (math.cos(turn) if index % 2 == 0 else math.sin(turn))


@jit
def tanh(x: Any) -> Any:
    """Of a float32, without branches or library calls so that loops vectorise; absolute error 4e-7."""
    c = min(max(x, -_LIMIT), _LIMIT)
    q = c * c
    return c * (_N0 + q * (_N1 + q * (_N2 + q * (_N3 + q * _N4)))) / (_ONE + q * (_D1 + q * (_D2 + q * _D3)))


@inlined
def activate(kind: int, count: int, y: Array, stride: int) -> None:
    """In place."""
    if kind == RELU:
        for k in range(count):
            y[k * stride] = max(y[k * stride], _ZERO)
    elif kind == TANH:
        for k in range(count):
            y[k * stride] = tanh(y[k * stride])
    else:
        for k in range(count):
            y[k * stride] = y[k * stride] * (_HALF + _HALF * tanh(_HALF * y[k * stride]))


@inlined
def normalise(gain: Array, shift: Array, count: int, y: Array, stride: int) -> None:
    """Layer norm in place, variance + 1e-5 as torch's."""
    mean, squares = _ZERO, _ZERO
    for k in range(count):
        mean += y[k * stride]
    mean /= np.float32(count)
    for k in range(count):
        squares += (y[k * stride] - mean) * (y[k * stride] - mean)
    scale = _ONE / np.float32(math.sqrt(squares / np.float32(count) + _TINY))
    for k in range(count):
        y[k * stride] = (y[k * stride] - mean) * scale * gain[k] + shift[k]


@inlined
def linear(w: Array, inputs: int, outputs: int, x: Array, y: Array, stride: int) -> None:
    """y = bias + x W from w = bias (outputs), then W (inputs, outputs); with stride 1 the loop over outputs vectorises."""
    n = outputs
    for j in range(n):
        y[j * stride] = w[j]
    i = 0
    while i + 8 <= inputs:  # eight inputs to every load and store of y
        a, b, c, d = x[i * stride], x[(i + 1) * stride], x[(i + 2) * stride], x[(i + 3) * stride]
        e, f, g, h = x[(i + 4) * stride], x[(i + 5) * stride], x[(i + 6) * stride], x[(i + 7) * stride]
        v = w[n * (i + 1) : n * (i + 9)]
        for j in range(n):
            one = v[j] * a + v[j + n] * b + v[j + 2 * n] * c + v[j + 3 * n] * d
            two = v[j + 4 * n] * e + v[j + 5 * n] * f + v[j + 6 * n] * g + v[j + 7 * n] * h
            y[j * stride] += one + two
        i += 8
    while i < inputs:
        for j in range(n):
            y[j * stride] += w[n * (i + 1) + j] * x[i * stride]
        i += 1


@inlined
def squash(
    header: Array, weights: Array, output: Array, lane: Array, stride: int, actions: int, key: int, step: int
) -> None:
    """Actions into the first places of `lane` from the last layer's outputs, with the noise of a sampling policy."""
    middle = weights[2 * header[HEADER] :]
    deviation = middle[2 * actions :]
    for k in range(actions):
        value = output[k * stride]
        if header[4] == BEFORE_SQUASH:
            logarithm = min(max(output[(actions + k) * stride], deviation[0]), deviation[1])
            value += np.float32(math.exp(logarithm) * normal(key, step, k))
        if header[3] != 0:
            value = tanh(value)
        if header[4] == AFTER_SQUASH:
            value += np.float32(deviation[k] * normal(key, step, k))
        lane[k * stride] = middle[k] + middle[actions + k] * min(max(value, -_ONE), _ONE)


@inlined
def policy(
    header: Array, weights: Array, lane: Array, stride: int, actions: int, widest: int, key: int, step: int
) -> None:
    """Actions into the first places of `lane` from the observations behind them; two hidden layers lie behind those.

    `weights` are those of `numba_backend.flat_weights`; values of a lane lie `stride` apart.
    """
    observations = header[HEADER]
    x = lane[(actions + observations) * stride :]
    y = lane[(actions + observations + widest) * stride :]
    for k in range(observations):
        x[k * stride] = (lane[(actions + k) * stride] - weights[k]) * weights[observations + k]
    at = 2 * (observations + actions) + max(2, actions)
    for k in range(header[0]):
        inputs, outputs = header[HEADER + k], header[HEADER + k + 1]
        linear(weights[at:], inputs, outputs, x, y, stride)
        at += (inputs + 1) * outputs
        if k + 1 < header[0]:
            if header[2] != 0:
                normalise(weights[at:], weights[at + outputs :], outputs, y, stride)
                at += 2 * outputs
            activate(header[1], outputs, y, stride)
        x, y = y, x
    squash(header, weights, x, lane, stride, actions, key, step)


@jit
def policy_on_cpu(
    header: Array, weights: Array, lane: Array, stride: int, actions: int, widest: int, key: int, step: int
) -> None:
    """`policy` with the stride 1 known to the compiler: its loops vectorise."""
    policy(header, weights, lane, 1, actions, widest, key, step)


@jit
def policy_on_gpu(
    header: Array, weights: Array, lane: Array, stride: int, actions: int, widest: int, key: int, step: int
) -> None:
    """`policy` of one thread; threads read side by side."""
    policy(header, weights, lane, stride, actions, widest, key, step)
