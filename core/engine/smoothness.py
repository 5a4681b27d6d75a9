"""How much a policy's mean action changes with its observation: measured exactly, and penalised in training.

Source: Xie, Karol and Hodgins, "Learning Smooth Time-Varying Linear Policies with an Action Jacobian Penalty",
arXiv 2602.18312. Their penalty is the squared Frobenius norm of the Jacobian d mu(s) / d s; observations are normalised
here, and actions in [-1, 1]. How the paper estimates it for a network is not known to us: ours is below.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Agent, Loss, Metrics, Rule, Update
from surefoot.core.engine.features import each_once
from surefoot.core.engine.sources import joined
from surefoot.core.losses.masked import reduce
from surefoot.core.policy.policy import Policy

Act = Callable[[Tensor], Tensor]
"""(B, O) normalised observations -> (B, A) mean actions, each row by itself."""
NOISE = "jacobian"
"""Name of the penalty's random numbers: a stream of their own, so that all others stay as they are."""
DISTANCE = 1e-2
"""Standard deviation of the observations' displacement, normalised: small beside 1, and far above float32 rounding."""


def jacobian(act: Act, observations: Tensor) -> Tensor:
    """(B, A, O) d mu(s) / d s at (B, O) normalised observations, exactly, by A backward passes."""
    options: Any = {"create_graph": torch.is_grad_enabled(), "retain_graph": True, "materialize_grads": True}
    with torch.enable_grad():
        rows = observations.detach().requires_grad_()
        summed = act(rows).sum(0)  # an action depends on no other row, so the sum mixes nothing
        of_each = [torch.autograd.grad(one, rows, **options)[0] for one in summed]
    return torch.stack(of_each, 1)


def squared_jacobian(act: Act, observations: Tensor) -> Tensor:
    """(B,) squared Frobenius norm of the Jacobian at (B, O) normalised observations, exactly."""
    return jacobian(act, observations).square().sum((-2, -1))


def squared_jacobian_estimate(act: Act, observations: Tensor, noise: Tensor, distance: float = DISTANCE) -> Tensor:
    r"""(B,) estimates of the squared Frobenius norm that one ordinary backward pass differentiates.

    .. math:: |\mu(s + e u) - \mu(s)|^2 / e^2, \quad E |J u|^2 = |J|_F^2

    Unbiased for a linear policy at any distance e. For a smooth one the bias is of order e^2, since the odd moments of
    u are 0; where kinks of relu are within reach it is of order e. The standard deviation of one row's estimate is
    sqrt 2 |J J'|_F, at most sqrt 2 |J|_F^2; a batch averages over its rows.

    Args:
        act: the policy's mean action.
        observations: (B, O) normalised.
        noise: (B, O) standard normal, u.
        distance: e > 0, in normalised units.
    """
    with torch.autocast(observations.device.type, enabled=False):  # half precision can't tell the two actions apart
        change = act(observations + distance * noise) - act(observations)
    return (change * (1 / distance)).square().sum(-1)


def measured(policy: Policy, observations: Tensor) -> float | None:
    """Mean of the exact squared norm over (N, O) observations in the environment's units; None where it has none.

    The mean action is that before it is clipped to [-1, 1]. Policies of images or several arrays have none: their
    derivatives are not with respect to one vector.
    """
    one_vector = policy.encoder is None and len(observations) > 0
    if not one_vector or policy.discrete or _without_mean(policy.actor) is not None:
        return None
    with torch.no_grad():
        return float(squared_jacobian(policy.actor.act, policy.normalizer(observations)).double().mean())


def check_penalty(agent: Agent, updates: Sequence[Update | Rule] | None = None) -> None:
    """Make sure that a penalty can reach the agent's policy.

    Args:
        agent: that is to be trained.
        updates: its updates, where they are known already.

    Raises:
        ConfigError: says why it can't.
    """
    reason = _why_not(agent, updates)
    if reason is not None:
        raise ConfigError(f"jacobian_penalty: {agent.name} can't have one, {reason}; leave it out")


def penalised(agent: Agent, updates: Sequence[Update | Rule], weight: float) -> list[Update | Rule]:
    """The agent's updates; to the loss of each that trains `actor` the penalty is added, under the same name.

    Args:
        agent: whose `mean_action` is penalised.
        updates: as `agent.updates()` gives them.
        weight: of the mean squared norm over the batch, >= 0; 0 changes nothing.

    Raises:
        ConfigError: a weight out of range, or a policy that a penalty can't reach.
    """
    if not 0 <= weight < math.inf:
        raise ConfigError(f"jacobian_penalty is {weight}, must be a number from 0 on")
    if weight == 0:
        return list(updates)
    check_penalty(agent, updates)
    noise = {NOISE: Noise("normal", agent.spec.observation_dim)}

    def smoothed(u: Update | Rule) -> Update | Rule:
        if not isinstance(u, Update) or "actor" not in u.trains:
            return u
        return dataclasses.replace(u, loss=_with_penalty(agent, u.loss, weight), noise={**u.noise, **noise})

    return each_once(smoothed, updates)


def _with_penalty(agent: Agent, loss: Loss, weight: float) -> Loss:
    @functools.wraps(loss)
    def both(batch: Any, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        value, metrics = loss(batch, {name: numbers for name, numbers in noise.items() if name != NOISE})
        rows = batch if "observations" in batch else joined(batch)
        terms = squared_jacobian_estimate(agent.mean_action, rows["observations"], noise[NOISE])
        mask = rows.get("mask")
        penalty = reduce(terms, mask if mask is not None and mask.dim() == 1 else None)  # of rows, not of their actions
        return value + weight * penalty, {**metrics, "jacobian": penalty}

    return both


def _why_not(agent: Agent, updates: Sequence[Update | Rule] | None) -> str | None:
    if type(agent).updates is Agent.updates:
        return "it learns from one sample at a time and has no batches whose loss a penalty could be added to"
    if agent.spec.discrete:
        return "it has discrete actions, which change by jumps and have no Jacobian"
    reason = _without_mean(getattr(agent, "actor", None))
    if reason is not None:
        return reason
    entries = agent.updates() if updates is None else updates
    if any(isinstance(entry, Update) and "actor" in entry.trains for entry in entries):
        return None
    if any(isinstance(entry, Rule) and "actor" in entry.changes for entry in entries):
        return "its policy is stepped by a natural gradient, not by the gradient of a loss"
    return "no loss of it trains a network `actor` that acts"


def _without_mean(actor: object) -> str | None:
    """Why a policy head has no mean action as a function of one observation; None where it has."""
    if actor is None:
        return "it has no network `actor`"
    if not isinstance(actor, Actor):
        return None
    if actor.always_samples:
        return "its actions are always drawn, so there is no mean one that depends on the observation alone"
    if actor.has_memory:
        return "its action depends on the steps before too, not on one observation"
    return None
