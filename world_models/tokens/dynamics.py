"""`TokenDynamics`: a world whose numbers are drawn one after another as tokens, by a transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core.engine.agent import Batch, Metrics
from surefoot.world_models.dynamics import Dynamics, Outcome, StepNoise, Terminates
from surefoot.world_models.tokens.tokens import Bins, drawn, uniform_of
from surefoot.world_models.tokens.transformer import TokenTransformer, log_likelihood

COLUMNS = ("observations", "actions", "rewards", "next_observations")


class TokenDynamics(nn.Module, Dynamics):
    r"""An autoregressive model of reward and next state, whose distributions may have any shape.

    .. math:: p(r, s' | s, a) = p(r | s, a) \textstyle\prod_i p(s'_i | s, a, r, s'_{<i})

    each a categorical over the bins of one number; drawn numbers are the middles of bins, so that no state is nearer
    to the truth than half a bin. Source: Zhou et al., "Free from Bellman Completeness" (ICLR 2024), for simulated
    robots, with 500 bins of equal width; Janner, Li and Levine (NeurIPS 2021). Only what is not given is learned.
    Without normal numbers a step takes each number's mean, given the likeliest tokens before it.
    """

    members = 1
    knows_costs = False

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        *,
        bins: int = 500,
        law: str = "uniform",
        width: int = 128,
        layers: int = 4,
        heads: int = 4,
        terminates: Terminates | None = None,
    ) -> None:
        """Build it; `fit` sets the bins.

        Args:
            state_dim: S.
            action_dim: A.
            bins: K, of each number.
            law: of the bins (`world_models.tokens`).
            width: of the transformer.
            layers: of it.
            heads: of its attention.
            terminates: (..., S) next states -> (...) bool; None: nothing ends.
        """
        super().__init__()
        self.state_dim, self.action_dim, self.terminates = state_dim, action_dim, terminates
        self.given, self.noise_dim = state_dim + action_dim, 1 + state_dim
        self.bins = Bins(self.given + self.noise_dim, bins, law)
        self.transformer = TokenTransformer(self.given + self.noise_dim, 1, bins, width, layers, heads)

    def numbers(self, batch: Mapping[str, Any]) -> Any:
        """(..., S + A + 1 + S) numbers of rows, in the order of the tokens; of arrays or tensors."""
        parts = [batch[name] for name in COLUMNS]
        parts[2] = parts[2][..., None]
        return np.concatenate(parts, -1) if isinstance(parts[0], np.ndarray) else torch.cat(parts, -1)

    def fit(self, columns: Mapping[str, np.ndarray]) -> None:
        """Set the bins from (N, ...) columns of rows."""
        self.bins.fit(self.numbers(columns))

    def log_probabilities(self, batch: Batch, masks: Tensor | None = None) -> Tensor:
        """(B, 1 + S) of the tokens of reward and next state, each given those before it, in nats."""
        tokens = self.bins.encode(self.numbers(batch))
        logits, _ = self.transformer(tokens[:, :-1], masks=masks)
        return log_likelihood(logits[:, self.given - 1 :], tokens[:, self.given :])

    def loss(self, batch: Batch, masks: Tensor | None = None) -> tuple[Tensor, Metrics]:
        """Cross-entropy of a token of reward or next state, in nats."""
        found = self.log_probabilities(batch, masks)
        return -found.mean(), {"reward_nll": -found[:, 0]}

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        """As `Dynamics.step`."""
        lead = torch.broadcast_shapes(states.shape[:-1], actions.shape[:-1])
        pairs = torch.cat([states.expand(*lead, -1), actions.expand(*lead, -1)], -1).flatten(0, -2)
        if not lead:
            pairs = pairs.unsqueeze(0)
        uniform = None
        if noise.normal is not None:
            uniform = uniform_of(noise.normal.expand(*lead, self.noise_dim).reshape(len(pairs), -1))
        logits, past = self.transformer(self.bins.encode(pairs))
        found = []
        for number in range(self.noise_dim):
            place = self.given + number
            odds = logits[:, -1].softmax(-1)
            token = odds.argmax(-1) if uniform is None else drawn(odds, uniform[:, number])
            reported = self.bins.expected(odds, place) if uniform is None else self.bins.centres[place][token]
            found.append(reported)
            if number < self.noise_dim - 1:
                logits, past = self.transformer(token.unsqueeze(-1), place, past)
        reward, following = found[0].view(lead), torch.stack(found[1:], -1).view(*lead, -1)
        none = torch.zeros_like(reward)
        return Outcome(following, reward, none, none.bool() if self.terminates is None else self.terminates(following))
