"""Sampling from another policy's nucleus alone: the mask of NLPO."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.llm.losses.selection import nucleus_mask

LARGEST = 1 << 32
"""Most entries of a rollout's mask: 4 GB of memory."""


@dataclasses.dataclass(frozen=True)
class Nucleus:
    """The smallest sets of tokens with at least `share` of a policy's probability; end tokens are always in them.

    Source: Ramamurthy et al., "Is Reinforcement Learning (Not) for Natural Language Processing?" (NLPO).
    """

    policy: Any
    """The mask policy, an `LMPolicy`: a copy that is refreshed now and then."""
    share: float = 0.9

    def follow(self, ids: Tensor, mask: Tensor) -> Follower:
        """One that goes along with the sampling of answers to (B, P) prompts."""
        return Follower(self, ids, mask)

    def check_size(self, rows: int, new: int) -> None:
        """Refuse masks that would not fit into memory.

        Raises:
            ConfigError: with what to lower.
        """
        if rows * new * self.policy.vocabulary > LARGEST:
            raise ConfigError(
                f"the nucleus of {rows} answers of {new} tokens from a vocabulary of {self.policy.vocabulary} takes "
                "more than 4 GB: lower prompts_per_step, group or max_new_tokens"
            )


class Follower:
    """The mask policy's own pass over what is sampled, token by token, with a cache of its own."""

    def __init__(self, nucleus: Nucleus, ids: Tensor, mask: Tensor) -> None:
        self._nucleus, self._width = nucleus, ids.shape[1]
        self._mask, self._cache = mask.long(), None
        self._found: list[Tensor] = []

    @torch.no_grad()
    def allowed(self, ids: Tensor) -> Tensor:
        """(B, V) bool for the next token, `ids` being prompts and all tokens so far."""
        policy = self._nucleus.policy
        new = ids if self._cache is None else ids[:, -1:]
        if self._cache is not None:
            self._mask = torch.cat([self._mask, torch.ones_like(self._mask[:, :1])], 1)
        places = (self._mask.cumsum(-1) - 1).clamp(min=0)[:, -new.shape[1] :]
        output = policy.model(
            input_ids=new,
            attention_mask=self._mask,
            position_ids=places,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache = output.past_key_values
        logits = output.logits[:, -1].float() / policy.temperature
        self._found.append(nucleus_mask(logits, self._nucleus.share, policy.ends))
        return self._found[-1]

    def seen(self, count: int) -> Tensor:
        """(B, count, V) bool of the tokens that were drawn."""
        return torch.stack(self._found[:count], 1)
