"""Agents of a few numbers, whose training can be followed by hand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Spec, Update
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform

SPEC = Spec(1, 1, (-1.0,), (1.0,))


@dataclasses.dataclass(frozen=True)
class ToyConfig:
    """Nothing to set but where the numbers start."""

    start: float = 1.0


class Number(nn.Module):
    """A network of one number."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([start]))


class Toy(Agent):
    """Three numbers a, b and target; losses pull them to each other or to the batch."""

    name = "toy"
    Config = ToyConfig
    required_columns = ("y",)
    plan: Callable[[Any], Sequence[Update]]

    def build(self) -> None:
        self.a, self.b = Number(self.config.start), Number(self.config.start + 1)
        self.target = Number(self.config.start + 5)
        self.seen: list[tuple[str, int, float, float]] = []

    def updates(self) -> Sequence[Update]:
        return type(self).plan(self)

    def _note(self, name: str, batch: Batch) -> None:
        if not torch._C._functorch.is_batchedtensor(self.a.x):
            self.seen.append((name, len(batch["y"]), self.a.x.item(), self.b.x.item()))

    def a_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Pull a to the batch."""
        self._note("a", batch)
        return (self.a.x - batch["y"]).square().mean(), {"a": 1 * self.a.x}

    def b_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Pull b to a, without detaching a."""
        self._note("b", batch)
        return (self.b.x - self.a.x).square().mean(), {}

    def noisy_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Pull a to the noise it is handed."""
        self._note("noisy", batch)
        return (self.a.x - noise["push"]).square().mean(), {"push": noise["push"]}

    def steep_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Cubic in a, so that gradients of different sizes meet a clip."""
        return ((self.a.x - batch["y"]).abs() ** 3).mean() + 0.5 * self.b.x.square().sum(), {}


def toy(plan: Callable[[Any], Sequence[Update]], **options: Any) -> Toy:
    """A toy agent whose `updates` are what `plan(agent)` gives."""
    kind = type("PlannedToy", (Toy,), {"plan": staticmethod(plan)})
    return kind(SPEC, **options)


def learner(agents: Sequence[Agent], column: Tensor, seeds: Sequence[int] = (0,), **options: Any) -> Learner:
    """A Learner on the rows of one column y."""
    return Learner(
        agents,
        seeds,
        Uniform(lambda indices: {"y": column[indices]}, len(column)),
        **{"batch_size": 4, "dtype": torch.float64, **options},
    )


class HandAdam:
    """Adam on one number, written out."""

    def __init__(self, value: float, rate: float = 0.1) -> None:
        self.value, self.rate, self.first, self.second, self.count = value, rate, 0.0, 0.0, 0

    def step(self, gradient: float, rate: float | None = None) -> float:
        self.count += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        first, second = self.first / (1 - 0.9**self.count), self.second / (1 - 0.999**self.count)
        self.value -= (self.rate if rate is None else rate) * first / (math.sqrt(second) + 1e-8)
        return self.value


ADAM = Adam(learning_rate=0.1)
PUSH = {"push": Noise("normal", 1)}
