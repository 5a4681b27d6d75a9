"""Without a simulator each algorithm's losses are measured on episodes held out, where nothing was imagined."""

from __future__ import annotations

import math

import pytest
from plane import plane_data

from surefoot.model_based import ALGORITHMS
from surefoot.runs.trainers.offline import validation_losses

SMALL = {
    "model_updates": 4, "rollouts": 20, "rollout_length": 3, "imagine_every": 5, "hidden": (8, 6),
    "model_hidden": (7, 5), "model_decays": (), "model_members": 4, "model_elites": 3,
}  # fmt: skip


@pytest.mark.parametrize("name", ["combo", "imagined_sac", "mobile", "mopo", "morel", "rambo", "ravl"])
def test_losses_on_rows_held_out_are_finite_and_change_neither_limits_nor_statistics(name: str) -> None:
    agent = ALGORITHMS[name](plane_data(100), **SMALL).fresh(0)
    agent.prepare(plane_data(100))
    before = {key: value.clone() for key, value in agent.state_dict().items()}
    losses = validation_losses(agent, plane_data(40, seed=1))
    assert {"model_loss", "critic_loss", "actor_loss", "temperature_loss"} <= losses.keys()
    assert all(math.isfinite(value) for value in losses.values())
    assert all(bool((value == before[key]).all()) for key, value in agent.state_dict().items())
