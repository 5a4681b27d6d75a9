"""ReCOIL: imitation of a few expert episodes among arbitrary other data, without rewards or a discriminator."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import DataError
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Batch, Metrics, algorithm_of, require
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.losses.value_learning import td_target
from surefoot.data.dataset import Array, Dataset
from surefoot.data.prepare import learnable_episodes, prepare, short_notes
from surefoot.data.sources import WeightedRows
from surefoot.offline.dvl import DVL, DVLConfig

EXPERT = "expert"
"""Column of the data, 0 or 1: which rows an expert has shown."""


@dataclasses.dataclass(frozen=True)
class ReCOILConfig(DVLConfig):
    """Settings of ReCOIL."""

    fraction: float = option(
        0.1,
        "share of the episodes, best by return, that are the expert's where the data have no such column",
        range="(0, 1)",
    )
    share: float = option(0.5, "share of the rows trained on that are the expert's, in the mean, beta", range="(0, 1)")
    rewards: str = option("none", "none: rewards are never read")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        require(self.rewards == "none", name, "rewards", self.rewards, "none: they are never read")
        usual = DVLConfig.huber
        require(self.huber == usual, name, "huber", self.huber, f"left at {usual:g}: the critics' loss here is squared")


class ReCOIL(DVL):
    r"""ReCOIL of Sikchi, Zheng, Zhang and Niekum, "Dual RL" (ICLR 2024), its form with a state value and chi-square.

    .. math::
        L_Q &= \tfrac14 E_M (\gamma (1 - d) V(s') - Q_i(s, a))^2 - \beta\, E_E\, Q_i(s, a),
            \quad M = \beta E + (1 - \beta) S \\
        L_V, L_\pi &= \text{those of f-DVL, on } M

    E are the expert's rows, S the others, M their mixture. Q rises where the expert is, and is held to gamma V(s')
    everywhere: its minimiser is gamma V(s') + 2 beta e / m, with the densities e of E and m of M, so that the ratio of
    densities takes the place of a reward without being estimated first. Sampled row by row it is TD learning with a
    reward of 2 on the expert's rows and 0 on the others.

    What the paper leaves open, or we know from its equations alone (there is no public code of it that we have seen),
    was settled so: an episode that terminates is worth nothing afterwards, which is below what one that continues among
    the expert's rows is worth; the policy is cloned on M; targets and order are f-DVL's; Huber's loss is not used.
    """

    name = "recoil"
    Config: ClassVar[type] = ReCOILConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"total_variation": {}, "chi_square": {"divergence": "chi_square"}}
    required_columns: ClassVar[tuple[str, ...]] = (
        "observations",
        "actions",
        "terminations",
        "next_observations",
        EXPERT,
    )

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions, normalise observations, say which rows are the expert's.

        Raises:
            DataError: as `expert_rows`, of rows to learn from.
        """
        ready = prepare(self, dataset, normalization=self.config.normalization)
        rows = expert_rows(dataset, self.config.fraction, both=not self.goals_fixed)  # what is held out may have one
        return ready.replace(extras={**ready.extras, EXPERT: rows})

    def notes(self, dataset: Dataset) -> list[str]:
        """Whom it imitates."""
        rows, known = expert_rows(dataset, self.config.fraction)[dataset.transitions], EXPERT in dataset.extras
        how = "the data's column 'expert'" if known else f"the best {100 * self.config.fraction:g} % of the episodes"
        own = f"recoil: the expert's are {int(rows.sum()):,} of {len(rows):,} rows, by {how}; rewards are not read"
        return [own, *([] if known else short_notes(dataset, self.config.fraction))]

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Rows of which in the mean a share is the expert's."""
        expert = stores.data[EXPERT] > 0
        of_expert, share = expert.double().mean().clamp(1e-9, 1 - 1e-9), self.config.share  # of one kind: all alike
        weights = torch.where(expert, share / of_expert, (1 - share) / (1 - of_expert))
        return {MAIN: WeightedRows(stores.data, weights)}

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """A quarter of the squared distance to V(s'), less the values of the expert's rows."""
        following = self.value(batch["next_observations"])
        expert = batch[EXPERT]
        held_to = td_target(torch.zeros_like(following), batch["terminations"], following, self.config.discount)
        q = self.critic(batch["observation_actions"])
        loss = (0.25 * (held_to - q).square() - expert * q).mean(-1).sum()
        return loss, {"q": q, "expert_q": (expert * q).mean() / expert.mean().clamp(min=1e-6)}


def expert_rows(dataset: Dataset, fraction: float, both: bool = True) -> Array:
    """(N,) float32, 1 on the expert's rows: by the column, or else of the best episodes by undiscounted return.

    Args:
        dataset: with the column or with rewards.
        fraction: of the `learnable_episodes` that are the expert's where there is no column, at least one.
        both: refuse rows of one kind, among those that can be sampled.

    Raises:
        DataError: the column has other numbers than 0 and 1, or all its rows are of one kind, or there are neither it
            nor rewards.
    """
    given = dataset.extras.get(EXPERT)
    if given is None:
        if not dataset.has_rewards:
            raise DataError(
                f"{dataset.name}: says neither by rewards nor by a column {EXPERT!r} whom to imitate; add "
                "extras/expert, 1 on the expert's rows and 0 on the others, or give rewards by reward=module:function"
            )
        able = learnable_episodes(dataset, dataset.transitions)
        best, returns = np.zeros(len(dataset.episode_lengths), np.float32), dataset.episode_returns[able]
        best[able[np.argsort(-returns, kind="stable")[: max(1, int(len(returns) * fraction))]]] = 1
        given = best[dataset.episode_ids]
    rows = np.asarray(given, np.float32)
    if rows.shape != (len(dataset),) or not np.isin(rows, (0.0, 1.0)).all():
        raise DataError(f"{dataset.name}: the column {EXPERT!r} must be 0 or 1 in each row")
    sampled = rows[dataset.transitions]
    if both and (sampled.all() or not sampled.any()):
        kind = "all" if sampled.all() else "none"
        raise DataError(
            f"{dataset.name}: {kind} of its rows that can be sampled are the expert's; recoil needs both kinds: clone "
            "it by bc"
        )
    return rows
