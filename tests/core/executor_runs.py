"""What tests of executor share."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.execution.executor import Execution, Executor, simulated
from surefoot.core.execution.inference import PolicyPlanner, Request
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy


class Table:
    """Plans row r mod 997 of a table of random chunks at tick r; the observation is not read."""

    def __init__(self, chunk: int = 16, size: int = 2, scale: float = 1.0) -> None:
        self.chunk, self.low, self.high = chunk, -np.ones(size), np.ones(size)
        draw = np.random.default_rng(0)
        self.rows = scale * draw.uniform(-1, 1, (997, chunk, size))

    def reset(self, seed: int | None) -> None:
        pass

    def see(self, observation: Any) -> Any:
        return observation

    def plan(self, request: Request) -> Any:
        return self.rows[request.tick % 997]


class Counting(Table):
    """Plans 0.01 (10 r + j) for action j of the chunk of tick r."""

    def __init__(self, chunk: int) -> None:
        super().__init__(chunk, 1)
        self.low, self.high = np.array([-100.0]), np.array([100.0])

    def plan(self, request: Request) -> Any:
        return 0.01 * (10 * request.tick + np.arange(float(self.chunk)))[:, None]


def taking(*seconds: float) -> Callable[[float], float]:
    """Latencies one after the other, the last one for ever."""
    given = itertools.chain(seconds, itertools.repeat(seconds[-1]))
    return lambda measured: next(given)


def run(executor: Executor, count: int) -> list[float]:
    """First numbers of `count` actions, in hundredths."""
    return [round(100 * float(executor.select_action(None)[0]), 4) for _ in range(count)]


def conserved(executor: Executor) -> bool:
    """Whether each tick and each planned action is accounted for."""
    counts, chunk = executor.counts, executor.planner.chunk
    ahead = executor._plan.ahead + (chunk if executor._waiting is not None else 0)
    given = counts.played + counts.stale + counts.replaced + counts.dropped + ahead
    return counts.ticks == counts.played + counts.held and counts.received * chunk == given


# -- against the memory of a policy ---------------------------------------------------------------------------


def policy(size: int = 2, chunk: int = 6) -> Policy:
    torch.manual_seed(0)
    head = ChunkActor(DeterministicActor(3, chunk * size, (16,)), chunk, size)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(3)
    normalizer = Normalizer(3)
    normalizer.mean.copy_(torch.tensor([1.0, -2.0, 3.0]))
    return Policy.of(head, normalizer, torch.tensor([-2.0, -10.0])[:size], torch.tensor([2.0, 10.0])[:size])


def observations(count: int) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(count, 3)).astype(np.float32)


def immediate(made: Policy, **settings: Any) -> Executor:
    return simulated(PolicyPlanner(made), Execution(**settings), taking(0.0))
