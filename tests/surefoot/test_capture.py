"""Every algorithm's training step could be a CUDA graph: each of its updates, on the meta device under the guard."""

from __future__ import annotations

from typing import Any

import problems
import pytest
import safe_problems
from capture_guard import check_acting_captured, check_captured
from small_learners import small_learner

from surefoot.online.base.agents import OffPolicyAgent
from surefoot.online.base.on_policy_agent import OnPolicyAgent
from surefoot.runs.algorithms import ALGORITHMS
from surefoot.streaming.agent import StreamingAgent

NOT_CAPTURED = dict.fromkeys(
    ("avg", "intentional_ac", "intentional_q", "stream_ac", "stream_q", "stream_sarsa"),
    "learns from one sample at a time, by a native call or plain PyTorch: there is no Learner, and no graph",
)
NOT_CAPTURED["hilp"] = "solves with the second moment of its features in each step, which a GPU's host waits for"
NOT_CAPTURED["ppo_trees"] = "takes no gradient step: its trees grow by a rule"
"""Algorithm -> why no step of it is captured."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    name: variant for name, variant in {**problems.VARIANTS, **safe_problems.VARIANTS}.items() if name not in ALGORITHMS
}
"""Those of the rooms' own tests whose losses differ from an algorithm's usual ones."""


def test_what_is_not_captured_is_what_has_no_learner_or_solves_equations() -> None:
    streaming = {name for name, kind in ALGORITHMS.items() if issubclass(kind, StreamingAgent)}
    assert set(NOT_CAPTURED) == {*streaming, "hilp", "ppo_trees"}


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in NOT_CAPTURED])
def test_a_training_step_can_be_captured(name: str) -> None:
    assert check_captured(*small_learner(name)) > 0


CAPTURED_ACTORS = [
    name
    for name, kind in ALGORITHMS.items()
    if issubclass(kind, OnPolicyAgent) or (issubclass(kind, OffPolicyAgent) and not kind.acting.stateful)
]
"""Algorithms whose loops let them act by a captured call."""


@pytest.mark.parametrize("name", CAPTURED_ACTORS)
def test_acting_can_be_captured(name: str) -> None:
    check_acting_captured(*small_learner(name))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_training_step_of_a_variant_can_be_captured(variant: str) -> None:
    name, options = VARIANTS[variant]
    assert check_captured(*small_learner(name, **options)) > 0
