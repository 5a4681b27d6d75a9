"""Records of facts about agents: what a subclass states, what it gets from its bases, and the names up to 0.3."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import pytest

from surefoot.core.engine.agent import Rule, Update
from surefoot.core.engine.traits import Requires, Vision, WarmStart
from surefoot.offline import BC
from surefoot.online import SAC
from surefoot.online.base.agents import OffPolicyAgent


def test_a_subclass_states_what_differs_and_gets_the_rest_of_its_bases() -> None:
    class Child(OffPolicyAgent):
        requires = Requires(discrete=True)

    class Grandchild(Child):
        requires = Requires(data="refused")

    assert (Child.requires.data, Child.requires.online, Child.requires.discrete) == ("optional", True, True)
    assert (Grandchild.requires.data, Grandchild.requires.online, Grandchild.requires.discrete) == (
        "refused",
        True,
        True,
    )
    assert OffPolicyAgent.requires == Requires(data="optional", online=True)  # bases are as they were
    assert Child.vision == Vision()


def test_a_record_refuses_unknown_fields_and_changes() -> None:
    with pytest.raises(TypeError, match="Requires has no dta; it has continuous, costs, data"):
        Requires(**{"dta": "refused"})
    with pytest.raises(dataclasses.FrozenInstanceError, match="state data in a subclass"):
        SAC.requires.data = "refused"  # type: ignore[misc]


def test_class_attributes_up_to_0_3_are_read_with_a_warning_that_says_what_to_write() -> None:
    with pytest.warns(DeprecationWarning, match=r"requires = Requires\(data='required', discrete=True\)") as caught:

        class Earlier(BC):
            reads: ClassVar[tuple[str, ...]] = ("observations",)
            chooses = True
            data = "required"
            inherits = ("actor",)

            def adopt(self, source: Any) -> None:
                """As `load_from` was named."""

    assert len(caught) == 1
    assert "required_columns for reads; load_from for adopt" in str(caught[0].message)
    assert Earlier.requires.discrete
    assert Earlier.requires.data == "required"
    assert Earlier.warm_start == WarmStart(networks=("actor",))
    assert Earlier.required_columns == ("observations",)
    assert Earlier.load_from is Earlier.adopt


def test_keywords_of_updates_and_rules_up_to_0_3_are_read_with_a_warning() -> None:
    moves = {"target": ("critic", 0.5)}
    with pytest.warns(DeprecationWarning, match=r"Update\(then=...\) is target_updates now"):
        earlier = Update(abs, ("critic",), then=moves)  # type: ignore[call-arg, arg-type]
    assert earlier == Update(abs, ("critic",), target_updates=moves)  # type: ignore[arg-type]
    with pytest.warns(DeprecationWarning, match="simultaneous now"):
        assert Update(abs, ("critic",), together=True).simultaneous  # type: ignore[call-arg, arg-type]
    with pytest.warns(DeprecationWarning, match=r"Rule\(then=...\) is target_updates now"):
        assert Rule(then=moves).target_updates == moves  # type: ignore[call-arg]
