"""A head that is given how much is still to be earned, and keeps count of it while it acts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.core.actors.actor import MLPActor
from surefoot.core.actors.memory import Memory, begun_anew
from surefoot.core.nn.networks import MLP


class ReturnActor(MLPActor):
    """a = MLP(s, g), clipped to [-1, 1] when acting; g is the return still to come, undiscounted.

    An episode begins with `target_return`, and what is earned is subtracted. Source: Emmons et al., "RvS: What is
    Essential for Offline RL via Supervised Learning?" (2022); Zhou et al., "MBRCSL" (2024), for the last layer, which
    begins near 0, and for returns that are not normalised.
    """

    kind = "return_conditioned"
    needs_outcomes = True
    target_return: Tensor
    """() undiscounted return that an episode is asked for, in the environment's units; may be written anew."""

    def __init__(self, observation_dim: int, action_dim: int, hidden: Sequence[int] = (1024, 1024)) -> None:
        super().__init__()
        self.mlp = MLP(observation_dim + 1, action_dim, hidden)
        nn.init.xavier_uniform_(self.mlp.weights[-1], gain=0.01)
        nn.init.zeros_(self.mlp.biases[-1])
        self.register_buffer("target_return", torch.zeros(()))

    @property
    def noise_dim(self) -> int:
        """0: there is nothing to draw."""
        return 0

    def description(self) -> dict[str, Any]:
        """The sizes, and the return that an episode begins with."""
        return {**super().description(), "target_return": float(self.target_return)}

    def forward(self, observations: Tensor, returns_to_go: Tensor) -> Tensor:
        """(B, A) actions, not clipped, for (B, O) normalised observations and (B,) returns still to come."""
        return self.mlp(torch.cat([observations, returns_to_go.unsqueeze(-1)], -1))

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions at the first step of an episode; `noise` has no effect."""
        return self.step(observations, self.begin(len(observations)))[0]

    def begin(self, rows: int) -> Memory:
        """`returns_to_go` (rows,): the target."""
        return {"returns_to_go": self.target_return.expand(rows).clone()}

    def step(self, observations: Tensor, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """(B, A) actions for (B, O) normalised observations and what is left to earn; the memory stays."""
        return self(observations, memory["returns_to_go"]).clamp(-1, 1), memory

    def observe_outcome(self, memory: Memory, rewards: Tensor, costs: Tensor, ended: Tensor) -> Memory:
        """What was earned is subtracted; rows that ended begin anew."""
        return begun_anew({**memory, "returns_to_go": memory["returns_to_go"] - rewards}, self.begin(1), ended)
