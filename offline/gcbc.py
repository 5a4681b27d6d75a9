"""GCBC: goal-conditioned behaviour cloning."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from surefoot.core.engine.agent import Batch, Metrics, Update
from surefoot.offline.goal_conditioned import GoalAgent, GoalConfig, beside


@dataclasses.dataclass(frozen=True)
class GCBCConfig(GoalConfig):
    """Settings of GCBC."""


class GCBC(GoalAgent):
    r"""Goal-conditioned behaviour cloning (Ghosh et al., "Learning to Reach Goals via Iterated Supervised Learning").

    :math:`L = -E \log \pi(a | s, g)` with goals that came later in the row's episode, uniformly.
    """

    name = "gcbc"
    Config: ClassVar[type] = GCBCConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}}
    required_columns = ("observations", "actions")
    config: GCBCConfig

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Negative log-density of the data's actions, in nats."""
        density = self.actor.log_density(beside(batch["observations"], batch["actor_goals"]), batch["actions"])
        return -density.mean(), {"log_density": density}

    def updates(self) -> list[Update]:
        """One step of the actor."""
        return [Update(self.actor_loss, ("actor",), self.adam())]
