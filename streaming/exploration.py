"""Exploration: noise of K streams, drawn a little at a time so that no step waits for it, and what actions make of it.

How actions are drawn, and what log pi and entropy are the derivatives of, are pure functions of K streams at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core.base.counter import CounterGenerator

CPU = torch.device("cpu")
BLOCK = 128
"""Steps that one generator gives numbers for; part of what a seed means, so it is a constant."""
PIECE = 16
"""Steps of one stream that are drawn at once: a few microseconds."""


class ExplorationNoise:
    """Numbers of step t for each stream, by (seed, t) alone; while one block is used up the next one is drawn.

    A step elsewhere than in this block or the next, as the first one after a file was opened, draws a whole block.
    """

    def __init__(self, seeds: Sequence[int], draws: int, width: int, uniform: bool) -> None:
        """Draw the first block.

        Args:
            seeds: K, a stream each.
            draws: sets of numbers for each step.
            width: N, numbers of a set.
            uniform: on [0, 1), or else standard normal.
        """
        self.seeds, self.draws, self.width, self.uniform = tuple(seeds), draws, width, uniform
        shape = (BLOCK, draws, len(self.seeds), width)
        self._present, self._next = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._block = -1
        self._pieces = len(self.seeds) * (BLOCK // PIECE)
        self._drawn = 0  # pieces of the next block
        self._source = self._stream(0, 0)
        self.at(0)

    def at(self, step: int, draw: int = 0) -> np.ndarray:
        """(K, N) float32 numbers of a step >= 0; valid until the block after the next is started."""
        block, row = divmod(step, BLOCK)
        if block != self._block:
            self._turn_to(block)
        due = (row + 1) * self._pieces // BLOCK
        if due > self._drawn:
            self._draw(due)
        numbers: np.ndarray = self._present[row, draw]
        return numbers

    def at_beginning(self, step: int, stream: int) -> np.ndarray:
        """(N,) numbers for a stream that begins an episode by itself before that step; its others stay as they are."""
        source = CounterGenerator((self.seeds[stream],), "begin", step, CPU)
        numbers: np.ndarray = self._numbers(source, 1)[0, 0]
        return numbers

    def _stream(self, stream: int, block: int) -> CounterGenerator:
        return CounterGenerator((self.seeds[stream],), "exploration", block, CPU)

    def _turn_to(self, block: int) -> None:
        if block != self._block + 1:
            self._block, self._drawn = block - 1, 0
        self._draw(self._pieces)
        self._present, self._next = self._next, self._present
        self._block, self._drawn = block, 0

    def _draw(self, due: int) -> None:
        """Pieces of the next block, stream after stream, until so many are drawn."""
        while self._drawn < due:
            stream, piece = divmod(self._drawn, BLOCK // PIECE)
            if piece == 0:
                self._source = self._stream(stream, self._block + 1)
            self._next[piece * PIECE : (piece + 1) * PIECE, :, stream] = self._numbers(self._source, PIECE)
            self._drawn += 1

    def _numbers(self, source: CounterGenerator, steps: int) -> np.ndarray:
        shape = (steps, self.draws, self.width)
        drawn = source.random(shape, np.float32) if self.uniform else source.standard_normal(shape)
        numbers: np.ndarray = drawn[0].numpy()
        return numbers


def sample_gaussian(outputs: Tensor, normal: Tensor) -> Tensor:
    """(K, A) mean + softplus(raw) noise of (K, 2 A) outputs (mean, raw) and (K, A) standard normal noise."""
    mean, raw = outputs.chunk(2, -1)
    return mean + nn.functional.softplus(raw) * normal


def gaussian_gradient(outputs: Tensor, actions: Tensor, entropy: Tensor) -> Tensor:
    """(K, 2 A) derivative of log pi(a) + entropy H by the outputs (mean, raw) of a normal with std softplus(raw).

    Args:
        outputs: (K, 2 A).
        actions: (K, A) as they were drawn, not clipped.
        entropy: (K,) weights of the entropy, which is the sum of log std and constants.
    """
    mean, raw = outputs.chunk(2, -1)
    std = nn.functional.softplus(raw)
    score = (actions - mean) / std
    by_std = (score.square() - 1 + entropy.unsqueeze(-1)) / std
    return torch.cat([score / std, by_std * torch.sigmoid(raw)], -1)


def sample_softmax(logits: Tensor, uniform: Tensor) -> Tensor:
    """(K,) first choice whose cumulative probability exceeds (K,) uniform numbers; (K, n) logits."""
    total = torch.softmax(logits, -1).cumsum(-1)
    return (total <= uniform.unsqueeze(-1)).sum(-1).clamp(max=logits.shape[-1] - 1)


def softmax_gradient(logits: Tensor, choices: Tensor, entropy: Tensor) -> Tensor:
    """(K, n) derivative of log pi(choice) + entropy H by (K, n) logits; (K,) weights of the entropy."""
    log_p = torch.log_softmax(logits, -1)
    p = log_p.exp()
    chosen = nn.functional.one_hot(choices, logits.shape[-1]).to(p.dtype)
    h = -(p * log_p).sum(-1, keepdim=True)
    return chosen - p - entropy.unsqueeze(-1) * p * (log_p + h)


def epsilon_greedy(values: Tensor, uniform: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor]:
    """(K,) choices, and (K,) whether they are not the greedy ones: a random draw of the greedy choice is greedy.

    Args:
        values: (K, n); the greedy choice is the first of the largest.
        uniform: (K, 2) in [0, 1): explore where the first is below epsilon; the second says which choice.
        epsilon: () share of random choices.
    """
    choices = values.shape[-1]
    greedy = values.argmax(-1)
    drawn = (uniform[:, 1] * choices).long().clamp(max=choices - 1)
    chosen = torch.where(uniform[:, 0] < epsilon, drawn, greedy)
    return chosen, chosen != greedy


def of_choice(values: Tensor, choices: Tensor) -> Tensor:
    """(K,) of (K, n) values, those of (K,) choices."""
    return values.gather(-1, choices.unsqueeze(-1)).squeeze(-1)


def epsilon_at(step: int, planned_steps: int, exploration_fraction: float, last: float) -> float:
    """Share of random choices at `step` >= 1: falls from 1 to `last` in a fraction of the planned steps."""
    return max(1 + (last - 1) * step / (exploration_fraction * planned_steps), last)
