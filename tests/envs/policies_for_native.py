"""Small policies with random weights for native systems."""

from __future__ import annotations

import torch

from surefoot.core.actors.heads import ACTORS
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.cuda_ext.system import System


def policy_for(system: System, kind: str = "gaussian", seed: int = 0) -> Policy:
    """A policy of 16 hidden units with observation statistics that are not the identity."""
    torch.manual_seed(seed)
    actor = ACTORS[kind](len(system.observations), len(system.actions), (16, 16))  # type: ignore[call-arg]
    normalizer = Normalizer(len(system.observations))
    normalizer.fit(torch.randn(100, len(system.observations)) * 2 + 0.5)
    return Policy.of(actor, normalizer, torch.tensor(system.action_low), torch.tensor(system.action_high))
