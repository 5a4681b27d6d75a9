"""Gated recurrent units, GRU and LSTM: networks whose state takes in one observation after another."""

from __future__ import annotations

from typing import Any, ClassVar

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

    @staticmethod
    def advance(given: Tensor, state: Parts, weight: Tensor, bias: Tensor) -> tuple[Parts, Parts]:
        """The state after a step, and what its derivative reads.

        Args:
            given: (B, G W) what `of_observation` made of the observation.
            state: before the step.
            weight: (G W, W) of `of_state`.
            bias: (G W,) likewise.
        """
        raise TypeError("a unit must define advance")

    @staticmethod
    def derivative(
        outputs: Tensor, earlier: Parts, kept: Parts, keeps: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Parts]:
        """The gradient along a sequence, from its last step to its first.

        Args:
            outputs: (L, B, W) with respect to what is read of each state.
            earlier: (L, B, W) each, states before the steps.
            kept: (L, B, W) each, what `advance` gave beside the states.
            keeps: (L, B, 1) 0 where an episode begins, else 1.
            weight: (G W, W) of `of_state`.

        Returns:
            (L, B, G W) with respect to what the observations gave, (L, B, G W) to what the states gave, and the
            gradient with respect to the first state.
        """
        raise TypeError("a unit must define derivative")

    def cell(self, observations: Tensor, state: Tensor) -> Tensor:
        """(B, R) next state from (B, O) observations and (B, R) the state before."""
        given = self.of_observation(observations)
        after, _ = self.advance(given, state.chunk(self.parts, -1), self.of_state.weight, self.of_state.bias)
        return torch.cat(after, -1)

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
        given = self.of_observation(observations.transpose(0, 1))
        keeps = (1 - begins).transpose(0, 1).unsqueeze(-1)
        found = Unrolled.apply(type(self), given, keeps, state, self.of_state.weight, self.of_state.bias)
        return found[0].transpose(0, 1)


class Unrolled(torch.autograd.Function):
    """A unit's states along sequences; the gradient of its weights is one product, not one for each step."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        unit: type[Gates], given: Tensor, keeps: Tensor, state: Tensor, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, ...]:
        """(L, B, W) outputs; and, for the gradient, (L, B, W) states before each step and what `advance` kept."""
        now: Parts = state.chunk(unit.parts, -1)
        found = []
        for one, keep in zip(given.unbind(0), keeps.unbind(0), strict=True):
            before = tuple(part * keep for part in now)
            now, kept = unit.advance(one, before, weight, bias)
            found.append((now[0], *before, *kept))
        return tuple(torch.stack(column) for column in zip(*found, strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the gradient reads."""
        unit, _, keeps, _, weight, _ = inputs
        ctx.unit = unit
        ctx.save_for_backward(keeps, weight, *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """With respect to the arguments of `forward`."""
        keeps, weight, *saved = ctx.saved_tensors
        unit: type[Gates] = ctx.unit
        earlier, kept = tuple(saved[: unit.parts]), tuple(saved[unit.parts :])
        given, summed, first = unit.derivative(gradients[0], earlier, kept, keeps, weight)
        rows = summed.flatten(0, 1)
        return None, given, None, torch.cat(first, -1), rows.T @ earlier[0].flatten(0, 1), rows.sum(0)


class GRU(Gates):
    r"""A gated recurrent unit; its state is what is read of it.

    .. math::
        r, z = \sigma(W_{r,z} x + U_{r,z} h + b), \quad n = \tanh(W_n x + b_n + r \odot (U_n h + c_n)), \quad
        h' = (1 - z) \odot n + z \odot h

    Source: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", in the form of torch.nn.GRU.
    """

    gates = 3
    parts = 1

    @staticmethod
    def advance(given: Tensor, state: Parts, weight: Tensor, bias: Tensor) -> tuple[Parts, Parts]:
        """As `Gates.advance`; kept are the two gates, the new state and what the old one gives of it."""
        (before,) = state
        new, old = given.chunk(3, -1), nn.functional.linear(before, weight, bias).chunk(3, -1)
        reset, keep = torch.sigmoid(new[0] + old[0]), torch.sigmoid(new[1] + old[1])
        fresh = torch.tanh(new[2] + reset * old[2])
        return ((1 - keep) * fresh + keep * before,), (reset, keep, fresh, old[2])

    @staticmethod
    def derivative(
        outputs: Tensor, earlier: Parts, kept: Parts, keeps: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Parts]:
        """As `Gates.derivative`."""
        (before,), (reset, keep, fresh, old) = earlier, kept
        of_fresh = (1 - keep) * (1 - fresh * fresh)
        of_reset = of_fresh * old * reset * (1 - reset)
        of_keep = (before - fresh) * keep * (1 - keep)
        factors = torch.stack([of_reset, of_keep, of_fresh * reset], -2)  # of what the state gave, (L, B, 3, W)
        after, found = torch.zeros_like(before[0]), []
        steps = zip(outputs.unbind(0), factors.unbind(0), keep.unbind(0), keeps.unbind(0), strict=True)
        for output, factor, held, goes_on in reversed(list(steps)):
            now = after + output
            found.append(now)
            after = (now * held + (now.unsqueeze(-2) * factor).flatten(-2) @ weight) * goes_on
        every = torch.stack(found[::-1])
        given = torch.cat([every * of_reset, every * of_keep, every * of_fresh], -1)
        return given, (every.unsqueeze(-2) * factors).flatten(-2), (after,)


class LSTM(Gates):
    r"""Long short-term memory; its state is h, which is read, and behind it the cell c.

    .. math::
        i, f, o = \sigma(W_{i,f,o} x + U_{i,f,o} h + b), \quad g = \tanh(W_g x + U_g h + b_g), \quad
        c' = f \odot c + i \odot g, \quad h' = o \odot \tanh(c')

    Source: Gers, Schmidhuber and Cummins, "Learning to Forget", in the form of torch.nn.LSTM.
    """

    gates = 4
    parts = 2

    @staticmethod
    def advance(given: Tensor, state: Parts, weight: Tensor, bias: Tensor) -> tuple[Parts, Parts]:
        """As `Gates.advance`; kept are the three gates, what is new, and tanh of the cell."""
        read, cell = state
        gates = (given + nn.functional.linear(read, weight, bias)).chunk(4, -1)
        enter, forget, show = torch.sigmoid(gates[0]), torch.sigmoid(gates[1]), torch.sigmoid(gates[3])
        new = torch.tanh(gates[2])
        cell = forget * cell + enter * new
        shown = torch.tanh(cell)
        return (show * shown, cell), (enter, forget, new, show, shown)

    @staticmethod
    def derivative(
        outputs: Tensor, earlier: Parts, kept: Parts, keeps: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Parts]:
        """As `Gates.derivative`."""
        (_, cell), (enter, forget, new, show, shown) = earlier, kept
        of_cell = show * (1 - shown * shown)
        of_gates = [new * enter * (1 - enter), cell * forget * (1 - forget), enter * (1 - new * new)]
        factors = torch.cat([*of_gates, shown * show * (1 - show)], -1)
        after, cell_after, found = torch.zeros_like(cell[0]), torch.zeros_like(cell[0]), []
        steps = zip(*(column.unbind(0) for column in (outputs, factors, of_cell, forget, keeps)), strict=True)
        for output, factor, through, forgets, goes_on in reversed(list(steps)):
            now = after + output
            inside = cell_after + now * through
            one = torch.cat([inside, inside, inside, now], -1) * factor
            found.append(one)
            after, cell_after = one @ weight * goes_on, inside * forgets * goes_on
        every = torch.stack(found[::-1])
        return every, every, (after, cell_after)


UNITS: dict[str, type[Gates]] = {"gru": GRU, "lstm": LSTM}
"""Name -> unit."""
