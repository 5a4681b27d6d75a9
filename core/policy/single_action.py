"""One action at a time of a plain network, in numpy: what a torch call costs by itself is several times as much."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.actor import MLPActor
from surefoot.core.actors.heads import (
    DeterministicActor,
    GaussianActor,
    SoftplusGaussianActor,
    StateDependentActor,
    TanhGaussianActor,
    UnboundedGaussianActor,
)
from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.core.policy.control_loop import as_array
from surefoot.core.policy.scaling import Scaling

if TYPE_CHECKING:
    from surefoot.core.policy.policy_module import PolicyModule

Array = np.ndarray[Any, Any]
SQUASHED = (DeterministicActor, GaussianActor, TanhGaussianActor)
"""Heads whose mean action is tanh of the first A outputs of their network."""
CLIPPED = (UnboundedGaussianActor, StateDependentActor, SoftplusGaussianActor)
"""Heads whose mean action is those outputs themselves."""
ACTIVATIONS = ("relu", "tanh")
ZERO, ONE = np.zeros((), np.float32), np.ones((), np.float32)


class SingleAction:
    """(O,) observation -> (A,) float32 mean action of a policy, or None where there is no finite one.

    It reads the policy's own tensors where they lie, so weights that are changed in place count at once. Its results
    are those of `Policy.forward` up to rounding. Several threads may call it: they take turns.
    """

    def __init__(self, policy: PolicyModule) -> None:
        """Take views of the policy's tensors; of a policy for which `fits` is true."""
        actor: Any = policy.actor
        count = policy.action_dim
        last = len(actor.mlp.weights) - 1
        self.layers: list[tuple[Callable[..., Array], Array, Array]] = []
        for k, (weight, bias) in enumerate(zip(actor.mlp.weights, actor.mlp.biases, strict=True)):
            rows = slice(count if k == last else None)  # of two halves the first is the mean
            self.layers.append((_view(weight)[rows].dot, _view(bias)[rows], np.empty(len(bias[rows]), np.float32)))
        self.last = self.layers.pop()
        self.mean, self.scale = _view(policy.normalizer.mean), _view(policy.normalizer.scale)
        self.seen, self.nothing = np.empty_like(self.mean), np.zeros_like(self.mean)
        self.scaled, self.turn = Scaling(policy), threading.Lock()
        self.relu, self.squashed = actor.mlp.activation == "relu", type(actor) in SQUASHED

    def __call__(self, observation: Array) -> Array | None:
        """The action; None where the observation is no array of its shape, or is not finite, or gives what is not."""
        if type(observation) is not np.ndarray or observation.dtype != np.float32:
            try:
                observation = as_array(observation, np.float32)
            except EnvironmentMismatchError:
                return None
        if observation.shape != self.mean.shape:
            return None
        with self.turn:
            return self._made(observation)

    def _made(self, observation: Array) -> Array | None:
        value, add = self.seen, np.add
        np.subtract(observation, self.mean, value)
        np.divide(value, self.scale, value)
        if value.dot(self.nothing):  # NaN and infinity times 0 are NaN, which is true
            return None
        for times, bias, out in self.layers:
            times(value, out)
            add(out, bias, out)
            if self.relu:
                np.maximum(out, ZERO, out=out)
            else:
                np.tanh(out, out)
            value = out
        times, bias, out = self.last
        times(value, out)
        add(out, bias, out)
        if self.squashed:
            np.tanh(out, out)
        else:
            np.minimum(np.maximum(out, -ONE, out=out), ONE, out=out)
        return self.scaled(out)


def single_action(policy: PolicyModule) -> Callable[[Array], Array | None] | None:
    """The quickest way to one action that there is for this policy, or None: one observation -> action, or None."""
    if fits(policy):
        return SingleAction(policy)
    if policy.actor.kind in ("flow", "one_step", "chunk"):
        from surefoot.core.policy import single_flow

        return single_flow.SingleFlow(policy) if single_flow.fits(policy) else None
    return None


def fits(policy: PolicyModule) -> bool:
    """Whether `SingleAction` knows a policy of this kind: float32, on the CPU, a plain network without a memory."""
    actor = policy.actor
    if policy.encoder is not None or type(actor) not in (*SQUASHED, *CLIPPED) or not isinstance(actor, MLPActor):
        return False
    mlp = actor.mlp
    plain = mlp.activation in ACTIVATIONS and not mlp.unit_features and len(mlp.scales) == 0 and mlp.members is None
    usual = all(t.dtype == torch.float32 and t.device.type == "cpu" for t in policy.state_dict().values())
    return plain and usual and policy.normalizer.limit == float("inf")


def _view(tensor: Tensor) -> Array:
    return tensor.detach().numpy()
