"""What is learned from is the training episodes' real steps: no padding counts, and no other row is in a statistic."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from test_visual_cloning import EPISODES, ROWS, columns, made

from surefoot import fit
from surefoot.core.engine.agent import Agent, Update
from surefoot.core.engine.features import encoded
from surefoot.data import Dataset, from_arrays
from surefoot.data.decision_source import DecisionSource
from surefoot.data.store import Store
from surefoot.offline.bc import BC
from surefoot.offline.diffusion_bc import DiffusionBC
from surefoot.offline.flow_bc import FlowBC
from surefoot.runs.run import split


@pytest.mark.parametrize("kind", [FlowBC, DiffusionBC], ids=lambda kind: kind.name)
def test_what_is_off_behind_an_episodes_end_counts_in_no_loss_and_before_it_does(kind: type[Agent]) -> None:
    """Windows at an end repeat the last action, which peers learn from as if it had been taken again and again.

    Of a network that gives 0 the loss is the square of its targets: actions less noise, or noise.
    """
    (agent,) = made(kind, [0], shift=0)
    network = agent.velocity if isinstance(agent, FlowBC) else agent.noise_network
    with torch.no_grad():
        for parameter in network.parameters():  # type: ignore[union-attr]
            parameter.zero_()
    source = DecisionSource(Store.pack(columns()), EPISODES, agent.chunk, agent.chunk, agent.frames)
    batch = source.gather(torch.arange(ROWS))
    padded = (batch["mask"] == 0).unsqueeze(-1).expand_as(batch["actions"])
    assert padded.any()
    (update,) = agent.updates()
    assert isinstance(update, Update)

    def loss(changed: torch.Tensor) -> float:
        """With targets that are off where it says."""
        numbers = np.random.default_rng(1)
        noise = {
            name: torch.from_numpy(numbers.random((ROWS, one.width)).astype(np.float32))
            for name, one in update.noise.items()
        }
        actions = torch.where(changed, 0.7, batch["actions"])
        if isinstance(agent, DiffusionBC):
            noise["noise"] = torch.where(changed.flatten(1), 3.0, noise["noise"])
        given = agent.annotate(encoded(agent, {**batch, "actions": actions}, {}))
        return float(update.loss(given, noise)[0].detach())

    own = loss(torch.zeros_like(padded))
    assert loss(padded) == own
    assert loss(~padded) != own


def recorded() -> Dataset:
    """Twenty episodes of 6 steps, in each of which the state stands at a number of its own."""
    source, rows = np.random.default_rng(0), 120
    state = np.repeat(source.normal(size=(20, 2)) * 10, 6, 0) + 0.1 * source.normal(size=(rows, 2))
    return from_arrays(state, source.uniform(-1, 1, (rows, 1)), np.ones(rows), timeouts=np.arange(rows) % 6 == 5)


def test_statistics_are_of_the_training_episodes_and_not_of_those_held_out(tmp_path: pathlib.Path) -> None:
    data = recorded()
    learned, held = split(data, BC.required_columns)
    assert held is not None
    run = fit(
        BC(data, hidden=(8,), normalization="observations"),
        data,
        steps=1,
        seeds=1,
        batch_size=4,
        env=None,
        out=tmp_path / "run",
    )
    mean = run.policy().normalizer.mean.numpy()
    np.testing.assert_allclose(mean, learned.observations[learned.valid].mean(0), atol=1e-5)
    assert np.abs(mean - data.observations.mean(0)).max() > 0.1


def test_statistics_are_of_rows_and_not_of_padded_windows() -> None:
    data = recorded()
    options: dict[str, Any] = {"hidden": (8,), "normalization": "observations"}
    row, windows = BC(data, **options), FlowBC(data, chunk=5, **options)
    row.prepare(data)
    windows.prepare(data)
    torch.testing.assert_close(row.normalizer.mean, windows.normalizer.mean)
    torch.testing.assert_close(row.normalizer.scale, windows.normalizer.scale)
    np.testing.assert_allclose(windows.normalizer.mean.numpy(), data.observations.mean(0), atol=1e-5)
