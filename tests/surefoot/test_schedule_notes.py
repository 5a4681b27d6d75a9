"""What follows a schedule that ends with the run is given where a run is extended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from surefoot.core.engine.agent import Spec
from surefoot.core.engine.optimizer import Network, Optimizer
from surefoot.runs.algorithms import ALGORITHMS
from surefoot.runs.extend import schedule_notes


@pytest.mark.parametrize(
    ("algorithm", "options", "said"),
    [
        ("reinflow", {"noise": "learn_decay"}, True),
        ("reinflow", {"noise": "learn"}, False),
        ("reinflow", {"noise": "learn_decay", "transition": "consistency"}, False),
        ("rlcm", {"noise": "learn_decay", "transition": "reinflow"}, True),
        ("mdpo", {}, True),
        ("a2c", {}, False),
    ],
)
def test_what_goes_by_the_part_of_the_run_that_is_over_is_told(
    algorithm: str, options: dict[str, Any], said: bool
) -> None:
    agent = ALGORITHMS[algorithm](Spec(3, 2, (-1.0, -1.0), (1.0, 1.0)), **options)
    run: Any = SimpleNamespace(agent=lambda: agent)
    told = [text for text in schedule_notes(run, 4000) if text.startswith(f"{algorithm} changes its noise")]
    assert len(told) == said
    assert all("now ends at step 4,000: that jumps here" in text for text in told)


@pytest.mark.parametrize(
    ("schedule", "said"), [("constant", False), ("warm_up", False), ("cosine", True), ("linear", True)]
)
def test_only_learning_rates_that_end_with_the_run_are_told(schedule: str, said: bool) -> None:
    warm_up = 0 if schedule == "constant" else 100
    agent = ALGORITHMS["dt"](Spec(3, 1, (-1.0,), (1.0,)), schedule=schedule, warm_up=warm_up)
    rates = []
    for planned in (1000, 2000):
        optimizer = Optimizer(agent.updates()[0].optimizer, [Network({"weight": torch.zeros(1, 3)})], planned)
        optimizer.taken = 500
        rates.append(optimizer.learning_rate())
    assert (rates[0] != rates[1]) == said
    run: Any = SimpleNamespace(agent=lambda: agent)
    assert any("follows a schedule" in text for text in schedule_notes(run, 2000)) == said
