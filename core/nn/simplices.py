"""Vectors as groups of simplices: what keeps the states of a latent model in a bounded set without a decoder."""

from __future__ import annotations

from torch import Tensor

from surefoot.core.base.errors import ConfigError


def simplicial_norm(values: Tensor, group: int) -> Tensor:
    """Softmax within each group of numbers that lie side by side (SimNorm).

    Args:
        values: (..., V).
        group: V', numbers in a group; divides V.

    Returns:
        (..., V), each at least 0, each group of sum 1.

    Raises:
        ConfigError: groups that do not divide the vector.

    Source: Lavoie et al., "Simplicial Embeddings in Self-Supervised Learning and Downstream Classification", at a
    temperature of 1, as Hansen, Su and Wang use it in "TD-MPC2".
    """
    if group < 1 or values.shape[-1] % group:
        raise ConfigError(f"groups of {group} do not divide {values.shape[-1]} numbers: take a divisor")
    return values.unflatten(-1, (-1, group)).softmax(-1).flatten(-2)
