"""TRPO: the natural gradient, stepped as far as a bound on the divergence lets it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.func import functional_call

from surefoot.core.agent import Adam, Batch, Metrics, Update, require
from surefoot.core.masked import normalise, reduce
from surefoot.core.policy_gradient import clip_surrogate, log_ratio
from surefoot.core.value_learning import value_loss
from surefoot.online.on_policy_agent import EpochsConfig, OnPolicyAgent


@dataclasses.dataclass(frozen=True)
class TRPOConfig(EpochsConfig):
    """Settings of TRPO."""

    max_kl: float = 0.01  # largest mean KL(policy that acted || new policy)
    damping: float = 0.1  # added to the Fisher matrix
    conjugate_steps: int = 10
    backtracks: int = 10  # halvings of the step
    accept_ratio: float = 0.1  # least gain, as a fraction of the linear prediction
    learning_rate: float = 1e-3  # of the critic

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        require(self.max_kl > 0, "trpo", "max_kl", self.max_kl, "> 0")
        require(self.damping >= 0, "trpo", "damping", self.damping, ">= 0")
        require(self.conjugate_steps >= 1, "trpo", "conjugate_steps", self.conjugate_steps, ">= 1")
        require(self.backtracks >= 1, "trpo", "backtracks", self.backtracks, ">= 1")


class TRPO(OnPolicyAgent):
    r"""TRPO of Schulman et al., "Trust Region Policy Optimization" (2015).

    .. math::
        \max_\theta E\, \rho A \quad \text{with} \quad E\, KL(\pi_k \| \pi_\theta) \le \delta

    by one step along :math:`F^{-1} g`, found by conjugate gradients, of the length at which the quadratic model of the
    divergence is :math:`\delta`, halved until divergence and gain are as they should be. The critic is fitted after.
    """

    name = "trpo"
    Config = TRPOConfig
    config: TRPOConfig

    def columns(self, block: Mapping[str, Tensor]) -> Batch:
        """Advantages, returns, and what the policy that acted gave."""
        columns = self.advantages(block)
        columns["advantages"] = normalise(columns["advantages"], block.get("mask"))
        columns["behaviour"] = self.behaviour(block["observations"])
        kept = {name: block[name] for name in ("observations", "actions", "mask") if name in block}
        return {**kept, **columns}

    def policy_step(self, batch: Batch) -> tuple[dict[str, Tensor], Metrics]:
        """The actor's new parameters by their full names, from all rows of a block; the old ones where no step is good.

        Source: Schulman et al., section 6 and appendix C.
        """
        c, mask = self.config, batch.get("mask")
        start = {name: value.detach() for name, value in self.actor.named_parameters()}
        names, behaviour = list(start), self.actor.from_rows(batch["behaviour"])
        before = self.actor.log_density(behaviour, batch["actions"])

        def outputs(flat: Tensor) -> tuple[Tensor, Tensor] | Tensor:
            parts = zip(names, flat.split([start[name].numel() for name in names]), strict=True)
            given = {name: part.view_as(start[name]) for name, part in parts}
            return functional_call(self.actor, given, (batch["observations"],))  # type: ignore[no-any-return]

        def gain(flat: Tensor) -> Tensor:
            log_prob = self.actor.log_density(outputs(flat), batch["actions"])  # type: ignore[arg-type]
            terms, _ = clip_surrogate(log_ratio(log_prob, before, mask), batch["advantages"], None, mask=mask)
            return -reduce(terms, mask)

        def divergence(flat: Tensor) -> Tensor:
            return reduce(self.actor.divergence(behaviour, outputs(flat)), mask)  # type: ignore[arg-type]

        theta = torch.cat([start[name].reshape(-1) for name in names])
        found, metrics = natural_step(gain, divergence, theta, c)
        sizes = [start[name].numel() for name in names]
        parts = {f"actor.{n}": p.view_as(start[n]) for n, p in zip(names, found.split(sizes), strict=True)}
        return parts, metrics

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error of the value."""
        mask, value = batch.get("mask"), self.value(batch["observations"])
        return reduce(value_loss(value, batch["returns"], mask=mask), mask), {"value": value}

    def updates(self) -> list[Update]:
        """The critic; the actor is stepped before, by `policy_step`."""
        return [Update(self.critic_loss, ("value",), Adam(self.config.learning_rate))]


def natural_step(
    gain: Callable[[Tensor], Tensor], divergence: Callable[[Tensor], Tensor], theta: Tensor, c: TRPOConfig
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
        slope = torch.autograd.grad(divergence(leaf), leaf, create_graph=True)[0]

    def fisher(vector: Tensor) -> Tensor:
        with torch.enable_grad():
            product = torch.autograd.grad((slope * vector).sum(), leaf, retain_graph=True)[0]
        return product + c.damping * vector

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
