"""`Batch`: what losses read."""

from __future__ import annotations

from torch import Tensor

Batch = dict[str, Tensor]
"""Key -> tensor whose first dimension is the batch."""
