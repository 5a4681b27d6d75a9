"""Statistics of an ensemble from rows of a buffer, and new ones for one that was trained: what it predicts stays."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Agent
from surefoot.world_models.ensemble.ensemble import GaussianEnsemble


@torch.no_grad()
def statistics_of(model: GaussianEnsemble, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Means and deviations of the inputs of (B, ...) rows, and of their targets where these are normalised, by name.

    With `model.fitted`, which says from then on that the model has any.
    """
    found = {"model.fitted": torch.ones_like(model.fitted)}
    values = {"input": torch.cat([batch["observations"], batch["actions"]], -1)}
    if model.normalize_targets:
        values["target"] = model.raw_targets(batch)
    for name, rows in values.items():
        scale = rows.std(0, correction=0)
        found[f"model.{name}_mean"] = rows.mean(0)
        found[f"model.{name}_scale"] = torch.where(scale < 1e-6, torch.ones_like(scale), scale)
    return found


def check_units(agent: Agent, model: GaussianEnsemble) -> None:
    """Refuse a model that was trained on observations as they are in an agent that has just normalised its own.

    Raises:
        ConfigError: such a model, from a run of a model alone (`init=`).
    """
    given = agent.normalizer
    changed = bool((given.mean != 0).any() or (given.scale != 1).any())
    if bool(model.fitted) and changed and not given.fixed:
        raise ConfigError(
            f"{agent.name}: the model that init= gives reads observations in the environment's units: set "
            "algo.normalization=none, or leave out init="
        )


def measured(model: GaussianEnsemble, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`statistics_of` rows for a model that has none yet; for one that has, `renormalised` ones.

    A model that comes from another run (`init=`) has been trained by its own before the first rows are met.
    """
    found = statistics_of(model, batch)
    return renormalised(model, found) if bool(model.fitted) else found


@torch.no_grad()
def renormalised(model: GaussianEnsemble, statistics: dict[str, Tensor]) -> dict[str, Tensor]:
    r"""The statistics, with first layer, last layer and bounds such that predictions in the environment's units stay.

    Inputs :math:`(x - m) / s` and targets :math:`(y - u) / t` get new m, s, u and t:

    .. math::
        W_1 &\to W_1 s' / s, \quad b_1 \to b_1 + W_1 (m' - m) / s \\
        W_\mu &\to W_\mu t / t', \quad b_\mu \to (b_\mu t + u - u') / t', \quad
            \log \sigma^2 \to \log \sigma^2 + 2 \log (t / t')

    the last of which moves the bounds of the log-variances too. It is what PopArt does to values (van Hasselt et al.,
    "Learning values across many orders of magnitude", 2016). Without it a model that keeps being trained forgets
    whenever the scale of its data changes, and is wrong at once where the change comes after its last step.

    Args:
        model: trained by its present statistics.
        statistics: "model.input_mean" and so on -> new values; those that are not named stay.

    Returns:
        Full names, `model.` in front -> new tensors, the statistics among them.
    """
    fresh = {name: statistics.get(f"model.{name}", getattr(model, name)) for name in STATISTICS}
    last, width = len(model.network.weights) - 1, model.noise_dim
    found = dict(statistics)

    weight, bias = model.network.weights[0], model.network.biases[0]
    moved = (fresh["input_mean"] - model.input_mean) / model.input_scale
    found["model.network.weights.0"] = weight * (fresh["input_scale"] / model.input_scale)
    found["model.network.biases.0"] = bias + (weight * moved).sum(-1)
    if not model.normalize_targets:
        return found

    name = f"model.network.weights.{last}"
    weight, bias = found.get(name, model.network.weights[last]), model.network.biases[last]
    shrunk = model.target_scale / fresh["target_scale"]
    ones, change = torch.ones_like(shrunk), 2 * shrunk.log()
    found[name] = weight * torch.cat([shrunk, ones])[:, None]
    means = bias[:, :width] * shrunk + (model.target_mean - fresh["target_mean"]) / fresh["target_scale"]
    found[f"model.network.biases.{last}"] = torch.cat([means, bias[:, width:] + change], -1)
    for bound in ("max_log_variance", "min_log_variance"):
        found[f"model.{bound}"] = getattr(model, bound) + change
    return found


STATISTICS = ("input_mean", "input_scale", "target_mean", "target_scale")
"""Names of an ensemble's statistics."""
