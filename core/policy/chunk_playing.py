"""How a policy that plans chunks plays them: found in it, and changed, in a copy that leaves as a file."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.chunk_actors import WAYS
from surefoot.core.actors.memory_actors import ChunkActor, WrappingActor
from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.policy.policy import Policy


def chunk_of(policy: Policy) -> ChunkActor | None:
    """The head of a policy that plans chunks, which may stand within another one's memory; None: it has none."""
    head: Any = policy.actor
    while isinstance(head, WrappingActor):
        if isinstance(head, ChunkActor):
            return head
        head = head.inner
    return None


def with_head(policy: Policy, head: Actor, low: Tensor, high: Tensor) -> Policy:
    """A copy of a policy whose chunk head is `head`; (A',) bounds of its actions. It samples where the policy does.

    Names that fit it stay: those of the actions where A' is A.
    """
    actor = head
    if not isinstance(policy.actor, ChunkActor):
        actor = copy.deepcopy(policy.actor)
        around: Any = actor
        while not isinstance(around.inner, ChunkActor):
            around = around.inner
        around.inner = head
    made = Policy.of(actor, policy.normalizer, low, high, policy.encoder)
    made = made.named(policy.names.get("observation_names"), policy.names.get("action_names")).pictured(policy.pictures)
    return made.sampled() if policy._sampled else made


def played(policy: Policy, way: str, **options: Any) -> Policy:
    """A copy of a policy of chunks that plays them in another way; its file keeps that way.

    Args:
        policy: that plans chunks of C actions.
        way: "chunk" plays the first `execute` of C and plans anew (receding horizon), "ensemble" averages all chunks
            that reach a step, "blend" fades from each into the next.
        options: `execute`, all; `decay` of an ensemble; `fade_ticks` and `fade` of a blend.

    Raises:
        ConfigError: no policy of chunks, another way, or an option out of range.
    """
    head = chunk_of(policy)
    if head is None:
        raise ConfigError("this policy plans one action at a time; only policies of chunks can play them otherwise")
    if way not in WAYS:
        raise ConfigError(f"no way of playing chunks is called {way!r}; {nearest(way, list(WAYS))}")
    try:
        made = WAYS[way](head.inner, head.chunk, head.action_dim, **options)
    except TypeError as error:
        raise ConfigError(f"playing chunks as {way!r}: {error}") from error
    return with_head(policy, made, policy.action_low, policy.action_high)
