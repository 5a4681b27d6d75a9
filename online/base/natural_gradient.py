"""Natural-gradient steps within a bound on the divergence, as TRPO and CPO take them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from surefoot.core.actors.actor import DistributionActor
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Batch, Metrics
from surefoot.core.losses.masked import reduce
from surefoot.core.losses.policy_gradient import clip_surrogate, log_ratio
from surefoot.core.nn.native import kernels
from surefoot.online.base.on_policy_config import EpochsConfig


@dataclasses.dataclass(frozen=True)
class TrustRegionConfig(EpochsConfig):
    """Settings of an agent whose policy takes natural-gradient steps."""

    max_kl: float = option(0.01, "largest mean KL(policy that acted || new policy)")
    damping: float = option(0.1, "damping added to the Fisher matrix")
    conjugate_steps: int = option(10, "steps of the conjugate-gradient solver")
    backtracks: int = option(10, "halvings of the step")
    accept_ratio: float = option(0.1, "least gain, as a fraction of the linear prediction")


class Surface:
    """What a block says of policies near the one that acted, as functions of all the actor's parameters in a row."""

    def __init__(self, actor: DistributionActor, batch: Batch) -> None:
        """Begin at the actor's parameters.

        Args:
            actor: an actor of on-policy agents.
            batch: `observations`, `actions`, `behaviour` (the policy that acted) and, where there is one, `mask`.
        """
        self.actor, self.batch, self.mask = actor, batch, batch.get("mask")
        self._own = {name: value.detach() for name, value in actor.named_parameters()}
        self._behaviour = actor.from_rows(batch["behaviour"])
        self._before = actor.density_of(self._behaviour, batch["actions"])
        self.start = torch.cat([value.reshape(-1) for value in self._own.values()])
        """(P,) the parameters."""

    def _parts(self, flat: Tensor) -> dict[str, Tensor]:
        parts = flat.split([value.numel() for value in self._own.values()])
        return {name: part.view_as(self._own[name]) for name, part in zip(self._own, parts, strict=True)}

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """(P,) parameters by their full names in the agent."""
        return {f"actor.{name}": part for name, part in self._parts(flat).items()}

    def _outputs(self, flat: Tensor) -> Any:
        with kernels.use(None):  # their backward can't be differentiated again
            return functional_call(self.actor, self._parts(flat), (self.batch["observations"],))

    def surrogate(self, flat: Tensor, advantages: Tensor) -> Tensor:
        """() mean of rho A."""
        log_prob = self.actor.density_of(self._outputs(flat), self.batch["actions"])
        terms, _ = clip_surrogate(log_ratio(log_prob, self._before, self.mask), advantages, None, mask=self.mask)
        return -reduce(terms, self.mask)

    def entropy(self, flat: Tensor) -> Tensor:
        """() mean entropy of the policy with these parameters, in nats."""
        return reduce(self.actor.entropy_of(self._outputs(flat)), self.mask)

    def divergence(self, flat: Tensor) -> Tensor:
        """() mean KL(policy that acted || policy with these parameters), in nats."""
        return reduce(self.actor.divergence(self._behaviour, self._outputs(flat)), self.mask)


def fisher_product(divergence: Callable[[Tensor], Tensor], theta: Tensor, damping: float) -> Callable[[Tensor], Tensor]:
    """v -> (F + damping) v, F being the Hessian of a divergence at (P,) theta."""
    with torch.enable_grad():
        leaf = theta.detach().clone().requires_grad_()
        slope = torch.autograd.grad(divergence(leaf), leaf, create_graph=True)[0]

    def product(vector: Tensor) -> Tensor:
        with torch.enable_grad():
            found = torch.autograd.grad((slope * vector).sum(), leaf, retain_graph=True)[0]
        return found + damping * vector

    return product


def natural_step(
    gain: Callable[[Tensor], Tensor], divergence: Callable[[Tensor], Tensor], theta: Tensor, c: TrustRegionConfig
) -> tuple[Tensor, Metrics]:
    """One natural-gradient step with a line search.

    Args:
        gain: (P,) parameters -> what is to be maximised.
        divergence: (P,) parameters -> mean divergence from the policy at `theta`, whose Hessian there is F.
        theta: (P,) where it begins.
        c: max_kl, damping, conjugate_steps, backtracks and accept_ratio.

    Returns:
        The new parameters, `theta` itself where no step was accepted; gain, divergence and length of the step.
    """
    with torch.enable_grad():
        leaf = theta.detach().clone().requires_grad_()
        start = gain(leaf)
        gradient = torch.autograd.grad(start, leaf)[0]
    fisher = fisher_product(divergence, theta, c.damping)
    with torch.no_grad():
        direction = conjugate_gradient(fisher, gradient, c.conjugate_steps)
        curvature = torch.dot(direction, fisher(direction))
        length = torch.sqrt(2 * c.max_kl / curvature.clamp(min=torch.finfo(theta.dtype).tiny))
        expected = length * torch.dot(gradient, direction)
        nothing = torch.zeros_like(length)
        for turn in range(c.backtracks):
            share = 0.5**turn
            tried = theta + share * length * direction
            better, far = gain(tried) - start, divergence(tried)
            if bool((better > c.accept_ratio * share * expected) & (far <= c.max_kl)):
                return tried, {"policy_gain": better, "kl": far, "step_length": share * length}
        return theta, {"policy_gain": nothing, "kl": nothing, "step_length": nothing}


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], target: Tensor, steps: int, tolerance: float = 1e-10
) -> Tensor:
    """x with product(x) = target, for a symmetric positive definite product, after at most `steps` steps.

    Args:
        product: (P,) -> (P,).
        target: (P,).
        steps: P of them are exact but for rounding.
        tolerance: of the squared residual; the rest of the steps then change nothing.

    Source: Hestenes and Stiefel (1952).
    """
    found = torch.zeros_like(target)
    residual, direction = target.clone(), target.clone()
    size = torch.dot(residual, residual)
    for _ in range(steps):
        ahead = product(direction)
        going = size > tolerance  # on the device: no step waits for a number
        along = torch.dot(direction, ahead)
        step = torch.where(going, size / torch.where(going, along, 1), 0)
        found = found + step * direction
        residual = residual - step * ahead
        now = torch.dot(residual, residual)
        direction = torch.where(going, residual + now / torch.where(going, size, 1) * direction, direction)
        size = torch.where(going, now, size)
    return found
