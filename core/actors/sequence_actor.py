"""A head that emits sequences of actions of any length from one observation: a recurrent unit reads its own actions."""

from __future__ import annotations

import copy
from typing import Self

import torch
from torch import Tensor, nn

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.memory import Memory, in_rows
from surefoot.core.base.errors import ConfigError
from surefoot.core.losses.distributions import gaussian_log_density, tanh_log_determinant
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.recurrent import GRU


class SequenceActor(Actor):
    r"""Squashed normals of L actions in a row, each after those before it, by a gated recurrent unit (SRL).

    .. math::
        h_0 = W_2 \max(0, W_1 s), \quad h_{p+1} = \mathrm{GRU}(a_{p-1}, h_p), \quad
        a_p = \tanh(\mu(h_{p+1}) + \sigma(h_{p+1}) z_p)

    :math:`a_{-1}` is the action before the decision, 0 at an episode's beginning. Without noise the means are taken,
    and read. It plays the L actions of one observation before it reads the next; L may be changed (`playing`).

    Source: Patel and Siegelmann, "Overcoming Slow Decision Frequencies in Continuous Control" (ICLR 2025).
    """

    kind = "sequence"
    branches: bool = True
    """Whether it plans only where a row has nothing left to play; else in each step, as where several agents act in one
    call."""

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        length: int,
        width: int = 256,
        log_std_range: tuple[float, float] = (-20.0, 2.0),
    ) -> None:
        """Emit `length` actions, at least 1, by a unit of `width` numbers."""
        super().__init__()
        if length < 1 or width < 1:
            raise ConfigError(
                f"length is {length} and width {width}; a sequence has at least 1 action, a unit 1 number"
            )
        self.action_dim, self.length, self.width, self.log_std_range = action_dim, length, width, log_std_range
        self.mlp = MLP(observation_dim, width, (width,))
        self.unit = GRU()
        self.unit.make_gates(action_dim, width)
        self.mean, self.log_std = nn.Linear(width, action_dim), nn.Linear(width, action_dim)

    @property
    def noise_dim(self) -> int:
        """L A: of all actions of a sequence."""
        return self.length * self.action_dim

    def playing(self, length: int) -> Self:
        """A copy that emits and plays `length` actions, at least 1, for each observation that it reads."""
        if length < 1:
            raise ConfigError(f"length is {length}; a sequence has at least 1 action")
        made = copy.deepcopy(self)
        made.length = length
        return made

    def draw(self, observations: Tensor, previous: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparameterised sequences (B, J, A) in (-1, 1), and the log-density (B, J) of each action after those before.

        Args:
            observations: (B, O) normalised.
            previous: (B, A) actions before, 0 at an episode's beginning.
            noise: (B, J, A) standard normal.
        """
        state, actions, densities = self.mlp(observations), [], []
        for draws in noise.unbind(-2):
            state, mean, log_std = self._next(state, previous)
            unsquashed = mean + log_std.exp() * draws
            densities.append(gaussian_log_density(unsquashed, mean, log_std) - tanh_log_determinant(unsquashed))
            previous = torch.tanh(unsquashed)
            actions.append(previous)
        return torch.stack(actions, -2), torch.stack(densities, -1)

    def _next(self, state: Tensor, previous: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The unit's next state, and mean and log standard deviation of the next action before the tanh."""
        state = self.unit.cell(previous, state)
        return state, self.mean(state), self.log_std(state).clamp(*self.log_std_range)

    def sequence(self, observations: Tensor, previous: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, L, A) the means' sequence, or samples from (B, L A) noise; `previous` as of `draw`."""
        if noise is not None:
            return self.draw(observations, previous, noise.unflatten(-1, (self.length, self.action_dim)))[0]
        state, actions = self.mlp(observations), []
        for _ in range(self.length):
            state, mean, _ = self._next(state, previous)
            previous = torch.tanh(mean)
            actions.append(previous)
        return torch.stack(actions, -2)

    def begin(self, rows: int) -> Memory:
        """Nothing to play, and no action before."""
        zeros = self.mean.weight.new_zeros
        return {
            "queue": zeros((rows, self.length, self.action_dim)),
            "queued": zeros((rows,)),
            "previous": zeros((rows, self.action_dim)),
        }

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions at the first step of an episode."""
        return self.step(observations, self.begin(len(observations)), noise)[0]

    def step(self, observations: Tensor, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """As `Actor.step`; the first of the queued actions, after a new sequence in rows that have none left."""
        empty = memory["queued"] == 0
        if torch.compiler.is_compiling() or not self.branches or bool(empty.any()):
            planned = self.sequence(observations, memory["previous"], noise)
            queued = torch.full_like(memory["queued"], float(self.length))
            memory = in_rows(memory, {"queue": planned, "queued": queued}, empty)
        action, rest = memory["queue"][:, 0], memory["queue"][:, 1:]
        queue = torch.cat([rest, torch.zeros_like(memory["queue"][:, :1])], 1)
        return action, {"queue": queue, "queued": memory["queued"] - 1, "previous": action}

    def executed(self, memory: Memory, actions: Tensor) -> Memory:
        """The next sequence reads the action that was carried out."""
        return {**memory, "previous": actions}
