"""Problems and runs that several tests share."""

from __future__ import annotations

from typing import Any

import numpy as np

from surefoot.core.engine.agent import Spec
from surefoot.streaming import (
    AVG,
    IntentionalAC,
    IntentionalQ,
    StreamAC,
    StreamingAgent,
    StreamQ,
    StreamSARSA,
    StreamTD,
)

ARM = Spec(5, 2, (-2.0, 0.0), (2.0, 1.0))
CHOICES = Spec.of_choices(4, 3)
STREAM_X: list[tuple[type[StreamingAgent], Spec]] = [
    (StreamAC, ARM),
    (StreamAC, CHOICES),
    (StreamQ, CHOICES),
    (StreamSARSA, CHOICES),
    (StreamTD, ARM),
]
EXTENSIONS: list[tuple[type[StreamingAgent], Spec]] = [
    (IntentionalAC, ARM),
    (IntentionalAC, CHOICES),
    (IntentionalQ, CHOICES),
    (AVG, ARM),
]


def name_of(case: Any) -> str | None:
    """For test ids."""
    if isinstance(case, Spec):
        return "choices" if case.discrete else "continuous"
    return case.name if isinstance(case, type) else None


def make(kind: type[StreamingAgent], problem: Spec, streams: int = 1, **options: Any) -> StreamingAgent:
    """A small agent, in plain torch unless stated otherwise."""
    options = {"hidden": (12, 7), "native": False, **options}
    return kind(problem, seeds=range(10, 10 + streams), **options)


class Samples:
    """What a made-up environment with ends of both kinds shows K streams; sample t is the same whoever asks."""

    def __init__(self, problem: Spec, streams: int = 1, length: int = 400, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.observations = random.normal(2.0, 3.0, (length, 2, streams, problem.observation_dim))
        self.rewards = random.normal(0.5, 2.0, (length, streams))
        kinds = random.random((length, streams))
        self.terminated, self.truncated = kinds < 0.04, (kinds > 0.03) & (kinds < 0.07)  # both, now and then
        self.streams = streams

    def begin(self, agent: StreamingAgent) -> Any:
        """The first action."""
        return agent.begin(self._of(self.observations[0, 0]))

    def arguments(self, t: int) -> dict[str, Any]:
        """Those of `step` at time t >= 1."""
        names = {"reward": self.rewards, "terminated": self.terminated, "truncated": self.truncated}
        values = {name: self._of(array[t]) for name, array in names.items()}
        return {
            "observation": self._of(self.observations[t, 0]),
            **values,
            "first": self._of(self.observations[t, 1]),
        }

    def run(self, agent: StreamingAgent, begin: int, end: int) -> list[Any]:
        """Actions of the steps from `begin` up to `end`."""
        return [agent.step(**self.arguments(t)) for t in range(begin, end)]

    def _of(self, row: np.ndarray) -> Any:
        return row[0] if self.streams == 1 else row


def buffers(agent: StreamingAgent) -> dict[str, Any]:
    """Copies of all that is saved."""
    return {name: getattr(agent, name).clone() for name in agent.stream_buffers}
