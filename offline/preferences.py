"""A reward that is learned from comparisons: which of two stretches of behaviour is the better one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.actions import to_agent
from surefoot.core.base.errors import DataError
from surefoot.core.base.options import Options, option
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update
from surefoot.core.engine.sources import MAIN, Source, Stores, Uniform
from surefoot.core.engine.traits import Requires, WarmStart
from surefoot.core.losses.attributes import preference_loss
from surefoot.core.nn.networks import MLP
from surefoot.data.comparisons import ActedComparisons, by_sums, drawn_pairs, read_acted_comparisons, starts
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import NORMALIZATIONS, prepare
from surefoot.data.store import Store, segment_ids, store_from_dataset

PAIRS, JUDGED = "pairs", "preferences"
HELD_OUT = 10
"""One pair in so many of a file of labels is held out."""
AT_ONCE = 65_536
"""Rows that are rewarded at once."""


@dataclasses.dataclass(frozen=True)
class PreferencesConfig(Options):
    """Settings of a reward from comparisons."""

    labels: str | None = option(
        None, ".npz of comparisons (`surefoot label`); null: the data's own rewards compare, as a test"
    )
    horizon: int = option(25, "steps of a stretch that is compared, H", range=">= 1")
    pairs: int = option(500, "comparisons that the data's own rewards make, where there are no labels", range=">= 1")
    pair_rows: int = option(64, "comparisons in a training step", range=">= 1")
    members: int = option(3, "networks, whose mean is the reward", range=">= 1")
    reads_actions: bool = option(True, "whether the reward is of observation and action, or of the observation alone")
    learning_rate: float = option(3e-4, "learning rate", range="> 0")
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers")
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)


class Preferences(Agent):
    r"""A reward by the likelihood of Bradley and Terry, of an ensemble of E networks with a tanh at their end.

    .. math::
        P(\tau_1 \succ \tau_2) &= \sigma\big( \textstyle\sum_t r(s^1_t, a^1_t) - \sum_t r(s^2_t, a^2_t) \big) \\
        L &= \textstyle\sum_e E\, \big[ -p \log P_e(\tau_1 \succ \tau_2) - (1 - p) \log P_e(\tau_2 \succ \tau_1) \big]

    The reward is the members' mean, in [-1, 1]. Comparisons of stretches of equal length say nothing of an offset:
    where episodes end by themselves, whether it pays to continue is not learned. `reward=RUN` gives a dataset this
    reward.

    Sources: Christiano et al., "Deep Reinforcement Learning from Human Preferences" (2017); the ensemble with tanh is
    that of Lee, Smith and Abbeel, "PEBBLE" (2021).
    """

    name = "preferences"
    Config: ClassVar[type] = PreferencesConfig
    required_columns: ClassVar[tuple[str, ...]] = ("observations", "actions", "rewards")
    requires = Requires(policy=False, rewards=False, discrete=True, one_vector=True)
    warm_start = WarmStart(networks=("reward", "normalizer"))
    config: PreferencesConfig

    def build(self) -> None:
        """The ensemble."""
        c = self.config
        width = self.spec.observation_dim + (self.spec.action_dim if c.reads_actions else 0)
        self.reward = MLP(width, 1, c.hidden, members=c.members)

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions, normalise observations."""
        return prepare(self, dataset, normalization=self.config.normalization)

    def notes(self, dataset: Dataset) -> list[str]:
        """Who compares."""
        if self.config.labels is None:
            return [
                f"preferences: {self.config.pairs:,} pairs are compared by the data's own rewards, as a test; people's "
                "are given by algo.labels=FILE (surefoot label)"
            ]
        return []

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Comparisons, all but those of a file that are held out.

        Raises:
            DataError: no episode is as long as a stretch; rewards are to compare, and there are none; a wrong file.
        """
        found = self._pairs(stores.dataset, stores.data)
        if found is None:
            raise DataError(
                f"{stores.dataset.name}: no episode has {self.config.horizon} steps in a row: lower algo.horizon"
            )
        if self.config.labels is not None and len(found.first) > HELD_OUT:
            found = _some(found, np.arange(len(found.first)) % HELD_OUT != 0)
        pairs = {
            "first": self._inputs(found.first, found.first_actions),
            "second": self._inputs(found.second, found.second_actions),
            "preferred": found.preferred,
        }

        def gather(indices: Tensor) -> Batch:
            return {name: part[indices] for name, part in pairs.items()}

        return {MAIN: Uniform(stores.data), PAIRS: Uniform(gather, len(found.first), PAIRS)}

    def _pairs(self, dataset: Dataset, store: Store) -> ActedComparisons | None:
        """Comparisons as the network reads them: of the file or by rewards; None where episodes are too short."""
        c = self.config
        seen, acted = store["observations"], store["actions"]
        if c.labels is not None:
            width = seen.shape[-1]
            found = read_acted_comparisons(c.labels, c.horizon, width, acted.shape[-1] if c.reads_actions else None)
            first, second = (self.normalizer(part.to(seen)) for part in found[:2])
            actions: list[Tensor | None] = [None, None]
            if c.reads_actions:
                actions = [self._scaled(part) for part in (found.first_actions, found.second_actions)]
            return ActedComparisons(first, second, found.preferred.to(seen), *actions)
        if not dataset.has_rewards:
            raise DataError(
                f"{dataset.name}: has no rewards that could compare: give comparisons by people, algo.labels=FILE, as "
                "surefoot label writes them"
            )
        rows = starts(segment_ids(dataset, store.keys), c.horizon)
        if len(rows) == 0:
            return None
        one, other = (torch.from_numpy(part) for part in drawn_pairs(rows, c.horizon, c.pairs))
        preferred = by_sums(store["rewards"][one], store["rewards"][other])
        return ActedComparisons(seen[one], seen[other], preferred, acted[one], acted[other])

    def _scaled(self, actions: Tensor | None) -> Tensor:
        assert actions is not None
        if self.spec.discrete:
            return actions
        return to_agent(actions, self.action_low.cpu(), self.action_high.cpu()).clamp(-1, 1)

    def _inputs(self, observations: Tensor, actions: Tensor | None) -> Tensor:
        if not self.config.reads_actions:
            return observations
        assert actions is not None
        return torch.cat([observations, actions.to(observations)], -1)

    def sums(self, inputs: Tensor) -> Tensor:
        """(E, B) summed rewards of (B, H, D) stretches, by each member."""
        rows, length = inputs.shape[:2]
        rewards = torch.tanh(self.reward(inputs.reshape(rows * length, -1)).squeeze(-1))
        return rewards.reshape(-1, rows, length).sum(-1)

    def reward_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Likelihood of the comparisons, summed over members."""
        first, second = self.sums(batch["first"]), self.sums(batch["second"])
        preferred = batch["preferred"].squeeze(-1)
        right = ((first.mean(0) > second.mean(0)) == (preferred > 0.5)).to(first.dtype)
        spread = (first - second).std(0, correction=0)
        loss = self.config.members * preference_loss(first, second, preferred.expand_as(first))
        return loss, {"comparisons_right": right, "disagreement": spread}

    def updates(self) -> list[Update]:
        """One step of all members."""
        c = self.config
        return [Update(self.reward_loss, ("reward",), Adam(c.learning_rate), PAIRS, rows=c.pair_rows)]

    @torch.no_grad()
    def rewards_of(self, observations: Tensor, actions: Tensor) -> Tensor:
        """(N,) rewards of (N, O) observations and (N, A) actions, both in the environment's units."""
        seen = self.normalizer(observations)
        acted = self._scaled(actions) if self.config.reads_actions else None
        inputs = self._inputs(seen, acted)
        parts = [torch.tanh(self.reward(part).squeeze(-1)).mean(0) for part in inputs.split(AT_ONCE)]
        return torch.cat(parts)

    @torch.no_grad()
    def judged_on(self, held_out: Dataset, seed: int) -> dict[str, Any]:
        """How many comparisons that it never saw it gets right: of the file, or of held-out episodes."""
        self.normalizer.fixed = True
        store = store_from_dataset(self.prepare(held_out), self.required_columns)
        found = self._pairs(held_out, store)
        if found is None:
            return {}
        if self.config.labels is not None:
            found = _some(found, np.arange(len(found.first)) % HELD_OUT == 0)
        found = _some(found, (found.preferred[:, 0] != 0.5).numpy())
        if len(found.first) == 0:
            return {}
        first, second = (
            self.sums(self._inputs(seen, acted)).mean(0)
            for seen, acted in ((found.first, found.first_actions), (found.second, found.second_actions))
        )
        right = int(((first > second) == (found.preferred[:, 0] > 0.5)).sum())
        return {JUDGED: {"pairs": len(found.first), "right": right}}

    def judged_words(self, found: Mapping[str, Any]) -> list[str]:
        """What a run says of it."""
        if JUDGED not in found:
            return ["no comparison is held out, so nothing is known of what it is worth: give more labels or episodes"]
        right, pairs = found[JUDGED]["right"], found[JUDGED]["pairs"]
        return [f"held-out comparisons: {right:,} of {pairs:,} right ({100 * right / pairs:.1f} %)"]


def _some(found: ActedComparisons, chosen: np.ndarray) -> ActedComparisons:
    """The pairs where (P,) bool is true."""
    kept = torch.from_numpy(np.flatnonzero(chosen))
    return ActedComparisons(*(None if part is None else part[kept] for part in found))  # type: ignore[arg-type]
