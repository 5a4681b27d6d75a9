"""What tests of fisor share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from surefoot.core.engine.agent import Spec
from surefoot.safe.fisor import FISOR

SPEC = Spec(3, 2, (-1.0, -1.0), (1.0, 1.0))
SMALL: dict[str, Any] = {"hidden": (8, 8), "noise_hidden": (8, 8), "width": 8, "blocks": 2}
Rows = dict[str, Tensor]


def agent(seed: int = 0, **options: Any) -> FISOR:
    torch.manual_seed(seed)
    made = FISOR(SPEC, **{**SMALL, **options})
    with torch.no_grad():  # targets and averages that can be distinguished from what they follow
        for name, parameter in made.named_parameters():
            if name.startswith(("target", "average")):
                parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def rows_of(count: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Rows:
    source = torch.Generator().manual_seed(seed)
    observations, following = (torch.randn(count, 3, generator=source, dtype=dtype) for _ in range(2))
    actions = torch.rand(count, 2, generator=source, dtype=dtype) * 2 - 1
    return {
        "observations": observations,
        "actions": actions,
        "rewards": torch.randn(count, generator=source, dtype=dtype),
        "signals": torch.randn(count, generator=source, dtype=dtype),
        "terminations": (torch.rand(count, generator=source) < 0.3).to(dtype),
        "next_observations": following,
        "observation_actions": torch.cat([observations, actions], -1),
    }
