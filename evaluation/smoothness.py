"""How smoothly trained policies act: how much their actions change from step to step, and their Jacobian."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from surefoot.evaluation.rollout import Array, Episodes
from surefoot.evaluation.statistics import hierarchical_interval

MOST_OBSERVATIONS = 1024
"""At which a policy's Jacobian is measured."""


class Met:
    """Observations that each policy meets in an evaluation, thinned evenly: given to `evaluate` as `watch`."""

    def __init__(self, policies: int, most: int = MOST_OBSERVATIONS) -> None:
        """Keep at most `most` observations of each of `policies` policies."""
        self.most = most
        self.kept: list[list[Array]] = [[] for _ in range(policies)]
        self._seen = [0] * policies
        self._every = [1] * policies

    def __call__(self, policy: int, observations: Array) -> None:
        """Take some of the (N, O) observations that a policy acts on now."""
        kept, every = self.kept[policy], self._every[policy]
        first = -self._seen[policy] % every
        kept.extend(np.array(observations[first::every], dtype=np.float32))
        self._seen[policy] += len(observations)
        while len(kept) > self.most:
            del kept[1::2]
            self._every[policy] *= 2

    def of(self, policy: int) -> Array:
        """(N, O) float32 in the order in which they were met, N at most `most`; 0 of images, which are not kept."""
        return np.stack(self.kept[policy]) if self.kept[policy] else np.zeros((0, 0), np.float32)


def evenly(observations: Array, most: int = MOST_OBSERVATIONS) -> Array:
    """(N, O) float32, at most `most` rows of a dataset's observations, evenly spaced."""
    return np.asarray(observations[:: -(-len(observations) // most)], dtype=np.float32)


def smoothness(episodes: Sequence[Episodes] | None, jacobians: Sequence[float | None]) -> dict[str, Any] | None:
    """Both measures as JSON values, with intervals over seeds and initial states; None where there is neither.

    Args:
        episodes: of each seed's policy; None without a simulator.
        jacobians: mean squared norm of each seed's Jacobian, None where it has none.

    Returns:
        `action_change` and `jacobian`, each None or a mapping with `mean`, `low`, `high` and `method`.
    """
    changes = [found.action_changes for found in episodes or () if found.action_changes is not None]
    norms = [np.array([value]) for value in jacobians if value is not None]
    found: dict[str, Any] = {"action_change": None, "jacobian": None}
    if changes and len(changes) == len(jacobians):
        found["action_change"] = hierarchical_interval(changes, bounds=(0, math.inf)).to_json()
    if norms:
        found["jacobian"] = hierarchical_interval(norms, shared_episodes=False, bounds=(0, math.inf)).to_json()
        if len(norms) == 1:
            found["jacobian"]["method"] = "one seed, so there is no interval"
    return None if all(value is None for value in found.values()) else found
