"""Cal-QL: CQL whose values are pushed down no further than to what the data's own episodes returned."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Batch, require
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import returns_to_go
from surefoot.offline.cql import CQL, DOMAINS, CQLConfig


@dataclasses.dataclass(frozen=True)
class CalQLConfig(CQLConfig):
    """Settings of Cal-QL: those of CQL, and what a return-to-go is."""

    failure_reward: float | None = option(
        None, "reward of failing, as trained on: an episode of nothing else is worth it forever"
    )

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        fits = self.failure_reward is None or self.discount < 1
        require(fits, "calql", "discount", self.discount, "below 1 with a failure_reward, which would count forever")


class CalQL(CQL):
    r"""Cal-QL of Nakamoto et al., "Cal-QL: Calibrated Offline RL Pre-Training" (NeurIPS 2023).

    CQL whose conservative term pushes values of the policy's actions down only to the data's own return-to-go:
    it has :math:`\max(Q(s, a_k), V_{mc}(s))` for them, and Q(s, a_k) for the uniform actions.
    """

    name = "calql"
    Config = CalQLConfig
    PRESETS = {  # noqa: RUF012
        "locomotion": {},
        **DOMAINS,
        "wsrl-adroit": {**DOMAINS["wsrl-adroit"], "failure_reward": -5.0},
        "wsrl-antmaze": {**DOMAINS["wsrl-antmaze"], "failure_reward": -5.0},
    }
    required_columns: ClassVar[tuple[str, ...]] = (*CQL.required_columns, "returns_to_go")
    config: CalQLConfig

    def prepare(self, dataset: Dataset) -> Dataset:
        """As CQL, and a column of returns-to-go."""
        return with_returns_to_go(super().prepare(dataset), self.config)

    def _bounded(self, sampled: Tensor, batch: Batch) -> Tensor:
        """The values (E, 3n, B), those of the policy's actions at least the return-to-go."""
        return calibrated(sampled, batch["returns_to_go"], self.config.sampled_actions)


def with_returns_to_go(dataset: Dataset, c: CalQLConfig) -> Dataset:
    """The dataset as trained on, with a column of returns-to-go."""
    found = returns_to_go(dataset, c.discount, c.failure_reward)
    return dataset.replace(extras={**dataset.extras, "returns_to_go": found})


def calibrated(sampled: Tensor, bound: Tensor, uniform: int) -> Tensor:
    """The values (E, 3n, B), those after the `uniform` first, n, at least the (B,) `bound`."""
    policys = sampled[:, uniform:]
    return torch.cat([sampled[:, :uniform], torch.where(policys > bound, policys, bound)], 1)
