"""Calls that a GPU repeats by CUDA graphs: the same results, from the arguments and weights of each call."""

from __future__ import annotations

import fake_graphs
import pytest
import torch
from torch import Tensor
from torch.func import vmap

from surefoot.core.engine.capture import GraphedCalls


def test_replayed_calls_follow_arguments_and_weights_and_results_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = fake_graphs.install(monkeypatch)
    weight, calls, count = torch.randn(2, 3, 3), GraphedCalls(), 0

    def act(observations: Tensor, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        nonlocal count
        count += 1
        found = vmap(lambda w, x: torch.tanh(x @ w))(weight, observations)
        return found, {"sum": memory["sum"] + found}

    kept = []
    for number in range(8):
        observations, memory = torch.randn(2, 5, 3), {"sum": torch.full((2, 5, 3), float(number))}
        found, after = calls("act", act, observations, memory)
        expected = torch.tanh(torch.bmm(observations, weight))
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(after["sum"], expected + number)
        kept.append((found, expected))
        weight.mul_(0.9)
    assert count == 4  # three times as it stands, once into the graph
    assert [graph.replays for graph in graphs] == [5]
    for found, expected in kept:
        torch.testing.assert_close(found, expected)


def test_other_sizes_and_other_names_have_graphs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, calls = fake_graphs.install(monkeypatch), GraphedCalls()
    for _ in range(5):
        for rows in (2, 3):
            one, other = (calls(name, lambda x, k=k: x * k, torch.ones(rows)) for k, name in ((2, "a"), (3, "b")))
            assert (one.tolist(), other.tolist()) == ([2.0] * rows, [3.0] * rows)
    assert len(graphs) == 4
