"""Classes by name that are imported at their first use, and the tables of algorithms made of them."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

from surefoot import model_based, offline, online, safe, streaming
from surefoot.core.base.lazy import Lazy
from surefoot.core.engine.agent import Agent

ROOMS = [offline, online, safe, streaming, model_based]


def test_names_are_known_without_an_import_and_classes_are_those_of_their_modules() -> None:
    table: Lazy[object] = Lazy({"counter": "collections:Counter", "missing": "no_such_module:Thing"})
    assert list(table) == ["counter", "missing"]
    assert "missing" in table
    assert "other" not in table
    import collections

    assert table["counter"] is collections.Counter
    assert table.name_of("Thing") == "missing"
    assert table.name_of("Counter") == "counter"
    assert table.name_of("ounter") is None
    with pytest.raises(ModuleNotFoundError):
        table["missing"]
    with pytest.raises(KeyError):
        table["other"]
    both = table | Lazy({"missing": "collections:deque"})
    assert both["missing"] is collections.deque
    assert len(both) == 2


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.__name__)
def test_a_table_has_every_algorithm_of_its_room_by_its_own_name(room: ModuleType) -> None:
    found = {}
    for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
        for one in vars(importlib.import_module(module.name)).values():
            if isinstance(one, type) and issubclass(one, Agent) and one.__module__.startswith(f"{room.__name__}."):
                found[one] = one.__dict__.get("name", "")
    listed = dict(room.ALGORITHMS)
    assert {name: kind.name for name, kind in listed.items()} == {name: name for name in listed}
    named = {kind for kind, name in found.items() if name}
    assert {kind for kind in listed.values()} <= named
    assert {kind.__name__ for kind in named - set(listed.values())} <= {"StreamTD", "FittedQ"}  # used from python alone


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.__name__)
def test_every_name_of_a_room_is_found(room: ModuleType) -> None:
    assert set(room.__all__) <= set(dir(room)) | {"ALGORITHMS", "spec_of"}
    for name in room.__all__:
        assert getattr(room, name) is not None
    with pytest.raises(AttributeError):
        room.NoSuchAlgorithm  # noqa: B018


def test_an_algorithm_that_is_named_imports_no_other() -> None:
    code = (
        "import sys; from surefoot.runs.algorithms import ALGORITHMS; ALGORITHMS['iql']; "
        "print([m for m in ('dreamer', 'pets', 'ppo', 'fql') if any(n.endswith('.' + m) for n in sys.modules)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
