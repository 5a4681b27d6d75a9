"""Mistakes in an algorithm of one's own end in a sentence, before anything is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from surefoot import fit, offline
from surefoot.core.agent import Update
from surefoot.core.errors import ConfigError
from surefoot.data import Dataset, from_arrays
from surefoot.experiment.trainer import SeedTrainer


class NoUpdates(offline.BC):
    """Trains nothing."""

    def updates(self) -> list[Update]:
        """None."""
        return []


class Forgetful(offline.BC):
    """Prepares the dataset, and forgets to return it."""

    def prepare(self, dataset: Dataset) -> Any:
        """None."""
        super().prepare(dataset)


def data() -> Dataset:
    """Four steps."""
    return from_arrays(np.eye(4), np.linspace(-1, 1, 4)[:, None], np.ones(4), timeouts=[0, 1, 0, 1])


def test_an_algorithm_without_updates_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"updates\(\) gives none"):
        fit(NoUpdates(data(), hidden=(4,)), data(), steps=2, env="none", out=tmp_path / "run")


def test_a_prepare_that_returns_nothing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"prepare\(\) gives a NoneType"):
        SeedTrainer.prepared(None, [Forgetful(data(), hidden=(4,))], data())  # type: ignore[arg-type]
