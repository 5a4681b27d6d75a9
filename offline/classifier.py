"""A success classifier: whether an observation shows that the task is done, for a reward where nothing measures it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError, DataError, nearest
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.engine.features import named
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.engine.traits import Requires, WarmStart
from surefoot.core.nn.encoders import on_vectors
from surefoot.core.nn.networks import MLP
from surefoot.data.dataset import NAMED, Dataset
from surefoot.data.prepare import NORMALIZATIONS, prepare
from surefoot.data.sources import Balanced
from surefoot.data.store import learnable, store_from_dataset

LABELS, JUDGED = "labels", "classifier"
OF = ("next_observations", "observations")
BLOCK = 256
"""Observations that are judged at once."""
PER = 1000
LEAST = 0.5
"""Lowest threshold."""


@dataclasses.dataclass(frozen=True)
class ClassifierConfig(EncoderConfig):
    """Settings of the success classifier."""

    label: str = option("success", "column of 0 and 1: of the dataset's extras, or rewards (above 0), or terminations")
    label_of: str = option(
        "next_observations", "what a row's label speaks of: where its step led, or where it began", choices=OF
    )
    learning_rate: float = option(1e-4, "learning rate", range="> 0")
    hidden: tuple[int, ...] = option((256,), "widths of the hidden layers")
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)


class Classifier(Agent):
    r"""One logit of an observation: :math:`L = - E\, [y \log\sigma(f(s)) + (1 - y) \log(1 - \sigma(f(s)))]`.

    Half of each batch are observations of success, half are others, whatever their shares in the data. A tenth of the
    episodes is held out, and of these a run says how many failing observations pass for success, and which threshold
    lets at most one in a thousand do so: a single false success would end an episode with a reward. The threshold is
    never below a half. It is what `reward=RUN` judges by.

    Source: the reward classifiers of Luo et al., "Precise and Dexterous Robotic Manipulation via Human-in-the-Loop
    Reinforcement Learning" (HIL-SERL, 2024).
    """

    name = "classifier"
    Config = ClassifierConfig
    required_columns = ("observations", LABELS)
    requires = Requires(policy=False, discrete=True)
    warm_start = WarmStart(networks=("classifier", "normalizer"))
    config: ClassifierConfig

    def build(self) -> None:
        """The network behind the encoder."""
        self.classifier = MLP(self.features, 1, self.config.hidden)

    def prepare(self, dataset: Dataset) -> Dataset:
        """Observations that labels speak of, normalised, and the labels."""
        labelled = self.labelled(dataset)
        return prepare(self, labelled, normalization=self.config.normalization)

    def labelled(self, dataset: Dataset) -> Dataset:
        """The dataset with `extras["labels"]`, whose observations are those that its labels speak of.

        Raises:
            DataError: there is no such column, or one of other numbers than 0 and 1.
        """
        name, extras = self.config.label, dict(dataset.extras)
        if name == "rewards":
            values = dataset.rewards > 0
        elif name == "terminations":
            values = dataset.terminations
        elif name in extras and not name.startswith((NAMED, f"next_{NAMED}")):
            values = np.asarray(extras[name])
        else:
            known = [key for key in extras if not key.startswith((NAMED, f"next_{NAMED}"))]
            raise DataError(
                f"{dataset.name}: has no column {name!r}, which algo.label names: "
                f"{nearest(name, [*known, 'rewards', 'terminations'])}"
            )
        values = values.reshape(len(dataset), -1)
        if values.shape[1] != 1 or not np.isin(values, (0, 1)).all():
            row = 0 if values.shape[1] != 1 else int((~np.isin(values, (0, 1))).any(1).argmax())
            raise DataError(
                f"{dataset.name}: {name!r} is {values[row].tolist()} in row {row}; a label is one number, 0 or 1"
            )
        extras[LABELS] = values[:, 0].astype(np.float32)
        if self.config.label_of == "observations":
            return dataset.replace(extras=extras)
        extras |= {key.removeprefix("next_"): value for key, value in extras.items() if key.startswith(f"next_{NAMED}")}
        return dataset.replace(
            observations=dataset.next_observations, valid=dataset.transitions, next_known=None, extras=extras
        )

    def notes(self, dataset: Dataset) -> list[str]:
        """How many observations are of each kind."""
        ready = self.labelled(dataset)
        labels = ready.extras[LABELS][learnable(ready, self.required_columns)]
        return [f"{dataset.name}: {int(labels.sum()):,} of {len(labels):,} observations show success"]

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """As many observations of success as others.

        Raises:
            DataError: all are of one kind.
        """
        return {MAIN: Balanced(stores.data, stores.data[LABELS] > 0, self.config.label)}

    def classifier_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Cross-entropy in nats."""
        logits, labels = self.classifier(batch["observations"]).squeeze(-1), batch[LABELS]
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
        return loss, {"accuracy": ((logits > 0) == (labels > 0)).to(logits.dtype).mean()}

    def updates(self) -> list[Update]:
        """One step of the network, and of the encoder with it."""
        return [Update(self.classifier_loss, ("classifier",), Adam(self.config.learning_rate))]

    @torch.no_grad()
    def probability(self, observations: Any) -> Tensor:
        """(B,) that (B, ...) observations show success, in the environment's units; several arrays as a dict."""
        if self.encoder is None:
            return self._judge(self.normalizer(observations))
        if not isinstance(observations, Mapping):
            observations = dict.fromkeys(self.encoder.arrays, observations)
        return self._judge(on_vectors(self.normalizer, observations, self.encoder.vectors))

    def _judge(self, normalised: Any) -> Tensor:
        features = normalised if self.encoder is None else self.encoder(normalised)
        return torch.sigmoid(self.classifier(features).squeeze(-1))

    @torch.no_grad()
    def judged_on(self, held_out: Dataset, seed: int) -> dict[str, Any]:
        """False positives and misses on episodes that it never saw, and the threshold."""
        self.normalizer.fixed = True
        store = store_from_dataset(self.prepare(held_out), self.required_columns)
        parts = []
        for rows in torch.arange(len(store)).split(BLOCK):
            batch = store.gather(rows)
            seen = batch["observations"] if self.encoder is None else named(batch, self.encoder, "observations")
            parts.append(self._judge(seen))
        scores, success = torch.cat(parts).double().numpy(), store[LABELS].numpy() > 0
        return {JUDGED: judged(scores, success)}

    def judged_words(self, found: Mapping[str, Any]) -> list[str]:
        """What a run says of it."""
        return [in_words(found[JUDGED])] if JUDGED in found else []


def judged(scores: np.ndarray[Any, Any], success: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Counts of held-out observations, by (N,) scores in [0, 1] and (N,) bool labels.

    `threshold` is the lowest from 0.5 on that at most 1 of 1,000 failing observations reach, None where there are none;
    `positives_bound` bounds the share of failing observations that reach it, with 95 % confidence (Clopper and Pearson,
    1934), each taken for independent of the others.
    """
    from scipy.stats import beta

    failing = np.sort(scores[~success])[::-1]
    count, passing = len(failing), int((failing >= LEAST).sum())
    found: dict[str, Any] = {"failing": count, "success": int(success.sum()), "positives_at_half": passing}
    if count == 0:
        return {**found, "threshold": None, "positives": None, "positives_bound": None, "missed": None}
    allowed = count // PER
    threshold = max(LEAST, float(np.nextafter(failing[allowed], np.inf))) if failing[allowed] >= LEAST else LEAST
    positives = int((failing >= threshold).sum())
    bound = 1.0 if positives == count else float(beta.ppf(0.95, positives + 1, count - positives))
    missed = int((scores[success] < threshold).sum())
    return {**found, "threshold": threshold, "positives": positives, "positives_bound": bound, "missed": missed}


def in_words(found: Mapping[str, Any]) -> str:
    """A sentence on what `judged` found."""
    if found["threshold"] is None:
        return "held-out episodes show no failing observation: there is no threshold; give more episodes"
    count, half = found["failing"], found["positives_at_half"]
    return (
        f"held-out episodes: {PER * half / count:.3g} false positives per 1,000 at a probability of 0.5 ({half} of "
        f"{count:,}); threshold {found['threshold']:.4g} lets {found['positives']} pass (at most "
        f"{PER * found['positives_bound']:.3g} per 1,000, 95 %) and misses {found['missed']} of {found['success']:,} "
        "successes"
    )


def threshold_of(found: Mapping[str, Any] | None, name: str) -> float:
    """The threshold in a seed's result.

    Raises:
        ConfigError: there is none.
    """
    threshold = None if found is None else found.get("threshold")
    if not isinstance(threshold, int | float) or not 0 < threshold <= 2:
        raise ConfigError(
            f"{name}: has no threshold, for no held-out episode showed a failing observation: train it on more episodes"
        )
    return float(threshold)
