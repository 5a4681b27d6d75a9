"""Edge of reach: states whose values are bootstrapped from and never trained.

With rollouts of L steps, the last states are asked for their values and are never the first of a row; where they lie
beyond all that rollouts visit before, nothing ever corrects these values. Source: Sims, Lu, Foerster and Teh, "The
Edge-of-Reach Problem in Offline Model-Based Reinforcement Learning" (NeurIPS 2024).
"""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.world_models.imagine import Rollouts

SAMPLE = 1024
"""States of each kind that are compared."""


def outside(asked: Tensor, trained: Tensor, spacing: Tensor, level: float = 0.99) -> Tensor:
    """(K,) bool: states that are farther from the nearest trained one than trained ones are from each other.

    Distances are Euclidean, in standard deviations of the trained states.

    Args:
        asked: (K, S).
        trained: (M, S).
        spacing: (J, S) further trained states: how far they are from the nearest in `trained` is usual.
        level: quantile of the usual distances that a state outside is beyond.
    """
    scale = trained.std(0).clamp(min=1e-6)
    usual = torch.cdist(spacing / scale, trained / scale).amin(1)
    found = torch.cdist(asked / scale, trained / scale).amin(1)
    return found > torch.quantile(usual, level)


def edge_share(rollouts: Rollouts, level: float = 0.99, sample: int = SAMPLE) -> Tensor:
    """() share of the rollouts' bootstrap targets whose next state is outside of the states that rows begin at.

    A target bootstraps where its row is valid and does not end its episode. The next state of any step but a rollout's
    last begins the row after; last ones are compared with `outside`, a sample of them: the first rollouts, which are as
    random as any. 0 where nothing bootstraps.
    """
    rows, length = rollouts.valid.shape[1], rollouts.valid.shape[0]
    asks = rollouts.valid & (rollouts.terminations == 0)
    total = asks.sum()
    trained = rollouts.states.transpose(0, 1)[: max(2, 4 * sample // length)].flatten(0, 1)
    kept = rollouts.valid.transpose(0, 1)[: max(2, 4 * sample // length)].flatten()
    trained = trained[kept]
    half = len(trained) // 2
    order = torch.arange(len(trained), device=trained.device)
    first, second = trained[order % 2 == 0], trained[order % 2 == 1]
    last = rollouts.next_states[-1][asks[-1]][:sample]
    if half < 2 or len(last) == 0 or rows == 0:
        return rollouts.rewards.new_zeros(())
    found = outside(last, first, second[:sample], level).to(rollouts.rewards.dtype).mean()
    return found * asks[-1].sum() / total
