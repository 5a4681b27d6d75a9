"""Several training steps as one CUDA graph give the numbers of as many single ones: schedules, targets, logs.

Graphs that do again what was done inside them stand in for a GPU's (`fake_graphs`).
"""

from __future__ import annotations

from typing import Any

import fake_graphs
import pytest
import torch
from capture_guard import CaptureGuard, on_meta
from small_learners import small_learner

from surefoot.core.base.errors import ConfigError, DivergenceError
from surefoot.core.engine.agent import Adam
from surefoot.core.engine.capture import Graphed, check_steps_per_graph
from surefoot.core.engine.learner import Learner


def trained(name: str, at_once: int, runs: tuple[int, ...], **options: Any) -> tuple[Learner, list[dict[str, Any]]]:
    learner = small_learner(name, **options).learner
    learner.steps_per_graph = at_once
    learner.capture_graphs()
    return learner, [learner.run(steps) for steps in runs]


def assert_same(one: Learner, other: Learner) -> None:
    for position in range(len(one.seeds)):
        first, second = one.state(position), other.state(position)
        assert first.keys() == second.keys()
        for name, value in first.items():
            assert torch.equal(value, second[name]), name


RUNS = (21, 19, 3)
"""Calls of `run` that are no multiples of the steps of a graph, with three warm-ups, a capture and replays."""


@pytest.mark.parametrize("name", ["iql", "td3bc", "fql"])
def test_several_steps_at_once_are_as_many_single_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = fake_graphs.install(monkeypatch)
    single, expected = trained(name, 1, RUNS)
    alone = len(graphs)
    several, found = trained(name, 4, RUNS)
    assert len(graphs) > alone
    assert max(graph.replays for graph in graphs[alone:]) >= 2  # of each way in which updates are due
    assert several.step == single.step == sum(RUNS)
    assert_same(single, several)
    assert found == expected  # mean losses of all steps, metrics of the last


def test_each_of_several_steps_has_the_learning_rate_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_graphs.install(monkeypatch)
    learner, _ = trained("iql", 4, (32,))
    (actor,) = [optimizer for optimizer in learner.optimizers if optimizer.settings.schedule == "cosine"]
    assert isinstance(actor.settings, Adam)
    assert actor.taken == 32
    held = [turn.written for turn in actor._turns]
    assert len(held) == 4
    assert held == sorted(held, reverse=True)
    assert len({*held}) == 4
    actor.taken = 31
    assert held[3] == actor.learning_rate()


def test_what_happens_between_steps_keeps_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_graphs.install(monkeypatch)
    learner, _ = trained("iql", 4, ())
    assert isinstance(learner.capture, Graphed)
    steps: list[int] = []
    learner.run(9, before=lambda: steps.append(learner.step))
    assert steps == list(range(9))
    assert not learner.capture._of_several
    steps.clear()
    learner.run(9, pause=lambda: steps.append(learner.step))
    assert steps == [9, 13, 17]
    assert len(learner.capture._of_several) == 1


def test_a_loss_that_is_not_finite_is_found_at_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_graphs.install(monkeypatch)
    learner, _ = trained("iql", 4, (20,))
    learner.networks["value"].value[1, 0] = torch.nan
    with pytest.raises(DivergenceError, match=r"at step 21 \(seed 0\)"):
        learner.run(8)


def test_due_updates_in_more_ways_than_graphs_are_made_are_taken_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_graphs.install(monkeypatch)
    monkeypatch.setattr("surefoot.core.engine.capture.MOST_OF_SEVERAL", 0)
    learner, _ = trained("iql", 4, (8,))
    assert learner.step == 8
    assert isinstance(learner.capture, Graphed)
    assert not learner.capture._of_several


def test_several_steps_can_be_captured() -> None:
    shadow, count = on_meta(*small_learner("iql")), 4
    shadow.steps_per_graph = count
    shadow.capture_graphs()
    due = tuple(range(len(shadow.updates)))
    noise = {name: torch.stack([value] * count, 1) for name, value in shadow.stream.at(0).items()}
    rows = {name: torch.zeros(2, count, 8, dtype=torch.int64, device="meta") for name in shadow.sources}
    with CaptureGuard() as guard:
        metrics, losses = shadow._work_several(rows, noise, (due,) * count)
    assert guard.count > 0
    assert losses.shape == (count, len(due), 2)
    assert metrics


def test_steps_of_a_graph_divide_a_block() -> None:
    for steps in (1, 8, 32):
        check_steps_per_graph(steps)
    for steps in (0, 3, 64, True):
        with pytest.raises(ConfigError, match="must be 1, 2, 4, 8, 16 or 32"):
            check_steps_per_graph(steps)
