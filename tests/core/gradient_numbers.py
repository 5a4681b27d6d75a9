"""What tests of policy gradient share."""

from __future__ import annotations

import torch
from torch import Tensor


def f64(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


NEW = f64([0.3, 0.6, 0.2, 0.5]).log()
NEAR = f64([0.2, 0.5, 0.4, 0.5]).log()
ADVANTAGES = f64([1, -1, -0.5, 2])
