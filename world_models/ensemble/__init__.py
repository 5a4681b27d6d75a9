"""Probabilistic ensembles: Gaussian networks, how they learn, how far they are to be believed, and plans in them."""

from surefoot.world_models.ensemble.ensemble import GaussianEnsemble
from surefoot.world_models.ensemble.gaussian import (
    DECAYS,
    Judge,
    Prediction,
    gaussian_loss,
    mixture,
    soft_clamp,
    squared_error,
    weighted_mean,
)

__all__ = [
    "DECAYS",
    "GaussianEnsemble",
    "Judge",
    "Prediction",
    "gaussian_loss",
    "mixture",
    "soft_clamp",
    "squared_error",
    "weighted_mean",
]
