"""Mistakes in an algorithm of one's own end in a sentence, before anything is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from surefoot import BC, fit, offline
from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Agent, Update
from surefoot.data import Dataset, from_arrays
from surefoot.runs.trainers.trainer import SeedTrainer


class NoUpdates(offline.BC):
    """Trains nothing."""

    def updates(self) -> list[Update]:
        """None."""
        return []


class Bare(Agent):
    """Has a name, and no settings."""

    name = "bare"


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


def test_an_algorithm_without_settings_is_told_what_it_lacks() -> None:
    with pytest.raises(TypeError, match="Bare must define Config, a frozen dataclass of its settings"):
        Bare(data())


def test_a_prepare_that_returns_nothing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"prepare\(\) gives a NoneType"):
        SeedTrainer.prepared(None, [Forgetful(data(), hidden=(4,))], data())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"env": "none"}, r"learn\(\) has no option 'env': give env= to BC\(\) itself"),
        ({"environment": "none"}, r"learn\(\) has no option 'environment': give env= to BC\(\) itself"),
        ({"dataset": "x"}, r"give dataset= to BC\(\) itself"),
        ({"config": {}}, r"learn\(\) has no option 'config'"),
    ],
)
def test_what_an_algorithm_is_given_is_no_option_of_learn(option: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        BC(data(), env="none", hidden=(4,)).learn(2, **option)


@pytest.mark.parametrize("name", ["environment", "algorithm", "config"])
def test_what_fit_knows_from_elsewhere_is_no_option_of_it(name: str) -> None:
    with pytest.raises(ConfigError, match=f"fit has no option '{name}'"):
        fit(offline.BC(data(), hidden=(4,)), data(), env="none", steps=2, **{name: None})
