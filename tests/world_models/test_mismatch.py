"""Weights of rows: their values by hand, what they do to the loss, and how many rows are left of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from refusals import refused
from small_models import learner, linear

from surefoot.core.base.errors import DataError
from surefoot.world_models.ensemble.learning import HOLDOUT, MODEL
from surefoot.world_models.ensemble.mismatch import (
    by_value,
    effective_sample_size,
    near,
    near_best,
    recent,
    uniform,
    value_gradient,
)


def test_the_effective_sample_size_counts_rows_of_equal_weight() -> None:
    assert effective_sample_size(np.ones(7)) == 7
    assert effective_sample_size(np.array([1.0, 0.0, 0.0])) == 1
    assert effective_sample_size(np.array([3.0, 1.0])) == pytest.approx(1.6)
    assert effective_sample_size(np.zeros(2)) == 0


def test_distances_are_to_the_nearest_step_of_the_target() -> None:
    data = linear(10_000)
    target = data.select_episodes(np.array([3]))
    found = near(data, target, scale=0.5)
    points, wanted = (np.concatenate([d.observations, d.actions], 1) for d in (data, target))
    scale = points.std(0)
    for row in (0, 31, 9_999):
        distance = np.sqrt((((points[row] - wanted) / scale) ** 2).mean(1)).min()
        assert found[row] == pytest.approx(np.exp(-distance / 0.5), rel=1e-3)
    assert found[30:40] == pytest.approx(np.ones(10), rel=1e-3)
    best = int(data.episode_returns.argmax())
    assert near_best(data)[10 * best : 10 * best + 10] == pytest.approx(np.ones(10), rel=1e-3)


def test_recent_rows_weigh_twice_those_of_a_half_life_before() -> None:
    found = recent(linear(401), half_life=0.25)
    assert found[400] == 1
    assert found[300] == pytest.approx(0.5)
    assert found[0] == pytest.approx(1 / 16)


def test_the_value_s_gradient_is_weighed_in_deviations_over_its_mean() -> None:
    data = linear()
    deviation, following = data.observations.std(0), data.next_observations
    found = by_value(data, lambda seen: 2 * seen)  # of V(s) = |s|^2
    size = np.linalg.norm(2 * following * deviation, axis=1)
    np.testing.assert_allclose(found, size / size.mean(), rtol=1e-5)
    assert by_value(data, lambda seen: 2 * seen, most=0.5).max() == 0.5
    np.testing.assert_array_equal(by_value(data, np.zeros_like), uniform(data))
    with pytest.raises(DataError, match="derivatives must be finite"):
        by_value(data, lambda seen: seen[:, :1])


def test_weights_by_the_fitted_value_are_large_where_it_is_steep() -> None:
    data = linear(4_000)
    steep = data.observations[:, 0]
    bumps = data.replace(rewards=np.tanh(4 * steep).astype(np.float32))
    weights, place = value_gradient(bumps, discount=0.0), np.abs(data.next_observations[:, 0])
    assert weights[place < 0.2].mean() > 2 * weights[(place > 1) & (place < 2)].mean()
    assert 0.1 * len(data) < effective_sample_size(weights) < len(data)


def test_scales_and_targets_that_make_no_sense_are_refused() -> None:
    data = linear()
    for wrong in (lambda: near(data, data, 0.0), lambda: recent(data, 0.0), lambda: near(data, linear(states=3))):
        with pytest.raises(DataError):
            wrong()


def test_weights_are_in_the_loss_and_both_errors_of_the_holdout_are_told() -> None:
    found = learner(model_weights="recent", planned_steps=10)
    batch = found.sources[MODEL].gather(found.sources[MODEL].rows(0)[0])
    model = found.agent.model
    expected, _ = model.loss(batch, batch["model_weights"])
    plain, _ = model.loss(batch)
    told = found.run(1)["model_loss"][0]
    assert told == pytest.approx(expected.item(), rel=1e-5)
    assert told != pytest.approx(plain.item(), rel=1e-5)
    last = found.run(9)
    held = found.sources[HOLDOUT].gather(found.sources[HOLDOUT].rows(0)[0])
    assert last["model_error_uniform"][0] != pytest.approx(np.mean([last[f"model_error_{e}"][0] for e in range(3)]))
    assert torch.isfinite(model.holdout_errors(held, held["model_weights"])).all()
    share = effective_sample_size(recent(linear())) / 400
    assert any(f"{100 * share:.0f} %" in note for note in found.agent.notes(linear()))
    assert uniform(linear()).sum() == 400
    with refused("model_weights", "choice"):
        learner(model_weights="nonsense")
