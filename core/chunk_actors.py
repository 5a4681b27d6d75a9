"""Heads that plan chunks which overlap, and play an average or a cross-fade of them: memory of the policy.

Each plans C actions from an observation, plays the first `execute` of what it has, and plans anew. What the older chunk
has for the same steps is not forgotten, as `ChunkActor` does, but enters into what is played.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from surefoot.core.actor import Actor
from surefoot.core.errors import ConfigError, nearest
from surefoot.core.memory import Memory
from surefoot.core.memory_actors import ChunkActor, WrappingActor, inner_of
from surefoot.core.overlap import check_decay, fade_weights
from surefoot.core.policy import Policy


class EnsembledChunkActor(ChunkActor):
    r"""Plays the weighted average of all chunks that have an action for the present step.

    .. math::
        a_t = \sum_i e^{-m i} a_t^{(i)} \Big/ \sum_i e^{-m i}

    over the predictions of a_t, the oldest being i = 0. Averages for the steps ahead are remembered, not the chunks.
    Source: Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware" (temporal ensemble).
    """

    kind = "ensembled_chunk"
    sliding = ("queue", "weights", "predictions")
    decay: float

    def __init__(self, inner: Actor, chunk: int, action_dim: int, execute: int = 1, decay: float = 0.01) -> None:
        """Wrap a head that gives C A numbers in [-1, 1]; it plans every `execute` steps; `decay` is m."""
        check_decay(decay, chunk)
        super().__init__(inner, chunk, action_dim, execute)
        self.decay = decay

    def _begin(self, rows: int) -> Memory:
        nothing = {name: self._zeros(rows, self.chunk) for name in ("weights", "predictions")}
        return {**super()._begin(rows), **nothing}

    def joined(self, memory: Memory, planned: Tensor) -> Memory:
        """The running averages with one more prediction in each step that the chunk reaches."""
        weight = torch.exp(-self.decay * memory["predictions"])
        weights = memory["weights"] + weight
        queue = memory["queue"] + (weight / weights).unsqueeze(-1) * (planned - memory["queue"])
        return {**super().joined(memory, queue), "weights": weights, "predictions": memory["predictions"] + 1}

    def description(self) -> dict[str, Any]:
        """m, and what a chunk has."""
        return {"decay": self.decay, **super().description()}

    @classmethod
    def from_description(cls, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        """As `Actor.from_description`."""
        inner, chunk = inner_of(observation_dim, options["chunk"] * action_dim, options), options["chunk"]
        return cls(inner, chunk, action_dim, options.get("execute", chunk), options["decay"])


class BlendedChunkActor(ChunkActor):
    """Fades from each chunk into the next one over the first `fade_ticks` steps of it (`core.overlap.fade_weights`)."""

    kind = "blended_chunk"
    fade_ticks: int
    fade: str

    def __init__(
        self, inner: Actor, chunk: int, action_dim: int, execute: int, fade_ticks: int, fade: str = "linear"
    ) -> None:
        """Wrap a head that gives C A numbers in [-1, 1], which plans every `execute` steps.

        Raises:
            ConfigError: the older chunk has no actions left for the fade: execute + fade_ticks is above C.
        """
        shares = fade_weights(fade_ticks, fade)
        if execute + fade_ticks > chunk:
            raise ConfigError(
                f"execute is {execute} and fade_ticks {fade_ticks}: a chunk of {chunk} actions ends before the fade "
                "into the next one; lower one of the two"
            )
        super().__init__(inner, chunk, action_dim, execute)
        self.fade_ticks, self.fade, self.shares = fade_ticks, fade, shares

    def _begin(self, rows: int) -> Memory:
        return {**super()._begin(rows), "begun": self._zeros(rows)}

    def joined(self, memory: Memory, planned: Tensor) -> Memory:
        """The new chunk, its first actions mixed with what the older one has for the same steps."""
        filled = [planned.new_full((1, 1), share) for share in self.shares]  # on the device: nothing is copied there
        shares = torch.cat([planned.new_empty(0, 1), *filled])
        older, newer = memory["queue"][:, : self.fade_ticks], planned[:, : self.fade_ticks]
        mixed = torch.where(memory["begun"].view(-1, 1, 1) > 0, older + shares * (newer - older), newer)
        queue = torch.cat([mixed, planned[:, self.fade_ticks :]], 1)
        return {**super().joined(memory, queue), "begun": torch.ones_like(memory["begun"])}

    def description(self) -> dict[str, Any]:
        """The fade, and what a chunk has."""
        return {"fade_ticks": self.fade_ticks, "fade": self.fade, **super().description()}

    @classmethod
    def from_description(cls, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        """As `Actor.from_description`."""
        inner, chunk = inner_of(observation_dim, options["chunk"] * action_dim, options), options["chunk"]
        return cls(inner, chunk, action_dim, options.get("execute", chunk), options["fade_ticks"], options["fade"])


WAYS: dict[str, type[ChunkActor]] = {"chunk": ChunkActor, "ensemble": EnsembledChunkActor, "blend": BlendedChunkActor}
"""Way of playing chunks -> the head."""


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
    made = made.named(policy.names.get("observation_names"), policy.names.get("action_names"))
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
