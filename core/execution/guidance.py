"""Flows that are guided towards actions which are already on their way: new chunks that continue the older ones.

While a chunk is planned the robot plays what was planned before. A sample that takes another way from there on makes it
jump; guided, the sample agrees with the actions that will be played before it takes over, and less and less with those
after them. Source: Black, Galliker and Levine, "Real-Time Execution of Action Chunking Flow Policies".
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.flow_actor import FlowActor
from surefoot.core.actors.memory_actors import HistoryActor
from surefoot.core.base.actions import to_agent, to_bounds
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import mapped
from surefoot.core.execution.inference import Array, PolicyPlanner, Request
from surefoot.core.losses.flow import Field, euler
from surefoot.core.policy.chunk_playing import chunk_of
from surefoot.core.policy.policy import Policy
from surefoot.core.policy.policy_module import policy_noise


def soft_mask(chunk: int, certain: int, coming: int) -> tuple[float, ...]:
    """Weight of each of C actions in the guidance.

    1 for i < d, c_i (exp(c_i) - 1) / (e - 1) with c_i = (n - i) / (n - d + 1) for d <= i < n, and 0 from n on.

    Args:
        chunk: C.
        certain: d, actions that will be played before the new chunk takes over.
        coming: n, actions that are planned, at least d and at most C.
    """
    parts = [min(1.0, max(0.0, (coming - i) / (coming - certain + 1))) for i in range(chunk)]
    fading = [part * math.expm1(part) / math.expm1(1.0) for part in parts]
    return tuple(1.0 if i < certain else weight for i, weight in enumerate(fading))


def guided(field: Field, target: Tensor, weights: Tensor, limit: float) -> Field:
    r"""A flow that is pulled towards a target.

    .. math::
        v'(x, t) = v + \min\Big(\beta, \frac{t^2 + (1 - t)^2}{t (1 - t)}\Big) \,
        \big(W (y - \hat x_1)\big)^T \frac{\partial \hat x_1}{\partial x}, \quad \hat x_1 = x + (1 - t) v(x, t)

    Args:
        field: v.
        target: (B, D) y.
        weights: (D,) W.
        limit: beta.
    """

    def velocity(x: Tensor, time: Tensor) -> Tensor:
        with torch.enable_grad():
            place = x.detach().requires_grad_()
            moved = field(place, time)
            ahead = place + (1 - time).unsqueeze(-1) * moved
            pull = torch.autograd.grad(ahead, place, (weights * (target - ahead)).detach())[0]
        scale = ((time.square() + (1 - time).square()) / (time * (1 - time))).clamp(max=limit)
        return moved.detach() + scale.unsqueeze(-1) * pull

    return velocity


class GuidedPlanner(PolicyPlanner):
    """A flow policy of chunks whose new chunks are guided to continue what is planned already.

    Args:
        policy: of chunks, from a `FlowActor` of one sample, alone or within a history of observations.
        limit: beta, above 0; 5 as published.

    Raises:
        ConfigError: another policy, or limit.
    """

    def __init__(self, policy: Policy, limit: float = 5.0) -> None:
        head = chunk_of(policy)
        flow = None if head is None else head.inner
        if not isinstance(flow, FlowActor) or flow.samples != 1:
            raise ConfigError("only chunks that a flow draws, one sample each, can be guided; leave the guidance out")
        if not 0 < limit < math.inf:
            raise ConfigError(f"the limit of guidance is {limit}; it is above 0, such as 5")
        self.limit = limit
        super().__init__(policy)

    def plan(self, request: Request) -> Array:
        """As of any planner."""
        coming = len(request.coming)
        if coming == 0:
            return super().plan(request)
        checked, memory = request.seen
        actor, size = self._plans.actor, len(self.low)
        with torch.no_grad():
            seen = self._plans.read(mapped(lambda part: torch.from_numpy(part).unsqueeze(0), checked))
            if isinstance(actor, HistoryActor):
                seen = actor.flat(torch.cat([memory["past"], seen.unsqueeze(1)], 1))
                actor = actor.inner
            assert isinstance(actor, FlowActor)
            noise = policy_noise(1, actor.noise_dim, self._seed, request.draw)
            target = noise.new_zeros(self.chunk, size)
            known = torch.from_numpy(np.asarray(request.coming, np.float32))
            target[:coming] = to_agent(known, self.policy.action_low, self.policy.action_high)
            mask = torch.tensor(soft_mask(self.chunk, request.certain, coming)).repeat_interleave(size)
            field = guided(actor.field(seen), target.reshape(1, -1), mask, self.limit)
            numbers = euler(field, noise, actor.steps, 1.0, actor.clip_each).reshape(self.chunk, size)
            found: Array = to_bounds(numbers, self.policy.action_low, self.policy.action_high).numpy()
        return found
