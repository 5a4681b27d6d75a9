"""How chunks of actions that overlap in time are made into one: weights of an average, and of a cross-fade."""

from __future__ import annotations

import math

from surefoot.core.base.errors import ConfigError, nearest

FADES = ("linear", "cosine")
STEEPEST = 80.0
"""Of an ensemble's decay times its chunk: beyond, weights leave the range of float32."""


def fade_weights(ticks: int, shape: str = "linear") -> tuple[float, ...]:
    """Shares of the newer chunk in the first `ticks` actions after a border; the older one has the rest.

    Linear: w_j = (j + 1) / (n + 1); cosine: w_j = (1 - cos(pi (j + 1) / (n + 1))) / 2, for j = 0 .. n - 1. So the last
    action before the border is the older chunk's alone, and the first one after the fade the newer one's.

    >>> fade_weights(3)
    (0.25, 0.5, 0.75)

    Raises:
        ConfigError: a negative number of ticks, or another shape.
    """
    if ticks < 0:
        raise ConfigError(f"fade_ticks is {ticks}; a cross-fade takes 0 ticks or more")
    if shape not in FADES:
        raise ConfigError(f"fade is {shape!r}; {nearest(shape, FADES)}")
    parts = [(j + 1) / (ticks + 1) for j in range(ticks)]
    return tuple(parts if shape == "linear" else [(1 - math.cos(math.pi * part)) / 2 for part in parts])


def check_decay(decay: float, chunk: int) -> None:
    """Refuse a decay of an ensemble's weights whose powers are no numbers of float32.

    Of k predictions of one action, made at different steps, the oldest is number 0, and prediction i has the weight
    exp(-decay i): above 0 older ones count more, below 0 newer ones.
    Source: Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware" (temporal ensemble).

    Raises:
        ConfigError: not a number, or too large for chunks of that many actions.
    """
    if not abs(decay) * chunk <= STEEPEST:
        raise ConfigError(
            f"decay is {decay} for chunks of {chunk} actions; its size times the chunk must be at most {STEEPEST:g}"
        )
