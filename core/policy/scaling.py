"""One action at a time in the environment's units, in numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from surefoot.core.policy.policy_module import PolicyModule

Array = np.ndarray[Any, Any]


class Scaling:
    """Outputs in [-1, 1] to actions in the environment's units; bounds that are changed in place count at once."""

    def __init__(self, policy: PolicyModule) -> None:
        self.bounds = policy.action_low, policy.action_high
        self.no_action = np.zeros(policy.action_dim, np.float32)
        self._read()

    def _read(self) -> None:
        self.version = self.bounds[0]._version + self.bounds[1]._version
        low, high = self.bounds
        self.low, self.high = low.numpy(), high.numpy()
        self.middle, self.half = ((high + low) / 2).numpy(), ((high - low) / 2).numpy()
        ends = self.middle - self.half, self.half + self.middle  # rounding keeps order: no action lies beyond these
        self.leaves = bool((ends[0] < self.low).any() or (ends[1] > self.high).any())

    def __call__(self, out: Array) -> Array | None:
        """(A,) the action, a new array; None where it is not finite."""
        if self.bounds[0]._version + self.bounds[1]._version != self.version:
            self._read()
        action: Array = self.half * out
        np.add(action, self.middle, action)
        if self.leaves:  # rounding may give the next float beyond a bound
            np.minimum(np.maximum(action, self.low, out=action), self.high, out=action)
        return None if action.dot(self.no_action) else action
