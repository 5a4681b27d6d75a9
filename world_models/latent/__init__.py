"""Latent consistency models (TD-MPC2's), and plans in them."""

from surefoot.world_models.latent.latent import (
    Bins,
    LatentCritic,
    LatentModel,
    PolicyPrior,
    SimplicialMLP,
    discount_notes,
    discount_of,
    dropped_units,
    kept_units,
    step_weights,
)

__all__ = [
    "Bins",
    "LatentCritic",
    "LatentModel",
    "PolicyPrior",
    "SimplicialMLP",
    "discount_notes",
    "discount_of",
    "dropped_units",
    "kept_units",
    "step_weights",
]
