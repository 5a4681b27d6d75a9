"""What tests of value learning share."""

from __future__ import annotations

import torch
from torch import Tensor


def f64(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
