"""`TeamBlocks`: blocks of an on-policy agent that a team of collectors fills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.learner import Learner
from surefoot.envs.acting import under
from surefoot.online.loops.blocks import COUNTED, Block, Blocks
from surefoot.online.remote.team import MOMENTS, ROWS, Elsewhere, Tensors, weights

PARTS = ("count", "mean", "squares")
WARM = "warm/"
"""Of an answer: the costs and ends of the steps that were taken for the first statistics."""


class TeamBlocks(Blocks):
    """As `Blocks`; row e of the N environments is row e - w n of collector w, which has n = N / W.

    Statistics of observations are those of all collectors' rows up to the block before, and of a collector's own rows
    within a block.
    """

    env: Elsewhere

    def __init__(self, env: Elsewhere, learner: Learner, horizon: int, device: torch.device) -> None:
        """Arguments as `Blocks`, of one seed."""
        agent: Any = learner.agent
        if env.team.staleness and not agent.corrects_staleness:
            raise ConfigError(f"{agent.name} learns from steps of its newest policy only: leave out staleness=")
        if agent.chunk > 1 and agent.cost_window is not None:
            raise ConfigError(f"{agent.name} decides in chunks and counts costs: leave out collectors=")
        self._bases: dict[int, dict[str, Tensor]] = {}
        self._last: dict[int, Tensors] = {}  # statistics of each collector at its last answer
        super().__init__(env, learner, horizon, device)

    def _begin(self, number: int) -> None:
        """Nothing is observed here."""
        self.acting.begin(number)

    def warm_up(self) -> None:
        """The collectors do it, and send what their episodes cost in it."""

    def fill(self, number: int) -> Block:
        """As `Blocks.fill`."""
        team = self.env.team
        before = team.ordered
        answers = team.collect(number, self._order)
        for ordered in range(before, team.ordered):
            self._bases[ordered] = self.moments.state(0)
        parts = [under(tensors, ROWS) for _, tensors in answers]
        block = {name: torch.cat([part[name] for part in parts], 2).to(self.device) for name in parts[0]}
        self.taken += sum(int(meta["taken"]) for meta, _ in answers)
        for meta, tensors in answers:
            self.episodes.add_ended(tensors["ended"], bool(meta["has_costs"]))
        if self.learns_statistics:
            self._merge([under(tensors, MOMENTS) for _, tensors in answers], self._bases.pop(number))
        if self.recent is not None:
            warm = [under(tensors, WARM) for _, tensors in answers]
            if all(warm):
                self.recent.add_block(
                    {name: torch.cat([one[name] for one in warm], 2).to(self.device) for name in COUNTED}
                )
            self.recent.add_block(block)
        return block

    def _order(self) -> tuple[dict[str, Any], Tensors]:
        moments = {f"{MOMENTS}{name}": value for name, value in self.moments.state(0).items()}
        return {"stale": bool(self.env.team.staleness)}, {**weights(self.learner), **moments}

    def _merge(self, found: Sequence[Tensors], base: dict[str, Tensor]) -> None:
        """Take in what the collectors observed since the statistics that they were given.

        The first orders under staleness give none: a collector then continues its own, from its last answer.

        Source: Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance" (1983), and its inverse.
        """
        if len(found) == 1 and all(torch.equal(base[part], self.moments.state(0)[part]) for part in PARTS):
            self.moments.restore(0, found[0])
        else:
            given = bool(base["count"].any())
            for worker, after in enumerate(found):
                fresh = _taken_from(after, base if given else self._last.get(worker, base))
                total = (self.moments.count[0] + fresh["count"]).clamp(min=1)
                shift = fresh["mean"] - self.moments.mean[0]
                self.moments.squares[0] += (
                    fresh["squares"] + shift.square() * self.moments.count[0] * fresh["count"] / total
                )
                self.moments.mean[0] += shift * fresh["count"] / total
                self.moments.count[0] += fresh["count"]
        self._last = dict(enumerate(found))
        self.use_moments()


def _taken_from(after: Tensors, base: dict[str, Tensor]) -> Tensors:
    """The statistics of what was added to `base` to give `after`."""
    count = after["count"] - base["count"]
    some = count.clamp(min=1)
    mean = (after["mean"] * after["count"] - base["mean"] * base["count"]) / some
    shift = mean - base["mean"]
    squares = after["squares"] - base["squares"] - shift.square() * base["count"] * count / after["count"].clamp(min=1)
    return {"count": count, "mean": mean, "squares": squares.clamp(min=0)}
