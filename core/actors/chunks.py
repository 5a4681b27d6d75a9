"""Chunks of actions as decisions: what C steps earned, where they led, and what of that counts.

A window of C steps (`data.sources.WindowSource`) is one row of a problem whose action is the whole chunk, C A numbers
in the order of time. Source: Li, Zhou and Levine, "Reinforcement Learning with Action Chunking" (Q-chunking, 2025).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.base.batch import Batch


class ChunkTarget(NamedTuple):
    """Parts of the target rewards + reach * Q'(s', chunk'), and the row's weight."""

    rewards: Tensor
    """(B,): discounted sum of the chunk's rewards."""
    reach: Tensor
    """(B,): discount to the power of the steps taken; 0 where the task ended within them."""
    valid: Tensor
    """(B,): 1; 0 where a time limit cut the window before C steps, so that its target is of another length."""


def chunk_target(rewards: Tensor, terminations: Tensor, mask: Tensor, discount: float) -> ChunkTarget:
    r"""What a chunk earned, with :math:`R = \sum_k \gamma^k r_k` over the steps up to and with a termination.

    A termination within the chunk ends it: what the later actions would have done does not matter, so the row counts,
    with the rewards up to there and no bootstrap. The official code of Q-chunking gives such rows weight 0, and the
    states of an episode's last C - 1 steps are then never learned but bootstrapped from; and it keeps adding rewards
    where data run on after the task's end; here only their actions are of the chunk, as they were taken
    (`data.sources.chunk_source`). Only what a time limit cut is left out, here as there.

    Args:
        rewards: (B, C) in reward units; those of padding do not count.
        terminations: (B, C) 1 where the task itself ended.
        mask: (B, C) 1 on the window's steps, 0 on the padding behind them.
        discount: gamma, in [0, 1].

    Returns:
        Three (B,) tensors.
    """
    length = mask.shape[-1]
    total, reach, left = torch.zeros_like(rewards[..., 0]), torch.ones_like(mask[..., 0]), torch.ones_like(mask[..., 0])
    for step in reversed(range(length)):
        here, goes_on = mask[..., step], 1 - terminations[..., step]
        total = here * (rewards[..., step] + discount * goes_on * total)
        reach = reach * (1 - here * (1 - discount * goes_on))
        left = left * (1 - here * terminations[..., step])
    return ChunkTarget(total, reach, 1 - left * (1 - mask[..., -1]))


def decisions(batch: Batch, discount: float, chunk: int = 1) -> Batch:
    """Rows of a problem whose actions are chunks, from windows of at least C steps, or of single rows where C is 1.

    Args:
        batch: windows (B, L, ...) with `mask` (B, L), of which the first C steps are taken; or plain rows (B, ...).
            Features of named observations are (B, F), those of the first step and those after the last one; they may be
            missing, where only a loss makes them.
        discount: per step.
        chunk: C.

    Returns:
        The batch with `observations` (B, O) at the first step, `actions` (B, C A), `observation_actions`, `rewards`,
        `reach` and `valid` (B,) as `chunk_target` has them, `next_observations` (B, O) after the last step, and `mask`
        (B, C A): 1 where an action of the chunk is in the data, behind the task's end too where the recording runs on.
        Padding repeats the last action.
    """
    if "mask" not in batch:
        reach = discount * (1 - batch["terminations"]) if "terminations" in batch else None
        reported = {} if reach is None else {"reach": reach, "valid": torch.ones_like(reach)}
        return {**batch, **reported, "mask": torch.ones_like(batch["actions"])}
    mask, actions = batch["mask"][..., :chunk], batch["actions"][..., :chunk, :]
    found = {"actions": actions.flatten(-2), "mask": mask.unsqueeze(-1).expand_as(actions).flatten(-2)}
    if "observations" in batch:
        found["observations"] = _at(batch["observations"], 0, actions)
        found["observation_actions"] = torch.cat([found["observations"], found["actions"]], -1)
    if "rewards" in batch:
        target = chunk_target(batch["rewards"][..., :chunk], batch["terminations"][..., :chunk], mask, discount)
        following = _at(batch["next_observations"], chunk - 1, actions)
        found |= {**target._asdict(), "next_observations": following}
    return {**batch, **found}


def _at(observations: Tensor, step: int, actions: Tensor) -> Tensor:
    """(B, O) observations at a step of windows of (B, C, A) actions; features are (B, O) already."""
    return observations[..., step, :] if observations.dim() == actions.dim() else observations


def in_chunks(actor: Actor, chunk: int, action_dim: int, execute: int | None = None) -> Actor:
    """A head of C A numbers as it acts: itself where C is 1, else one action a step from its queue.

    Args:
        actor: plans C actions.
        chunk: C.
        action_dim: A.
        execute: how many of them are played before it plans anew; None: all.
    """
    return actor if chunk == 1 else ChunkActor(actor, chunk, action_dim, execute)
