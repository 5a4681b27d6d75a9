"""A policy with its safety filter: acts, counts what was changed, and leaves the building as one file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core.errors import ConfigError
from surefoot.core.export import export
from surefoot.core.policy import Policy
from surefoot.safe.filters import SafetyFilter
from surefoot.safe.model import Model


def forgetful(policy: Any) -> None:
    """Make sure that a policy does not remember its own actions, which a filter would change behind its back.

    Raises:
        ConfigError: it does.
    """
    if hasattr(policy, "after_step"):
        raise ConfigError(
            "this policy remembers the actions that it gave (cdt does), and a filter carries out others: filter a "
            "policy that looks at the last observation only"
        )


class FilteredPolicy(nn.Module):
    """Any policy behind any filter; used like the policy.

    Counts since construction or `clear`: `actions` taken, `changed` by the filter, `short` where no action kept its
    condition.

    Args:
        policy: whose actions are filtered.
        safety: the filter.
        model: gives the state of an observation; None: the filter looks at observations themselves.

    Raises:
        ConfigError: the policy remembers its episode (cdt).
    """

    def __init__(self, policy: Policy, safety: SafetyFilter, model: Model | None) -> None:
        super().__init__()
        forgetful(policy)
        self.policy, self.safety, self.model = policy, safety, model
        self.clear()

    def clear(self) -> None:
        """Set the counts to 0."""
        self.actions = self.changed = self.short = 0

    @property
    def observation_dim(self) -> int:
        """Width of an observation."""
        return self.policy.observation_dim

    @property
    def action_dim(self) -> int:
        """Width of an action."""
        return self.policy.action_dim

    @property
    def noise_dim(self) -> int:
        """Standard normal numbers per row that a sample reads."""
        return self.policy.noise_dim

    @property
    def always_samples(self) -> bool:
        """Whether the policy has no action without noise."""
        return self.policy.always_samples

    def states(self, observations: Tensor) -> Tensor:
        """(N, S) states that the filter sees: float64, and float32 in an exported file, whose runtimes want it."""
        if self.model is None:
            return observations
        return self.model.state_of(observations if torch.compiler.is_compiling() else observations.double())

    def forward(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(N, A) filtered actions, without counting."""
        return self._filtered(observations, self.policy(observations, noise))[0]

    def _filtered(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states = self.states(observations)
        chosen, changed, short = self.safety(states, actions.to(states.dtype))
        return torch.where(changed[:, None], chosen.to(actions.dtype), actions), changed, short

    @torch.no_grad()
    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(N, A) actions for (N, O) observations, counted."""
        actions, changed, short = self._filtered(observations, self.policy.act(observations, noise))
        self.actions += len(actions)
        self.changed += int(changed.sum())
        self.short += int(short.sum())
        return actions

    def reset(self, seed: int = 0) -> None:
        """Begin an episode."""
        self.policy.reset(seed)

    def select_action(self, observation: np.ndarray) -> np.ndarray:
        """One action (A,) for one observation (O,), counted: for a control loop.

        Raises:
            EnvironmentMismatchError: an observation of another shape, or one that is not finite.
        """
        given = torch.from_numpy(self.policy.select_action(observation))[None]
        seen = torch.from_numpy(np.asarray(observation, dtype=np.float32))[None]
        with torch.no_grad():
            actions, changed, short = self._filtered(seen, given)
        self.actions, self.changed, self.short = self.actions + 1, self.changed + int(changed), self.short + int(short)
        return actions[0].numpy()

    def example(self, rows: int = 2) -> dict[str, Tensor]:
        """The policy's inputs by name, for exporters."""
        return self.policy.example(rows)

    def description(self) -> dict[str, Any]:
        """The policy's, and which filter it carries."""
        facts = {"kind": type(self.safety).__name__, "margin": getattr(self.safety, "margin", None)}
        return {**self.policy.description(), "filter": facts}

    def export(self, path: str | os.PathLike[str], *, sampling: bool = False) -> None:
        """Write policy and filter together as ONNX or as a `torch.export` program, as `Policy.export` does.

        The file holds the network, the system's equations and the grid; it has the policy's inputs and output.

        Raises:
            ExportError: another ending, or the exporter failed.
            MissingExtraError: the ONNX packages are not installed.
        """
        export(self, path, sampling=sampling)  # type: ignore[arg-type]
