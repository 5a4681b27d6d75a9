"""Calibration: likelihoods, coverage and open-loop errors whose values are known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.core.base.errors import CheckpointError
from surefoot.core.base.schema import check
from surefoot.data.dataset import Dataset
from surefoot.evaluation.model_calibration import MODEL, picture, refuse_uneven, words
from surefoot.evaluation.plots import to_svg
from surefoot.world_models.calibration import LARGEST, calibration, covered, likelihood, windows
from surefoot.world_models.ensemble.ensemble import GaussianEnsemble
from surefoot.world_models.ensemble.gaussian import Prediction

NORMAL = torch.distributions.Normal(0.0, 1.0)


def episodes(lengths: tuple[int, ...], step: float = 0.0, noise: float = 1.0) -> Dataset:
    """Two states that move by `step` and normal noise, in episodes of these lengths."""
    source, count = np.random.default_rng(2), sum(lengths)
    change = step + noise * source.normal(size=(count, 2))
    first, last = np.zeros(count, bool), np.zeros(count, bool)
    last[np.cumsum(lengths) - 1] = True
    first[np.cumsum((0, *lengths[:-1]))] = True
    following = np.concatenate([np.cumsum(part, 0) for part in np.split(change, np.cumsum(lengths)[:-1])])
    observations = following - change
    return Dataset(
        observations.astype(np.float32),
        source.uniform(-1, 1, (count, 1)).astype(np.float32),
        source.normal(size=count).astype(np.float32),
        following.astype(np.float32),
        np.zeros(count, bool),
        last,
        np.repeat(np.arange(len(lengths)), lengths),
        np.ones(count, bool),
    )


class Told(GaussianEnsemble):
    """Two members that predict what they are given, wherever they are."""

    def __init__(self, means: tuple[tuple[float, ...], ...], std: float) -> None:
        super().__init__(2, 1, members=2, elites=2, hidden=(4,), decays=())
        self.reported, self.logged = torch.tensor(means), 2 * math.log(std)

    def forward(self, inputs: Tensor) -> Prediction:
        mean = self.reported[:, None].expand(2, len(inputs), 3)
        return Prediction(mean, torch.full_like(mean, self.logged))

    def _chosen(self, inputs: Tensor, member: Tensor) -> Tensor:
        return torch.cat([self.reported[member], torch.full((len(member), 3), self.logged)], -1)

    def _bounded(self, outputs: Tensor) -> Prediction:
        return Prediction(*outputs.chunk(2, -1))


def test_what_knows_the_mean_and_deviation_alone_has_the_entropy_of_a_gaussian() -> None:
    targets = 7 + 3 * torch.randn(40_000, 2, dtype=torch.float64)
    scale = targets.std(0, correction=0)
    known = Prediction(targets.mean(0).expand_as(targets), 2 * scale.log().expand_as(targets))
    assert likelihood(known, targets, scale) == pytest.approx(0.5 * math.log(2 * math.pi * math.e), rel=1e-6)


def test_the_likelihood_is_that_of_torch() -> None:
    targets, scale = torch.randn(50, 3).double(), torch.tensor([1.0, 2.0, 0.5]).double()
    prediction = Prediction(torch.randn(50, 3).double(), torch.randn(50, 3).double())
    scaled = torch.distributions.Normal(prediction.mean / scale, prediction.std / scale)
    assert likelihood(prediction, targets, scale) == pytest.approx(-scaled.log_prob(targets / scale).mean().item())


def test_intervals_cover_what_their_levels_say_of_normal_numbers_and_less_where_they_are_too_narrow() -> None:
    targets = NORMAL.icdf((torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000)[:, None]
    mean = torch.zeros_like(targets)
    assert covered(Prediction(mean, mean), targets, (0.1, 0.5, 0.9)) == pytest.approx([0.1, 0.5, 0.9], abs=1e-3)
    narrow = Prediction(mean, mean - 2 * math.log(2))
    assert covered(narrow, targets, (0.9,))[0] == pytest.approx(0.5891, abs=1e-3)  # P(|z| < 1.6449 / 2)


def test_windows_stay_in_their_episode_and_leave_out_rows_that_are_no_transitions() -> None:
    data = episodes((3, 7, 5))
    data.valid[5] = False  # two steps before it, four after it
    assert windows(data, 4).tolist() == [[6, 7, 8, 9], [10, 11, 12, 13], [11, 12, 13, 14]]
    assert windows(data, 50).tolist() == [[10, 11, 12, 13, 14]]
    assert windows(data, 2, 3).tolist() == [[0, 1], [7, 8], [13, 14]]


def test_errors_ahead_grow_by_what_a_member_errs_in_each_step() -> None:
    data = episodes((12,) * 30, step=1.0, noise=0.0)
    scale = data.observations.std(0)[0]
    found = calibration(Told(((1.0, 1.0, 0.0), (1.5, 1.5, 0.0)), 0.1), data)
    ahead = found["open_loop"]
    assert ahead["starts"] == 30
    assert ahead["steps"] == list(range(1, 13))
    assert ahead["members"][0] == pytest.approx([0.0] * 12, abs=1e-5)
    assert ahead["members"][1] == pytest.approx([0.5 * k / scale for k in range(1, 13)], rel=1e-4)
    assert ahead["constant"] == pytest.approx([k / scale for k in range(1, 13)], rel=1e-4)
    assert ahead["mean"] == pytest.approx([0.25 * k / scale for k in range(1, 13)], rel=1e-4)
    assert ahead["low"] == pytest.approx(ahead["high"], rel=1e-4)


def test_a_model_that_is_right_covers_what_it_promises() -> None:
    found = calibration(Told(((0.0, 0.0, 0.0),) * 2, 1.0), episodes((50,) * 100))
    for judged in (*found["members"], found["mixture"]):
        assert judged["coverage_50"] == pytest.approx(0.5, abs=0.02)
        assert judged["coverage_90"] == pytest.approx(0.9, abs=0.02)
        assert judged["nll"] == pytest.approx(1.419, abs=0.02)
        assert judged["error"] == pytest.approx(1.0, abs=0.02)


def test_a_model_that_runs_away_is_reported_in_finite_numbers_that_can_be_drawn() -> None:
    data = episodes((60,) * 4)
    found = calibration(Told(((3e38, 0.0, 0.0), (math.nan, 0.0, 0.0)), 1e-3), data)
    assert found["open_loop"]["mean"][-1] == LARGEST
    read = json.loads(json.dumps(found, allow_nan=False))
    check(read, MODEL, "a file")
    refuse_uneven([read], "a file")
    assert to_svg(picture([read, read], "two seeds")).startswith("<svg")
    assert "1: " in words([read])[1]
    read["open_loop"]["low"].pop()
    with pytest.raises(CheckpointError, match="points missing"):
        refuse_uneven([read], "a file")
