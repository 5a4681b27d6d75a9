"""What an on-policy loop learns from a block: its rows in random order, all of them, and rewards by a running scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from surefoot.core.base.random import drawn
from surefoot.core.nn.normalizer import RunningMoments
from surefoot.data.store import Store, Workspace
from surefoot.envs.acting import under
from surefoot.online.loops.blocks import Block


class Minibatches:
    """Source of a block's rows in random order, without replacement: each epoch is a permutation, cut into parts.

    Of agents that learn from sequences, it is one of sequences: the L rows of each follow one another in a minibatch.
    """

    seeds: list[int]
    device: torch.device

    def __init__(self, store: Store, rows: int, parts: int, num_envs: int = 1, sequence: int = 1) -> None:
        """Share out blocks.

        Args:
            store: of S blocks; seed s has rows s `rows` to (s + 1) `rows` - 1, and t N + e of them is step t of its
                environment e.
            rows: of a seed's block, T N.
            parts: minibatches of an epoch; divides the `rows` / `sequence` sequences.
            num_envs: N.
            sequence: L, steps of an environment that stay together; divides T.
        """
        self.store, self.block_rows, self.parts = store, rows, parts
        self.num_envs, self.sequence = num_envs, sequence
        self.first = 0
        self._first_epoch = 0
        self._epoch = -1
        self._order = torch.zeros(0)

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """As `Source.bind`; it gives `block_rows / parts` rows a step."""
        self.seeds, self.device = list(seeds), device

    def begin(self, step: int, epoch: int) -> None:
        """Training step `step` is the first of epoch number `epoch` of the run."""
        self.first, self._first_epoch = step, epoch

    def order(self, step: int) -> tuple[Tensor, int]:
        """The permutation (S, rows of a block) of the epoch of a training step, and which part of it is that step's."""
        turn, part = divmod(step - self.first, self.parts)
        epoch = self._first_epoch + turn
        if epoch != self._epoch:
            count = self.block_rows // self.sequence
            order = drawn(self.seeds, "minibatches", epoch, self.device, lambda source: source.permutation(count))
            first = torch.arange(len(self.seeds), device=self.device).unsqueeze(1) * self.block_rows
            self._order = self._steps_of(order) + first
            self._parts = [one.contiguous() for one in self._order.split(self.block_rows // self.parts, 1)]
            self._epoch = epoch
        return self._order, part

    def _steps_of(self, sequences: Tensor) -> Tensor:
        """(S, rows) int64 indices in a block of all steps of (S, rows / L) sequences, one after another."""
        turns, envs = sequences // self.num_envs, sequences % self.num_envs
        steps = turns.unsqueeze(-1) * self.sequence + torch.arange(self.sequence, device=sequences.device)
        return (steps * self.num_envs + envs.unsqueeze(-1)).flatten(-2)

    def rows(self, step: int) -> Tensor:
        """(S, rows / parts) int64 indices of training step `step`."""
        _, part = self.order(step)
        return self._parts[part]

    def gather(self, indices: Tensor, out: Workspace | None = None) -> dict[str, Tensor]:
        """The rows at `indices`."""
        return self.store.gather(indices, out)

    def workspace(self, rows: int) -> Workspace:
        """Memory for `gather`, as `Store.workspace`."""
        return self.store.workspace(rows)


class WholeBlock:
    """Source of all rows of a block, those of the training step's minibatch first."""

    def __init__(self, minibatches: Minibatches) -> None:
        self.minibatches = minibatches
        self.gather, self.workspace = minibatches.gather, minibatches.workspace

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """As `Source.bind`."""
        self.minibatches.bind(seeds, rows, device)

    def rows(self, step: int) -> Tensor:
        """(S, rows) int64 indices of training step `step`."""
        order, part = self.minibatches.order(step)
        return order.roll(-(order.shape[1] // self.minibatches.parts) * part, 1)


class RewardScale:
    """Rewards over the running deviation of their discounted sum, clipped; the mean is left.

    Source: Engstrom et al., "Implementation Matters in Deep Policy Gradients"; the statistics of a whole block are
    taken in before it is scaled.
    """

    def __init__(
        self, seeds: int, num_envs: int, discount: float, limit: float | None, device: torch.device | str
    ) -> None:
        self.discount, self.limit = discount, limit
        self.moments = RunningMoments(seeds, 1, device)
        self._sum = torch.zeros(seeds, num_envs, dtype=torch.float64, device=device)

    def __call__(self, block: Block) -> Tensor:
        """(S, T, N) scaled rewards of a block."""
        mask = block.get("mask")
        rewards = block["rewards"].double()
        decay = self.discount * (1 - (block["terminations"] | block["truncations"]).double())
        if mask is not None:
            rewards, decay = rewards * mask, torch.where(mask != 0, decay, 1.0)
        sums, running = torch.empty_like(rewards), self._sum
        for now, reward, rate in zip(sums.unbind(1), rewards.unbind(1), decay.unbind(1), strict=True):
            torch.add(running, reward, out=now)
            running = now * rate
        self._sum = running
        self.moments.update(sums.flatten(1).unsqueeze(-1), None if mask is None else mask.flatten(1))
        return self.scaled(block["rewards"])

    def scaled(self, rewards: Tensor) -> Tensor:
        """(S, T, N) rewards by the statistics as they are now."""
        found = rewards / self.moments.scale().view(-1, 1, 1).to(rewards.dtype)
        return found if self.limit is None else found.clamp_(-self.limit, self.limit)

    def take_moments(self, position: int, moments: Mapping[str, Tensor]) -> None:
        """Let the statistics of one seed continue from another run's, `state`'s without its sum: episodes begin."""
        self.moments.restore(position, moments)

    def state(self, position: int) -> dict[str, Tensor]:
        """The numbers of one seed, copied."""
        return {**self.moments.state(position), "sum": self._sum[position].clone()}

    def restore(self, position: int, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` gave, its names behind "rewards/"."""
        own = under(state, "rewards/")
        self.take_moments(position, own)
        self._sum[position].copy_(own["sum"])
