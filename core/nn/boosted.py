r"""Boosted oblivious trees as tensors: each asks one question a level, the same in all nodes of the level.

A tree of depth d is d comparisons :math:`x_f > \theta`, which make the number of one of 2^d leaves; trees are summed.
Each new tree is fitted to gradients G at the model's outputs, a leaf being their mean:

.. math:: F_k(x) = F_{k-1}(x) - \epsilon\, h_k(x), \quad \text{score} = \sum_\text{nodes} n\, |\bar G|^2

Sources: Friedman, "Greedy function approximation" (2001); Prokhorenkova et al., "CatBoost" (2018), for oblivious trees;
Fuhrer et al., "Gradient Boosting Reinforcement Learning" (2024), for several outputs under one tree.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError

TREES_AT_ONCE = 256
"""Trees that are asked at once: their answers stay in the cache."""
DEEPEST = 10


class Tree(NamedTuple):
    """One tree."""

    features: Tensor
    """(d,) int64 which number each level asks for."""
    thresholds: Tensor
    """(d,) above which it goes right."""
    leaves: Tensor
    """(2^d, K) means of the gradients."""
    gains: Tensor
    """(d,) by how much each level raised the score."""


def fit_tree(inputs: Tensor, gradients: Tensor, depth: int, bins: int) -> Tree:
    """The oblivious tree of the greatest score, level by level, the first of equal questions.

    Args:
        inputs: (B, F).
        gradients: (B, K).
        depth: d.
        bins: thresholds that are tried for each number of the input: quantiles of the rows.
    """
    rows, count = gradients.shape
    shares = torch.linspace(0, 1, bins + 2, dtype=inputs.dtype, device=inputs.device)[1:-1]
    tried = torch.quantile(inputs, shares, dim=0, interpolation="lower").T  # (F, Q)
    right = (inputs[:, :, None] > tried).reshape(rows, -1).to(gradients.dtype)  # (B, F Q)
    known = torch.cat([gradients, torch.ones_like(gradients[:, :1])], 1)  # (B, K + 1)
    node = torch.zeros(rows, dtype=torch.int64, device=inputs.device)
    features, thresholds, gains = [], [], []

    def score(sums: Tensor) -> Tensor:
        """(...) n |mean|^2 of (..., K + 1) sums of gradients and rows, summed over nodes."""
        return (sums[..., :count].square().sum(-1) / sums[..., count].clamp(min=1)).sum(0)

    for level in range(depth):
        nodes = 2**level
        inside = nn.functional.one_hot(node, nodes).to(gradients.dtype)  # (B, M)
        each = (inside[:, :, None] * known[:, None]).reshape(rows, -1)  # (B, M (K + 1))
        whole = each.sum(0).reshape(nodes, 1, count + 1)
        above = (each.T @ right).reshape(nodes, count + 1, -1).transpose(1, 2)  # (M, F Q, K + 1)
        found = score(above) + score(whole - above)
        best = found.argmax(keepdim=True)  # (1,): nothing is read by the host
        features.append(best // bins)
        thresholds.append(tried.reshape(-1).gather(0, best))
        gains.append(found.gather(0, best) - score(whole))
        node = 2 * node + right.index_select(1, best)[:, 0].long()
    inside = nn.functional.one_hot(node, 2**depth).to(gradients.dtype)
    sums = inside.T @ known
    leaves = sums[:, :count] / sums[:, count:].clamp(min=1)
    return Tree(torch.cat(features), torch.cat(thresholds), leaves, torch.cat(gains))


class Trees(nn.Module):
    """Up to T trees with K outputs; those that are not there yet give 0."""

    features: Tensor
    thresholds: Tensor
    leaves: Tensor
    gains: Tensor
    count: Tensor

    def __init__(self, outputs: int, capacity: int, depth: int) -> None:
        """Make room.

        Args:
            outputs: K.
            capacity: T, at least 1.
            depth: d, of each, 1 to `DEEPEST`.

        Raises:
            ConfigError: a number out of range.
        """
        super().__init__()
        if capacity < 1 or not 1 <= depth <= DEEPEST:
            raise ConfigError(f"{capacity} trees of depth {depth}: at least 1 tree, of depth 1 to {DEEPEST}")
        self.capacity, self.depth = capacity, depth
        self.register_buffer("features", torch.zeros(capacity, depth, dtype=torch.int64))
        self.register_buffer("thresholds", torch.zeros(capacity, depth))
        self.register_buffer("leaves", torch.zeros(capacity, 2**depth, outputs))
        self.register_buffer("gains", torch.zeros(capacity, depth))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., K) sums of the trees' leaves for (..., F) inputs."""
        flat = inputs.reshape(-1, inputs.shape[-1])
        powers = 2 ** torch.arange(self.depth - 1, -1, -1, device=flat.device)
        total = self.leaves.new_zeros(flat.shape[0], self.leaves.shape[-1])
        for first in range(0, self.capacity, TREES_AT_ONCE):
            part = slice(first, first + TREES_AT_ONCE)
            leaves = self.leaves[part]
            answers = flat[:, self.features[part]] > self.thresholds[part]  # (B, T, d)
            place = (answers * powers).sum(-1) + torch.arange(leaves.shape[0], device=flat.device) * leaves.shape[1]
            total = total + leaves.flatten(0, 1)[place].sum(1)
        return total.reshape(*inputs.shape[:-1], -1)

    def importance(self, inputs: int) -> Tensor:
        """(F,) shares of the gains of all questions that each number of the input has; 0 where there is no tree."""
        total = self.gains.new_zeros(inputs).index_add(0, self.features.flatten(), self.gains.flatten())
        return total / total.sum().clamp(min=1e-30)

    def grown(self, tree: Tree, rates: Tensor) -> dict[str, Tensor]:
        """Name -> buffer with one more tree, whose leaves are multiplied by minus (K,) `rates`."""
        at = self.count.reshape(1)
        new = tree._replace(leaves=-rates * tree.leaves)._asdict()
        made = {name: getattr(self, name).index_copy(0, at, value[None]) for name, value in new.items()}
        return {**made, "count": self.count + 1}

    def check_room(self, more: int) -> None:
        """Raise ConfigError where there is no room for so many more trees."""
        if int(self.count) + more > self.capacity:
            raise ConfigError(
                f"{int(self.count):,} of {self.capacity:,} trees are grown, and the next block grows {more}: give more "
                "room with algo.capacity, or train fewer steps"
            )
