"""What a policy does at the rows of a dataset, each as at an episode's first step; a part of them at a time."""

from __future__ import annotations

import numpy as np
import torch

from surefoot.core.base.counter import CounterGenerator
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Array

PART = 8_192
"""Rows that a policy acts on at once: its networks' activations take kilobytes a row."""


def single_actions(policy: Policy, observations: Array, call: int = 0) -> Array:
    """(N, A) float32 actions, in the environment's units, at (N, O) observations.

    Args:
        policy: without a memory of its episode.
        observations: in the environment's units, N >= 0.
        call: of the noise of a policy that always samples: calls of one number draw the same numbers.
    """
    found = np.empty((len(observations), policy.action_dim), np.float32)
    source = CounterGenerator([0], "policy", call, torch.device("cpu"))  # as `Policy.act` draws for all rows
    for begin in range(0, len(observations), PART):
        rows = torch.from_numpy(np.ascontiguousarray(observations[begin : begin + PART]))
        noise = source.standard_normal((len(rows), policy.noise_dim))[0] if policy.always_samples else None
        found[begin : begin + PART] = policy.act(rows, {}, noise)[0].numpy()
    return found
