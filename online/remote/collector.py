"""A collector's answers to a learner's orders: blocks of an on-policy agent, steps of an off-policy one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.envs.acting import under
from surefoot.envs.acting.episodes import UNLIMITED_EPISODE_STEPS
from surefoot.online.base.on_policy_agent import BEHAVIOUR
from surefoot.online.loops.blocks import Blocks
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.online.remote.team import MOMENTS, ROWS, STATE, Tensors, packed, take_weights
from surefoot.online.remote.team_blocks import WARM
from surefoot.online.remote.team_experience import joined

DECISIONS = "decisions"
"""Of a state: rows of experience so far."""


def fill_for(blocks: Blocks, meta: dict[str, Any], tensors: Tensors, reported: list[str]) -> bytes:
    """A collector's answer to an order: its next block, its statistics and its state.

    Args:
        blocks: of the collector.
        meta: of the order.
        tensors: likewise.
        reported: sentences for the user.
    """
    take_weights(blocks.learner, tensors)
    given = under(tensors, MOMENTS)
    if blocks.learns_statistics and bool(given["count"].any()):
        blocks.moments.restore(0, given)
        blocks.use_moments()
    before = blocks.taken.clone()
    warm = blocks.warm_up() or {}
    block = blocks.fill(int(meta["number"]))
    if meta["stale"]:
        block[BEHAVIOUR] = blocks.learner.apply("behaviour_log_prob", block)
    ended, has_costs = blocks.episodes.take_ended()
    answer = {f"{ROWS}{name}": value for name, value in block.items()} | {"ended": ended}
    answer |= {f"{WARM}{name}": value for name, value in warm.items()}
    answer |= {f"{MOMENTS}{name}": value for name, value in blocks.moments.state(0).items()}
    answer |= {f"{STATE}{name}": value for name, value in blocks.state(0).items()}
    taken = int((blocks.taken - before).sum())
    return packed({"number": meta["number"], "taken": taken, "has_costs": has_costs, "told": reported}, answer)


def steps_for(loop: OffPolicyLoop, meta: dict[str, Any], tensors: Tensors, reported: list[str]) -> bytes:
    """A collector's answer to an order: its next steps, and its state.

    Args:
        loop: of the collector.
        meta: of the order.
        tensors: likewise.
        reported: sentences for the user.
    """
    experience = loop.experience
    take_weights(loop.learner, tensors)
    loop.read_transforms()
    experience.heard = []
    if meta["steps"] is None:
        _episode(loop)
    else:
        first = int(meta["number"]) * int(meta["steps"])
        for number in range(first, first + int(meta["steps"])):
            loop.decisions = number * loop.num_envs
            loop.act()
    heard, experience.heard = experience.heard, None
    columns = joined(heard, torch.stack)
    columns.pop("returns_to_go", None)
    answer = {f"{ROWS}{name}": value for name, value in columns.items()}
    state = experience.acting.state(0, "experience/", "experience/observations")  # what its buffer holds is sent on
    answer |= {f"{STATE}{name}": value for name, value in state.items()}
    answer[f"{STATE}{DECISIONS}"] = torch.tensor(loop.decisions)
    return packed({"number": meta["number"], "told": reported}, answer)


def _episode(loop: OffPolicyLoop) -> None:
    """Act to the end of the episode of the one environment.

    Raises:
        EnvironmentMismatchError: it has none.
    """
    heard = loop.experience.heard
    assert heard is not None
    while not (heard and bool((heard[-1]["terminations"] | heard[-1]["truncations"]).any())):
        if len(heard) >= UNLIMITED_EPISODE_STEPS:
            raise EnvironmentMismatchError(
                f"{loop.experience.acting.name}: an episode passed {UNLIMITED_EPISODE_STEPS} steps without an end, and "
                "collect=episode waits for it: give it a time limit, max_episode_steps=1000, or leave collect= out"
            )
        loop.act()


def restore_acting(loop: OffPolicyLoop, state: Mapping[str, Tensor], block: int) -> str | None:
    """Continue from a collector's state; None, or a sentence where environments have none: new episodes begin."""
    experience = loop.experience
    loop.decisions = int(state.get(DECISIONS, torch.zeros(())))
    lost = experience.acting.restore([state], "experience/", "experience/observations")
    if lost is not None:
        experience.acting.begin(block)
    return lost
