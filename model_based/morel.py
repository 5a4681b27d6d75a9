"""MOReL: imagined rollouts end, at the worst, where the members of the model disagree more than they do on the data."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Batch, Metrics, Rule, Update
from surefoot.model_based.imagined_sac import STARTS, ImaginedSAC, ImaginedSACConfig
from surefoot.world_models.dynamics import Outcome
from surefoot.world_models.ensemble.uncertainty import largest_distance


@dataclasses.dataclass(frozen=True)
class MORELConfig(ImaginedSACConfig):
    """Settings of MOReL; the model's are the official code's."""

    threshold_divisor: float = option(
        3.0, "the threshold is the largest disagreement on the data over this", range="> 0"
    )
    halt_reward: float | None = option(
        None, "reward of the step that ends so, -kappa; null: as the lowest reward, or 0, for ever"
    )
    rollout_length: int = option(20, "steps of a rollout; the paper's run to the end of the episode")
    rollouts: int = 2_500
    model_members: int = 4
    model_elites: int = option(4, range=">= 2")
    model_hidden: tuple[int, ...] = (512, 512)
    model_decays: tuple[float, ...] = ()


class MOReL(ImaginedSAC):
    r"""The pessimistic MDP of Kidambi, Rajeswaran, Netrapalli and Joachims, "MOReL" (NeurIPS 2020), solved by SAC.

    .. math::
        U(s, a) = \max_{i, j} \lVert \mu_i(s, a) - \mu_j(s, a) \rVert_2, \quad
        U(s, a) > \max_D U / c \;\Rightarrow\; r = -\kappa,\; d = 1

    The paper plans in it by natural policy gradients from a clone, over whole episodes; any planner may be used, says
    its theory, and here it is that of its neighbours, so that they differ in their pessimism alone. The threshold is
    measured on `rollouts` rows of the data when the model has been fitted. -kappa is by default the lowest value that
    rewards allow: min(r, 0) / (1 - discount) of the data's lowest r, so that an end is never better than to continue.
    """

    name = "morel"
    Config: ClassVar[type] = MORELConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    config: MORELConfig
    threshold: Tensor

    def build(self) -> None:
        """Its base's networks, and the threshold."""
        super().build()
        self.register_buffer("threshold", torch.zeros(()))

    def disagreement(self, states: Tensor, actions: Tensor) -> Tensor:
        """(B,) U: the largest distance between two elites' next states."""
        found = self.model.predict_elites(states, actions)
        return largest_distance(found.mean[..., : self.spec.observation_dim])

    def measure(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """The threshold, from rows of the data."""
        found = self.disagreement(batch["observations"], batch["actions"])
        threshold = found.max() / self.config.threshold_divisor
        return {"threshold": threshold}, {"threshold": threshold, "disagreement": found.mean()}

    def judge(self, states: Tensor, actions: Tensor, outcome: Outcome) -> Outcome:
        """The outcome, ended at the worst where the members disagree."""
        halted = self.disagreement(states, actions) > self.threshold
        worst = self.limits[0]
        reward = worst if self.config.halt_reward is None else torch.full_like(worst, self.config.halt_reward)
        rewards = torch.where(halted, reward, outcome.rewards)
        return outcome._replace(rewards=rewards, ended=outcome.ended | halted)

    def updates(self) -> list[Update | Rule]:
        """Its base's, with the threshold measured before the first rows are imagined."""
        found = super().updates()
        place = next(i for i, entry in enumerate(found) if isinstance(entry, Rule) and entry.change == self.imagine)
        rows = found[place]
        assert isinstance(rows, Rule)
        measure = Rule(
            self.measure, ("threshold",), source=STARTS, rows=rows.rows, after=rows.after, until=rows.until
        )  # fmt: skip
        return [*found[:place], measure, *found[place:]]
