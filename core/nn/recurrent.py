"""Gated recurrent units, GRU and LSTM: networks whose state takes in one observation after another."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

Parts = tuple[Tensor, ...]
"""(B, W) tensors that a state consists of, the one that is read first."""


class Gates(nn.Module):
    """What both units share: two linear maps, of the observation and of the state, and how steps follow each other.

    A state is one (B, R) tensor; its first W numbers are what others read (`output`).
    """

    gates: ClassVar[int]
    """Linear maps of each input, for each unit."""
    parts: ClassVar[int]
    """Numbers that each unit remembers."""
    width: int

    def make_gates(self, inputs: int, width: int) -> None:
        """Give the module its two maps, with nn.Linear's weights: `inputs` to the gates, and `width` to the gates."""
        self.width = width
        self.of_observation = nn.Linear(inputs, self.gates * width)
        self.of_state = nn.Linear(width, self.gates * width)

    @torch.no_grad()
    def make_orthogonal(self) -> None:
        """Orthogonal weights of gain 1, each gate's by itself, and zero biases.

        Source: Huang et al., "The 37 Implementation Details of PPO", the first of the five details for LSTM.
        """
        for layer in (self.of_observation, self.of_state):
            for gate in layer.weight.chunk(self.gates):
                nn.init.orthogonal_(gate)
            layer.bias.zero_()

    @property
    def state_width(self) -> int:
        """R: numbers of a state."""
        return self.parts * self.width

    def advanced(self, given: Tensor, state: Parts) -> Parts:
        """The state after a step, from what `of_observation` made of its observation and the state before."""
        raise TypeError(f"{type(self).__name__} must define advanced")

    def cell(self, observations: Tensor, state: Tensor) -> Tensor:
        """(B, R) next state from (B, O) observations and (B, R) the state before."""
        given = self.of_observation(observations)
        return torch.cat(self.advanced(given, state.chunk(self.parts, -1)), -1)

    def output(self, state: Tensor) -> Tensor:
        """(B, W) what is read of a (B, R) state."""
        return state[..., : self.width]

    def unrolled(self, observations: Tensor, state: Tensor, begins: Tensor) -> Tensor:
        """What is read of the states along sequences, with the gradient through all their steps.

        Args:
            observations: (B, L, O) in the order of time.
            state: (B, R) before the first step.
            begins: (B, L) 1 at the first step of an episode, whose state before is zero; else 0.

        Returns:
            (B, L, W): after each step.
        """
        given = self.of_observation(observations.transpose(0, 1)).unbind(0)
        keeps = (1 - begins).transpose(0, 1).unsqueeze(-1).unbind(0)
        now: Parts = state.chunk(self.parts, -1)
        found = []
        for one, keep in zip(given, keeps, strict=True):
            now = self.advanced(one, tuple(part * keep for part in now))
            found.append(now[0])
        return torch.stack(found, 1)


class GRU(Gates):
    r"""A gated recurrent unit; its state is what is read of it.

    .. math::
        r, z = \sigma(W_{r,z} x + U_{r,z} h + b), \quad n = \tanh(W_n x + b_n + r \odot (U_n h + c_n)), \quad
        h' = (1 - z) \odot n + z \odot h

    Source: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", in the form of torch.nn.GRU.
    """

    gates = 3
    parts = 1

    def advanced(self, given: Tensor, state: Parts) -> Parts:
        """As `Gates.advanced`."""
        (before,) = state
        new, old = given.chunk(3, -1), self.of_state(before).chunk(3, -1)
        reset, keep = torch.sigmoid(new[0] + old[0]), torch.sigmoid(new[1] + old[1])
        return ((1 - keep) * torch.tanh(new[2] + reset * old[2]) + keep * before,)


class LSTM(Gates):
    r"""Long short-term memory; its state is h, which is read, and behind it the cell c.

    .. math::
        i, f, o = \sigma(W_{i,f,o} x + U_{i,f,o} h + b), \quad g = \tanh(W_g x + U_g h + b_g), \quad
        c' = f \odot c + i \odot g, \quad h' = o \odot \tanh(c')

    Source: Gers, Schmidhuber and Cummins, "Learning to Forget", in the form of torch.nn.LSTM.
    """

    gates = 4
    parts = 2

    def advanced(self, given: Tensor, state: Parts) -> Parts:
        """As `Gates.advanced`."""
        read, cell = state
        enter, forget, new, show = (given + self.of_state(read)).chunk(4, -1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
        return torch.sigmoid(show) * torch.tanh(cell), cell


UNITS: dict[str, type[Gates]] = {"gru": GRU, "lstm": LSTM}
"""Name -> unit."""
