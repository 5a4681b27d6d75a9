"""Continuous actions as choices: a grid of values in each dimension, for planners that try discrete actions."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError

MOST = 4096
"""Choices at most."""


def grid_of_choices(action_dim: int, bins: int) -> Tensor:
    """(bins ** action_dim, action_dim) actions in [-1, 1]: evenly spaced values in each dimension, the last fastest.

    Raises:
        ConfigError: fewer than 2 values, or more than `MOST` choices.
    """
    if bins < 2:
        raise ConfigError(f"bins is {bins}; an action needs at least 2 values", field="bins", code="range")
    if bins**action_dim > MOST:
        raise ConfigError(
            f"{bins} values in each of {action_dim} action dimensions make {bins**action_dim:,} choices, more than "
            f"{MOST:,}: take fewer bins, or a planner of continuous actions",
            field="bins",
            code="range",
        )
    values = torch.linspace(-1, 1, bins)
    return torch.cartesian_prod(*[values] * action_dim).reshape(-1, action_dim)


def drawn_choices(normals: Tensor, bins: int) -> Tensor:
    """(..., A) actions of `grid_of_choices`, each equally likely, that (..., A) standard normal numbers stand for."""
    number = (torch.special.ndtr(normals) * bins).floor().clamp(0, bins - 1)
    return number * (2 / (bins - 1)) - 1
