"""What numba compiles for every system: counted random numbers, functions for lanes, and the policy.

The counterparts of native/random.h, native/maths.h and native/mlp.h. Lanes are environments that advance together:
element k of lane i of an array is x[k * lanes + i], and loops over lanes vectorise.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

RESET, PROCESS, POLICY, ACTION = 1, 2, 3, 4  # streams, as in native/random.h
AFTER_SQUASH, BEFORE_SQUASH = 1, 2  # as in policy.py
RELU, TANH = 1, 2  # as in native/mlp.h; the third is silu
HEADER = 5  # numbers before the widths in `NativePolicy.header`
_32 = 0xFFFFFFFF

_ZERO, _HALF, _ONE, _TINY, _LIMIT = map(np.float32, (0.0, 0.5, 1.0, 1e-5, 8.5))
# coefficients of native/maths.h's tanh: numerator 1, q, ..., then denominator
_N0, _N1, _N2, _N3, _N4 = map(np.float32, (0.999998450, 0.126540750, 2.63874838e-3, 6.75165847e-6, -5.45105738e-9))
_D1, _D2, _D3 = map(np.float32, (0.459868729, 0.0226005372, 1.89512502e-4))

_S1, _S2, _S3, _S4, _S5 = (-1 / 6, 1 / 120, -1 / 5040, 1 / 362880, -1 / 39916800)  # Taylor's, of the sine
_C1, _C2, _C3, _C4, _C5, _C6 = (-1 / 2, 1 / 24, -1 / 720, 1 / 40320, -1 / 3628800, 1 / 479001600)
_TO_WHOLE = 1.5 * 2.0**52  # a float64 that large has no digits behind the point: adding it rounds

Array = Any
"""Arrays, numbers and functions inside compiled code have numba's types, not python's."""

jit = numba.njit(nogil=True, error_model="numpy", fastmath={"contract"})
"""A division by zero gives infinity, which ends the episode, instead of an exception."""
inlined = numba.njit(nogil=True, error_model="numpy", fastmath={"contract"}, forceinline=True)
"""For what is called in loops over lanes, which vectorise only without calls."""


# ---- random numbers ----


@inlined
def mix(x: int) -> int:
    """The hash of native/random.h, on a whole number in [0, 2^32)."""
    x ^= x >> 16
    x = (x * 0x7FEB352D) & _32
    x ^= x >> 15
    x = (x * 0x846CA68B) & _32
    return x ^ (x >> 16)


@inlined
def episode_key(seed: int, episode: int, stream: int) -> int:
    """The part of a draw that an episode keeps."""
    return mix((mix(int(seed) ^ ((stream * 0x9E3779B9) & _32)) + int(episode) * 0x85EBCA6B) & _32)


@inlined
def uniform(key: int, step: int, index: int) -> float:
    """[0, 1) in steps of 2^-24."""
    return (mix((key + (int(step) * 64 + index) * 0x9E3779B9) & _32) >> 8) * 2.0**-24


@jit
def normal(key: int, step: int, index: int) -> float:
    """Standard normal number `index` of a step, by Box and Muller's transform of a pair of uniform ones."""
    pair = index - index % 2
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform(key, step, pair)))
    turn = 2.0 * math.pi * uniform(key, step, pair + 1)
    return radius * (math.cos(turn) if index % 2 == 0 else math.sin(turn))


# ---- functions that vectorise ----


@inlined
def whole(x: float) -> float:
    """The whole number nearest to a float64 between +-2^51."""
    return (x + _TO_WHOLE) - _TO_WHOLE


@inlined
def floor(x: float) -> float:
    """In place of math.floor: of a float64 between +-2^51, and it stays one."""
    nearest = whole(x)
    return nearest - 1.0 if nearest > x else nearest


@inlined
def sine_cosine(x: float) -> tuple[float, float]:
    """Of a float64 below 1e6: Taylor's series on +-pi/4 after taking off quarter turns; absolute error 1e-11."""
    turns = whole(x * (2 / math.pi))
    r = x - turns * 1.5707963267341256  # pi / 2 as a sum of two, the first with 33 bits
    r = r - turns * 6.0771005065061922e-11
    q = r * r
    s = r + r * q * (_S1 + q * (_S2 + q * (_S3 + q * (_S4 + q * _S5))))
    c = 1.0 + q * (_C1 + q * (_C2 + q * (_C3 + q * (_C4 + q * (_C5 + q * _C6)))))
    half = turns * 0.5
    odd = half != whole(half)
    quarter = turns - 4.0 * whole(turns * 0.25 - 0.375)  # 0, 1, 2 or 3
    a, b = (c if odd else s), (s if odd else c)
    return (-a if quarter >= 2 else a), (-b if (quarter == 1) | (quarter == 2) else b)


@inlined
def sin(x: float) -> float:
    """In place of math.sin."""
    return sine_cosine(x)[0]


@inlined
def cos(x: float) -> float:
    """In place of math.cos."""
    return sine_cosine(x)[1]


@inlined
def tan(x: float) -> float:
    """In place of math.tan."""
    sine, cosine = sine_cosine(x)
    return sine / cosine


REPLACED: dict[Any, Any] = {math.sin: sin, math.cos: cos, math.tan: tan, math.floor: floor}
"""Functions of `math` whose place others take in compiled systems: library calls would keep loops from vectorising."""
math_for_lanes = types.ModuleType("math_for_lanes", "`math` with the functions of `REPLACED`.")
vars(math_for_lanes).update({key: value for key, value in vars(math).items() if not key.startswith("_")})
vars(math_for_lanes).update({function.__name__: other for function, other in REPLACED.items()})
REPLACED[math] = math_for_lanes


@inlined
def tanh(x: Any) -> Any:
    """Of a float32; absolute error 4e-7."""
    c = _LIMIT if x > _LIMIT else (-_LIMIT if x < -_LIMIT else x)
    q = c * c
    return c * (_N0 + q * (_N1 + q * (_N2 + q * (_N3 + q * _N4)))) / (_ONE + q * (_D1 + q * (_D2 + q * _D3)))


# ---- the policy ----


@jit
def activate(kind: int, count: int, y: Array) -> None:
    """In place."""
    if kind == RELU:
        for k in range(count):
            y[k] = y[k] if y[k] > _ZERO else _ZERO
    elif kind == TANH:
        for k in range(count):
            y[k] = tanh(y[k])
    else:
        for k in range(count):
            y[k] = y[k] * (_HALF + _HALF * tanh(_HALF * y[k]))


@functools.cache
def linear_for(lanes: int) -> Callable[..., Any]:
    """linear(w, at, inputs, outputs, x, y): y = bias + W x; from `at` on w holds biases, then W (outputs, inputs)."""

    @jit
    def eight_inputs(a: Array, b: Array, x: Array, y: Array, z: Array) -> None:
        """Eight inputs x into two outputs y and z, by eight weights a and b of each."""
        a0, a1, a2, a3, a4, a5, a6, a7 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
        b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
        for lane in range(lanes):
            x0, x1, x2, x3 = x[lane], x[lane + lanes], x[lane + 2 * lanes], x[lane + 3 * lanes]
            x4, x5, x6, x7 = x[lane + 4 * lanes], x[lane + 5 * lanes], x[lane + 6 * lanes], x[lane + 7 * lanes]
            y[lane] += (a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3) + (a4 * x4 + a5 * x5 + a6 * x6 + a7 * x7)
            z[lane] += (b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3) + (b4 * x4 + b5 * x5 + b6 * x6 + b7 * x7)

    @jit
    def one_input(weight: Any, x: Array, y: Array) -> None:
        for lane in range(lanes):
            y[lane] += weight * x[lane]

    @jit
    def linear(w: Array, at: int, inputs: int, outputs: int, x: Array, y: Array) -> None:
        paired, eights = outputs - outputs % 2, inputs - inputs % 8
        for j in range(outputs):
            row = at + outputs + j * inputs
            here, bias = y[j * lanes : (j + 1) * lanes], w[at + j]
            for lane in range(lanes):
                here[lane] = bias
            for i in range(0 if j >= paired else eights, inputs):
                one_input(w[row + i], x[i * lanes : (i + 1) * lanes], here)
        for j in range(0, paired, 2):
            one = at + outputs + j * inputs
            two, y0, y1 = one + inputs, y[j * lanes : (j + 1) * lanes], y[(j + 1) * lanes : (j + 2) * lanes]
            for i in range(0, eights, 8):
                eight_inputs(w[one + i : one + i + 8], w[two + i : two + i + 8], x[i * lanes : (i + 8) * lanes], y0, y1)

    return linear


@functools.cache
def normalise_for(lanes: int) -> Callable[..., Any]:
    """normalise(w, gain, count, y): layer norm in place, variance + 1e-5; w holds gains from `gain` on, then shifts."""

    @jit
    def normalise(w: Array, gain: int, count: int, y: Array) -> None:
        share = _ONE / np.float32(count)
        for lane in range(lanes):
            mean, squares = _ZERO, _ZERO
            for k in range(count):
                mean += y[k * lanes + lane] * share
            for k in range(count):
                squares += (y[k * lanes + lane] - mean) * (y[k * lanes + lane] - mean) * share
            scale = _ONE / np.float32(math.sqrt(squares + _TINY))
            for k in range(count):
                y[k * lanes + lane] = (y[k * lanes + lane] - mean) * scale * w[gain + k] + w[gain + count + k]

    return normalise


@functools.cache
def policy_for(lanes: int) -> Callable[..., Any]:
    """policy(header, w, observations, actions, noise, x, y): (actions x lanes) from (observations x lanes).

    `header` is `NativePolicy.header`, `w` of `numba_backend.flat_weights`; `noise` (actions x lanes) is read where the
    policy samples; x and y are scratch of the widest layer x lanes each.
    """
    linear, normalise = linear_for(lanes), normalise_for(lanes)

    @jit
    def policy(header: Array, w: Array, observations: Array, actions: Array, noise: Array, x: Array, y: Array) -> None:
        inputs, outputs, sampling = header[HEADER], len(actions) // lanes, header[4]
        for k in range(inputs):
            mean, scale = w[k], w[inputs + k]
            for lane in range(lanes):
                x[k * lanes + lane] = (observations[k * lanes + lane] - mean) * scale
        middle, half, deviation = 2 * inputs, 2 * inputs + outputs, 2 * (inputs + outputs)
        at = deviation + max(2, outputs)
        for k in range(header[0]):
            wide, high = header[HEADER + k], header[HEADER + k + 1]
            linear(w, at, wide, high, x, y)
            at += (wide + 1) * high
            if k + 1 < header[0]:
                if header[2] != 0:
                    normalise(w, at, high, y)
                    at += 2 * high
                activate(header[1], high * lanes, y)
            x, y = y, x
        for k in range(outputs * lanes):
            value, a = x[k], k // lanes
            if sampling == BEFORE_SQUASH:
                logarithm = min(max(x[outputs * lanes + k], w[deviation]), w[deviation + 1])
                value += np.float32(math.exp(logarithm)) * noise[k]
            if header[3] != 0:
                value = tanh(value)
            if sampling == AFTER_SQUASH:
                value += w[deviation + a] * noise[k]
            actions[k] = w[middle + a] + w[half + a] * min(max(value, -_ONE), _ONE)

    return policy
