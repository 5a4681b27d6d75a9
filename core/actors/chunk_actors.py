"""Heads that plan chunks which overlap, and play an average or a cross-fade of them: memory of the policy.

Each plans C actions from an observation, plays the first `execute` of what it has, and plans anew. What the older chunk
has for the same steps is not forgotten, as `ChunkActor` does, but enters into what is played.
"""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.memory import Memory
from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.actors.overlap import check_decay, fade_weights
from surefoot.core.base.errors import ConfigError


class EnsembledChunkActor(ChunkActor):
    r"""Plays the weighted average of all chunks that have an action for the present step.

    .. math::
        a_t = \sum_i e^{-m i} a_t^{(i)} \Big/ \sum_i e^{-m i}

    over the predictions of a_t, the oldest being i = 0. Averages for the steps ahead are remembered, not the chunks.
    Source: Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware" (temporal ensemble).
    """

    kind = "ensembled_chunk"
    order = ("decay", "chunk", "execute", "inner")
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


class BlendedChunkActor(ChunkActor):
    """Fades from each chunk into the next over its first `fade_ticks` steps (`core.actors.overlap.fade_weights`)."""

    kind = "blended_chunk"
    order = ("fade_ticks", "fade", "chunk", "execute", "inner")
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


WAYS: dict[str, type[ChunkActor]] = {"chunk": ChunkActor, "ensemble": EnsembledChunkActor, "blend": BlendedChunkActor}
"""Way of playing chunks -> the head."""
