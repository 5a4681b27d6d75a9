"""Small policies of each kind, with a normaliser and bounds that show when they are left out."""

from __future__ import annotations

import torch

import surefoot.core.actors.family
import surefoot.core.actors.greedy_actor
import surefoot.core.actors.return_actor  # noqa: F401  as above; left out below, whether another test has imported it or not
from surefoot.core.actors.heads import ACTORS, MLPActor
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy

KINDS = sorted(
    kind
    for kind, actor in ACTORS.items()
    if issubclass(actor, MLPActor) and not actor.always_samples and not actor.needs_outcomes
    if not kind.startswith("masked_")  # whose observations end with a mask
    if actor.__module__.startswith("surefoot.core.")  # those of other rooms are there if another test has imported them
)


def policy(kind: str, hidden: tuple[int, ...] = (16, 8)) -> Policy:
    """3 observations far from standard, 2 actions with bounds of their own."""
    actor = ACTORS[kind](3, 2, hidden)  # type: ignore[call-arg]
    if kind == "gaussian":
        with torch.no_grad():
            actor.log_std.copy_(torch.tensor([-1.0, 0.2]))  # type: ignore[union-attr, operator]
    normalizer = Normalizer(3)
    normalizer.mean.copy_(torch.tensor([1.0, -20.0, 300.0]))
    normalizer.scale.copy_(torch.tensor([0.5, 3.0, 100.0]))
    return Policy.of(actor, normalizer, torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 10.0]))


def observations(rows: int) -> torch.Tensor:
    """In the units that the normaliser of `policy` expects."""
    return torch.randn(rows, 3) * torch.tensor([0.5, 3.0, 100.0]) + torch.tensor([1.0, -20.0, 300.0])
