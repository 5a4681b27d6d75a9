"""Sums of episodes: running ones of S seeds of N environments, and what whole episodes came to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.envs.interface import Array, PolicyBlock
from surefoot.envs.term_sums import TermSums

SUMS = ("return", "length", "cost")


class EpisodeMeans:
    """Mean return, length, cost and terms of the reward of the training episodes that end.

    For each of S seeds of N environments. Episodes with a return that is not finite are left out.
    """

    def __init__(self, seeds: int, num_envs: int, device: str | torch.device = "cpu") -> None:
        self.seeds, self.num_envs = seeds, num_envs
        self._running = torch.zeros(3, seeds, num_envs, dtype=torch.float64, device=device)
        self._ended = torch.zeros(4, seeds, dtype=torch.float64, device=device)  # sums over episodes, and their count
        self.has_costs = False
        """Whether the environment has given a cost: one that is not spoken of later is 0."""
        self.terms = TermSums(seeds, num_envs, device)
        """The terms of the reward, where the environment tells them; who steps it adds them."""

    @property
    def lengths(self) -> Tensor:
        """(S, N) steps of the running episodes so far."""
        return self._running[1]

    def begin(self) -> None:
        """All rows begin an episode."""
        self._running.zero_()
        self.terms.begin()

    def add_step(
        self, rewards: Tensor, ended: Tensor, valid: Tensor | None = None, costs: Tensor | None = None
    ) -> None:
        """Take in one step of (S * N,) rewards and ends and, where there are, masks (or counts of steps) and costs."""
        if ended.device.type == "cpu" and valid is None:
            self.add_arrays(rewards.numpy(), ended.numpy(), None if costs is None else costs.numpy())
            return
        shape = (self.seeds, self.num_envs)
        self._running[0] += rewards.view(shape)
        self._running[1] += 1 if valid is None else valid.view(shape)
        if costs is not None:
            self.has_costs = True
            self._running[2] += costs.view(shape)
        if ended.device.type == "cpu" and not bool(ended.any()):
            return
        there = ended.view(shape)
        self._count(self._running, there, 2)
        self._running.masked_fill_(there, 0)

    def add_arrays(self, rewards: Array, ended: Array, costs: Array | None = None) -> None:
        """The same on a CPU, where an operation of numpy takes a fifth of the time of torch's."""
        running = self._running.numpy().reshape(3, -1)
        running[0] += rewards
        running[1] += 1
        if costs is not None:
            self.has_costs = True
            running[2] += costs
        if ended.any():
            there = torch.from_numpy(ended).view(self.seeds, self.num_envs)
            self._count(self._running, there, 2)
            self._running.masked_fill_(there, 0)

    def add_block(self, block: Mapping[str, Tensor]) -> None:
        """Take in a block of (S, T, N) rewards, terminations, truncations and, where there are, costs and mask.

        Rows of several steps, as chunks of actions are, say of how many in `steps`.
        """
        rewards, mask = block["rewards"].double(), block.get("mask")
        ended = block["terminations"] | block["truncations"]
        steps = torch.ones_like(rewards) if mask is None else mask.double()
        values = [rewards * steps, steps * block["steps"].double() if "steps" in block else steps]
        if "costs" in block:
            values.append(block["costs"].double() * steps)
        self.has_costs |= "costs" in block
        sums = []
        for index, value in enumerate(values):
            found, self._running[index] = sums_of_episodes(value, self._running[index], ended)
            sums.append(found)
        self._count(torch.stack(sums), ended, (2, 3))

    def _count(self, sums: Tensor, ended: Tensor, rows: int | tuple[int, ...]) -> None:
        """Take in the sums (return, length, cost) of the episodes that ended, added over the dimensions `rows`."""
        counted = ended & sums[0].isfinite()
        self._ended[: len(sums)] += torch.where(counted, sums, 0.0).sum(rows)
        self._ended[3] += counted.unsqueeze(0).sum(rows)[0]

    def add_sums(self, block: PolicyBlock, horizon: int) -> None:
        """Take in the sums of a rollout of `horizon` steps."""
        self.has_costs = True
        finished = block.finished.view(self.seeds, self.num_envs)
        totals = (block.returns, torch.full_like(block.returns, horizon), block.costs.sum(0))
        parts = (block.finished_returns, block.finished_lengths, block.finished_costs)
        for index, (total, part) in enumerate(zip(totals, parts, strict=True)):
            whole, ended = (value.view(self.seeds, self.num_envs).double() for value in (total, part))
            self._ended[index] += torch.where(finished > 0, ended + self._running[index], 0.0).sum(1)
            self._running[index] = whole - ended + torch.where(finished > 0, 0.0, self._running[index])
        self._ended[3] += finished.sum(1)

    def take(self) -> dict[str, list[float]]:
        """The means since the last call, a number per seed; NaN where none ended."""
        sums = self._ended.T.tolist()
        self._ended.zero_()
        names = SUMS if self.has_costs else SUMS[:2]
        means = {n: [row[i] / row[3] if row[3] else math.nan for row in sums] for i, n in enumerate(names)}
        return {f"episode_{name}": values for name, values in means.items()} | self.terms.take()

    def take_ended(self) -> tuple[Tensor, bool]:
        """(4, S) sums of return, length and cost over the episodes that ended since the last call or `take`, and their
        number; and whether there are costs."""
        sums = self._ended.clone()
        self._ended.zero_()
        return sums, self.has_costs

    def add_ended(self, sums: Tensor, has_costs: bool) -> None:
        """Take in what `take_ended` gave elsewhere."""
        self._ended += sums.to(self._ended.device)
        self.has_costs |= has_costs

    def state(self, position: int) -> dict[str, Tensor]:
        """The sums of one seed, copied."""
        sums = {"running": self._running[:, position].clone(), "ended": self._ended[:, position].clone()}
        terms = {f"terms/{name}": value for name, value in self.terms.state(position).items()}
        return {**sums, "has_costs": torch.tensor(self.has_costs), **terms}

    def restore(self, position: int, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` gave."""
        self._running[:, position] = state["running"]
        self._ended[:, position] = state["ended"]
        self.has_costs |= bool(state.get("has_costs", False))  # version 0.2.0 did not keep it
        terms = {name.removeprefix("terms/"): value for name, value in state.items() if name.startswith("terms/")}
        self.terms.restore(position, terms)


class RecentEpisodes:
    """Costs and lengths of the `window` training episodes that ended last, for each of S seeds of N environments.

    What a multiplier follows: fresh episodes of the policy as it is, not values that a critic has learned.
    """

    def __init__(self, seeds: int, num_envs: int, window: int, device: str | torch.device = "cpu") -> None:
        self.seeds, self.num_envs = seeds, num_envs
        self._running = torch.zeros(2, seeds, num_envs, dtype=torch.float64, device=device)
        self._last = torch.full((2, seeds, window), math.nan, dtype=torch.float64, device=device)  # the newest last

    def begin(self) -> None:
        """All rows begin an episode."""
        self._running.zero_()

    def forget(self) -> None:
        """Count neither the episodes so far nor, when they end, those that are running: another policy began them."""
        self._last.fill_(math.nan)
        self._running.fill_(math.nan)

    def add_block(self, block: Mapping[str, Tensor]) -> None:
        """Take in (S, T, N) costs, terminations, truncations and, where there are, mask and steps of each row."""
        costs, mask = block["costs"].double(), block.get("mask")
        ended = block["terminations"] | block["truncations"]
        steps = torch.ones_like(costs) if mask is None else mask.double()
        for index, value in enumerate((costs * steps, steps * block["steps"].double() if "steps" in block else steps)):
            sums, self._running[index] = sums_of_episodes(value, self._running[index], ended)
            for seed in range(self.seeds):
                found = torch.cat([self._last[index, seed], sums[seed][ended[seed]]])
                self._last[index, seed] = found[-self._last.shape[2] :]

    def add_step(self, costs: Tensor, terminations: Tensor, truncations: Tensor, valid: Tensor | None = None) -> None:
        """Take in one step of (S * N,) costs and ends."""
        shape = (self.seeds, 1, self.num_envs)
        block = {"costs": costs, "terminations": terminations, "truncations": truncations}
        if valid is not None:
            block["mask"] = valid
        self.add_block({name: value.view(shape) for name, value in block.items()})

    def means(self) -> tuple[Tensor, Tensor]:
        """(S,) float32 mean cost and mean length of these episodes; NaN where none has ended yet."""
        cost, length = self._last.nanmean(2).float()
        return cost, length

    def state(self, position: int) -> dict[str, Tensor]:
        """The numbers of one seed, copied."""
        return {"running": self._running[:, position].clone(), "last": self._last[:, position].clone()}

    def restore(self, position: int, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` gave."""
        self._running[:, position] = state["running"]
        self._last[:, position] = state["last"]


def sums_of_episodes(values: Tensor, running: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:
    """Sums since the beginning of each episode, and those of the episodes that continue.

    Each is a sum of its own episode's values alone, so that one that is not finite, or beyond measure, stays there.

    Args:
        values: (S, T, N) float64.
        running: (S, N) sums of the running episodes before.
        ended: (S, T, N) bool.

    Returns:
        (S, T, N) sums up to and with each step where an episode ended there (elsewhere since the last end), and (S, N)
        the next `running`.
    """
    sums = torch.cat([values[:, :1] + running.unsqueeze(1), values[:, 1:]], 1)
    started = torch.cat([torch.zeros_like(ended[:, :1]), ended[:, :-1]], 1)
    reach = 1  # of a step's sum backwards, up to its episode's beginning; twice as far each time
    while reach < values.shape[1]:
        earlier = torch.where(started[:, reach:], 0.0, sums[:, :-reach])
        sums = torch.cat([sums[:, :reach], sums[:, reach:] + earlier], 1)
        started = torch.cat([started[:, :reach], started[:, reach:] | started[:, :-reach]], 1)
        reach *= 2
    return sums, torch.where(ended[:, -1], 0.0, sums[:, -1])


@dataclasses.dataclass(frozen=True)
class EpisodeBatch:
    """What N episodes came to, in the order of their seeds."""

    returns: Array
    """(N,) float64, undiscounted sum of rewards."""
    lengths: Array
    """(N,) int64, steps."""
    costs: Array | None
    """(N,) float64, sum of the costs, or None where the environment has no constraint."""
    violated: Array | None
    """(N,) bool: a step had a cost above 0, or None likewise."""
    margins: Array | None
    """(N,) float64, lowest safety margin, or None."""
    terminated: Array
    """(N,) bool."""
    diverged: Array
    """(N,) bool: the simulation broke down, which ended the episode."""
    seconds: float
    """Wall-clock time of the episodes."""
    device: str
    """What computed them, in words."""

    @property
    def steps(self) -> int:
        """Steps of all episodes together."""
        return int(self.lengths.sum())

    @property
    def violations(self) -> int | None:
        """Episodes with a step of a cost above 0; None where there is no constraint."""
        return None if self.violated is None else int(self.violated.sum())

    @classmethod
    def join(cls, batches: Sequence[EpisodeBatch]) -> EpisodeBatch:
        """The episodes of several batches as one."""
        joined: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            values = [getattr(batch, field.name) for batch in batches]
            joined[field.name] = None if values[0] is None else values[0]
            if isinstance(values[0], np.ndarray):
                joined[field.name] = np.concatenate(values)
        return cls(**{**joined, "seconds": sum(batch.seconds for batch in batches)})
