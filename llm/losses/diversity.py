"""How much right answers differ from each other, for DSDR's bonus and for the weights of its entropy term."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from surefoot.core.losses.masked import keep
from surefoot.llm.losses.advantages import group_numbers


@torch.no_grad()
def embedding_diversity(embeddings: Tensor, groups: Tensor | int) -> Tensor:
    """Mean of (1 - cosine) / 2 to the others of the group: (M, E) -> (M,), in [0, 1]; 0 for one that is alone.

    Args:
        embeddings: (M, E) of any encoder that is not trained.
        groups: (M,) integers, or k.

    Source: "DSDR" (2602.19895), section 3.
    """
    unit = torch.nn.functional.normalize(embeddings, dim=-1)
    group = group_numbers(embeddings[:, 0], groups)
    others = (group.unsqueeze(0) == group.unsqueeze(1)) & ~torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    apart = (1 - unit @ unit.T).clamp(0, 2) / 2
    return keep(apart, others.to(apart.dtype)).sum(-1) / others.sum(-1).clamp(min=1)


@torch.no_grad()
def formula_diversity(formulas: Sequence[frozenset[str]], groups: Tensor | int) -> Tensor:
    """Share of an answer's formulas that no other member of its group has: (M,); 0 where it has none.

    Args:
        formulas: of each answer.
        groups: (M,) integers, or k.

    Source: "DSDR" (2602.19895), section 3.
    """
    group = group_numbers(torch.zeros(len(formulas)), groups).tolist()
    found = torch.zeros(len(formulas))
    for row, own in enumerate(formulas):
        known = frozenset[str]().union(*(formulas[n] for n in range(len(group)) if group[n] == group[row] and n != row))
        found[row] = len(own - known) / len(own) if own else 0.0
    return found


@torch.no_grad()
def diversity_weights(diversity: Tensor, right: Tensor, groups: Tensor | int, sharpness: float = 5.0) -> Tensor:
    """exp(tau d) of right answers over its sum over those of their group, 0 for the others: (M,).

    Args:
        diversity: (M,).
        right: (M,) bool.
        groups: (M,) integers, or k.
        sharpness: tau.

    Source: "DSDR" (2602.19895), its global-to-local coupling.
    """
    group = group_numbers(diversity, groups)
    grown = keep((sharpness * diversity).exp(), right.to(diversity.dtype))
    total = torch.zeros_like(grown).scatter_add_(0, group, grown)[group]
    return torch.where(right, grown / total.clamp(min=torch.finfo(grown.dtype).tiny), 0.0)
