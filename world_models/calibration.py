"""How far a learned model is to be believed: likelihood, coverage of its intervals, and errors of many steps ahead.

Sources: Gneiting, Balabdaoui and Raftery, "Probabilistic forecasts, calibration and sharpness" (2007), for coverage;
Lambert, Pister and Calandra, "Investigating Compounding Prediction Errors in Learned Dynamics Models" (2022), for
errors of open-loop predictions against their horizon.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import DataError
from surefoot.data.dataset import Dataset
from surefoot.data.store import segment_ids
from surefoot.world_models.dynamics import Dynamics, StepNoise
from surefoot.world_models.ensemble.ensemble import GaussianEnsemble
from surefoot.world_models.ensemble.gaussian import Prediction, mixture
from surefoot.world_models.tokens.dynamics import TokenDynamics

LEVELS = tuple(round(0.05 * k, 2) for k in range(1, 20))
"""Of the intervals whose coverage is measured."""
MOST_ROWS, MOST_STARTS, MOST_STEPS = 16_384, 256, 50
LARGEST = 1e6
"""Errors are cut off here: a model may predict its way to infinity, and reports hold finite numbers."""


def covered(prediction: Prediction, targets: Tensor, levels: tuple[float, ...] = LEVELS) -> list[float]:
    """Share of targets within the central interval of each level, over rows and dimensions.

    Args:
        prediction: (N, D).
        targets: (N, D).
        levels: in (0, 1).
    """
    distance = ((targets - prediction.mean) / prediction.std).abs().double()
    bounds = math.sqrt(2) * torch.erfinv(torch.tensor(levels, dtype=torch.float64))
    return [float((distance <= bound).double().mean()) for bound in bounds]


def likelihood(prediction: Prediction, targets: Tensor, scale: Tensor) -> float:
    r"""Mean negative log-density of a dimension, in nats, of targets in units of `scale`.

    With the targets' deviations as scale, a Gaussian of their mean and deviation has :math:`\log(2 \pi e) / 2 = 1.419`.
    """
    score = ((targets - prediction.mean) / prediction.std).square()
    return float((0.5 * (score + prediction.log_variance + math.log(2 * math.pi)) - scale.log()).double().mean())


def one_step(model: GaussianEnsemble, batch: dict[str, Tensor]) -> dict[str, Any]:
    """Likelihood, error and coverage of each member and of the elites' mixture on (N, ...) rows it never saw.

    Errors are root mean squares over dimensions, in units of the targets' deviations: 1 is no better than their mean.
    """
    targets = model.raw_targets(batch)
    scale = targets.std(0, correction=0)
    scale = torch.where(scale > 1e-6 * targets.abs().amax(0).clamp(min=1e-6), scale, torch.ones_like(scale))
    every = model.predict_all(batch["observations"], batch["actions"])

    def judged(prediction: Prediction) -> dict[str, float]:
        error = ((prediction.mean - targets) / scale).square().mean().sqrt()
        half, most = covered(prediction, targets, (0.5, 0.9))
        found = {"nll": likelihood(prediction, targets, scale), "error": float(error)}
        return {**{k: _finite(v) for k, v in found.items()}, "coverage_50": half, "coverage_90": most}

    members = [judged(Prediction(*parts)) for parts in zip(every.mean, every.log_variance, strict=True)]
    elites = model.elites.tolist()
    both = mixture(Prediction(every.mean[elites], every.log_variance[elites]))
    return {
        "rows": len(targets),
        "members": members,
        "elites": elites,
        "mixture": judged(both),
        "levels": list(LEVELS),
        "observed": covered(both, targets),
    }


def windows(dataset: Dataset, most_steps: int = MOST_STEPS, most_starts: int = MOST_STARTS) -> np.ndarray:
    """(W, H) rows of the dataset: H steps that followed each other, from starts that are evenly spread.

    H is the length of the longest episode, or `most_steps` where that is longer.

    Raises:
        DataError: no row is valid.
    """
    rows, segments = np.flatnonzero(dataset.transitions), segment_ids(dataset, ["next_observations"])
    if len(rows) == 0:
        raise DataError(f"{dataset.name}: no row is valid as a transition, so there is nothing to predict")
    steps = min(most_steps, int(np.bincount(segments).max()))
    starts = np.flatnonzero(segments[: len(rows) - steps + 1] == segments[steps - 1 :])
    starts = starts[np.linspace(0, len(starts) - 1, min(most_starts, len(starts))).round().astype(np.int64)]
    windows: np.ndarray = rows[starts[:, None] + np.arange(steps)]
    return windows


def open_loop(model: Dynamics, dataset: Dataset) -> dict[str, Any]:
    """Errors of predictions of k steps ahead, along recorded actions: the mean of each member, fed back to it.

    Args:
        model: predicts.
        dataset: whole episodes that it never saw, with actions in [-1, 1].

    Returns:
        For k = 1 to H the root mean square over dimensions, in units of the states' deviations in the data: averaged
        over starts for each member, and mean, 10 % and 90 % over starts for the elites' mixture; beside them that of a
        state that stays as it was.
    """
    rows = windows(dataset)
    observations, following = (torch.from_numpy(getattr(dataset, n)) for n in ("observations", "next_observations"))
    actions = torch.from_numpy(dataset.actions)
    scale = observations.std(0, correction=0)
    scale = torch.where(scale > 1e-6, scale, torch.ones_like(scale))
    first = observations[rows[:, 0]]
    each = first.expand(model.members, *first.shape)
    member = torch.arange(model.members).unsqueeze(-1)
    mixed = first
    curves: dict[str, list[Any]] = {"members": [], "mean": [], "low": [], "high": [], "constant": []}

    def errors(predicted: Tensor, true: Tensor) -> Tensor:
        error = ((predicted - true) / scale).square().mean(-1).sqrt()
        return error.nan_to_num(LARGEST, LARGEST).clamp(max=LARGEST)

    for k in range(rows.shape[1]):
        true, action = following[rows[:, k]], actions[rows[:, k]]
        each = model.step(each, action, StepNoise(member)).states
        mixed = model.step(mixed, action, StepNoise()).states
        of_mixture = errors(mixed, true)
        curves["members"].append(errors(each, true).mean(-1).tolist())
        curves["mean"].append(float(of_mixture.mean()))
        curves["low"].append(float(of_mixture.quantile(0.1)))
        curves["high"].append(float(of_mixture.quantile(0.9)))
        curves["constant"].append(float(errors(first, true).mean()))
    curves["members"] = [list(one) for one in zip(*curves["members"], strict=True)]
    return {"starts": len(rows), "steps": list(range(1, rows.shape[1] + 1)), **curves}


@torch.no_grad()
def calibration(model: GaussianEnsemble, dataset: Dataset) -> dict[str, Any]:
    """What `one_step` and `open_loop` say of a model, as JSON values.

    Args:
        model: learned.
        dataset: whole episodes that it never saw, with actions in [-1, 1] and observations in the environment's units.
    """
    costs = ["costs"] if model.costs else []
    return {**one_step(model, held_out_rows(dataset, *costs)), "open_loop": open_loop(model, dataset)}


def held_out_rows(dataset: Dataset, *others: str) -> dict[str, Tensor]:
    """The columns that a model is judged on, and `others`, of at most `MOST_ROWS` rows, evenly spread."""
    rows = np.flatnonzero(dataset.transitions)
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).round().astype(np.int64)]
    names = ("observations", "actions", "rewards", "next_observations", *others)
    return {name: torch.from_numpy(getattr(dataset, name)[rows]) for name in names}


@torch.no_grad()
def token_calibration(model: TokenDynamics, dataset: Dataset) -> dict[str, Any]:
    """As `calibration`, of a model of tokens: each number given those before it, its density even within a bin.

    Likelihoods and errors are in units of the deviations of reward and of the state's change, as an ensemble's are; an
    interval of level c has the numbers whose distribution function is within c / 2 of a half.
    """
    batch = held_out_rows(dataset)
    values = model.numbers(batch)
    tokens, given = model.bins.encode(values), model.given
    changes = torch.cat([batch["rewards"].unsqueeze(-1), batch["next_observations"] - batch["observations"]], -1)
    scale = changes.std(0, correction=0)
    scale = torch.where(scale > 1e-6 * changes.abs().amax(0).clamp(min=1e-6), scale, torch.ones_like(scale))
    borders, scores, errors, places = (model.bins.widths, model.bins.centres), [], [], []
    for part, numbers in zip(tokens.split(1024), values.split(1024), strict=True):
        logits, _ = model.transformer(part[:, :-1])
        odds, own = logits[:, given - 1 :].softmax(-1), part[:, given:].unsqueeze(-1)
        chance = odds.gather(-1, own).squeeze(-1)
        width, centre = (table[torch.arange(given, given + model.noise_dim), part[:, given:]] for table in borders)
        scores.append(-(chance.clamp(min=1e-30) / width.clamp(min=1e-6 * scale) * scale).log())
        mean = torch.stack([model.bins.expected(odds[:, i], given + i) for i in range(model.noise_dim)], -1)
        errors.append((mean - numbers[:, given:]) / scale)
        within_bin = ((numbers[:, given:] - centre) / width.clamp(min=1e-12) + 0.5).clamp(0, 1)
        below = odds.cumsum(-1).gather(-1, own).squeeze(-1) - chance * (1 - within_bin)
        places.append((2 * below - 1).abs())
    place = torch.cat(places)

    def within(level: float) -> float:
        return float((place <= level).double().mean())

    score, error = float(torch.cat(scores).double().mean()), float(torch.cat(errors).square().mean().sqrt())
    judged = {"nll": _finite(score), "error": _finite(error), "coverage_50": within(0.5), "coverage_90": within(0.9)}
    found = {"rows": len(tokens), "members": [judged], "elites": [0], "mixture": judged, "levels": list(LEVELS)}
    return {**found, "observed": [within(level) for level in LEVELS], "open_loop": open_loop(model, dataset)}


def _finite(value: float) -> float:
    return max(-LARGEST, min(LARGEST, value)) if not math.isnan(value) else LARGEST
