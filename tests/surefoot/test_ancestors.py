"""Algorithms are put together of losses and methods, not of base classes: who reads one opens two others at most."""

from __future__ import annotations

import pytest

from surefoot.runs.algorithms import ALGORITHMS

MOST = 2


def ancestors(kind: type) -> list[type]:
    """The classes of ours that a class inherits from, in the order in which python asks them."""
    return [one for one in kind.__mro__[1:] if one.__module__.startswith("surefoot")]


CONFIGS = {kind.Config for kind in ALGORITHMS.values()}
"""Config classes that are an algorithm's."""


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_an_algorithm_has_at_most_two_ancestors_of_ours(name: str) -> None:
    found = [one.__name__ for one in ancestors(ALGORITHMS[name])]
    assert len(found) <= MOST, f"{name} inherits from {', '.join(found)}: take their methods by name (`methods_of`)"


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_config_extends_the_settings_of_at_most_two_other_algorithms(name: str) -> None:
    others = [one for one in ancestors(ALGORITHMS[name].Config) if one in CONFIGS]  # the rest are groups of options
    assert len(others) <= MOST, f"the config of {name} extends {', '.join(one.__name__ for one in others)}"
