"""A head that decides at every L-th step only, as on a robot that decides more slowly than it acts."""

from __future__ import annotations

from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.memory import Memory, in_rows
from surefoot.core.actors.memory_actors import WrappingActor
from surefoot.core.base.errors import ConfigError

QUEUED = "queued"
"""What heads of chunks call, in the memory, the number of actions that are still to be played."""


class HeldActor(WrappingActor):
    """Reads an observation every L steps; what was decided then is all that is carried out until the next decision.

    A head of single actions holds its action. One that plans chunks plays its chunk, which it plans anew at each
    decision, and holds the last action where the chunk ends before. What the head remembers of observations is
    remembered of those that it reads.

    Source: Patel and Siegelmann, "Overcoming Slow Decision Frequencies in Continuous Control" (ICLR 2025).
    """

    kind = "held"
    order = ("decision_steps", "inner")
    decision_steps: int
    action_dim: int

    def __init__(self, inner: Actor, action_dim: int, decision_steps: int) -> None:
        """Let `inner` decide every `decision_steps` steps, at least 1."""
        if decision_steps < 1:
            raise ConfigError(f"decision_steps is {decision_steps}; a policy decides every step, 1, or more rarely")
        super().__init__(inner, action_dim=action_dim, decision_steps=decision_steps)

    def _begin(self, rows: int) -> Memory:
        return {"decided": self._zeros(rows, self.action_dim), "undecided_in": self._zeros(rows)}

    def step(self, observations: Tensor, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """As `Actor.step`; the inner head is asked in rows where it decides, or has actions of a chunk to play."""
        over = memory["undecided_in"] == 0
        asked = over
        if QUEUED in memory:
            queued = memory[QUEUED].masked_fill(over, 0.0)  # what is left of a chunk does not count at a decision
            memory, asked = {**memory, QUEUED: queued}, over | (queued > 0)
        actions, after = self.inner.step(observations, memory, noise)
        memory = in_rows(memory, {**after, "decided": actions}, asked)
        left = memory["undecided_in"].masked_fill(over, float(self.decision_steps)) - 1
        return memory["decided"], {**memory, "undecided_in": left}
