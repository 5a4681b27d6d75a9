"""Which steps a model should predict well: weights of rows, since likelihood alone does not say what control needs.

Source: Lambert, Amos, Yadan and Calandra, "Objective Mismatch in Model-based Reinforcement Learning" (2020), section 5,
for the distance to a trajectory; Voelcker, Liao, Garg and Farahmand, "Value Gradient weighted Model-Based Reinforcement
Learning" (2022), for the value's gradient; Rahimi and Recht, "Random Features for Large-Scale Kernel Machines" (2007).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from surefoot.core.base.errors import DataError
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import returns_to_go

Array = np.ndarray
CHUNK = 4096


def uniform(dataset: Dataset) -> Array:
    """(N,) ones."""
    return np.ones(len(dataset), np.float32)


def near(dataset: Dataset, target: Dataset, scale: float = 1.0) -> Array:
    r"""(N,) :math:`e^{-d / \text{scale}}`, d the distance of (s, a) to the nearest step of a target trajectory.

    Distances are Euclidean, in units of the data's deviations, over the root of the number of dimensions.

    Raises:
        DataError: the target's sizes differ, or the scale is not above 0.
    """
    if not scale > 0:
        raise DataError(f"the scale of distances is {scale}, must be > 0")
    points, wanted = (np.concatenate([d.observations, d.actions], 1).astype(np.float64) for d in (dataset, target))
    if points.shape[1] != wanted.shape[1] or len(wanted) == 0:
        raise DataError(f"{target.name}: no trajectory of the sizes of {dataset.name}")
    deviation = points.std(0)
    deviation[deviation < 1e-12] = 1.0
    points, wanted = points / deviation, wanted / deviation
    squares = (wanted**2).sum(1)
    found = []
    for first in range(0, len(points), CHUNK):
        part = points[first : first + CHUNK]
        found.append(((part**2).sum(1)[:, None] - 2 * part @ wanted.T + squares).min(1))
    distance = np.sqrt(np.maximum(np.concatenate(found), 0) / points.shape[1])
    return np.exp(-distance / scale).astype(np.float32)


def near_best(dataset: Dataset, scale: float = 1.0) -> Array:
    """(N,) `near` the episode of the highest return in the data itself."""
    return near(dataset, dataset.select_episodes(np.array([int(dataset.episode_returns.argmax())])), scale)


def recent(dataset: Dataset, half_life: float = 0.25) -> Array:
    """(N,) halved for every `half_life` of the rows that were recorded after a row: nearer the newest policy.

    Raises:
        DataError: the half-life is not above 0.
    """
    if not half_life > 0:
        raise DataError(f"the half-life is {half_life}, must be > 0 of all rows")
    age = np.arange(len(dataset))[::-1] / max(1, len(dataset) - 1)
    return (0.5 ** (age / half_life)).astype(np.float32)


def by_value(dataset: Dataset, gradient: Callable[[Array], Array], most: float = 10.0) -> Array:
    r"""(N,) :math:`\lVert \sigma \odot \nabla V(s') \rVert` over its mean: how much an error there changes the value.

    The paper weighs each dimension of a row's error, by its own derivative; here whole rows are weighed. Errors are in
    units of the data's deviations :math:`\sigma`.

    Args:
        dataset: its next observations are what is predicted.
        gradient: (N, O) observations -> (N, O) derivatives of a value, such as that of a critic of yours.
        most: weights are cut off here, so that a few rows are not all that counts.

    Raises:
        DataError: the derivatives' shape is another one, or one is not finite.
    """
    found = np.asarray(gradient(dataset.next_observations), np.float64)
    if found.shape != dataset.next_observations.shape or not np.isfinite(found).all():
        raise DataError(f"{dataset.name}: the value's derivatives must be finite, one for each observed number")
    size = np.linalg.norm(found * dataset.observations.std(0), axis=1)
    mean = size[dataset.transitions].mean()
    return np.minimum(size / mean, most).astype(np.float32) if mean > 0 else uniform(dataset)


def value_gradient(dataset: Dataset, discount: float = 0.99, features: int = 256, ridge: float = 1e-2) -> Array:
    """(N,) `by_value` of the value of those who recorded the data.

    It is fitted to the discounted returns-to-go of the rows, by ridge regression on random Fourier features of the
    observations, whose kernel is as wide as the data. What would have come after a row's last recorded step is not
    counted.
    """
    source = np.random.default_rng(0)
    mean, deviation = dataset.observations.mean(0, dtype=np.float64), dataset.observations.std(0, dtype=np.float64)
    deviation[deviation < 1e-12] = 1.0
    width = dataset.observation_dim
    directions, phases = source.normal(size=(width, features)) / np.sqrt(width), source.uniform(0, 2 * np.pi, features)

    def angles(observations: Array) -> Array:
        turned: np.ndarray = (observations - mean) / deviation @ directions + phases
        return turned

    waves = np.cos(angles(dataset.observations))
    target = returns_to_go(dataset, discount, dtype=np.float64)
    gram = waves.T @ waves + ridge * len(waves) * np.eye(features)
    height = np.linalg.solve(gram, waves.T @ (target - target.mean()))
    return by_value(dataset, lambda following: -(np.sin(angles(following)) * height) @ directions.T / deviation)


def effective_sample_size(weights: Array) -> float:
    r""":math:`(\sum w)^2 / \sum w^2`: how many rows of equal weight would tell as much; 0 where all weights are 0."""
    values = np.asarray(weights, np.float64)
    squares = float((values**2).sum())
    return float(values.sum() ** 2 / squares) if squares > 0 else 0.0


WEIGHTS = {"uniform": uniform, "near_best": near_best, "recent": recent, "value_gradient": value_gradient}
"""What the option `model_weights` may be: rows are weighed by a function of the dataset."""
